"""Times looked up in a profile: measured kernels of one model on one GPU, added up to an iteration.

Linear layers, norms and the like by the tokens of the iteration; LM head and sampler by the sampled rows; attention
from (chunk, context) and (rows, mean context) tables (`simulator.costs.attention`).
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from simulator.clock import iteration_ns
from simulator.costs.attention import AttentionTimes
from simulator.costs.base import CostModel, whole_ns
from simulator.costs.collectives import NOTHING, Link, allreduce_curve
from simulator.costs.reach import EXTRAPOLATED, FALLBACK_SHARE, INTERPOLATED, Column, Lookup, Span, Work
from simulator.curves import Curve, total
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.profile import SHAPE, Profile, load_profile, shipped_profiles
from simulator.profile_tables import FALLBACK, MEASURED, OpTable
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
        self._tokens, self._rows = _summed(self.profile.token_ops), _summed(self.profile.sequence_ops)
        host_us = self.profile.base_us + self.profile.per_layer_us * self.profile.shape["layers"]
        self._host = host_us * NS_PER_US, self.profile.per_sequence_us * NS_PER_US
        absent = self.profile.metadata["all_reduce"] == "absent"
        self._allreduce = allreduce_curve(platform, link) if absent else NOTHING
        self._attention = AttentionTimes(self.profile.attention, self.profile.attention.count * NS_PER_US)
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
        tokens, attention = self._attention.with_prefill(shape)
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

    def lookups(self, work: Work) -> list[Lookup]:
        """Every measured axis that iterations of these sizes are looked up on."""
        return [
            Lookup(_span("tokens", self.profile.token_ops), work.tokens, work.tokens > 0),
            Lookup(_span("sampled rows", self.profile.sequence_ops), work.sampled, work.sampled > 0),
            *self._attention.lookups(work),
        ]

    def fallback_ns(self, work: Work) -> dict[str, Column]:
        """Nanoseconds per iteration of each operation that was never timed, from a roofline."""
        ops = self.profile.token_ops, self.profile.sequence_ops
        return {
            op.op: op.count * NS_PER_US * Curve(op.axis, op.us).at_many(sizes)
            for tables, sizes in zip(ops, (work.tokens, work.sampled), strict=True)
            for op in tables
            if op.basis == FALLBACK
        }

    def in_range(self, shape: BatchShape) -> bool:
        """Whether every look-up for `shape` lies inside the measured points."""
        return not any(lookup.outside.any() for lookup in self.lookups(Work.of(shape)))

    def tag(self, shape: BatchShape) -> str:
        """extrapolated where a look-up lies beyond the measured points; fallback where operations that were never timed
        are over FALLBACK_SHARE of the time; else interpolated."""
        if not self.in_range(shape):
            return EXTRAPOLATED
        guessed = sum(float(ns[0]) for ns in self.fallback_ns(Work.of(shape)).values())
        return FALLBACK if guessed > FALLBACK_SHARE * self.iteration_ns(shape) else INTERPOLATED

    def _base(self, tokens: int, rows: int) -> float:
        base, per_row = self._host
        return self._tokens.at(tokens) + self._rows.at(rows) + self._allreduce.at(tokens) + base + per_row * rows

    def _decode_row(self, seqs: int) -> tuple[float, Curve, float]:
        """(nanoseconds beside attention, attention by context, alpha) of a decode batch."""
        found = self._decode_rows.get(seqs)
        if found is None:
            tokens = _captured(seqs) if self._pad else seqs
            found = self._base(tokens, seqs), *self._attention.decode_row(seqs)
            self._decode_rows[seqs] = found
        return found


def _captured(seqs: int) -> int:
    """The size that vLLM pads a decode batch to."""
    place = bisect_left(CAPTURED, seqs)
    return CAPTURED[place] if place < len(CAPTURED) else seqs


def _span(axis: str, tables: tuple[OpTable, ...]) -> Span:
    """Where all that were timed reach."""
    timed = [table.axis for table in tables if table.basis == MEASURED] or [table.axis for table in tables]
    return Span(axis, max(points[0] for points in timed), min(points[-1] for points in timed))


def _summed(ops: tuple[OpTable, ...]) -> Curve:
    return total([(op.count * NS_PER_US, Curve(op.axis, op.us)) for op in ops])


def _fitting(name: str, platform: Platform) -> Profile:
    """The profile asked for, or the shipped one that fits."""
    if not isinstance(name, str):
        raise ConfigError(f"cost_model.profile: {name!r} must be a name or a path")
    if name != AUTO:
        profile = load_profile(name, "cost_model.profile")
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
