"""A cost model is one pure question: how long does an iteration of this shape take?"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.plan import BatchShape


class CostModel(Protocol):
    """What the engine asks of a cost model. Subclass it to inherit the exact default of `decode_run_ns`.

    `is_bound` is True for a model that gives a lower bound on time rather than an estimate; results carry the
    label.
    """

    name: str
    is_bound: bool = False

    def iteration_ns(self, shape: BatchShape) -> int:
        """Whole nanoseconds, at least 1, for one iteration of `shape`. Same shape, same answer."""
        ...

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """int64[k]: the times of k decode iterations in a row, the first of them `shape`.

        Must equal k single calls to the nanosecond. An override may use + - x / and tabulated values only, in
        the same order as the scalar code: NumPy's and Python's powers differ in the last bit.
        """
        return np.fromiter((self.iteration_ns(shape.later(s)) for s in range(k)), dtype=np.int64, count=k)


def whole_ns(ns: NDArray[np.float64]) -> NDArray[np.int64]:
    """`simulator.clock.iteration_ns` for many durations at once: half up, at least 1."""
    whole: NDArray[np.int64] = np.maximum(np.floor(ns + 0.5), 1.0).astype(np.int64)
    return whole


def check_number(faults: list[str], key: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Add a line to `faults` unless `value` is a number from `low` (or `above` it) to `high`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (low < value if above else low <= value) and value <= high:  # type: ignore[operator]
        return
    least = "above" if above else "of at least"
    faults.append(f"cost_model.{key}: {value!r} must be a number {least} {low:g} and at most {high:g}")
