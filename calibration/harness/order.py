"""In which order points are timed: shuffled, coarse grid first, some of them twice, anchors between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from calibration.harness.grid import Planned
from calibration.points import FIT, Point

POINT, REPEAT, ANCHOR = "point", "repeat", "anchor"
REPEATED_SHARE = 0.1


class Visit(NamedTuple):
    """One timing of a point: its first, its repeat, or an anchor's."""

    planned: Planned
    purpose: str

    @property
    def point(self) -> Point:
        """The point to time."""
        return self.planned.point


def visits(planned: Sequence[Planned], seed: int) -> list[Visit]:
    """Every point once, in an order drawn from `seed`, so that no drift looks like a trend over an axis.

    The coarse points go first, one of each operation before all others, so that a run cut short spans the grid. A tenth
    of each operation's points (at least one) is timed again among the last quarter or so, far from their first time:
    the repeat floor.
    """
    draw = random.Random(seed)
    coarse, fine = ([each for each in planned if each.coarse is wanted] for wanted in (True, False))
    draw.shuffle(coarse)
    draw.shuffle(fine)
    first = {each.point.op: each for each in reversed(coarse)}
    coarse.sort(key=lambda each: each is not first[each.point.op])
    half = len(fine) // 2
    last = [Visit(each, POINT) for each in fine[half:]] + [Visit(each, REPEAT) for each in _repeated(planned, coarse)]
    draw.shuffle(last)
    return [Visit(each, POINT) for each in (*coarse, *fine[:half])] + last


def anchors(planned: Sequence[Planned]) -> list[Planned]:
    """A small and a large linear, a prefill, a decode and a norm, of middling size: re-timed, they show drift."""
    found = []
    for op, places in (("linear", (0.0, 0.75)), ("prefill", (0.6,)), ("decode", (0.6,)), ("norm", (0.6,))):
        even = (each for each in planned if each.point.op == op and each.split == FIT and not each.point.kv_max)
        ordered = sorted(even, key=_work)
        found += [ordered[round(place * (len(ordered) - 1))] for place in places if ordered]
    return found


def _work(planned: Planned) -> tuple[int, Point]:
    """What orders points of one operation by size."""
    point = planned.point
    attended = point.seqs * point.chunk * (point.ctx + point.chunk) + point.n_dec * point.kv_dec
    return (point.m * max(point.n * point.k, 1) or attended), point


def _repeated(planned: Sequence[Planned], coarse: Sequence[Planned]) -> list[Planned]:
    """Of each operation, the first of the coarse order."""
    chosen: list[Planned] = []
    for op in sorted({each.point.op for each in coarse}):
        wanted = max(round(REPEATED_SHARE * sum(each.point.op == op for each in planned)), 1)
        chosen += [each for each in coarse if each.point.op == op][:wanted]
    return chosen
