"""How far a config's cost model is off, iteration by iteration of a live run: without what queues make of an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.config import RunConfig
from experiments.results import Result
from experiments.tables import aligned
from simulator.clock import ns_from_us
from simulator.fastforward import SimulatedExecutor
from simulator.plan import MODES, BatchShape
from simulator.replay import ReplayExecutor


class Timed(NamedTuple):
    """An iteration: its shape and how long it took, in nanoseconds."""

    shape: BatchShape
    ns: int


class Watching(ReplayExecutor):
    """Replays, and keeps the shape of each iteration beside its time."""

    def __init__(self, durations_ns: Sequence[int]) -> None:
        super().__init__(durations_ns)
        self.iterations: list[Timed] = []

    def iteration_ns(self, shape: BatchShape) -> int:
        """The next duration."""
        ns = super().iteration_ns(shape)
        self.iterations.append(Timed(shape, ns))
        return ns


def iteration_errors(run: RunConfig, iterations: Sequence[Timed]) -> dict[str, Any] | None:
    """(predicted - measured) / measured in per cent by forward mode: count, median, p90 of its size.

    The prediction is the cost model's and host_overhead_us, as in a simulation. None where the config has no times.
    """
    if run.pieces.lacks_profile:
        return None
    executor = SimulatedExecutor(run.pieces.cost_model(), ns_from_us(run.settings.host_overhead_us))
    found: dict[str, Any] = {"cost_model": run.settings.cost_model.name}
    for mode in MODES:
        mine = [one for one in iterations if one.shape.mode == mode]
        if mine:
            error = np.array([executor.iteration_ns(one.shape) / one.ns - 1 for one in mine]) * 100
            found[mode] = {
                "count": len(mine),
                "median_us": float(np.median([one.ns for one in mine]) / 1e3),
                "median_error_pct": float(np.median(error)),
                "p90_abs_error_pct": float(np.percentile(np.abs(error), 90)),
            }
    return found


def errors_text(result: Result) -> str:
    """The same as a table; "" where there is none."""
    found = result["sim"]["live"]["iteration_errors"]
    if found is None:
        return ""
    rows = [["iterations", "number", "median us", f"error of {found['cost_model']} %", "p90 of its size %"]]
    for mode in MODES:
        if (one := found.get(mode)) is not None:
            errors = f"{one['median_error_pct']:+.1f}", f"{one['p90_abs_error_pct']:.1f}"
            rows.append([mode, f"{one['count']:,}", f"{one['median_us']:,.0f}", *errors])
    return "\n".join(aligned(rows))
