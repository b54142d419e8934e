"""What is timed: a few hundred points of one model on one rank, and which of them a fit never sees.

Linear layers and the LM head by tokens, the small operations by tokens, prefill attention over (chunk, context) and
with several prompts in a call, decode attention over (rows, context) with even and uneven lengths, decode rows beside a
short chunk over (rows, context) and beside longer ones, all-reduce by bytes, a whole layer and a short stack at mixed
compositions. One in five points is held out by hash, never on the edge of a grid (of a small one: in a corner), where
only extrapolation could fill the hole; points between the grid's lines are `off_grid`. `coarse` points span the grid
alone, so they go first: a run that is cut short covers all of it.

Mixed calls depend on four sizes, too many for a grid. Their two halves are known from grids; how these overlap changes
with the chunk and the number of rows, so `beside` has each such pair twice, with the contexts of both halves taken in
rotation (a fraction of a factorial design). tests/bench/grid_choice.py has what other choices would be worth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from calibration.points import ELEMENTWISE, FIT, HOLDOUT, OFF_GRID, WHOLE, Point, held_out, linear_shapes
from simulator.specs import ModelSpec

STACK_LAYERS = 4
LARGE = 5  # points on the shorter side of a grid whose edges are never held out
UNEVEN = 4  # the longest of uneven lengths, in means
REDUCED_BYTES = tuple(256 * 4**i for i in range(11))  # 256 B to 256 MiB

Composition = tuple[int, int, int, int, int]  # seqs, chunk, ctx, n_dec, kv_dec


@dataclass(frozen=True)
class Planned:
    """A point, what it may be used for, and whether it is of the coarse grid."""

    point: Point
    split: str
    coarse: bool


class Off(NamedTuple):
    """Sizes between the lines of the grids, never fitted.

    Tokens; (chunk, context); (rows, kv); (chunk, context, rows, kv).
    """

    tokens: tuple[int, ...]
    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    mixed: tuple[tuple[int, int, int, int], ...]


class Beside(NamedTuple):
    """Decode rows next to longer chunks: sizes of both, of which `calls` makes a small design."""

    chunks: tuple[int, ...]
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    kv: tuple[int, ...]

    def calls(self) -> Iterator[tuple[int, int, int, int]]:
        """(chunk, ctx, rows, kv): each chunk with each number of rows twice, contexts in rotation."""
        for (i, chunk), (j, rows), again in product(enumerate(self.chunks), enumerate(self.rows), range(2)):
            ctx = self.contexts[(i + 2 * j + again) % len(self.contexts)]
            yield chunk, ctx, rows, self.kv[(i + j + 2 * again) % len(self.kv)]


@dataclass(frozen=True)
class Axes:
    """The lines of the grids, in tokens and rows."""

    tokens: tuple[int, ...]
    few_tokens: tuple[int, ...]
    chunks: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    prompt_chunks: tuple[int, ...]
    rows: tuple[int, ...]
    kv: tuple[int, ...]
    uneven_rows: tuple[int, ...]
    uneven_kv: tuple[int, ...]
    mixed_rows: tuple[int, ...]
    mixed_kv: tuple[int, ...]
    beside: Beside
    whole: tuple[Composition, ...]
    off: Off


MIXED_CHUNK = 16  # decode rows inside a mixed call are timed beside so short a chunk that its own time is small

FULL = Axes(
    tokens=(1, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192),
    few_tokens=(1, 16, 64, 256, 512, 1024, 2048, 8192),
    chunks=(16, 32, 64, 128, 256, 512, 1024, 2048, 8192),
    contexts=(0, 64, 512, 2048, 16384),
    prompts=(2, 4, 8, 16),
    prompt_chunks=(64, 256, 1024),
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    kv=(16, 64, 256, 1024, 4096, 16384),
    uneven_rows=(16, 64, 256),
    uneven_kv=(256, 1024, 4096),
    mixed_rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    mixed_kv=(16, 256, 1024, 2048, 16384),
    beside=Beside(
        chunks=(64, 256, 512, 1024, 2048), contexts=(0, 1024, 8192), rows=(1, 4, 16, 64, 256),
        kv=(256, 1024, 4096, 16384),
    ),
    whole=(
        (0, 0, 0, 1, 256), (0, 0, 0, 1, 4096), (0, 0, 0, 4, 1024), (0, 0, 0, 16, 256), (0, 0, 0, 16, 2048),
        (0, 0, 0, 64, 512), (0, 0, 0, 128, 1024), (0, 0, 0, 256, 512),
        (1, 64, 0, 0, 0), (1, 256, 0, 0, 0), (1, 1024, 0, 0, 0), (1, 2048, 0, 0, 0), (4, 256, 0, 0, 0),
        (1, 512, 2048, 0, 0),
        (1, 64, 0, 4, 512), (1, 256, 0, 16, 1024), (1, 256, 1024, 4, 2048), (1, 512, 0, 32, 512),
        (2, 384, 0, 64, 256), (1, 1920, 0, 128, 1024),
    ),
    off=Off(
        tokens=(257, 513, 700),
        prefill=((384, 0), (384, 256), (384, 3000), (1024, 3000)),
        decode=((4, 3000), (16, 3000), (64, 3000), (32, 512), (8, 700)),
        mixed=((128, 512, 8, 700), (384, 0, 24, 512), (512, 2048, 32, 3000), (700, 0, 8, 128)),
    ),
)  # fmt: skip

# For a processor: the same operations, where a call takes milliseconds at most for a tiny model.
SMALL = Axes(
    tokens=(1, 8, 16, 32, 64, 128, 256, 512, 1024),
    few_tokens=(1, 16, 64, 256, 1024),
    chunks=(16, 64, 256, 1024),
    contexts=(0, 64, 256, 1024),
    prompts=(2, 4, 8),
    prompt_chunks=(16, 64),
    rows=(1, 4, 16, 32),
    kv=(16, 64, 256, 1024),
    uneven_rows=(16,),
    uneven_kv=(64, 256),
    mixed_rows=(1, 4, 16),
    mixed_kv=(16, 256, 1024),
    beside=Beside(chunks=(64, 256), contexts=(0, 256), rows=(1, 4, 16), kv=(64, 256, 1024)),
    whole=(
        (0, 0, 0, 1, 64), (0, 0, 0, 1, 512), (0, 0, 0, 2, 256), (0, 0, 0, 4, 128), (0, 0, 0, 8, 64),
        (0, 0, 0, 8, 512), (0, 0, 0, 16, 256), (0, 0, 0, 32, 128),
        (1, 16, 0, 0, 0), (1, 64, 0, 0, 0), (1, 256, 0, 0, 0), (1, 512, 0, 0, 0), (4, 64, 0, 0, 0),
        (1, 128, 256, 0, 0),
        (1, 16, 0, 4, 128), (1, 64, 0, 8, 256), (1, 64, 256, 2, 256), (1, 128, 0, 16, 64), (2, 96, 0, 8, 128),
        (1, 384, 0, 16, 256),
    ),
    off=Off(
        tokens=(257, 513, 700),
        prefill=((384, 0), (384, 700), (100, 300), (700, 128)),
        decode=((2, 700), (8, 700), (24, 300), (16, 512), (32, 400)),
        mixed=((32, 0, 8, 128), (128, 0, 12, 512), (200, 256, 16, 700), (64, 0, 2, 300)),
    ),
)  # fmt: skip


def plan(model: ModelSpec, *, axes: Axes = FULL, tp: int = 1, graphs: bool = True, ranks: int = 0) -> list[Planned]:
    """Every point of one of `tp` ranks, in a fixed order; all-reduces over `ranks` where there are several GPUs."""
    mode = "graph" if graphs else "plain"
    found: dict[Point, Planned] = {}
    for each in _points(model, axes, tp, ranks):
        launched = graphs and each.point.op == "allreduce"  # across processes that don't share a graph
        point = replace(each.point, mode="eager" if launched else mode)
        if _fits(point, model):
            found.setdefault(point, replace(each, point=point))
    modes = ("graph", "eager") if graphs else ("plain",)
    for (i, composition), op, each_mode in product(enumerate(axes.whole), WHOLE, modes):
        seqs, chunk, ctx, rows, kv = composition
        layers = min(STACK_LAYERS, model.layers) if op == "stack" else 0
        point = Point(op, seqs=seqs, chunk=chunk, ctx=ctx, n_dec=rows, kv_dec=kv, layers=layers, mode=each_mode)
        if _fits(point, model):
            found[point] = Planned(point, "", i % 2 == 0)
    return [replace(each, split=each.split or _split(each.point)) for each in found.values()]


def plan_hash(planned: Iterable[Planned], **run: object) -> str:
    """16 hexadecimal digits over the plan and what else decides the times of a run (model, dtype, device, ...)."""
    lines = [f"{each.point.key} {each.split}" for each in planned] + [f"{key}={run[key]!r}" for key in sorted(run)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def axes_for(kind: str) -> Axes:
    """The grid of a kind of device."""
    return SMALL if kind == "cpu" else FULL


def _split(point: Point) -> str:
    return HOLDOUT if held_out(point) else FIT


def _fits(point: Point, model: ModelSpec) -> bool:
    """Whether its sequences are no longer than the model takes."""
    return max(point.ctx + point.chunk, point.longest) <= model.max_model_len


def _points(model: ModelSpec, axes: Axes, tp: int, ranks: int) -> Iterator[Planned]:
    for n, k in linear_shapes(model, tp).values():
        yield from _line([Point("linear", m=m, n=n, k=k) for m in axes.tokens], every=3)
        yield from _between(Point("linear", m=m, n=n, k=k) for m in axes.off.tokens)
    for op in ELEMENTWISE:
        if op == "rope" and model.learned_positions:
            continue
        yield from _line([Point(op, m=m) for m in axes.few_tokens], every=3)
    if ranks > 1:
        yield from _line([Point("allreduce", bytes=size, ranks=ranks) for size in REDUCED_BYTES], every=3)
    yield from _attention(axes, model.max_model_len)


def _attention(axes: Axes, longest: int) -> Iterator[Planned]:
    def prefill(chunk: int, ctx: int) -> Point:
        return Point("prefill", seqs=1, chunk=chunk, ctx=ctx)

    def decode(rows: int, kv: int) -> Point:
        return Point("decode", n_dec=rows, kv_dec=kv)

    def mixed(rows: int, kv: int, chunk: int = MIXED_CHUNK, ctx: int = 0, kv_max: int = 0) -> Point:
        return Point("mixed", seqs=1, chunk=chunk, ctx=ctx, n_dec=rows, kv_dec=kv, kv_max=kv_max)

    contexts = [ctx for ctx in axes.contexts if ctx < longest]
    chunks, kv, mixed_kv = ([n for n in line if n <= longest] for line in (axes.chunks, axes.kv, axes.mixed_kv))
    yield from _grid([[prefill(chunk, ctx) for ctx in contexts] for chunk in chunks])
    yield from _grid([[Point("prefill", seqs=n, chunk=c) for c in axes.prompt_chunks] for n in axes.prompts])
    yield from _grid([[decode(rows, tokens) for tokens in kv] for rows in axes.rows])
    yield from _grid([[mixed(rows, tokens) for tokens in mixed_kv] for rows in axes.mixed_rows])
    for rows, mean in product(axes.uneven_rows, axes.uneven_kv):
        yield Planned(replace(decode(rows, mean), kv_max=UNEVEN * mean), "", mean == axes.uneven_kv[0])
    for mean in axes.uneven_kv:
        yield Planned(mixed(axes.uneven_rows[0], mean, kv_max=UNEVEN * mean), "", False)
    for i, (chunk, ctx, rows, tokens) in enumerate(axes.beside.calls()):
        yield Planned(mixed(rows, tokens, chunk, ctx), "", i % 4 == 0)
    yield from _between(prefill(chunk, ctx) for chunk, ctx in axes.off.prefill)
    yield from _between(decode(rows, tokens) for rows, tokens in axes.off.decode)
    yield from _between(mixed(rows, tokens, chunk, ctx) for chunk, ctx, rows, tokens in axes.off.mixed)


def _line(points: Sequence[Point], every: int = 2) -> Iterator[Planned]:
    """Points along one axis: both ends are for the fit."""
    for i, point in enumerate(points):
        end = i in (0, len(points) - 1)
        yield Planned(point, FIT if end else "", end or i % every == 0)


def _grid(rows: Sequence[Sequence[Point]]) -> Iterator[Planned]:
    """Points over two axes: those on the edge are for the fit, of a small grid the corners."""
    large = len(rows) >= LARGE and len(rows[0]) >= LARGE
    for down, across in zip(_line_marks(len(rows)), rows, strict=True):
        for side, point in zip(_line_marks(len(across)), across, strict=True):
            kept = (down[0] or side[0]) if large else (down[0] and side[0])
            yield Planned(point, FIT if kept else "", down[1] and side[1])


def _line_marks(length: int) -> list[tuple[bool, bool]]:
    """(whether it is an end, whether it is on the coarse grid) for the places along an axis."""
    return [(i in (0, length - 1), i % 2 == 0 or i == length - 1) for i in range(length)]


def _between(points: Iterable[Point]) -> Iterator[Planned]:
    for point in points:
        yield Planned(point, OFF_GRID, False)
