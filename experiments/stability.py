"""Whether a run kept up with its arrivals, from a RunLog.

Means of a run whose queue grows say how long it was, not how good the server is. Three signs must agree: requests pile
up and those that come later wait longer (as in guidellm's detection of over-saturation, vllm-project/guidellm 552), and
the server has no pause in which to catch up, as it has between the bursts of a bursty trace.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.recorder import RunLog

MAX_PILE_UP = 0.03  # of the arrivals
MIN_BUSY = 0.97  # of the later half of the time in which requests arrive
MIN_REQUESTS = 40  # in a quarter of the time there should be some


class Stability(NamedTuple):
    """`pile_up`: the share of the later arrivals that the number in the system grew by. `unstable`: it keeps growing.

    Both are None where the question makes no sense: with few requests, or all there at once.
    """

    pile_up: float | None
    unstable: bool | None


def stability(log: RunLog) -> Stability:
    """Compare the second quarter of the time in which requests arrive with the last.

    The number in the system grows from one to the other by `pile_up` x the arrivals in between; what a server doesn't
    keep up with at its rate r is 1 - capacity / r of them. The run is unstable where that is above MAX_PILE_UP, time to
    the first token grows as well, and an iteration runs for at least MIN_BUSY of the later half.
    """
    s = log.sequences
    served = s["finished"] == 1
    arrival, first, finish = (s[name][served] for name in ("arrival_ns", "first_token_ns", "finish_ns"))
    if len(arrival) < MIN_REQUESTS or arrival[0] == arrival[-1]:
        return Stability(None, None)
    edges = np.linspace(arrival[0], arrival[-1], 5)
    second, last = (edges[1], edges[2]), (edges[3], edges[4])
    between = np.searchsorted(arrival, [(a + b) / 2 for a, b in (second, last)])
    arrived = max(int(between[1] - between[0]), 1)
    pile_up = (_mean_inside(arrival, finish, *last) - _mean_inside(arrival, finish, *second)) / arrived
    waits = [_mean_wait(arrival, first, *quarter) for quarter in (second, last)]
    grows = pile_up > MAX_PILE_UP and waits[1] > waits[0]
    return Stability(float(pile_up), bool(grows and _busy(log, edges[2], edges[4]) >= MIN_BUSY))


def _mean_inside(arrival: np.ndarray, finish: np.ndarray, begin: float, end: float) -> float:
    """Requests in the system, averaged over the time from `begin` to `end`."""
    stay = np.clip(finish, begin, end) - np.clip(arrival, begin, end)
    return float(stay.sum() / (end - begin))


def _busy(log: RunLog, begin: float, end: float) -> float:
    """Share of the time from `begin` to `end` in which an iteration runs."""
    it = log.iterations
    ran = np.clip(it["end_ns"], begin, end) - np.clip(it["start_ns"], begin, end)
    return float(ran.sum() / (end - begin))


def _mean_wait(arrival: np.ndarray, first: np.ndarray, begin: float, end: float) -> float:
    """Time to the first token of those who arrive from `begin` to `end`, in nanoseconds."""
    mine = (arrival >= begin) & (arrival <= end)
    return float((first - arrival)[mine].mean()) if mine.any() else 0.0
