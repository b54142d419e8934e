"""Points of a calibration: what is timed, what came out, and the CSV file they live in. Standard library only.

A `Point` is one call of one operation. Columns that an operation doesn't have are 0:

    linear       y[m, n] = x[m, k] W[n, k]^T: a model's own linear layers and LM head, per rank
    embedding norm rope activation add kv_write sampling
                 m tokens (or rows); one call of the layer's operation
    prefill      attention of `seqs` chunks, each `chunk` new tokens after `ctx` in memory; one layer
    decode       attention of `n_dec` rows that attend to `kv_dec` tokens each, the row's own among them; the longest to
                 `kv_max` where lengths are uneven (`kv_dec` is then the mean)
    mixed        both in one call
    layer        one whole decoder layer at the same columns
    stack        `layers` decoder layers, LM head and sampling
    allreduce    `bytes` of one rank, over `ranks`

`mode` is graph (a replayed CUDA graph, no launch gaps), eager (launched one by one), or plain (a device without
graphs). Times are microseconds per call.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError, raise_faults
from simulator.spec_types import ModelSpec
from simulator.suggest import did_you_mean

ELEMENTWISE = ("embedding", "norm", "rope", "activation", "add", "kv_write", "sampling")
ATTENTION = ("prefill", "decode", "mixed")
WHOLE = ("layer", "stack")
LM_HEAD = "lm_head"
OPS = ("linear", *ELEMENTWISE, *ATTENTION, *WHOLE, "allreduce")
MODES = ("graph", "eager", "plain")
OK, FLAGGED = "ok", "flagged"  # flagged: timed, but while clocks were throttled or without settling
SKIPPED = ("skipped_oom", "skipped_unsupported")
STATUSES = (OK, FLAGGED, *SKIPPED)
# fit: the fit may use it; holdout: one in five, by hash; off_grid: between the grid's points; never used in a fit.
FIT, HOLDOUT, OFF_GRID = "fit", "holdout", "off_grid"
SPLITS = (FIT, HOLDOUT, OFF_GRID)
HOLDOUT_SHARE = 0.2


@dataclass(frozen=True, order=True)
class Point:
    """One call of one operation; see the module."""

    op: str
    m: int = 0
    n: int = 0
    k: int = 0
    seqs: int = 0
    chunk: int = 0
    ctx: int = 0
    n_dec: int = 0
    kv_dec: int = 0
    kv_max: int = 0
    layers: int = 0
    bytes: int = 0
    ranks: int = 0
    mode: str = "graph"

    @property
    def key(self) -> str:
        """The point as one word, the same everywhere: what splits, orders and resumed runs go by."""
        return "/".join(str(value) for value in astuple(self))

    @property
    def tokens(self) -> int:
        """Tokens that a prefill, decode, mixed, layer or stack call computes."""
        return self.seqs * self.chunk + self.n_dec

    @property
    def longest(self) -> int:
        """Tokens that the longest decode row attends to."""
        return self.kv_max or self.kv_dec


@dataclass(frozen=True)
class Timed:
    """What came out of timing a point: microseconds per call over `samples` samples.

    `mad_us` is the median absolute deviation, `repeat_us` the median of a second measurement far from the first (0
    where there was none). `status` is one of STATUSES; a skipped point has no times, and a `reason`.
    """

    point: Point
    split: str
    status: str = OK
    median_us: float = 0.0
    p10_us: float = 0.0
    p90_us: float = 0.0
    mad_us: float = 0.0
    samples: int = 0
    converged: int = 1
    repeat_us: float = 0.0
    l2: str = "cold"
    clock_mode: str = ""
    reason: str = ""

    @property
    def timed(self) -> bool:
        """Whether it has times."""
        return self.status not in SKIPPED


_PREFILL, _DECODE = ("seqs", "chunk"), ("n_dec", "kv_dec")
# Sizes that an operation has, and others that it may have; WHOLE have those of a prefill, a decode or a mixed call.
_NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("m", "n", "k"), **dict.fromkeys(ELEMENTWISE, ("m",)), "prefill": _PREFILL, "decode": _DECODE,
    "mixed": _PREFILL + _DECODE, "layer": (), "stack": ("layers",), "allreduce": ("bytes", "ranks"),
}  # fmt: skip
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "prefill": ("ctx",),
    "decode": ("kv_max",),
    "mixed": ("ctx", "kv_max"),
}
# No machine times anything beyond these, and arithmetic on it would overflow.
MOST_TOKENS, MOST = 10**12, dict.fromkeys(("seqs", "n_dec", "layers", "ranks"), 10**5)
LEAST_US, MOST_US = 1e-3, 1e10
LONGEST_CELL = 40
_KEYS = tuple(field.name for field in fields(Point))
_VALUES = tuple(field.name for field in fields(Timed) if field.name != "point")
_SIZES = tuple(name for name in _KEYS if name not in ("op", "mode"))
COLUMNS = (*_KEYS, *_VALUES)
_KINDS: dict[str, Any] = {
    **{f.name: {"int": int, "float": float, "str": str}[str(f.type)] for cls in (Point, Timed) for f in fields(cls)
       if f.name != "point"},
}  # fmt: skip


def held_out(point: Point) -> bool:
    """Whether a point is one of the fifth that a fit never sees: by a hash of its key, so always the same ones."""
    digest = hashlib.sha256(point.key.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HOLDOUT_SHARE * 2**32


def save_points(path: Path, rows: Iterable[Timed]) -> None:
    """Write points.csv."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(as_row(row) for row in rows)


