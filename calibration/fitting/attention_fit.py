"""Attention of a profile out of timed calls: prefill, decode, both in one call, uneven lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from calibration.fitting.forms import fit_roofline
from calibration.fitting.grids import Cell, Cells, decode_grid, smooth_grid
from calibration.fitting.joins import POWERS, Column, MixedCall, UnevenCall, fit_alphas, fit_powers
from calibration.points import Point, Timed
from calibration.predict import batch_shape
from simulator.costs.attention import AttentionTimes
from simulator.curves import Curve
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.profile import Attention, AxisTable, GridTable, PrefillRoofline, constant_alpha
from simulator.specs import ModelSpec

ELEMENT_BYTES = 2
FEWEST_CALLS = 4  # mixed calls that an exponent is fitted to: of its chunk and number of rows, else of near ones too
MOST_CALLS = 300  # that the chunk's share of the table is looked for by
LEAST_SHARE = 0.2  # of a mixed call that its decode rows are taken to need, where noise hides them
FEWEST_POINTS = 5  # prefill calls that a roofline's four parameters need; with fewer, straight lines


def fit_attention(rows: Sequence[Timed], model: ModelSpec, tp: int, rest: Curve) -> tuple[Attention, dict[str, str]]:
    """The tables and forms, and notes for the metadata. `rest` is what else a layer takes, microseconds by tokens.

    Raises ConfigError where no single prompt was timed, or no decode rows of one length.
    """
    prefill, decode, mixed = ([row for row in rows if row.point.op == op] for op in ("prefill", "decode", "mixed"))
    roofline = _roofline(prefill, model, tp) if len(prefill) >= FEWEST_POINTS else None
    chunks = _cells((r for r in prefill if r.point.seqs == 1), lambda p: (p.chunk, p.ctx))
    even = _cells((r for r in decode if r.point.longest == r.point.kv_dec), _decode_key)
    needed = (("prefill: no call of one prompt", chunks), ("decode: no call of rows of one length", even))
    if faults := [f"{what} was timed" for what, found in needed if not found]:
        raise ConfigError(faults)
    none = constant_alpha(0.0)
    attention = Attention(
        model.layers,
        smooth_grid(chunks, _prefill_form(roofline)),
        decode_grid(even), None, None, none, none, roofline,
        None if roofline is None else _several(prefill, chunks, roofline),
    )  # fmt: skip
    notes = {"mixed": "no mixed calls timed: prefill and decode added up"}
    if not any(context for _, context in chunks):
        notes["history"] = "no chunk with history timed: by its query-key pairs and bytes"
    if any(_beside(row.point) for row in mixed):
        attention, notes["mixed"] = _with_mixed(attention, mixed, rest)
    alone, beside = _alphas(attention, decode), _alphas(attention, mixed)
    terms = [what for what, table in (("decode", alone), ("mixed", beside)) if any(table.values)]
    notes["uneven_lengths"] = ", ".join(terms) or "no term"
    return replace(attention, skew_decode=alone, skew_mixed=beside), notes


def _cells(rows: Iterable[Timed], key: Callable[[Point], Cell]) -> dict[Cell, float]:
    """Microseconds by crossing, the median of those of one."""
    found: dict[Cell, list[float]] = {}
    for row in rows:
        found.setdefault(key(row.point), []).append(row.median_us)
    return {cell: float(np.median(times)) for cell, times in found.items()}


def _decode_key(point: Point) -> Cell:
    return point.n_dec, point.kv_dec


def _roofline(rows: Sequence[Timed], model: ModelSpec, tp: int) -> PrefillRoofline:
    """In query-key pairs and bytes of queries, outputs, keys and values."""
    sizes = np.array([(r.point.seqs, r.point.chunk, r.point.ctx, r.median_us) for r in rows], dtype=np.float64)
    prompts, chunk, context, us = sizes.T
    queries, kv = model.heads // tp * model.head_dim, model.kv_heads_per_rank(tp) * model.head_dim
    per_token, per_context = (ELEMENT_BYTES * 2 * elements for elements in (queries + kv, kv))
    fitted = fit_roofline(
        prompts * chunk * (context + (chunk + 1) / 2), prompts * (per_token * chunk + per_context * context), us
    )
    return PrefillRoofline(
        fitted.floor_us, 1 / fitted.work_per_us, per_token / fitted.bytes_per_us, per_context / fitted.bytes_per_us,
        fitted.power,
    )  # fmt: skip


def _prefill_form(roofline: PrefillRoofline | None) -> Callable[[float, float], float]:
    """Microseconds of a chunk after a context; without a roofline, its query-key pairs stand for them."""
    if roofline is None:
        return lambda chunk, context: chunk * (context + (chunk + 1) / 2)
    return roofline.chunk_us


def _several(rows: Iterable[Timed], alone: Cells, roofline: PrefillRoofline) -> GridTable | None:
    """Equal prompts without history by their number and length, one prompt among them."""
    more = _cells((r for r in rows if r.point.seqs > 1 and not r.point.ctx), lambda p: (p.chunk, p.seqs))
    if not more:
        return None
    lengths = {length for length, _ in more}
    one = {(chunk, 1.0): us for (chunk, context), us in alone.items() if not context and chunk in lengths}
    table = smooth_grid(one | more, roofline.prompts_us)
    return GridTable(table.columns, table.rows, tuple(zip(*table.us, strict=True)), table.total_tokens)


def _with_mixed(attention: Attention, rows: Sequence[Timed], rest: Curve) -> tuple[Attention, str]:
    """With the table of decode rows beside the shortest chunk, and the exponents of the other calls.

    Either the call's whole time, as of a chunk that hides behind the rows; or what is left of it once the chunk's own
    time is taken out by a p-norm, with the p of at least 1 (no longer than one after the other) by which such a table
    does best: whichever does better on the calls that the table isn't made of. p is then fitted to these by chunk and
    number of rows, to FEWEST_CALLS each.
    """
    even = [row for row in rows if row.point.longest == row.point.kv_dec]
    shortest = min(row.point.chunk for row in even if _beside(row.point))
    alone = [row for row in even if _beside(row.point) and row.point.chunk == shortest]
    others = [row for row in even if not _beside(row.point) or row.point.chunk > shortest] or alone
    beside = _cells(alone, _decode_key)
    chunk_us = AttentionTimes(attention, 1.0).of(BatchShape(((shortest, 0),)))

    def without_chunk(p: float) -> Attention:
        return replace(attention, decode_in_mixed=decode_grid({c: _left(us, chunk_us, p) for c, us in beside.items()}))

    def joined(halves: Attention, some: Sequence[Timed]) -> tuple[GridTable, Column]:
        return fit_powers(_calls(halves, some, rest), FEWEST_CALLS)

    def off(p: float) -> float:
        return float(joined(without_chunk(p), others[:: -(-len(others) // MOST_CALLS)])[1].mean())

    whole = replace(attention, decode_in_mixed=decode_grid(beside))
    candidates = [whole, without_chunk(min(POWERS[POWERS >= 1][::5].tolist(), key=off))]
    fits = [(each, *joined(each, others)) for each in candidates]
    best, power, left = min(fits, key=lambda fit: float(fit[2].mean()))
    median, high = np.percentile(left, [50, 90]) * 100
    note = f"median {median:.1f} %, 90th percentile {high:.1f} % of a layer, {len(left)} calls of the fit"
    return replace(best, p=power), note


def _beside(point: Point) -> bool:
    """Whether a mixed call is one that the table of decode rows beside a chunk is made of."""
    return point.seqs == 1 and not point.ctx and point.longest == point.kv_dec


def _left(us: float, chunk_us: float, p: float) -> float:
    """The other half of a p-norm."""
    return float(us * max(1 - min(chunk_us / us, 1.0) ** p, LEAST_SHARE**p) ** (1 / p))


def _calls(attention: Attention, rows: Iterable[Timed], rest: Curve) -> list[MixedCall]:
    """The mixed calls beside the times of their halves."""
    alone = AttentionTimes(attention, 1.0)
    inside = AttentionTimes(replace(attention, decode=attention.decode_in_mixed or attention.decode), 1.0)
    calls = []
    for row in rows:
        shape = batch_shape(row.point)
        chunks, decode = BatchShape(shape.prefill), shape._replace(prefill=())
        sizes, halves = (chunks.tokens, shape.decode_seqs), (alone.of(chunks), inside.of(decode))
        calls.append(MixedCall(*sizes, *halves, row.median_us, row.median_us + rest.at(shape.tokens)))
    return calls


def _alphas(attention: Attention, rows: Iterable[Timed]) -> AxisTable:
    """alpha by rows from the calls of uneven lengths among these."""
    times = AttentionTimes(attention, 1.0)
    calls = []
    for row in rows:
        if row.point.longest > row.point.kv_dec:
            point = row.point
            mean = times.of(batch_shape(replace(point, kv_max=0)))
            longest = times.of(batch_shape(replace(point, kv_dec=point.kv_max, kv_max=0)))
            calls.append(UnevenCall(point.n_dec, mean, longest, row.median_us))
    return fit_alphas(calls) if calls else constant_alpha(0.0)
