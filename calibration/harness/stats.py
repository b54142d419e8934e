"""Medians and what surrounds them, for samples of a time. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

CONFIDENCE = 0.95


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of a sorted, non-empty sequence lies below, on straight lines between neighbours."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The median of values in any order."""
    return quantile(sorted(values), 0.5)


def mad(values: Sequence[float]) -> float:
    """The median absolute deviation from the median."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def half_width(values: Sequence[float]) -> float:
    """Half the 95 % confidence interval of the median, as a share of it, from order statistics; inf below 6 values.

    The interval is from the r-th smallest to the r-th largest, r the largest with P(Bin(n, 1/2) < r) <= 2.5 %, so no
    form of the distribution is assumed (Conover, Practical Nonparametric Statistics, 3.2).
    """
    rank = _rank(len(values))
    if not rank:
        return math.inf
    ordered = sorted(values)
    return (ordered[-rank] - ordered[rank - 1]) / 2 / quantile(ordered, 0.5)


@cache
def _rank(count: int) -> int:
    below, rank = 0, 0
    while (below := below + math.comb(count, rank)) <= (1 - CONFIDENCE) / 2 * 2**count:
        rank += 1
    return rank