def as_row(row: Timed) -> list[str]:
    """The cells of one line, times to 6 significant digits."""
    cells = [*astuple(row.point), *(getattr(row, name) for name in _VALUES)]
    return [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells]


def linear_shapes(model: ModelSpec, tp: int) -> dict[str, tuple[int, int]]:
    """{name: (n, k)} of one rank's linear layers, the LM head last."""
    shapes = {gemm.name: (gemm.outputs, gemm.inputs) for gemm in model.gemms(tp)}
    return shapes | {LM_HEAD: (-(-model.vocab // tp), model.hidden)}


def read_cells(path: Path, wanted: Sequence[str]) -> list[tuple[int, dict[str | None, str]]]:
    """(line, cells by column name) of a CSV file that has the `wanted` columns once. Raises ConfigError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or ()
            if missing := [name for name in wanted if name not in names]:
                raise ConfigError(f"{path}:1: lacks the columns {', '.join(missing)}")
            if twice := [name for name in wanted if names.count(name) > 1]:
                raise ConfigError(f"{path}:1: has more than one column {', '.join(twice)}")
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: isn't a CSV file: {error}") from None


def load_points(path: Path) -> list[Timed]:
    """Read points.csv. Raises ConfigError with a line per fault, at most MAX_FAULTS and how many more there are."""
    lines = read_cells(path, COLUMNS)
    faults: list[str] = []
    rows = [_timed(f"{path}:{line}", row, faults) for line, row in lines]
    seen: dict[Point, int] = {}
    for (line, _), row in zip(lines, rows, strict=True):
        if seen.setdefault(row.point, line) != line and not faults:
            faults.append(f"{path}:{line}: the same point as in line {seen[row.point]}: each is there once")
    if not rows:
        faults.append(f"{path}: holds no points")
    raise_faults(path, faults)
    return rows


def _timed(where: str, cells: dict[str | None, str], faults: list[str]) -> Timed:
    if None in cells or None in cells.values():
        faults.append(f"{where}: has {'more' if None in cells else 'fewer'} cells than the first line has names")
        return Timed(Point(""), "")
    before = len(faults)
    values = {name: _value(where, name, cells[name].strip(), faults) for name in COLUMNS}
    for name, known in (("op", OPS), ("mode", MODES), ("split", SPLITS), ("status", STATUSES)):
        if values[name] not in known:
            hint = did_you_mean(values[name], known)
            faults.append(f"{where}: {name} = {values[name]}: must be one of {', '.join(known)}{hint}")
    point = Point(**{name: values.pop(name) for name in _KEYS})
    row = Timed(point, **values)
    if len(faults) == before:
        faults += [f"{where}: {fault}" for fault in _misfits(row)]
    return row


def _value(where: str, name: str, cell: str, faults: list[str]) -> Any:
    """A cell as what its column holds; 0 where it is something else."""
    kind = _KINDS[name]
    if kind is str:
        return cell
    most = MOST_US if kind is float else MOST.get(name, MOST_TOKENS)
    form = r"[0-9]+" if kind is int else r"[0-9]*\.?[0-9]*(e[+-]?[0-9]+)?"
    if len(cell) < LONGEST_CELL and re.fullmatch(form, cell, re.ASCII | re.IGNORECASE):
        with suppress(ValueError):
            if (value := kind(cell)) <= most:
                return value
    what = "whole number" if kind is int else "number"
    faults.append(f"{where}: {name} = {cell[:LONGEST_CELL]}: must be a {what} from 0 to {most:g}")
    return kind()


def _misfits(row: Timed) -> Iterator[str]:
    """What the columns of a point's operation, or its times, can't be."""
    point = row.point
    needed, optional = _NEEDED[point.op], _OPTIONAL.get(point.op, ())
    if point.op in WHOLE:
        decode = point.n_dec or point.kv_dec
        parts = ["prefill"] * bool(point.seqs or point.chunk or not decode) + ["decode"] * bool(decode)
        needed = sum((_NEEDED[part] for part in parts), needed)
        optional = sum((_OPTIONAL[part] for part in parts), optional)
    for name in _SIZES:
        size = getattr(point, name)
        if name in needed and not size:
            yield f"{name} = 0: must be at least 1 for {point.op}"
        elif size and name not in (*needed, *optional):
            yield f"{name} = {size}: must be 0 for {point.op}, which has no such size"
    if 0 < point.kv_max < point.kv_dec:
        yield f"kv_max = {point.kv_max}: must be at least kv_dec, {point.kv_dec}, the mean"
    if row.timed and row.median_us < LEAST_US:
        yield f"median_us = {row.median_us:g}: must be at least {LEAST_US:g}, as the point was timed"
