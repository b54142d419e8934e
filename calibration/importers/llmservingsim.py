"""Kernel timings of casys-kaist/LLMServingSim (MIT): one decoder layer timed inside vLLM, eager, mean of 3.

A folder `tpN` holds one tensor-parallel degree, times in microseconds per call on one rank; a `meta.yaml` in it or in
the folder above says what was timed:

    dense.csv         layer,tokens,time_us
    per_sequence.csv  layer,sequences,time_us
    attention.csv     prefill_chunk,kv_prefill,n_decode,kv_decode,time_us      one call; 0 means absent
    skew.csv          (optional) uneven decode lengths: regime,n,t_mean_us,t_max_us,t_skew_us, and more
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from calibration.fitting.joins import MixedCall, UnevenCall, fit_alphas, fit_powers
from calibration.importers.tables import Row, read_table
from simulator.curves import Curve, Grid, total
from simulator.errors import ConfigError
from simulator.profile import SHAPE, Attention, AxisTable, GridTable, OpTable, Profile, constant_alpha
from simulator.specs import ModelSpec

# Calls per iteration that aren't one per layer; `layernorm` runs before attention and before the MLP.
ONCE = ("embedding", "final_layernorm", "lm_head", "sampler")
TWICE_PER_LAYER = ("layernorm",)
# What every folder of this form times; a model may have more (qk_norm), once per layer.
NEEDED = {
    "tokens": (
        "embedding", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj",
        "final_layernorm",
    ),
    "sequences": ("lm_head", "sampler"),
}  # fmt: skip
FORMAT = "llmservingsim"

Key = Callable[[Row], tuple[float, float]]


@dataclass(frozen=True)
class Source:
    """What a folder says about itself: `meta` is its meta.yaml, {} where there is none."""

    folder: Path
    tensor_parallel_size: int | None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def text(self, key: str) -> str:
        """A value of meta.yaml as text, "" where there is none."""
        value = self.meta.get(key)
        return "" if value is None else str(value)

    @property
    def uneven_lengths(self) -> bool:
        """Whether the metadata says that a term for uneven decode lengths is to be fitted."""
        fit = self.meta.get("skew_fit")
        return isinstance(fit, dict) and fit.get("enabled") is True


def sources(folder: str | Path) -> list[Source]:
    """The degrees that `folder` holds: itself, its `tpN` folders, or those of the only model in it.

    Raises ConfigError where it is of another form.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    degrees = _degrees(root)
    if not degrees:
        models = [path for path in sorted(root.iterdir()) if path.is_dir() and _degrees(path)]
        if len(models) > 1:
            raise ConfigError(f"{root}: holds several models, name one: {', '.join(map(str, models))}")
        degrees = _degrees(models[0]) if models else [root]
    if moe := next((path for path in degrees if (path / "moe.csv").is_file()), None):
        raise ConfigError(f"{moe / 'moe.csv'}: mixture of experts: not modelled")
    return [_source(path) for path in degrees]


def _degrees(folder: Path) -> list[Path]:
    if (folder / "attention.csv").is_file():
        return [folder]
    return [path for path in sorted(folder.iterdir()) if re.fullmatch(r"tp\d+", path.name) and path.is_dir()]


def _source(folder: Path) -> Source:
    meta: Any = {}
    for path in (folder / "meta.yaml", folder.resolve().parent / "meta.yaml"):
        if path.is_file():
            try:
                meta = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise ConfigError(f"{path}: can't be read as YAML: {' '.join(str(error).split())}") from None
            if not isinstance(meta, dict):
                raise ConfigError(f"{path}: must hold keys and values")
            break
    named = re.fullmatch(r"tp(\d+)", folder.resolve().name)
    degrees = meta.get("tp_degrees")
    degree = int(named[1]) if named else degrees[0] if isinstance(degrees, list) and len(degrees) == 1 else None
    return Source(folder, degree if isinstance(degree, int) else None, meta)


