"""What a profile holds: times at the points of one axis, or at the crossings of two. Microseconds, per call."""

from __future__ import annotations

from dataclasses import dataclass

MEASURED, FALLBACK = "measured", "fallback"
BASES = (MEASURED, FALLBACK)
MOST_CALLS = 10**5  # of an operation in an iteration: their nanoseconds stay below 2^63

Axis = tuple[float, ...]


@dataclass(frozen=True)
class OpTable:
    """`count` calls per iteration of an operation at the points of one axis.

    `basis` says where the times come from: timed, or from a roofline fitted to what was timed. `n` and `k` are the
    output and input features of a linear layer, 0 for another operation or where they aren't stated.
    """

    op: str
    count: int
    axis: Axis
    us: Axis
    basis: str = MEASURED
    n: int = 0
    k: int = 0


@dataclass(frozen=True)
class GridTable:
    """Times at every crossing of two axes: us[row][column].

    `total_tokens` is the largest row x column that was timed, where not every crossing was: the rest are filled in.
    """

    rows: Axis
    columns: Axis
    us: tuple[Axis, ...]
    total_tokens: float | None = None


@dataclass(frozen=True)
class AxisTable:
    """Values at the points of one axis; a single point stands for a constant."""

    axis: Axis
    values: Axis


@dataclass(frozen=True)
class PrefillRoofline:
    """floor + ((us_per_pair pairs)^p + (us_per_token tokens + us_per_context_token contexts)^p)^(1/p), microseconds.

    Compute by query-key pairs, memory by the new tokens (queries, outputs, their keys and values) and the tokens in
    memory before them; a smooth corner between the two.
    """

    floor_us: float
    us_per_pair: float
    us_per_token: float
    us_per_context_token: float
    power: float

    def us(self, pairs: float, tokens: float, contexts: float) -> float:
        """One layer's call of so many pairs, new tokens and tokens before them, each summed over its chunks."""
        compute = self.us_per_pair * pairs
        memory = self.us_per_token * tokens + self.us_per_context_token * contexts
        return self.floor_us + join(compute, memory, self.power)

    def chunk_us(self, new: float, before: float) -> float:
        """A chunk of `new` tokens after `before` in memory."""
        return self.us(new * before + new * (new + 1) / 2, new, before)

    def prompts_us(self, length: float, prompts: float) -> float:
        """As many prompts of one length, without history."""
        return self.us(prompts * length * (length + 1) / 2, prompts * length, 0)


@dataclass(frozen=True)
class Attention:
    """Attention of one layer, `count` layers.

    `p` is the exponent of the p-norm by chunk and decode rows, None for a plain sum; a table of one point is a
    constant. The skews are alpha by decode rows. With a `roofline`, prefill is that x a residual between its points;
    `several` are equal prompts without history in one call, by their number and length.
    """

    count: int
    prefill: GridTable
    decode: GridTable
    decode_in_mixed: GridTable | None
    p: GridTable | None
    skew_decode: AxisTable
    skew_mixed: AxisTable
    roofline: PrefillRoofline | None = None
    several: GridTable | None = None


@dataclass(frozen=True)
class EagerHost:
    """Launching kernels one by one: (kernels^power + (base_us + per_layer_us x layers)^power)^(1/power).

    A power of 1 adds the two up; a large one is the longer of them, as where launches run ahead of the device.
    """

    base_us: float
    per_layer_us: float
    power: float


def join(a: float, b: float, power: float | None) -> float:
    """(a^p + b^p)^(1/p), or a + b."""
    if power is None:
        return a + b
    large, small = (a, b) if a > b else (b, a)
    return float(large * (1.0 + (small / large) ** power) ** (1.0 / power))


def constant_power(p: float) -> GridTable:
    """An exponent that is the same for every mixed call."""
    return GridTable((1,), (1,), ((p,),))


def constant_alpha(alpha: float) -> AxisTable:
    """A skew that is the same for every number of rows."""
    return AxisTable((1,), (alpha,))
