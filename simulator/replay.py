"""A run again, from how long its iterations took: every decision is made anew and has to come out as it was.

What a scheduler sees of a run is fixed by its requests and the durations of its iterations, whatever carried them out.
So a run on a real device, replayed, gives the identical RunLog, or the two don't run the same engine.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

from simulator.errors import PolicyError
from simulator.plan import BatchShape, IterationPlan
from simulator.recorder import RunLog

if TYPE_CHECKING:
    from simulator.batch import Batch


def durations_ns(log: RunLog) -> list[int]:
    """How long each iteration of a run took, in order."""
    took: list[int] = (log.iterations["end_ns"] - log.iterations["start_ns"]).tolist()
    return took


class ReplayExecutor:
    """Takes recorded durations, one per iteration, in nanoseconds."""

    def __init__(self, durations_ns: Seq[int]) -> None:
        self._durations_ns = durations_ns
        self._next = 0

    def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
        """Nothing: the durations are known."""

    def iteration_ns(self, shape: BatchShape) -> int:
        """The next duration. Raises PolicyError where the run has more iterations than were recorded."""
        if self._next == len(self._durations_ns):
            raise PolicyError(f"replay: iteration {self._next} of {shape} isn't recorded; the run went another way")
        self._next += 1
        return self._durations_ns[self._next - 1]
