"""Tables of measured times, read between their points by straight lines on linear axes.

The rule at the ends, for every axis: below the first point its value holds; above the last point the rise over the last
octave (from half of the last point to it) goes on, but never falls. The last segment alone may join two neighbours
whose difference is noise: on tables cut at 1,024 tokens it is 30 % off at 2,048 in the median, the octave 4 %
(tests/bench/extrapolation.py). Scalar and vector look-ups do the same operations in the same order, so they
agree to the last bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Rows kept per grid; a run meets a few hundred batch or chunk sizes, and a row is a dozen numbers.
CACHED_ROWS = 4096


class Curve:
    """A piecewise linear function through points with rising `x`."""

    __slots__ = ("_arrays", "_slope", "_x", "_y")

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self._x, self._y = list(x), list(y)
        rises = [
            (y1 - y0) / (x1 - x0) for x0, x1, y0, y1 in zip(self._x, self._x[1:], self._y, self._y[1:], strict=False)
        ]
        self._slope = [*rises, 0.0]
        self._slope[-1] = self._last_rise()
        self._arrays: tuple[NDArray[np.float64], ...] = ()

    def _last_rise(self) -> float:
        half = max(self._x[-1] / 2, self._x[0])
        width = self._x[-1] - half
        return max((self._y[-1] - self.at(half)) / width, 0.0) if width else 0.0

    def at(self, v: float) -> float:
        """The value at `v`."""
        x = self._x
        if v < x[0]:
            v = x[0]
        i = bisect_right(x, v) - 1
        return self._y[i] + (v - x[i]) * self._slope[i]

    def at_many(self, v: NDArray[np.float64]) -> NDArray[np.float64]:
        """`at` for each of `v`, bit for bit."""
        if not self._arrays:
            self._arrays = tuple(np.array(part, dtype=np.float64) for part in (self._x, self._y, self._slope))
        x, y, slope = self._arrays
        v = np.maximum(v, x[0])
        i = np.searchsorted(x, v, side="right") - 1
        value: NDArray[np.float64] = y[i] + (v - x[i]) * slope[i]
        return value

    def covers(self, v: float) -> bool:
        """Whether `v` lies between the first and the last point."""
        return self._x[0] <= v <= self._x[-1]

    def points(self) -> list[tuple[float, float]]:
        """The (x, y) pairs."""
        return list(zip(self._x, self._y, strict=True))


class Grid:
    """A bilinear table: first between two rows, which gives a `Curve` over the columns, then along it."""

    __slots__ = ("_cache", "_columns", "_rows", "_slopes", "_table")

    def __init__(
        self,
        rows: Sequence[float],
        columns: Sequence[float],
        table: Sequence[Sequence[float]],
        scale: float = 1.0,
    ) -> None:
        self._rows, self._columns = list(rows), list(columns)
        self._table = [[value * scale for value in row] for row in table]
        steps = [b - a for a, b in zip(self._rows, self._rows[1:], strict=False)]
        self._slopes = [
            [(high - low) / step for low, high in zip(lower, upper, strict=True)]
            for lower, upper, step in zip(self._table, self._table[1:], steps, strict=False)
        ]
        self._slopes.append([0.0] * len(self._columns))
        self._slopes[-1] = self._last_rises()
        self._cache: dict[float, Curve] = {}

    def _last_rises(self) -> list[float]:
        half = max(self._rows[-1] / 2, self._rows[0])
        width = self._rows[-1] - half
        if not width:
            return self._slopes[-1]
        ends = zip(self._table[-1], self._values(half), strict=True)
        return [max((end - middle) / width, 0.0) for end, middle in ends]

    def row(self, v: float) -> Curve:
        """The curve over the columns at row value `v`."""
        curve = self._cache.get(v)
        if curve is None:
            if len(self._cache) >= CACHED_ROWS:
                self._cache.clear()
            curve = self._cache[v] = self._blend(v)
        return curve

    def _blend(self, v: float) -> Curve:
        return Curve(self._columns, self._values(v))

    def _values(self, v: float) -> list[float]:
        v = max(v, self._rows[0])
        i = bisect_right(self._rows, v) - 1
        above = v - self._rows[i]
        return [value + above * slope for value, slope in zip(self._table[i], self._slopes[i], strict=True)]

    def covers(self, row: float, column: float) -> bool:
        """Whether (row, column) lies inside the table."""
        return self._rows[0] <= row <= self._rows[-1] and self._columns[0] <= column <= self._columns[-1]


def total(curves: Sequence[tuple[float, Curve]]) -> Curve:
    """The weighted sum of curves as one curve; exact at every point of each."""
    xs = sorted({x for _, curve in curves for x, _ in curve.points()})
    return Curve(xs, [sum(weight * curve.at(x) for weight, curve in curves) for x in xs])
