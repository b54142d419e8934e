"""Times looked up in a profile: measured kernels of one model on one GPU, added up to an iteration.

Linear layers, norms and the like by the tokens of the iteration; LM head and sampler by the sampled rows; attention
from (chunk, context) and (rows, mean context) tables. All prefill chunks of an iteration make one look-up: their
tokens added up, their histories averaged by tokens (as LLMServingSim does). That overstates the attention of several
short prompts: an iteration of eight prompts of 256 tokens by 3-4 % on the shipped profiles. In a mixed call the decode
rows cost more than alone and are joined to the prefill by the profile's rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.clock import iteration_ns
from simulator.costs.base import CostModel, check_number, whole_ns
from simulator.costs.collectives import allreduce_ns
from simulator.curves import Curve, Grid, total
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.profile import SHAPE, GridTable, OpTable, Profile, load_profile, shipped_profiles
from simulator.specs import Platform

AUTO = "auto"
NS_PER_US = 1000.0


class Table(CostModel):
    """Measured kernel times of a profile, added up.

    `profile` names a shipped one or a file; `auto` takes the shipped one for this model, GPU and TP degree. Where its
    kernels leave out tensor parallelism's all-reduces, they are added as a ring over the GPU's link at
    `link_efficiency`, with `allreduce_latency_us` per call. Raises ConfigError for a profile of something else, and for
    values out of range.
    """

    name = "table"
    is_bound = False

    def __init__(
        self,
        platform: Platform,
        *,
        profile: str = AUTO,
        link_efficiency: float = 1.0,
        allreduce_latency_us: float = 0.0,
    ) -> None:
        faults: list[str] = []
        check_number(faults, "link_efficiency", link_efficiency, 0, 1, above=True)
        check_number(faults, "allreduce_latency_us", allreduce_latency_us, 0, 1e6)
        if faults:
            raise ConfigError(faults)
        self.profile = _fitting(profile, platform)
        attention = self.profile.attention
        self._tokens, self._rows = _summed(self.profile.token_ops), _summed(self.profile.sequence_ops)
        self._host = self.profile.base_us * NS_PER_US, self.profile.per_sequence_us * NS_PER_US
        absent = self.profile.metadata["all_reduce"] == "absent"
        self._allreduce = allreduce_ns(platform, allreduce_latency_us, link_efficiency) if absent else (0.0, 0.0)
        self._prefill = _scaled(attention.prefill, attention.count)
        self._decode = _scaled(attention.decode, attention.count)
        self._mixed = _scaled(attention.decode_in_mixed or attention.decode, attention.count)
        self._p = attention.p
        self._skew_decode, self._skew_mixed = attention.skew_decode, attention.skew_mixed
        self._decode_rows: dict[int, tuple[float, Curve]] = {}

    def iteration_ns(self, shape: BatchShape) -> int:
        """Token operations + sequence operations + attention + all-reduce + host."""
        prefill, seqs, context, longest = shape
        if not prefill:
            base, curve = self._decode_row(seqs)
            attention = curve.at(context / seqs)
            if self._skew_decode:
                attention = attention + self._skew_decode * (curve.at(longest) - attention)
            return iteration_ns(base + attention)
        tokens, attention = self._with_prefill(shape)
        return iteration_ns(self._base(tokens + seqs, len(prefill) + seqs) + attention)

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """k decode iterations: the mean and the longest context grow by one each time."""
        seqs = shape.decode_seqs
        steps = np.arange(k, dtype=np.int64)
        base, curve = self._decode_row(seqs)
        attention = curve.at_many((shape.decode_context + seqs * steps) / seqs)
        if self._skew_decode:
            longest = curve.at_many((shape.decode_max_context + steps).astype(np.float64))
            attention = attention + self._skew_decode * (longest - attention)
        return whole_ns(base + attention)

    def in_range(self, shape: BatchShape) -> bool:
        """Whether every look-up for `shape` lies inside the measured points."""
        prefill, seqs, context, longest = shape
        inside = self._tokens.covers(shape.tokens) and self._rows.covers(shape.sampled)
        if prefill:
            tokens = sum(new for new, _ in prefill)
            inside = inside and self._prefill.covers(tokens, sum(new * before for new, before in prefill) / tokens)
        if seqs:
            grid, skew = (self._mixed, self._skew_mixed) if prefill else (self._decode, self._skew_decode)
            inside = inside and grid.covers(seqs, context / seqs) and (not skew or grid.covers(seqs, longest))
        return inside

    def _base(self, tokens: int, rows: int) -> float:
        fixed, per_token = self._allreduce
        base, per_row = self._host
        return self._tokens.at(tokens) + self._rows.at(rows) + fixed + per_token * tokens + base + per_row * rows

    def _decode_row(self, seqs: int) -> tuple[float, Curve]:
        found = self._decode_rows.get(seqs)
        if found is None:
            found = self._decode_rows[seqs] = self._base(seqs, seqs), self._decode.row(seqs)
        return found

    def _with_prefill(self, shape: BatchShape) -> tuple[int, float]:
        """(prefill tokens, nanoseconds of attention) of an iteration with prefill in it."""
        prefill, seqs, context, longest = shape
        tokens = weighted = 0
        for new, before in prefill:
            tokens += new
            weighted += new * before
        ns = self._prefill.row(tokens).at(weighted / tokens)
        return tokens, self._joined(ns, seqs, context, longest) if seqs else ns

    def _joined(self, prefill_ns: float, seqs: int, context: int, longest: int) -> float:
        curve = self._mixed.row(seqs)
        ns = self._join(prefill_ns, curve.at(context / seqs))
        if self._skew_mixed:
            ns += self._skew_mixed * (self._join(prefill_ns, curve.at(longest)) - ns)
        return ns

    def _join(self, a: float, b: float) -> float:
        p = self._p
        if p is None:
            return a + b
        large, small = (a, b) if a > b else (b, a)
        return float(large * (1.0 + (small / large) ** p) ** (1.0 / p))


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
