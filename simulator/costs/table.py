"""Times looked up in a profile: measured kernels of one model on one GPU, added up to an iteration.

Linear layers, norms and the like by the tokens of the iteration; LM head and sampler by the sampled rows; attention
from (chunk, context) and (rows, mean context) tables. Several prefill chunks in one call cost at most what one chunk of
all their tokens after their mean history would (it attends to more), and at most their sum one by one (which fills the
GPU less well): the smaller of the two is taken. In a mixed call the decode rows cost more than alone and are joined to
the prefill by the profile's rule. Uneven contexts add alpha (t(longest) - t(mean)), alpha by the number of rows.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from simulator.clock import iteration_ns
from simulator.costs.base import CostModel, whole_ns
from simulator.costs.collectives import NOTHING, Link, allreduce_curve
from simulator.curves import Curve, Grid, total
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.profile import SHAPE, AxisTable, GridTable, OpTable, Profile, load_profile, shipped_profiles
from simulator.specs import Platform

AUTO = "auto"
NS_PER_US = 1000.0
# The decode batches that vLLM captures as CUDA graphs by default (vllm/config/compilation.py, 0.19): a batch is padded
# to the next of them, and runs as it is above the last.
CAPTURED = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


class Table(CostModel):
    """Measured kernel times of a profile, added up.

    `profile` names a shipped one or a file; `auto` takes the shipped one for this model, GPU and TP degree. Where its
    kernels leave out tensor parallelism's all-reduces, they are added: from `collectives`, a measured table's file, or
    for a link of `link_gbps` (default: the GPU's) x `link_efficiency` with `allreduce_latency_us` per call and the
    algorithm `allreduce` (ring, tree, one_shot). `pad_decode` pads decode batches to the sizes that vLLM captures as
    CUDA graphs. Raises ConfigError for a profile of something else, and for values out of range.
    """

    name = "table"
    is_bound = False

    def __init__(
        self,
        platform: Platform,
        *,
        profile: str = AUTO,
        link_gbps: float | None = None,
        link_efficiency: float = 1.0,
        allreduce_latency_us: float = 0.0,
        allreduce: str = "ring",
        collectives: str | None = None,
        pad_decode: bool = False,
    ) -> None:
        link = Link(link_gbps, link_efficiency, allreduce_latency_us, allreduce, collectives)
        if faults := link.faults():
            raise ConfigError(faults)
        self.profile = _fitting(profile, platform)
        attention = self.profile.attention
        self._tokens, self._rows = _summed(self.profile.token_ops), _summed(self.profile.sequence_ops)
        self._host = self.profile.base_us * NS_PER_US, self.profile.per_sequence_us * NS_PER_US
        absent = self.profile.metadata["all_reduce"] == "absent"
        self._allreduce = allreduce_curve(platform, link) if absent else NOTHING
        self._prefill = _scaled(attention.prefill, attention.count)
        self._decode = _scaled(attention.decode, attention.count)
        self._mixed = _scaled(attention.decode_in_mixed or attention.decode, attention.count)
        self._power = None if attention.p is None else _held(attention.p)
        self._skew_decode, self._skew_mixed = _alphas(attention.skew_decode), _alphas(attention.skew_mixed)
        self._pad = pad_decode
        self._decode_rows: dict[int, tuple[float, Curve, float]] = {}

    def iteration_ns(self, shape: BatchShape) -> int:
        """Token operations + sequence operations + attention + all-reduce + host."""
        prefill, seqs, context, longest = shape
        if not prefill:
            base, curve, alpha = self._decode_row(seqs)
            attention = curve.at(context / seqs)
            if alpha:
                attention = attention + alpha * (curve.at(longest) - attention)
            return iteration_ns(base + attention)
        tokens, attention = self._with_prefill(shape)
        return iteration_ns(self._base(tokens + seqs, len(prefill) + seqs) + attention)

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """k decode iterations: the mean and the longest context grow by one each time."""
        seqs = shape.decode_seqs
        steps = np.arange(k, dtype=np.int64)
        base, curve, alpha = self._decode_row(seqs)
        attention = curve.at_many((shape.decode_context + seqs * steps) / seqs)
        if alpha:
            longest = curve.at_many((shape.decode_max_context + steps).astype(np.float64))
            attention = attention + alpha * (longest - attention)
        return whole_ns(base + attention)

    def in_range(self, shape: BatchShape) -> bool:
        """Whether every look-up for `shape` lies inside the measured points."""
        prefill, seqs, context, longest = shape
        inside = self._tokens.covers(shape.tokens) and self._rows.covers(shape.sampled)
        if prefill:
            tokens = sum(new for new, _ in prefill)
            inside = inside and self._prefill.covers(tokens, sum(new * before for new, before in prefill) / tokens)
        if seqs:
            grid, alphas = (self._mixed, self._skew_mixed) if prefill else (self._decode, self._skew_decode)
            inside = inside and grid.covers(seqs, context / seqs)
            inside = inside and (not alphas.at(seqs) or grid.covers(seqs, longest))
        return inside

    def _base(self, tokens: int, rows: int) -> float:
        base, per_row = self._host
        return self._tokens.at(tokens) + self._rows.at(rows) + self._allreduce.at(tokens) + base + per_row * rows

    def _decode_row(self, seqs: int) -> tuple[float, Curve, float]:
        """(nanoseconds beside attention, attention by context, alpha) of a decode batch."""
        found = self._decode_rows.get(seqs)
        if found is None:
            tokens = _captured(seqs) if self._pad else seqs
            found = self._base(tokens, seqs), self._decode.row(seqs), self._skew_decode.at(seqs)
            self._decode_rows[seqs] = found
        return found

    def _with_prefill(self, shape: BatchShape) -> tuple[int, float]:
        """(prefill tokens, nanoseconds of attention) of an iteration with prefill in it."""
        prefill, seqs, _, _ = shape
        tokens = weighted = 0
        for new, before in prefill:
            tokens += new
            weighted += new * before
        ns = self._prefill.row(tokens).at(weighted / tokens)
        if len(prefill) > 1:
            one_by_one = 0.0
            for new, before in prefill:
                one_by_one += self._prefill.row(new).at(before)
            ns = min(ns, one_by_one)
        return tokens, self._joined(ns, tokens, shape) if seqs else ns

    def _joined(self, prefill_ns: float, tokens: int, shape: BatchShape) -> float:
        """Prefill attention and the decode rows beside it, in one call."""
        seqs = shape.decode_seqs
        curve, alpha = self._mixed.row(seqs), self._skew_mixed.at(seqs)
        power = None if self._power is None else self._power.row(tokens).at(seqs)
        ns = _join(prefill_ns, curve.at(shape.decode_context / seqs), power)
        if alpha:
            ns += alpha * (_join(prefill_ns, curve.at(shape.decode_max_context), power) - ns)
        return ns


def _join(a: float, b: float, power: float | None) -> float:
    """(a^p + b^p)^(1/p), or a + b."""
    if power is None:
        return a + b
    large, small = (a, b) if a > b else (b, a)
    return float(large * (1.0 + (small / large) ** power) ** (1.0 / power))


def _captured(seqs: int) -> int:
    """The size that vLLM pads a decode batch to."""
    place = bisect_left(CAPTURED, seqs)
    return CAPTURED[place] if place < len(CAPTURED) else seqs


def _held(table: GridTable) -> Grid:
    """A grid whose last values hold beyond its ends: there is no trend in a fitted exponent to go on with."""
    rows = [(*row, row[-1]) for row in table.us]
    return Grid((*table.rows, 2 * table.rows[-1]), (*table.columns, 2 * table.columns[-1]), [*rows, rows[-1]])


def _alphas(table: AxisTable) -> Curve:
    """Alpha by rows, likewise."""
    return Curve((*table.axis, 2 * table.axis[-1]), (*table.values, table.values[-1]))


def _summed(ops: tuple[OpTable, ...]) -> Curve:
    return total([(op.count * NS_PER_US, Curve(op.axis, op.us)) for op in ops])


def _scaled(table: GridTable, count: int) -> Grid:
    return Grid(table.rows, table.columns, table.us, scale=count * NS_PER_US)


def _fitting(name: str, platform: Platform) -> Profile:
    """The profile asked for, or the shipped one that fits."""
    if not isinstance(name, str):
        raise ConfigError(f"cost_model.profile: {name!r} must be a name or a path")
    if name != AUTO:
        profile = load_profile(name)
        faults = mismatches(profile, platform)
        if faults:
            raise ConfigError([f"cost_model.profile: {name}: {fault}" for fault in faults])
        return profile
    for shipped in shipped_profiles():
        profile = load_profile(shipped)
        if not mismatches(profile, platform):
            return profile
    what = f"{platform.model.name} on {platform.tensor_parallel_size} x {platform.gpu.name}"
    raise ConfigError(f"cost_model.profile: none is shipped for {what}; shipped: {', '.join(shipped_profiles())}")


def mismatches(profile: Profile, platform: Platform) -> list[str]:
    """What a profile was timed with that this platform isn't: one line each."""
    ranks = profile.metadata["tensor_parallel_size"]
    pairs: list[tuple[str, object, object]] = [
        ("gpu", profile.metadata["gpu"], platform.gpu.name),
        ("tensor_parallel_size", ranks, platform.tensor_parallel_size),
    ]
    pairs += [(key, profile.shape[key], getattr(platform.model, key)) for key in SHAPE]
    return [f"{key}: timed with {there!r}, but the run has {here!r}" for key, there, here in pairs if there != here]
