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

    A crossing takes the mean of two accounts: along its own row, and of the rows beside it at the same total of tokens
    in memory, by which most of the time goes.
    """
    cells, rows, columns = _lines(cells)
    curves = {row: Curve(*zip(*sorted((c, us) for (r, c), us in cells.items() if r == row), strict=True))
              for row in rows}  # fmt: skip

    def filled(row: float, column: float) -> float:
        own, beside = curves[row], _same_total(curves, row, column)
        accounts = [own.at(column)] if own.covers(column) or beside is None else []
        return float(np.mean(accounts if beside is None else [*accounts, beside]))

    us = tuple(tuple(cells.get((r, c)) or filled(r, c) for c in columns) for r in rows)
    return GridTable(rows, columns, us, _total(cells, rows, columns))


def _same_total(curves: Mapping[float, Curve], row: float, column: float) -> float | None:
    """Between the rows on both sides, each at the context that gives it as many tokens in memory; None at the ends."""
    below, above = (r for r in curves if r < row), (r for r in curves if r > row)
    low, high = max(below, default=None), min(above, default=None)
    if low is None or high is None:
        return None
    a, b = curves[low], curves[high]
    at_low, at_high = row * column / low, row * column / high
    first = min(curve.points()[0][0] for curve in curves.values())
    if not (_reaches(a, at_low, first) and _reaches(b, at_high, first)):
        return None
    share = (row - low) / (high - low)
    return a.at(at_low) * (1 - share) + b.at(at_high) * share


def _reaches(curve: Curve, context: float, first: float) -> bool:
    """Whether a row was timed there; below the first context of all it holds."""
    return curve.covers(context) or (context < first and curve.covers(first))


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
