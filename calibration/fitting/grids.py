"""Full grids out of the crossings that were timed: a few are held out, unaffordable, or past the memory of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log1p

import numpy as np

from simulator.curves import Curve
from simulator.profile import GridTable

Cell = tuple[float, float]
Cells = Mapping[Cell, float]
FEWEST = 2  # crossings that a line of a grid needs, where there are as many


def decode_grid(cells: Cells) -> GridTable:
    """Microseconds of decode calls by (rows, context), the missing ones filled in.

    A crossing takes the mean of its own row, straight in context, and of the rows on both sides, straight in rows: at
    the same context, and at the same total of tokens in memory, by which most of the time goes. Rows beside it count
    where they were timed at just that context.
    """
    cells, rows, columns = _lines(cells)
    curves = {row: Curve(*zip(*sorted((c, us) for (r, c), us in cells.items() if r == row), strict=True))
              for row in rows}  # fmt: skip

    def timed(row: float, context: float) -> float | None:
        """Below the first context times hold."""
        return cells.get((row, max(context, columns[0])))

    def filled(row: float, column: float) -> float:
        below, above = [r for r in rows if r < row][-1:], [r for r in rows if r > row][:1]
        beside = []
        for low, high in zip(below, above, strict=False):
            for at_low, at_high in ((column, column), (row * column / low, row * column / high)):
                ends = timed(low, at_low), timed(high, at_high)
                if ends[0] is not None and ends[1] is not None:
                    beside.append(ends[0] + (row - low) / (high - low) * (ends[1] - ends[0]))
        own = [curves[row].at(column)] if curves[row].covers(column) or not beside else []
        return float(np.mean([*own, *([np.mean(beside)] if beside else [])]))

    us = tuple(tuple(cells.get((r, c)) or filled(r, c) for c in columns) for r in rows)
    return GridTable(rows, columns, us, _total(cells, rows, columns))


def smooth_grid(cells: Cells, form: Callable[[float, float], float]) -> GridTable:
    """Microseconds by (row, column), the missing ones filled in, as `simulator.costs.attention` reads such a table.

    The mean of a straight line along the row and of the ratio to the form along the column, over the logarithm, where
    there are points on both sides; else the form, x its ratio at the nearest ends.
    """
    cells, rows, columns = _lines(cells)

    def filled(row: float, column: float) -> float:
        own = sorted((c, us) for (r, c), us in cells.items() if r == row)
        across = sorted((log1p(r), us / form(r, c)) for (r, c), us in cells.items() if c == column)
        ratio, between = _straight(across, log1p(row))
        along, inside = _straight(own, column)
        accounts = [along] * inside + [form(row, column) * ratio] * between
        if accounts:
            return float(np.mean(accounts))
        at, us = own[0] if column < own[0][0] else own[-1]
        return form(row, column) * float(np.mean([us / form(row, at), ratio]))

    us = tuple(tuple(cells.get((r, c)) or filled(r, c) for c in columns) for r in rows)
    return GridTable(rows, columns, us, _total(cells, rows, columns))


def _straight(points: Sequence[tuple[float, float]], at: float) -> tuple[float, bool]:
    """(the value at `at` between points, or at the nearest end; whether it is between points)."""
    xs, values = zip(*points, strict=True)
    return float(np.interp(at, xs, values)), xs[0] < at < xs[-1]


def _lines(cells: Cells) -> tuple[dict[Cell, float], tuple[float, ...], tuple[float, ...]]:
    """The crossings on lines with FEWEST of them, and these lines; one alone is a line where the other axis has one."""
    left = dict(cells)
    while True:
        rows, columns = sorted({r for r, _ in left}), sorted({c for _, c in left})
        sparse = {("r", r) for r in rows if sum(a == r for a, _ in left) < min(FEWEST, len(columns))}
        sparse |= {("c", c) for c in columns if sum(b == c for _, b in left) < min(FEWEST, len(rows))}
        kept = {cell: us for cell, us in left.items() if ("r", cell[0]) not in sparse and ("c", cell[1]) not in sparse}
        if len(kept) == len(left) or not kept:
            return left, tuple(rows), tuple(columns)
        left = kept


def _total(cells: Cells, rows: tuple[float, ...], columns: tuple[float, ...]) -> float | None:
    """The largest row x column that was timed, where the last crossing wasn't."""
    return None if (rows[-1], columns[-1]) in cells else max(r * c for r, c in cells)
