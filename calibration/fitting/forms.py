"""The closed forms of a cost model and their fits: a smooth roofline, and a residual for shapes that weren't timed.

A roofline with a smooth corner, t = t0 + ((work / F)^p + (bytes / B)^p)^(1/p), has four parameters. They are fitted to
the logarithms of times, so that a microsecond's call weighs as much as a second's, and with a loss that lets single
points go their own way. It follows a GPU within some per cent; the rest is left to a residual of what was timed nearby.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import MissingError

Column = NDArray[np.float64]

NEIGHBOURS = 6
# Residuals beyond 5 % count less and less (scipy's soft_l1): no form holds at every tile edge.
SOFT = 0.05
EXPONENTS = (0.5, 20.0)


@dataclass(frozen=True)
class Roofline:
    """t0 + ((work / work_per_us)^power + (moved / bytes_per_us)^power)^(1/power), microseconds."""

    floor_us: float
    work_per_us: float
    bytes_per_us: float
    power: float

    def us(self, work: Column, moved: Column) -> Column:
        """Times of calls that do `work` (FLOPs, or query-key pairs) and move as many bytes."""
        compute, memory = work / self.work_per_us, moved / self.bytes_per_us
        large, small = np.maximum(compute, memory), np.minimum(compute, memory)
        corner: Column = large * (1 + (small / large) ** self.power) ** (1 / self.power)
        return self.floor_us + corner


def least_squares() -> Callable[..., Any]:
    """scipy's. Raises MissingError where it isn't installed."""
    try:
        from scipy.optimize import least_squares as solve
    except ImportError:
        hint = "pip install -e '.[calibrate]' in a clone"
        raise MissingError(f"a fit needs scipy, which isn't installed: {hint}") from None
    found: Callable[..., Any] = solve
    return found


def fit_roofline(work: Column, moved: Column, us: Column) -> Roofline:
    """The roofline of the least error over timed calls, from three corners, the best of them."""
    solve = least_squares()
    low, high = np.log(EXPONENTS)
    rates = np.log(us.min() / 2), np.log((work / us).max()), np.log((moved / us).max())

    def off(theta: Column) -> Column:
        error: Column = np.log(Roofline(*map(float, np.exp(theta))).us(work, moved) / us)
        return error

    found = [
        solve(
            off,
            [*rates, np.log(power)],
            bounds=([-20, *(rate - 5 for rate in rates[1:]), low], [30, *(rate + 5 for rate in rates[1:]), high]),
            loss="soft_l1",
            f_scale=SOFT,
        )
        for power in (1.2, 2.5, 6.0)
    ]
    best = min(found, key=lambda fit: fit.cost)
    return Roofline(*map(float, np.exp(best.x)))


@dataclass(frozen=True)
class LinearForm:
    """Any linear layer: a roofline over all shapes that were timed, x the residual of the nearest of them.

    `residuals` holds, by (n, k), log tokens and log (timed / roofline).
    """

    roofline: Roofline
    residuals: Mapping[tuple[int, int], tuple[Column, Column]]

    def us(self, m: Column, n: int, k: int) -> Column:
        """Microseconds of y[m, n] = x[m, k] W[n, k]^T for each m."""
        near = sorted(self.residuals, key=lambda shape: _distance(shape, (n, k)))[:NEIGHBOURS]
        weights = np.array([1 / (0.05 + _distance(shape, (n, k))) for shape in near])
        rows = np.array([np.interp(np.log(m), *self.residuals[shape]) for shape in near])
        times: Column = self.roofline.us(*gemm_work(m, n, k)) * np.exp(weights @ rows / weights.sum())
        return times


def fit_linear(times: Mapping[tuple[int, int, int], float]) -> LinearForm:
    """From microseconds by (m, n, k)."""
    m, n, k = np.array(list(times), dtype=np.float64).T
    us = np.array(list(times.values()))
    roofline = fit_roofline(*gemm_work(m, n, k), us)
    off = np.log(us / roofline.us(*gemm_work(m, n, k)))
    residuals = {}
    for shape in sorted({(int(a), int(b)) for a, b in zip(n, k, strict=True)}):
        own = np.flatnonzero((n == shape[0]) & (k == shape[1]))
        own = own[np.argsort(m[own])]
        residuals[shape] = (np.log(m[own]), off[own])
    return LinearForm(roofline, residuals)


def gemm_work(m: Column, n: Any, k: Any, element_bytes: int = 2) -> tuple[Column, Column]:
    """(FLOPs, bytes moved) of y[m, n] = x[m, k] W[n, k]^T: two FLOPs per product, each operand once."""
    return 2.0 * m * n * k, element_bytes * (n * k + m * (n + k) * 1.0)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return float(sum(abs(np.log(a / b)) for a, b in zip(one, other, strict=True)))


def gathered(points: Iterable[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(sizes, times) of (size, time) pairs, sizes rising, the median of those of one size."""
    by_size: dict[float, list[float]] = {}
    for size, us in points:
        by_size.setdefault(size, []).append(us)
    sizes = tuple(sorted(by_size))
    return sizes, tuple(float(np.median(by_size[size])) for size in sizes)
