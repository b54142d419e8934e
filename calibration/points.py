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
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError

ELEMENTWISE = ("embedding", "norm", "rope", "activation", "add", "kv_write", "sampling")
ATTENTION = ("prefill", "decode", "mixed")
WHOLE = ("layer", "stack")
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


_KEYS = tuple(field.name for field in fields(Point))
_VALUES = tuple(field.name for field in fields(Timed) if field.name != "point")
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


def load_points(path: Path) -> list[Timed]:
    """Read points.csv. Raises ConfigError with a line per fault."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise ConfigError(f"{path}:1: lacks the columns {', '.join(missing)}")
            lines = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(f"{path}: isn't a CSV file") from None
    faults: list[str] = []
    rows = [_timed(f"{path}:{line}", row, faults) for line, row in lines]
    if not rows:
        faults.append(f"{path}: holds no points")
    if faults:
        raise ConfigError(faults[:20])
    return rows


def _timed(where: str, cells: dict[str, str], faults: list[str]) -> Timed:
    values: dict[str, Any] = {}
    for name in COLUMNS:
        kind = _KINDS[name]
        try:
            value = kind(cells[name])
            if kind is not str and not 0 <= value < float("inf"):
                raise ValueError
        except (TypeError, ValueError):
            faults.append(f"{where}: {name} = {cells[name]}: must be a number of at least 0")
            value = kind()
        values[name] = value
    for name, known in (("op", OPS), ("mode", MODES), ("split", SPLITS), ("status", STATUSES)):
        if values[name] not in known:
            faults.append(f"{where}: {name} = {values[name]}: must be one of {', '.join(known)}")
    if values["status"] not in SKIPPED and not values["median_us"] > 0:
        faults.append(f"{where}: median_us = {cells['median_us']}: must be above 0")
    point = Point(**{name: values.pop(name) for name in _KEYS})
    return Timed(point, **values)
