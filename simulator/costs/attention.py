"""Attention times looked up in a profile, for one call over all its layers or one: the rules, and where they reach.

Several prefill chunks in one call, in a profile with a roofline: by their tokens and query-key pairs through the
roofline, x the residual of as many equal prompts where such were timed. In one without: at most what one chunk of all
their tokens after their mean history would cost (it attends to more), and at most their sum one by one (which fills the
GPU less well); the smaller of the two. In a mixed call the decode rows cost more than alone and are joined to the
prefill by the profile's rule. Uneven contexts add alpha (t(longest) - t(mean)), alpha by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.costs.reach import Column, Lookup, Mask, Span, Work
from simulator.curves import Curve, Grid
from simulator.plan import BatchShape
from simulator.profile_tables import Attention, AxisTable, GridTable, PrefillRoofline, join


class AttentionTimes:
    """Times of attention calls, microseconds x `scale`."""

    def __init__(self, attention: Attention, scale: float) -> None:
        self._scale, self._roofline, self._several = scale, attention.roofline, None
        self._tables = attention
        if self._roofline is None:
            self._prefill = _scaled(attention.prefill, scale)
        else:
            self._prefill = held(_residuals(attention.prefill, self._roofline))
            if attention.several is not None:
                self._several = held(_several_residuals(attention.several, self._roofline))
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

    def _smooth(
        self, roofline: PrefillRoofline, chunks: Sequence[tuple[int, int]], tokens: int, weighted: int
    ) -> float:
        pairs, contexts = float(weighted), 0
        for new, before in chunks:
            pairs += new * (new + 1) / 2
            contexts += before
        time = self._scale * roofline.us(pairs, tokens, contexts)
        if len(chunks) == 1 or self._several is None:
            return time * self._prefill.row(tokens).at(weighted / tokens)
        length = tokens / len(chunks)
        after = self._prefill.row(length)
        return time * self._several.row(len(chunks)).at(length) * (after.at(weighted / tokens) / after.at(0.0))

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


def _residuals(table: GridTable, roofline: PrefillRoofline) -> GridTable:
    """Measured / roofline, of a chunk after a history."""
    return _ratios(table, lambda new, before: roofline.us(new * before + new * (new + 1) / 2, new, before))


def _several_residuals(table: GridTable, roofline: PrefillRoofline) -> GridTable:
    """Measured / roofline, of equal prompts without history."""
    return _ratios(table, lambda k, new: roofline.us(k * new * (new + 1) / 2, k * new, 0))


def _ratios(table: GridTable, form: Callable[[float, float], float]) -> GridTable:
    ratios = [
        tuple(us / form(row, column) for column, us in zip(table.columns, line, strict=True))
        for row, line in zip(table.rows, table.us, strict=True)
    ]
    return GridTable(table.rows, table.columns, tuple(ratios))


def _alphas(table: AxisTable) -> Curve:
    """Alpha by rows, likewise."""
    return Curve((*table.axis, 2 * table.axis[-1]), (*table.values, table.values[-1]))


def _scaled(table: GridTable, scale: float) -> Grid:
    return Grid(table.rows, table.columns, table.us, scale=scale)
