"""What a run's iteration times rest on: measured points, look-ups beyond them, operations that were never timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator.costs.base import CostModel
from simulator.costs.reach import FALLBACK_SHARE, Lookup, Mask, Work
from simulator.costs.table import Table
from simulator.recorder import RunLog

NOTED_SHARE = 0.01  # of the busy time that may be extrapolated without a word
NAMED = 4  # operations that were never timed are named, the others counted


def cost_support(log: RunLog, cost_model: CostModel) -> dict[str, Any] | None:
    """Shares of the busy time by what its times rest on; None for a cost model that has no measured points.

    `extrapolated`: some look-up lies beyond the measured points; `fallback`: none does, but operations that were never
    timed are over FALLBACK_SHARE of the iteration; `interpolated`: the rest. `axes` holds, for each that was left, the
    share of the busy time, the farthest value and the measured ends; `operations` those never timed, with the share of
    the busy time that goes into them; `notes` is a sentence for what of it needs to be said.
    """
    if not isinstance(cost_model, Table):
        return None
    work, took = work_of(log), (log.iterations["end_ns"] - log.iterations["start_ns"]).astype(np.float64)
    lookups, guessed = cost_model.lookups(work), cost_model.fallback_ns(work)
    beyond = np.zeros(len(took), dtype=bool)
    for lookup in lookups:
        beyond |= lookup.outside
    fallback = ~beyond & (sum(guessed.values(), np.zeros(len(took))) > FALLBACK_SHARE * took)
    busy = max(float(took.sum()), 1.0)

    def share(mask: Mask) -> float:
        return float(took[mask].sum()) / busy

    support = {
        "interpolated": share(~beyond & ~fallback),
        "extrapolated": share(beyond),
        "fallback": share(fallback),
        "axes": {
            lookup.span.axis: {
                "share": share(lookup.outside), "farthest": _farthest(lookup),
                "measured": [float(lookup.span.low), float(lookup.span.high)],
            }
            for lookup in lookups if lookup.outside.any()
        },
        "operations": {op: float(ns.sum()) / busy for op, ns in guessed.items()},
    }  # fmt: skip
    return {**support, "notes": support_notes(support)}


def most_of(supports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several runs' support what leans most, part by part: shares, axes, the operations that were never timed."""
    axes: dict[str, Any] = {}
    for support in supports:
        for axis, one in support["axes"].items():
            if axis not in axes or one["share"] > axes[axis]["share"]:
                axes[axis] = one
    return {
        **{key: max(support[key] for support in supports) for key in ("extrapolated", "fallback")},
        "axes": axes,
        "operations": max((support["operations"] for support in supports), key=lambda ops: sum(ops.values())),
    }


def support_notes(support: Mapping[str, Any], up_to: str = "") -> list[str]:
    """A sentence for each thing that readers must know; `up_to` stands before shares."""
    said = []
    if support["extrapolated"] > NOTED_SHARE:
        axes = sorted(support["axes"].items(), key=lambda pair: -pair[1]["share"])
        left = "; ".join(
            f"{axis} {one['farthest']:,.0f}, measured {one['measured'][0]:,.0f} to {one['measured'][1]:,.0f}"
            for axis, one in axes
        )
        said.append(f"{up_to}{_percent(support['extrapolated'])} of the busy time is extrapolated ({left})")
    if sum(support["operations"].values()) > FALLBACK_SHARE:
        ops = sorted(support["operations"].items(), key=lambda pair: -pair[1])
        named = ", ".join(f"{op} {_percent(share)}" for op, share in ops[:NAMED])
        if others := ops[NAMED:]:
            named += f", {len(others)} others {_percent(sum(share for _, share in others))}"
        total = _percent(sum(support["operations"].values()))
        said.append(f"{up_to}{total} of the busy time goes into operations never timed ({named})")
    return said


def work_of(log: RunLog) -> Work:
    """The sizes of a run's iterations as its cost model saw them.

    Rectangles with their padding, but for the contexts of their decode rows, which are those of the live ones.
    """
    it, chunks = log.iterations, log.chunks
    prefill, padding = it["prefill_seqs"] > 0, it["padding_tokens"]
    history = np.bincount(chunks["iteration"], chunks["tokens"] * chunks["context"], minlength=len(prefill))
    seqs = np.where(prefill & (padding > 0), it["slots"], it["prefill_seqs"])
    rows = it["decode_seqs"] + np.where(prefill, 0, padding)
    context = it["decode_context"] / np.maximum(it["decode_seqs"], 1)
    columns = (
        seqs, it["prefill_tokens"] + np.where(prefill, padding, 0), history / np.maximum(it["prefill_tokens"], 1),
        rows, context, context,
    )  # fmt: skip
    return Work(*(column.astype(np.float64) for column in columns))


def _farthest(lookup: Lookup) -> float:
    """The largest value beyond the upper end, else the smallest below the lower one."""
    values = lookup.values[lookup.outside]
    above, below = float(values.max()), float(values.min())
    return above if above > lookup.span.high else below


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
