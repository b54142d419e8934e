"""How long iterations take, and how many identical decode iterations can be run in one go.

Nothing may happen to the engine before `horizon_ns`, the next event of its environment. A window of decode iterations
ends with the first one after which the engine must look again: one at whose planning instant the horizon has come, one
that finishes a sequence, or one whose successor lacks KV blocks. So a window is never cut short afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simulator.clock import NS_PER_S
from simulator.costs.base import CostModel
from simulator.errors import PolicyError
from simulator.plan import BatchShape, IterationPlan

if TYPE_CHECKING:
    from simulator.batch import Batch

# Below this many iterations Python's loop is faster than NumPy's calls.
VECTOR_FROM = 24
VECTOR_MAX = 4096
# No iteration takes longer than a day; what does would overflow a run's clock.
MAX_NS = 86_400 * NS_PER_S


class Executor(Protocol):
    """What carries out iterations: the simulated one asks a cost model, a live one runs a real decoder."""

    def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
        """`plan` is about to begin at `now_ns`; `batch` is still as it was planned from. Changes neither."""
        ...

    def iteration_ns(self, shape: BatchShape) -> int:
        """How long this iteration takes, whole nanoseconds, at least 1."""
        ...


@runtime_checkable
class Foreseeing(Executor, Protocol):
    """An executor that knows how long iterations will take, so that the engine may skip over them."""

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """How long each of k successive decode iterations takes, the first of them `shape`; int64[k]."""
        ...


class SimulatedExecutor:
    """Asks the cost model and adds the host's time per step (or hides it, under asynchronous scheduling).

    Asynchronous engines prepare step n+1 while n runs, so a step lasts as long as the longer of the two. Raises
    PolicyError where the cost model returns anything but a positive integer.
    """

    def __init__(self, cost_model: CostModel, host_overhead_ns: int = 0, hidden: bool = False) -> None:
        self._model = cost_model
        self._added_ns = 0 if hidden else host_overhead_ns
        self._least_ns = host_overhead_ns if hidden else 1

    def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
        """Nothing: a cost model sees the shape alone."""

    def iteration_ns(self, shape: BatchShape) -> int:
        """The cost model's answer with the host's time."""
        ns = self._model.iteration_ns(shape)
        if type(ns) is not int or not 1 <= ns <= MAX_NS:
            raise self._broken(shape, ns)
        ns += self._added_ns
        return ns if ns > self._least_ns else self._least_ns

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """The same for k decode iterations."""
        run = self._model.decode_run_ns(shape, k)
        if run.shape != (k,) or run.dtype != np.int64 or (k and not 1 <= run.min() <= run.max() <= MAX_NS):
            raise self._broken(shape, run[:3].tolist())
        return np.maximum(run + self._added_ns, self._least_ns)

    def _broken(self, shape: BatchShape, value: object) -> PolicyError:
        return PolicyError(
            f"cost model {getattr(self._model, 'name', type(self._model).__name__)}: an iteration must take a whole "
            f"number of nanoseconds, 1 to {MAX_NS} (a day); got {value!r} for {shape}"
        )


def decode_ends(
    executor: Foreseeing, shape: BatchShape, start_ns: int, most: int, horizon_ns: float, lag: int
) -> Seq[int]:
    """End times of 1 to `most` decode iterations, the first of them `shape` at `start_ns`.

    Stops after the first iteration whose planning instant for the next one has reached `horizon_ns`: that instant is
    the iteration's end (`lag` 0), or its start (`lag` 1, asynchronous scheduling).
    """
    end_ns = start_ns + executor.iteration_ns(shape)
    ends = [end_ns]
    guess = most if horizon_ns == float("inf") else int(max(0, horizon_ns - end_ns) // (end_ns - start_ns)) + 2
    if min(most, guess) >= VECTOR_FROM:
        return _vector_ends(executor, shape, start_ns, min(most, guess, VECTOR_MAX), horizon_ns, lag)
    n, context, longest = shape.decode_seqs, shape.decode_context, shape.decode_max_context
    while len(ends) < most and (end_ns, start_ns)[lag] < horizon_ns:
        context += n
        longest += 1
        start_ns = end_ns
        end_ns = start_ns + executor.iteration_ns(BatchShape((), n, context, longest))
        ends.append(end_ns)
    return ends


def _vector_ends(
    executor: Foreseeing, shape: BatchShape, start_ns: int, k: int, horizon_ns: float, lag: int
) -> Seq[int]:
    ends = np.cumsum(executor.decode_run_ns(shape, k))
    ends += start_ns
    if horizon_ns != float("inf"):
        reached = int(np.searchsorted(ends, int(horizon_ns))) + lag  # iterations that begin or end before the horizon
        ends = ends[: max(1, reached + 1)]
    kept: list[int] = ends.tolist()
    return kept
