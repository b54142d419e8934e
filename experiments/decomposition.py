"""Where the gain of continuous over static batching comes from: factors, each from two runs that differ in one thing.

Three things change: the **scheduling** (a batch that runs until its longest request ends, or members that come and go
after every iteration), the **memory** (reserved whole for the longest sequence, or taken block by block, and with it
the batch that fits), and the **padding** (rectangles, or every row at its own length). The factors multiply to the
whole gain, and depend on the order of the changes.

Two classes make the mixed forms that no engine ships; a config names them as `experiments.decomposition:...`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.costs.base import CostModel
from simulator.costs.roofline import Roofline
from simulator.plan import BatchShape
from simulator.schedulers.static import Static


class RaggedStatic(Static):
    """`static` without padding: prompts keep their length and finished rows are neither computed nor kept in memory.

    The batches are the same as those of `static`: nobody joins until the longest request of a batch has ended.
    """

    name = "ragged_static"
    holds_slots = False

    def __init__(self, batch_size: int = 16, batch_timeout_ms: float | None = None, policy: str = "fcfs") -> None:
        super().__init__(batch_size, batch_timeout_ms, respond_at="token", policy=policy)


class Rectangle(Roofline):
    """`roofline` of kernels that know rectangles only: every row of an iteration costs as much as the longest.

    Prompts that are computed together are padded to the longest of them, contexts of decoding rows likewise.
    """

    name = "rectangle"

    def iteration_ns(self, shape: BatchShape) -> int:
        """The time of the rectangles around `shape`."""
        longest = max((new for new, _ in shape.prefill), default=0)
        prefill = tuple((longest, before) for _, before in shape.prefill)
        context = shape.decode_seqs * shape.decode_max_context
        return super().iteration_ns(shape._replace(prefill=prefill, decode_context=context))

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """The same for k decode iterations in a row."""
        return CostModel.decode_run_ns(self, shape, k)


def factors(rates: Sequence[float]) -> list[float]:
    """The factor of each step along a chain of throughputs. Raises ValueError where one is 0 or there are too few."""
    if len(rates) < 2 or min(rates) <= 0:
        raise ValueError(f"a chain needs two throughputs or more, all above 0, and not {list(rates)}")
    return [after / before for before, after in pairwise(rates)]


def longest_over_mean(lengths: ArrayLike, batch: int) -> float:
    """E[longest of `batch`] / E[length] for independent draws from `lengths`: at most what scheduling can gain.

    With equal batch sizes and iterations of equal time a static batch takes as many iterations as its longest request,
    and continuous batching no fewer than the mean (Yu et al., Orca, OSDI'22, section 3). Exponential lengths give the
    harmonic number 1 + 1/2 + ... + 1/batch, equal lengths exactly 1. From the order statistics of the given lengths.
    """
    ordered = np.sort(np.asarray(lengths, dtype=np.float64))
    if len(ordered) == 0 or batch < 1:
        raise ValueError("needs at least one length and a batch of at least 1")
    below = (np.arange(1, len(ordered)) / len(ordered)) ** batch  # that the longest is at most the i-th
    return float((ordered[-1] - below @ np.diff(ordered)) / ordered.mean())
