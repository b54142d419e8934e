"""How the two halves of an attention call add up: the exponent of a mixed call, and the share of a longest row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.profile import AxisTable, GridTable

Column = NDArray[np.float64]
# Candidates for the exponent of a mixed call; below 1 it takes longer than its halves one after the other.
POWERS = np.round(np.arange(0.5, 8.01, 0.02), 2)


class MixedCall(NamedTuple):
    """One timed call with a chunk and decode rows, its two halves as the tables have them, and the layer around it."""

    chunk: int
    seqs: int
    prefill_us: float
    decode_us: float
    us: float
    layer_us: float


class UnevenCall(NamedTuple):
    """One timed call of rows of uneven lengths, and what even ones would take at the mean and at the longest."""

    seqs: int
    mean_us: float
    longest_us: float
    us: float


def fit_powers(calls: Iterable[MixedCall], fewest: int = 1) -> tuple[GridTable, Column]:
    """p in (prefill^p + decode^p)^(1/p) by (chunk, rows), and the errors that are left, as shares of the layer's time.

    Each p has the least mean error over its calls (all histories and contexts). Where no chunk and number of rows has
    as many calls as `fewest`, one p is fitted to all; a cell with fewer takes that of the nearest.
    """
    cells: dict[tuple[int, int], list[MixedCall]] = {}
    for call in calls:
        cells.setdefault((call.chunk, call.seqs), []).append(call)
    full = {cell: found for cell, found in cells.items() if len(found) >= fewest}
    if not full:
        power, off = best_power([call for found in cells.values() for call in found])
        return GridTable((1,), (1,), ((power,),)), off
    fitted = {cell: best_power(found) for cell, found in full.items()}
    chunks, seqs_axis = sorted({c for c, _ in fitted}), sorted({n for _, n in fitted})
    table = tuple(tuple(_nearest(fitted, chunk, n) for n in seqs_axis) for chunk in chunks)
    return GridTable(tuple(chunks), tuple(seqs_axis), table), np.concatenate([off for _, off in fitted.values()])


def best_power(calls: Sequence[MixedCall]) -> tuple[float, Column]:
    """The p of the least mean error, and the errors."""
    off = errors(calls, POWERS)
    best = int(np.argmin(off.mean(axis=1)))
    return float(POWERS[best]), off[best]


def errors(calls: Sequence[MixedCall], powers: Column) -> Column:
    """|joined by p - measured| / the layer's time for each p and call."""
    _, _, a, b, truth, whole = np.array(calls).T
    large, small = np.maximum(a, b), np.minimum(a, b)
    joined = large * (1 + (small / large) ** powers[:, None]) ** (1 / powers[:, None])
    off: Column = np.abs(joined - truth) / whole
    return off


def _nearest(fitted: Mapping[tuple[int, int], tuple[float, Any]], chunk: int, seqs: int) -> float:
    """The cell's own p; where it wasn't timed, that of the nearest cell on a logarithmic scale."""
    if (chunk, seqs) in fitted:
        return fitted[chunk, seqs][0]
    near = min(fitted, key=lambda cell: abs(np.log(cell[0] / chunk)) + abs(np.log(cell[1] / seqs)))
    return fitted[near][0]


def fit_alphas(calls: Sequence[UnevenCall]) -> AxisTable:
    """alpha in t(mean) + alpha (t(longest) - t(mean)) by rows, by least squares on relative errors.

    A batch's longest rows hold it up by about their own length, however many others there are, so alpha falls with the
    number of rows: one alpha for all would be several times too large for large batches (or too small for small ones).
    """
    counts = sorted({call.seqs for call in calls})
    return AxisTable(tuple(counts), tuple(_alpha([call for call in calls if call.seqs == n]) for n in counts))


def _alpha(calls: Sequence[UnevenCall]) -> float:
    _, mean, longest, uneven = np.array(calls).T
    x, y = (longest - mean) / uneven, (uneven - mean) / uneven
    scale = float(x @ x)
    return round(min(max(float(x @ y) / scale, 0.0), 1.0), 4) if scale else 0.0
