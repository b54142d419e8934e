"""Several live runs of one load as one result: the median run, whole, and how far the runs lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from experiments.measured import is_number
from experiments.results import Result

_BY = "mean_e2el_ms"
BUSY = 0.9  # share of the time that a thread ran, below which other work has slowed a run


def middle(results: Sequence[Result]) -> int:
    """The median run by mean latency; of an even number the lower of the two."""
    order = sorted(range(len(results)), key=lambda i: float(results[i][_BY]))
    return order[(len(order) - 1) // 2]


def medians(results: Sequence[Result]) -> dict[str, float]:
    """The median of every metric that isn't the same in all runs."""
    return {key: float(median(result[key] for result in results)) for key in spread(results)}


def spread(results: Sequence[Result]) -> dict[str, list[float]]:
    """[least, most] of every metric that isn't the same in all runs."""
    found = {}
    for key in results[0]:
        values: list[Any] = [result.get(key) for result in results]
        if all(map(is_number, values)) and len(set(values)) > 1:
            found[key] = [float(min(values)), float(max(values))]
    return found


def spread_text(result: Result) -> str:
    """How far the runs of a live result lie apart, in a line; "" for a single run."""
    live = result["sim"]["live"]
    parts = []
    for name in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput"):
        if name in live["spread"] and result.get(name):
            low, high = live["spread"][name]
            parts.append(f"{name.removesuffix('_ms')} {low:,.2f} to {high:,.2f}")
    return f"the median of {live['runs']} runs by mean E2EL; all runs: {', '.join(parts)}" if parts else ""


def live_text(result: Result) -> str:
    """What a live result was measured on, in a line."""
    live = result["sim"]["live"]
    return f"measured on {live['device_name']}, {live['dtype']}, attention by {live['backend']}"


def host_text(result: Result) -> str:
    """How much of an iteration is the host's, in a line."""
    us = result["sim"]["live"]["host_us"]
    return f"beside the decoder an iteration takes {us:.0f} us (median): host_overhead_us of another load's simulation"
