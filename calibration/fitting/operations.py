"""Linear layers and the small operations of a profile: tables of what was timed, a roofline for what wasn't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibration.fitting.forms import LinearForm, fit_linear, gathered
from calibration.points import LM_HEAD, Timed, linear_shapes
from simulator.errors import ConfigError
from simulator.profile import Axis, OpTable
from simulator.profile_tables import FALLBACK
from simulator.specs import ModelSpec

FINAL_NORM, SAMPLING, EMBEDDING, ALLREDUCE = "final_norm", "sampling", "embedding", "allreduce"
# Calls per layer, beside its linear layers and its attention.
PER_LAYER = {"norm": 2, "rope": 1, "kv_write": 1, "activation": 1, "add": 2}
ALLREDUCES_PER_LAYER = 2
FEWEST_SHAPES = 3  # linear layers that a roofline for another one needs
ELEMENT_BYTES = 2
SIZES: Axis = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

Times = Mapping[tuple[str, int, int], tuple[Axis, Axis]]


@dataclass(frozen=True)
class Operations:
    """Everything but attention: operations by tokens, those by sampled rows, and which were left out."""

    token_ops: tuple[OpTable, ...]
    sequence_ops: tuple[OpTable, ...]
    missing: tuple[str, ...]

    @property
    def fallback(self) -> list[str]:
        """Operations that were never timed."""
        return [op.op for op in (*self.token_ops, *self.sequence_ops) if op.basis == FALLBACK]


def fit_operations(rows: Sequence[Timed], model: ModelSpec, tp: int) -> Operations:
    """Tables from timed rows. Raises ConfigError where too few linear layers were timed.

    An addition that wasn't timed is part of the norm, as engines fuse it. A source that times norms and neither
    additions nor writes of keys and values times an engine's kernels, whose attention does the writing.
    """
    times = {key: gathered(points) for key, points in _grouped(rows).items()}
    shapes = linear_shapes(model, tp)
    _check_linears(times, shapes, model)
    unseen = _Unseen(rows, model, tp)
    linears = [_linear(name, 1 if name == LM_HEAD else model.layers, times, shape, unseen)
               for name, shape in shapes.items()]  # fmt: skip
    timed = {op for op, _, _ in times}
    fused = {"add", "kv_write"} if "norm" in timed and "add" not in timed else {"add"}
    inside = fused - timed
    counts = {EMBEDDING: 1} | {op: count * model.layers for op, count in PER_LAYER.items() if op not in inside}
    small = [_small(op, count, times, unseen) for op, count in counts.items()]
    norm = _small("norm", 1, times, unseen)
    last = OpTable(FINAL_NORM, 1, norm.axis, norm.us, norm.basis)
    sampling = [OpTable(SAMPLING, 1, *times[SAMPLING, 0, 0])] if SAMPLING in timed else []
    return Operations(
        (*linears[:-1], *small, *_allreduce(rows, model, tp)),
        (last, linears[-1], *sampling),
        () if sampling else (SAMPLING,),
    )


def _grouped(rows: Sequence[Timed]) -> dict[tuple[str, int, int], list[tuple[float, float]]]:
    """(tokens, microseconds) by operation and features."""
    groups: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row.point.m:
            groups.setdefault((row.point.op, row.point.n, row.point.k), []).append((row.point.m, row.median_us))
    return groups


def _check_linears(times: Times, shapes: Mapping[str, tuple[int, int]], model: ModelSpec) -> None:
    timed = {(n, k) for op, n, k in times if op == "linear"}
    absent = [f"{name} {n} x {k}" for name, (n, k) in shapes.items() if (n, k) not in timed]
    if len(absent) == len(shapes):
        raise ConfigError(f"linear: none of the layers of {model.name} was timed (n x k: {', '.join(absent)})")
    if absent and len(timed) < FEWEST_SHAPES:
        raise ConfigError(f"linear: {', '.join(absent)} wasn't timed, and a roofline for it needs {FEWEST_SHAPES} "
                          f"shapes, not {len(timed)}")  # fmt: skip


@dataclass(frozen=True)
class _Unseen:
    """Times of what wasn't timed, from a roofline over all linear layers; fitted when first asked."""

    rows: Sequence[Timed]
    model: ModelSpec
    tp: int

    @cached_property
    def form(self) -> LinearForm:
        points = _grouped([row for row in self.rows if row.point.op == "linear"])
        return fit_linear({
            (int(m), n, k): us
            for (_, n, k), found in points.items()
            for m, us in zip(*gathered(found), strict=True)
        })  # fmt: skip

    def linear(self, axis: Axis, shape: tuple[int, int]) -> Axis:
        return tuple(self.form.us(np.array(axis, dtype=np.float64), *shape).tolist())

    def small(self, op: str) -> Axis:
        """The roofline's floor + bytes moved at its bandwidth."""
        moved = float(ELEMENT_BYTES * _elements(op, self.model, self.tp))
        if op == "norm" and any(row.point.op == "add" for row in self.rows):
            moved /= 2  # without the addition
        roofline = self.form.roofline
        return tuple(roofline.floor_us + m * moved / roofline.bytes_per_us for m in SIZES)


def _linear(name: str, count: int, times: Times, shape: tuple[int, int], unseen: _Unseen) -> OpTable:
    if (found := times.get(("linear", *shape))) is not None:
        return OpTable(name, count, *found, n=shape[0], k=shape[1])
    axis = max((axis for (op, _, _), (axis, _) in times.items() if op == "linear"), key=len)
    return OpTable(name, count, axis, unseen.linear(axis, shape), FALLBACK, *shape)


def _small(op: str, count: int, times: Times, unseen: _Unseen) -> OpTable:
    if (found := times.get((op, 0, 0))) is not None:
        return OpTable(op, count, *found)
    return OpTable(op, count, SIZES, unseen.small(op), FALLBACK)


def _elements(op: str, model: ModelSpec, tp: int) -> int:
    """Numbers that an operation reads and writes per token; a norm with the addition before it."""
    queries, kv = model.heads // tp * model.head_dim, model.kv_heads_per_rank(tp) * model.head_dim
    return {
        EMBEDDING: 2 * model.hidden,
        "norm": 4 * model.hidden,
        "rope": 2 * (queries + kv),
        "kv_write": 4 * kv,
        "activation": (3 if model.gated_mlp else 2) * model.intermediate // tp,
        "add": 3 * model.hidden,
    }[op]


def _allreduce(rows: Sequence[Timed], model: ModelSpec, tp: int) -> Iterator[OpTable]:
    """All-reduces over the ranks by tokens: two per layer, of a token's hidden state each; none is of less than one."""
    token = model.hidden * ELEMENT_BYTES
    sized = [row for row in rows if row.point.op == ALLREDUCE and row.point.ranks == tp and row.point.bytes >= token]
    found = [(row.point.bytes / token, row.median_us) for row in sized]
    if found:
        yield OpTable(ALLREDUCE, ALLREDUCES_PER_LAYER * model.layers, *gathered(found))
