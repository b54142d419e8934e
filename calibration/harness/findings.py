"""What a measurement shows about itself: repeat floor, times that fall where they should rise, reasons to skip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from calibration.harness.backends import Reading
from calibration.harness.stats import median
from calibration.points import Point, Timed

AXES = ("m", "seqs", "chunk", "n_dec", "kv_dec", "bytes")
FALL, FALLS = 0.9, "falls: "
MAX_FALLS = 20


def repeat_floor_pct(rows: Iterable[Timed]) -> dict[str, float]:
    """By operation, the median difference in percent between the two times of points that were timed twice."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.timed and row.repeat_us:
            found.setdefault(row.point.op, []).append(abs(row.repeat_us / row.median_us - 1) * 100)
    return {op: round(median(differences), 3) for op, differences in sorted(found.items())}


def falls(rows: Iterable[Timed]) -> list[str]:
    """A line for each median more than 10 % below that of the next smaller point along an axis, MAX_FALLS at most."""
    lines: dict[tuple[str, Point], list[Timed]] = {}
    for row in rows:
        for axis in AXES:
            if row.timed and getattr(row.point, axis):
                others: dict[str, Any] = {**asdict(row.point), axis: 0}
                lines.setdefault((axis, Point(**others)), []).append(row)
    found = []
    for (axis, _), line in sorted(lines.items()):
        line.sort(key=lambda row: getattr(row.point, axis))
        for smaller, larger in pairwise(line):
            if larger.median_us < FALL * smaller.median_us:
                found.append(
                    f"{FALLS}{describe(larger.point)}: {larger.median_us:.4g} us, though {axis} = "
                    f"{getattr(smaller.point, axis)} takes {smaller.median_us:.4g} us"
                )
    return found[:MAX_FALLS]


def skipped(rows: Iterable[Timed]) -> dict[str, int]:
    """How many points were skipped, by status and reason."""
    return dict(Counter(f"{row.status}: {row.reason}" for row in rows if not row.timed).most_common())


def noted(rows: Iterable[Timed]) -> dict[str, int]:
    """How many points were timed otherwise than planned, or while clocks were throttled, by status and reason."""
    return dict(Counter(f"{row.status}: {row.reason}" for row in rows if row.timed and row.reason).most_common())


def clocks(readings: Sequence[Reading]) -> dict[str, Any]:
    """Least, median and most of every quantity over a run, and the throttle reasons seen; empty without readings."""
    if not readings:
        return {}
    found: dict[str, Any] = {}
    for name in ("sm_mhz", "memory_mhz", "power_w", "celsius"):
        values = [getattr(reading, name) for reading in readings]
        found[name] = {"min": min(values), "median": median(values), "max": max(values)}
    found["throttled"] = sorted({reason for each in readings for reason in each.throttled.split("+") if reason})
    return found


def describe(point: Point) -> str:
    """A point in words: its operation and the columns that it has."""
    cells = [f"{name} {value}" for name, value in asdict(point).items() if value and name not in ("op", "mode")]
    return f"{point.op} ({', '.join([*cells, point.mode])})"