def import_profile(
    source: Source, *, name: str, model: ModelSpec, gpu: str, tensor_parallel_size: int, metadata: Mapping[str, str]
) -> Profile:
    """One degree as a Profile. `metadata` gives device, dtype, engine, source and licence.

    Prefill comes from the calls without decode rows, decode from those without a chunk, "decode inside a mixed call"
    from those beside the smallest chunk without history. The exponent that joins the two is fitted for each chunk and
    number of rows. Alpha for uneven lengths is fitted for each number of rows, where the metadata says so. Raises
    ConfigError with a line per fault.
    """
    token_ops = _ops(source.folder / "dense.csv", "tokens", model.layers)
    sequence_ops = _ops(source.folder / "per_sequence.csv", "sequences", model.layers)
    path = source.folder / "attention.csv"
    calls = read_table(path, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    mixed_calls = [call for call in calls if call["prefill_chunk"] and call["n_decode"]]
    prefill = _complete(path, "prefill", _prefill_key, (c for c in calls if not c["n_decode"] and c["prefill_chunk"]))
    decode = _complete(path, "decode", _decode_key, (c for c in calls if not c["prefill_chunk"] and c["n_decode"]))
    mixed = power = None
    errors = "no mixed calls timed: prefill and decode added up"
    if mixed_calls:
        chunk = min(call["prefill_chunk"] for call in mixed_calls)
        beside = [c for c in mixed_calls if c["prefill_chunk"] == chunk and not c["kv_prefill"]]
        mixed = _complete(path, f"mixed (chunk {chunk:g}, no history)", _decode_key, beside)
        power, off = fit_powers(_mixed_calls(prefill, mixed, mixed_calls, _rest(token_ops, model.layers)))
        median, high = np.percentile(off, [50, 90]) * 100
        errors = f"median {median:.1f} %, 90th percentile {high:.1f} % of a layer, {len(off)} calls"
    skew = _skew(source.folder / "skew.csv") if source.uneven_lengths else {}
    none = constant_alpha(0.0)
    return Profile(
        name=name,
        metadata={
            "gpu": gpu,
            "model": model.name,
            "dtype": "bfloat16",
            "tensor_parallel_size": tensor_parallel_size,
            "all_reduce": "absent",
            **metadata,
            "mixed_layer_error": errors,
            "uneven_lengths": "skew.csv" if skew else "no term",
        },
        shape={key: getattr(model, key) for key in SHAPE},
        token_ops=token_ops,
        sequence_ops=sequence_ops,
        attention=Attention(
            model.layers, prefill, decode, mixed, power, skew.get("pure", none), skew.get("mixed", none)
        ),
        base_us=0.0,
        per_sequence_us=0.0,
    )


def _mixed_calls(prefill: GridTable, mixed: GridTable, calls: Iterable[Row], rest: Curve) -> Iterator[MixedCall]:
    """The mixed calls beside the times of their halves. `rest` is what else a layer takes, by tokens, so that an error
    weighs as much as it does in an iteration."""
    rows, columns = Grid(prefill.rows, prefill.columns, prefill.us), Grid(mixed.rows, mixed.columns, mixed.us)
    for c in calls:
        chunk, seqs = int(c["prefill_chunk"]), int(c["n_decode"])
        a, b = rows.row(chunk).at(c["kv_prefill"]), columns.row(seqs).at(c["kv_decode"])
        yield MixedCall(chunk, seqs, a, b, c["time_us"], c["time_us"] + rest.at(chunk + seqs))


def _rest(token_ops: Iterable[OpTable], layers: int) -> Curve:
    """Microseconds of one layer beside attention, by tokens."""
    return total([(op.count / layers, Curve(op.axis, op.us)) for op in token_ops])


def _ops(path: Path, axis: str, layers: int) -> tuple[OpTable, ...]:
    tables: dict[str, dict[float, float]] = {}
    faults: list[str] = []
    for row in read_table(path, (axis, "time_us"), text="layer"):
        points, size = tables.setdefault(row["layer"], {}), int(row[axis])
        if points.setdefault(size, row["time_us"]) != row["time_us"]:
            faults.append(f"{path}: {row['layer']} at {size} {axis} has two times, {points[size]} and {row['time_us']}")
    faults += [f"{path}: no layer {name!r}; an iteration without it would be too short" for name in NEEDED[axis]
               if name not in tables]  # fmt: skip
    if faults:
        raise ConfigError(faults)
    counts = dict.fromkeys(ONCE, 1) | dict.fromkeys(TWICE_PER_LAYER, 2 * layers)
    return tuple(
        OpTable(op, counts.get(op, layers), tuple(sorted(points)), tuple(points[x] for x in sorted(points)))
        for op, points in sorted(tables.items())
    )


def _prefill_key(call: Row) -> tuple[float, float]:
    return call["prefill_chunk"], call["kv_prefill"]


def _decode_key(call: Row) -> tuple[float, float]:
    return call["n_decode"], call["kv_decode"]


def _complete(path: Path, what: str, key: Key, calls: Iterable[Row]) -> GridTable:
    """The full grid that is left when the emptiest row or column is dropped, one after the other."""
    points = {key(call): call["time_us"] for call in calls}
    if not points:
        raise ConfigError(f"{path}: no {what} calls in it")
    rows, columns = sorted({r for r, _ in points}), sorted({c for _, c in points})
    while True:
        row_fill = [sum((r, c) in points for c in columns) / len(columns) for r in rows]
        column_fill = [sum((r, c) in points for r in rows) / len(rows) for c in columns]
        if min(row_fill) == 1:
            break
        if min(row_fill) <= min(column_fill):
            rows.pop(int(np.argmin(row_fill)))
        else:
            columns.pop(int(np.argmin(column_fill)))
    us = tuple(tuple(points[r, c] for c in columns) for r in rows)
    return GridTable(tuple(map(int, rows)), tuple(map(int, columns)), us)


def _skew(path: Path) -> dict[str, AxisTable]:
    """alpha by rows, per regime (pure, mixed); {} where there is no such file."""
    if not path.is_file():
        return {}
    rows = read_table(path, ("n", "t_mean_us", "t_max_us", "t_skew_us"), text="regime")
    tables = {}
    for regime in sorted({row["regime"] for row in rows}):
        found = [row for row in rows if row["regime"] == regime]
        calls = [UnevenCall(int(r["n"]), r["t_mean_us"], r["t_max_us"], r["t_skew_us"]) for r in found]
        tables[regime] = fit_alphas(calls)
    return tables
