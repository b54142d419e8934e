"""Cutting and stretching a trace: limit, window, time scale, rate.

`load_trace` applies them in this order: rows are taken in file order until the limit or the window's end is reached;
failed rows are dropped; the rest is sorted by arrival (stable) and rebased to the first; then the client's clock is
stretched, by a factor or to a rate, never both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Which part of a file to take: at most `limit` requests that arrive in [start_ns, end_ns) after its first row.

    The file is taken to be in order of time: reading stops at the first row at or past the end.
    """

    limit: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    def place(self, since_ns: int) -> int:
        """Where an arrival lies, `since_ns` after the file's first: -1 before the window, 0 in it, 1 past it."""
        if self.end_ns is not None and since_ns >= self.end_ns:
            return 1
        return -1 if self.start_ns is not None and since_ns < self.start_ns else 0


WHOLE = Window()


def mean_rate(arrival_ns: Times) -> float | None:
    """Requests per second of sorted arrivals: (n - 1) gaps over the time from first to last; None without a span."""
    span = int(arrival_ns[-1] - arrival_ns[0]) if len(arrival_ns) else 0
    return (len(arrival_ns) - 1) / (span / 1e9) if span else None


def rate_factor(arrival_ns: Times, request_rate: float) -> float:
    """What to multiply sorted arrivals by so that their mean rate becomes `request_rate` per second.

    Raises ConfigError where all arrive at one instant: no factor changes that.
    """
    rate = mean_rate(arrival_ns)
    if rate is None:
        raise ConfigError(
            f"request_rate = {request_rate}: all requests arrive at one instant; there is no rate to change"
        )
    return rate / request_rate


def scaled(times_ns: Times, factor: float) -> Times:
    """Times multiplied by `factor`, to whole nanoseconds, half up. Raises ConfigError past 146 years."""
    if factor == 1.0 or not len(times_ns):
        return times_ns
    stretched = times_ns * factor
    if not math.isfinite(float(stretched.max())) or stretched.max() > 2**62:
        raise ConfigError(f"the trace stretched by {factor:g} lasts more than 146 years")
    whole: Times = np.floor(stretched + 0.5).astype(np.int64)
    return whole
