"""Simulated time: integer nanoseconds, and the one place that rounds.

Float seconds would break exactness: one jump over k iterations differs from k small sums. Everything inside the
simulator is therefore an `int` of nanoseconds; other units exist at the borders only and pass through here.
"""

from __future__ import annotations

import math

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def ns_from_us(us: float) -> int:
    """Microseconds to whole nanoseconds, half up. Raises ValueError where `us` is not finite."""
    return _whole(us * NS_PER_US)


def ns_from_ms(ms: float) -> int:
    """Milliseconds to whole nanoseconds, half up. Raises ValueError where `ms` is not finite."""
    return _whole(ms * NS_PER_MS)


def ns_from_s(s: float) -> int:
    """Seconds to whole nanoseconds, half up. Raises ValueError where `s` is not finite."""
    return _whole(s * NS_PER_S)


def _whole(ns: float) -> int:
    if not math.isfinite(ns):
        raise ValueError(f"not a finite time: {ns}")
    return math.floor(ns + 0.5)


def iteration_ns(ns: float) -> int:
    """A cost model's float nanoseconds as the duration of an iteration: half up, at least 1 (invariant 3)."""
    whole = int(ns + 0.5)
    return whole if whole > 0 else 1
