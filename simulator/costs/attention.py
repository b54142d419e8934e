"""Attention times looked up in a profile, for one call over all its layers or one: the rules, and where they reach.

Several prefill chunks in one call, in a profile with a roofline: as many equal prompts where such were timed (else one
chunk of all their tokens), x what the roofline makes of their true query-key pairs and contexts. In one without: at
most what one chunk of all their tokens after their mean history would cost (it attends to more), and at most their sum
one by one (which fills the GPU less well); the smaller of the two. In a mixed call the decode rows cost more than alone
and are joined to the prefill by the profile's rule. Uneven contexts add alpha (t(longest) - t(mean)), alpha by the
number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p

from simulator.costs.reach import Column, Lookup, Mask, Span, Work
from simulator.curves import CACHED_ROWS, Curve, Grid
from simulator.plan import BatchShape
from simulator.profile_tables import Attention, AxisTable, GridTable, PrefillRoofline, join

Chunks = Sequence[tuple[int, int]]
# Contexts that stand for those never timed, where only prompts without history were.
BEYOND = tuple(float(2**i) for i in range(6, 21))


class AttentionTimes:
    """Times of attention calls, microseconds x `scale`."""

    def __init__(self, attention: Attention, scale: float) -> None:
        self._tables = attention
        self._prefill: Grid | _Smooth = _scaled(attention.prefill, scale)
        self._several: _Smooth | None = None
        self._roofline = roofline = attention.roofline
        if roofline is not None:
            self._prefill = _Smooth(attention.prefill, roofline.chunk_us, scale)
            if attention.several is not None:
                self._several = _Smooth(_transposed(attention.several), roofline.prompts_us, scale)
        self._decode = _scaled(attention.decode, scale)
        self._mixed = _scaled(attention.decode_in_mixed or attention.decode, scale)
        self._power = None if attention.p is None else held(attention.p)
        self._skew_decode, self._skew_mixed = _alphas(attention.skew_decode), _alphas(attention.skew_mixed)

    def of(self, shape: BatchShape) -> float:
        """One call of this shape."""
        prefill, seqs, context, longest = shape
        if prefill:
            return self.with_prefill(shape)[1]
        curve, alpha = self.decode_row(seqs)
        mean = curve.at(context / seqs)
        return mean + alpha * (curve.at(longest) - mean)

    def decode_row(self, seqs: int) -> tuple[Curve, float]:
        """(times by context, alpha) of a decode batch."""
        return self._decode.row(seqs), self._skew_decode.at(seqs)

    def with_prefill(self, shape: BatchShape) -> tuple[int, float]:
        """(prefill tokens, time) of a call with prefill in it."""
        prefill, seqs, _, _ = shape
        tokens = weighted = 0
        for new, before in prefill:
            tokens += new
            weighted += new * before
        if self._roofline is not None:
            ns = self._smooth(self._roofline, prefill, tokens, weighted)
            return tokens, self._joined(ns, tokens, shape) if seqs else ns
        ns = self._prefill.row(tokens).at(weighted / tokens)
        if len(prefill) > 1:
            one_by_one = 0.0
            for new, before in prefill:
                one_by_one += self._prefill.row(new).at(before)
            ns = min(ns, one_by_one)
        return tokens, self._joined(ns, tokens, shape) if seqs else ns

    def _smooth(self, roofline: PrefillRoofline, chunks: Chunks, tokens: int, weighted: int) -> float:
        """Prefill alone: what was timed nearest, x what the roofline makes of the difference."""
        context = weighted / tokens
        if len(chunks) == 1:
            return self._prefill.row(tokens).at(context)
        pairs, contexts = float(weighted), 0
        for new, before in chunks:
            pairs += new * (new + 1) / 2
            contexts += before
        us = roofline.us(pairs, tokens, contexts)
        if self._several is None:
            return self._prefill.row(tokens).at(context) * us / roofline.chunk_us(tokens, context)
        length = tokens / len(chunks)
        time = self._several.row(length).at(len(chunks)) * us / roofline.prompts_us(length, len(chunks))
        if contexts:
            one = self._prefill.row(length)
            time *= one.at(context) / one.at(0.0) * roofline.chunk_us(length, 0) / roofline.chunk_us(length, context)
        return time

    def _joined(self, prefill: float, tokens: int, shape: BatchShape) -> float:
        """Prefill attention and the decode rows beside it, in one call."""
        seqs = shape.decode_seqs
        curve, alpha = self._mixed.row(seqs), self._skew_mixed.at(seqs)
        power = None if self._power is None else self._power.row(tokens).at(seqs)
        time = join(prefill, curve.at(shape.decode_context / seqs), power)
        if alpha:
            time += alpha * (join(prefill, curve.at(shape.decode_max_context), power) - time)
        return time

    def lookups(self, work: Work) -> list[Lookup]:
        """Every measured axis that calls of these sizes are looked up on."""
        tables, several = self._tables, self._tables.several
        alone, mixed = work.decode_only, work.mixed
        found = [Lookup(_columns("prefill context", tables.prefill), work.prefill_context, work.has_prefill)]
        if several is None:
            found.append(Lookup(_rows("prefill chunk", tables.prefill), work.prefill_tokens, work.has_prefill))
        else:
            one, more = work.prefill_seqs == 1, work.prefill_seqs > 1
            found += [
                Lookup(_rows("prefill chunk", tables.prefill), work.prefill_tokens, one),
                Lookup(_rows("prompts in a call", several), work.prefill_seqs, more),
                Lookup(_columns("prompts' length", several), work.chunk_mean, more),
            ]
            found += _total("tokens of prompts in a call", several, work.prefill_tokens, more)
        beside = tables.decode_in_mixed or tables.decode
        for what, table, alphas, rows in (
            ("decode", tables.decode, self._skew_decode, alone),
            ("decode beside prefill", beside, self._skew_mixed, mixed),
        ):
            found.append(Lookup(_rows(f"{what} rows", table), work.decode_seqs, rows))
            found.append(Lookup(_columns(f"{what} context", table), work.decode_context, rows))
            uneven = rows & (alphas.at_many(work.decode_seqs) != 0)
            found.append(Lookup(_columns(f"{what} longest context", table), work.decode_longest, uneven))
            found += _total(f"{what} tokens in memory", table, work.decode_seqs * work.decode_context, rows)
        return found


def _rows(axis: str, table: GridTable) -> Span:
    return Span(axis, table.rows[0], table.rows[-1])


def _columns(axis: str, table: GridTable) -> Span:
    return Span(axis, table.columns[0], table.columns[-1])


def _total(axis: str, table: GridTable, values: Column, applies: Mask) -> list[Lookup]:
    if table.total_tokens is None:
        return []
    return [Lookup(Span(axis, 0, table.total_tokens), values, applies)]


def held(table: GridTable) -> Grid:
    """A grid whose last values hold beyond its ends: there is no trend in a fitted ratio or exponent to go on with."""
    rows = [(*row, row[-1]) for row in table.us]
    return Grid((*table.rows, 2 * table.rows[-1] + 1), (*table.columns, 2 * table.columns[-1] + 1), [*rows, rows[-1]])


class _Smooth:
    """A table read by straight lines along its columns, and from row to row by its ratio to a form.

    Time is linear in a chunk's context and in the number of prompts, but not in their length: there the form bends, and
    the ratio of measured to form goes straight over the logarithm, and holds beyond the ends. Where there is a single
    column, the form goes on from it.
    """

    def __init__(self, table: GridTable, form: Callable[[float, float], float], scale: float) -> None:
        columns = table.columns if len(table.columns) > 1 else (*table.columns, *BEYOND)
        ratios = [tuple(us / form(row, column) for column, us in zip(table.columns, line, strict=True))
                  for row, line in zip(table.rows, table.us, strict=True)]  # fmt: skip
        self._ratios = held(GridTable(tuple(map(log1p, table.rows)), table.columns, tuple(ratios)))
        self._columns, self._form, self._scale = columns, form, scale
        self._cache: dict[float, Curve] = {}

    def row(self, v: float) -> Curve:
        """The curve over the columns at row value `v`."""
        curve = self._cache.get(v)
        if curve is None:
            if len(self._cache) >= CACHED_ROWS:
                self._cache.clear()
            ratios = self._ratios.row(log1p(v))
            times = [self._scale * self._form(v, column) * ratios.at(column) for column in self._columns]
            curve = self._cache[v] = Curve(self._columns, times)
        return curve


def _transposed(table: GridTable) -> GridTable:
    return GridTable(table.columns, table.rows, tuple(zip(*table.us, strict=True)), table.total_tokens)


def _alphas(table: AxisTable) -> Curve:
    """Alpha by rows, likewise."""
    return Curve((*table.axis, 2 * table.axis[-1]), (*table.values, table.values[-1]))


def _scaled(table: GridTable, scale: float) -> Grid:
    return Grid(table.rows, table.columns, table.us, scale=scale)
