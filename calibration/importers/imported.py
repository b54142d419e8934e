"""What a reader of timings gives: points of a calibration, some of them held out, and what their source says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median

from calibration.points import FIT, HOLDOUT, Point, Timed, held_out
from simulator.specs import ModelSpec

Shape = tuple[int, int]  # (n, k) of a linear layer: out features, in features
Axes = tuple[int, ...]


@dataclass(frozen=True)
class Imported:
    """Rows of one or more tables. `repeat_floor_pct` is the spread of repeated timings in per cent, by operation.

    `notes` says by operation what was timed; it goes into a profile's metadata.
    """

    rows: Sequence[Timed]
    repeat_floor_pct: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


# A reader of one table: (file, model, tensor-parallel degree).
Reader = Callable[[Path, ModelSpec, int], Imported]


def merged(times: Iterable[tuple[Point, float]], l2: str = "hot") -> list[Timed]:
    """One row per point, with the median of its times in microseconds, in the order of points; none held out yet."""
    ordered = sorted(times, key=lambda pair: pair[0])
    rows = []
    for point, same in groupby(ordered, key=lambda pair: pair[0]):
        values = [us for _, us in same]
        rows.append(Timed(point, FIT, median_us=median(values), samples=len(values), l2=l2))
    return rows


def split(rows: Sequence[Timed]) -> list[Timed]:
    """The rows with a fifth held out by hash, but never a corner of a grid: there is nothing beyond it to go by."""
    grids: dict[tuple[object, ...], list[Axes]] = {}
    for row in rows:
        grids.setdefault(_grid(row.point), []).append(_axes(row.point))
    ends = {grid: [(min(axis), max(axis)) for axis in zip(*places, strict=True)] for grid, places in grids.items()}

    def corner(point: Point) -> bool:
        return all(x in at for x, at in zip(_axes(point), ends[_grid(point)], strict=True))

    return [replace(row, split=FIT if corner(row.point) or not held_out(row.point) else HOLDOUT) for row in rows]


def _grid(point: Point) -> tuple[object, ...]:
    return point.op, point.n, point.k, point.ranks, point.mode


def _axes(point: Point) -> Axes:
    return point.m, point.bytes, point.seqs, point.chunk, point.ctx, point.n_dec, point.kv_dec, point.kv_max
