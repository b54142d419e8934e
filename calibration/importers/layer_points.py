"""LLMServingSim's tables of one decoder layer as points of a calibration, and whole steps added up from them.

The tables (see `calibration.importers.llmservingsim`) hold a grid of sizes that are powers of two, and on some GPUs a
second grid between its points: the first is split like any other, the second is never fitted. Uneven decode lengths
(skew.csv) are left out: even lengths take two to three times as long there as in attention.csv, so only their ratios
say something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from calibration.importers.imported import Imported, merged, split
from calibration.importers.llmservingsim import Source
from calibration.importers.tables import read_table
from calibration.points import ATTENTION, FIT, OFF_GRID, Point, Timed, linear_shapes
from calibration.validate import SUMMED
from simulator.curves import Curve, total
from simulator.specs import ModelSpec

# Our operation by the layer's name here; `final_layernorm` is one more call of the norm.
LINEARS = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down", "lm_head": "lm_head"}
OTHERS = {
    "embedding": "embedding", "layernorm": "norm", "rotary_emb": "rope", "act_fn": "activation", "sampler": "sampling",
}  # fmt: skip


def layer_points(source: Source, *, model: ModelSpec, tp: int) -> Imported:
    """One degree's tables as rows, a fifth held out. Raises ConfigError with a line per fault."""
    shapes = linear_shapes(model, tp)

    def point(layer: str, m: int) -> Point | None:
        if layer in LINEARS:
            n, k = shapes[LINEARS[layer]]
            return Point("linear", m=m, n=n, k=k, mode="eager")
        return Point(OTHERS[layer], m=m, mode="eager") if layer in OTHERS else None

    times = [
        (made, row["time_us"])
        for name, axis in (("dense.csv", "tokens"), ("per_sequence.csv", "sequences"))
        for row in read_table(source.folder / name, (axis, "time_us"), text="layer")
        if (made := point(row["layer"], int(row[axis]))) is not None
    ]
    grid, between = _attention(source.folder / "attention.csv")
    rows = [*split(merged([*times, *grid])), *(replace(row, split=OFF_GRID) for row in merged(between))]
    return Imported(rows, notes={"attention": "inside vLLM, eager, mean of 3"})


def _attention(path: Path) -> tuple[list[tuple[Point, float]], list[tuple[Point, float]]]:
    """Calls on the grid of powers of two, and the others."""
    sizes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    parts: tuple[list[tuple[Point, float]], list[tuple[Point, float]]] = [], []
    for row in read_table(path, (*sizes, "time_us")):
        chunk, ctx, n_dec, kv_dec = (int(row[key]) for key in sizes)
        op = "mixed" if chunk and n_dec else "prefill" if chunk else "decode"
        made = Point(op, seqs=int(chunk > 0), chunk=chunk, ctx=ctx, n_dec=n_dec, kv_dec=kv_dec, mode="eager")
        between = any(size & (size - 1) for size in (chunk, ctx, n_dec, kv_dec))
        parts[between].append((made, row["time_us"]))
    return parts


def summed_steps(rows: Sequence[Timed], *, model: ModelSpec, tp: int) -> list[Timed]:
    """A whole step for each attention call that a fit never sees: the sum of its measured kernels, never fitted.

    The other kernels' times are interpolated between all their measured sizes (every 16 tokens), those held out too.
    It tests how kernels add up, not what a host spends between them.
    """
    at = _curves(rows)
    shapes = linear_shapes(model, tp)
    head = shapes.pop("lm_head")
    per_layer = [*((1.0, at("linear", shape)) for shape in shapes.values()), (2.0, at("norm"))]
    layer = total([*per_layer, (1.0, at("rope")), (1.0, at("activation"))])
    once = total([(1.0, at("embedding")), (1.0, at("norm"))])
    sampled = total([(1.0, at("linear", head)), (1.0, at("sampling"))])
    steps = []
    for row in rows:
        point = row.point
        if point.op in ATTENTION and row.split != FIT and not point.kv_max:
            us = model.layers * (row.median_us + layer.at(point.tokens)) + once.at(point.tokens)
            us += sampled.at(point.seqs + point.n_dec)
            steps.append(
                replace(
                    row,
                    point=replace(point, op="stack", layers=model.layers),
                    median_us=us,
                    split=OFF_GRID,
                    reason=SUMMED,
                )
            )
    return steps


def _curves(rows: Iterable[Timed]) -> Callable[..., Curve]:
    """Microseconds by tokens or rows of an operation, given its name and for a linear layer its shape."""
    tables: dict[tuple[str, int, int], dict[int, float]] = {}
    for row in rows:
        tables.setdefault((row.point.op, row.point.n, row.point.k), {})[row.point.m] = row.median_us

    def at(op: str, shape: tuple[int, int] = (0, 0)) -> Curve:
        table: Mapping[int, float] = tables[op, *shape]
        return Curve(sorted(table), [table[m] for m in sorted(table)])

    return at
