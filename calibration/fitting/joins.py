"""How the two halves of an attention call add up: the exponent of a mixed call, and the share of a longest row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

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


# The calls of each chunk and number of rows.
Cells = Mapping[tuple[int, int], Sequence[MixedCall]]


class UnevenCall(NamedTuple):
    """One timed call of rows of uneven lengths, and what even ones would take at the mean and at the longest."""

    seqs: int
    mean_us: float
    longest_us: float
    us: float


def fit_powers(calls: Iterable[MixedCall], fewest: int = 1) -> tuple[GridTable, Column]:
    """p in (prefill^p + decode^p)^(1/p) by (chunk, rows), and the errors that are left, as shares of the layer's time.

    Each p has the least mean error over the calls of its chunk and number of rows (all histories and contexts). Where
    these are fewer than `fewest`, those of the nearest chunks and numbers of rows count as well: how the halves overlap
    changes slowly with either, and a single call says little.
    """
    cells: dict[tuple[int, int], list[MixedCall]] = {}
    for call in calls:
        cells.setdefault((call.chunk, call.seqs), []).append(call)
    chunks, rows = sorted({c for c, _ in cells}), sorted({n for _, n in cells})
    powers = {(c, n): best_power(_nearest(cells, c, n, fewest))[0] for c in chunks for n in rows}
    left = np.concatenate([errors(found, np.array([powers[cell]]))[0] for cell, found in cells.items()])
    return GridTable(tuple(chunks), tuple(rows), tuple(tuple(powers[c, n] for n in rows) for c in chunks)), left


def _nearest(cells: Cells, chunk: int, rows: int, fewest: int) -> list[MixedCall]:
    """A cell's calls, and where there are fewer, those of the nearest cells in octaves, all that are as near."""

    def away(cell: tuple[int, int]) -> float:
        return float(abs(np.log2(cell[0] / chunk)) + abs(np.log2(cell[1] / rows)))

    found: list[MixedCall] = []
    for _, ring in groupby(sorted(cells, key=away), key=away):
        found += [call for cell in ring for call in cells[cell]]
        if len(found) >= fewest:
            break
    return found


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
