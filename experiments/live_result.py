"""Several live runs of one load as one result: medians of what they measured, and how far they lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, median_low
from typing import Any

from experiments.measured import is_number
from experiments.results import Result

_BY = "mean_e2el_ms"  # the run whose single requests are kept is the middle one by this


def middle(results: Sequence[Result]) -> int:
    """Which of several runs stands for all where a median can't be: the lower middle by mean latency."""
    order = sorted(range(len(results)), key=lambda i: float(results[i][_BY]))
    return order[(len(order) - 1) // 2]


def combined(results: Sequence[Result]) -> Result:
    """The fields of `middle`'s run, every number outside of lists being the median over the runs."""
    found: Result = _median(results, results[middle(results)])
    return found


def _median(values: Sequence[Any], chosen: Any) -> Any:
    if isinstance(chosen, Mapping):
        return {
            key: _median([value.get(key) if isinstance(value, Mapping) else None for value in values], inner)
            for key, inner in chosen.items()
        }
    if not all(map(is_number, values)):
        return chosen
    return median_low(values) if all(isinstance(value, int) for value in values) else median(values)


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
    return f"median of {live['runs']} runs; {', '.join(parts)}" if parts else ""


def live_text(result: Result) -> str:
    """What a live result was measured on, and how much of an iteration is the host's: two lines."""
    live = result["sim"]["live"]
    return (
        f"measured on {live['device_name']}, {live['dtype']}, attention by {live['backend']}\n"
        f"beside the decoder an iteration takes {live['host_us']:.0f} us (median): a simulation's host_overhead_us"
    )
