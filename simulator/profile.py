"""Measured kernel times of one model on one GPU: the file that calibration writes and `costs.table` reads.

A profile is a JSON object. All times are microseconds of one rank, per call:

    schema_version   1
    name             the profile's own
    metadata         strings that say what was timed: gpu (a GPU's name here), device, model, dtype, engine,
                     source, licence; the number tensor_parallel_size; all_reduce: "included" or "absent";
                     more is allowed
    shape            layers, hidden, heads, kv_heads, head_dim, intermediate, vocab of the model (unsharded)
    token_ops        [{op, count, tokens: [..], us: [..]}]      count calls per iteration, by its tokens
    sequence_ops     [{op, count, sequences: [..], us: [..]}]   LM head and sampler, by sampled rows
    attention        count (layers), and tables us[row][column]:
                     prefill {chunk_tokens, context_tokens, us}: a chunk after that many tokens
                     decode {sequences, context_tokens, us}: rows that attend to that many tokens each
                     decode_in_mixed (or null): the same rows inside a call that also holds a prefill chunk
                     join {rule: "sum"} or {rule: "p_norm", p}: how prefill and decode add up in a mixed call;
                     p is a number, or a table {chunk_tokens, sequences, p[chunk][sequences]}
                     skew {decode, mixed}: alpha in t = t(mean) + alpha (t(max) - t(mean)) for uneven contexts,
                     a number, or a table {sequences, alpha}
    host             base_us + per_sequence_us x sequences, per iteration
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from simulator.hf_config import read_json
from simulator.json_checks import Check
from simulator.suggest import did_you_mean

SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "profiles"
METADATA = (
    "gpu", "device", "model", "dtype", "engine", "source", "licence", "tensor_parallel_size", "all_reduce",
)  # fmt: skip
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")

TOP = ("schema_version", "name", "metadata", "shape", "token_ops", "sequence_ops", "attention", "host")

# Exponents below 1: a mixed call may take longer than its two halves one after the other.
POWERS = (0.25, 100)

Axis = tuple[float, ...]


@dataclass(frozen=True)
class OpTable:
    """`count` calls per iteration of an operation, timed at the points of one axis."""

    op: str
    count: int
    axis: Axis
    us: Axis


@dataclass(frozen=True)
class GridTable:
    """Times at every crossing of two axes: us[row][column]."""

    rows: Axis
    columns: Axis
    us: tuple[Axis, ...]


@dataclass(frozen=True)
class AxisTable:
    """Values at the points of one axis; a single point stands for a constant."""

    axis: Axis
    values: Axis


@dataclass(frozen=True)
class Attention:
    """Attention of one layer, `count` layers.

    `p` is the exponent of the p-norm by chunk and decode rows, None for a plain sum; a table of one point is a
    constant. The skews are alpha by decode rows.
    """

    count: int
    prefill: GridTable
    decode: GridTable
    decode_in_mixed: GridTable | None
    p: GridTable | None
    skew_decode: AxisTable
    skew_mixed: AxisTable


@dataclass(frozen=True)
class Profile:
    """A checked profile. `metadata` and `shape` have at least the keys METADATA and SHAPE."""

    name: str
    metadata: dict[str, Any]
    shape: dict[str, int]
    token_ops: tuple[OpTable, ...]
    sequence_ops: tuple[OpTable, ...]
    attention: Attention
    base_us: float
    per_sequence_us: float

    @classmethod
    def from_json(cls, data: object, where: str) -> Profile:
        """Check a parsed JSON document. Raises ConfigError with one `file: key: ...` line per fault."""
        return _profile(Check(where), data)

    def to_json(self) -> dict[str, Any]:
        """The JSON document, as described in this module."""
        attention = self.attention
        mixed = attention.decode_in_mixed
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "metadata": self.metadata,
            "shape": self.shape,
            "token_ops": [_op(op, "tokens") for op in self.token_ops],
            "sequence_ops": [_op(op, "sequences") for op in self.sequence_ops],
            "attention": {
                "count": attention.count,
                "prefill": _grid(attention.prefill, "chunk_tokens"),
                "decode": _grid(attention.decode, "sequences"),
                "decode_in_mixed": mixed and _grid(mixed, "sequences"),
                "join": {"rule": "sum"} if attention.p is None else {"rule": "p_norm", "p": _power(attention.p)},
                "skew": {"decode": _alpha(attention.skew_decode), "mixed": _alpha(attention.skew_mixed)},
            },
            "host": {"base_us": self.base_us, "per_sequence_us": self.per_sequence_us},
        }

    def save(self, path: str | Path) -> None:
        """Write the JSON document, one line per list of numbers."""
        Path(path).write_text(_dump(self.to_json()) + "\n", encoding="utf-8")


def constant_power(p: float) -> GridTable:
    """An exponent that is the same for every mixed call."""
    return GridTable((1,), (1,), ((p,),))


def constant_alpha(alpha: float) -> AxisTable:
    """A skew that is the same for every number of rows."""
    return AxisTable((1,), (alpha,))


def load_profile(name_or_path: str | Path) -> Profile:
    """A shipped profile by name, or one from a JSON file. Raises ConfigError."""
    shipped = shipped_profiles()
    path = Path(name_or_path)
    if str(name_or_path) in shipped:
        path = SHIPPED / f"{name_or_path}.json"
    elif not path.is_file():
        names = ", ".join(shipped)
        nearest = did_you_mean(name_or_path, shipped)
        raise ConfigError(f"cost_model.profile: {str(name_or_path)!r} is neither a file nor one of {names}{nearest}")
    return Profile.from_json(read_json(path), str(path))


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def _op(table: OpTable, axis: str) -> dict[str, Any]:
    return {"op": table.op, "count": table.count, axis: list(table.axis), "us": list(table.us)}


def _grid(table: GridTable, rows: str) -> dict[str, Any]:
    return {
        rows: list(table.rows),
        "context_tokens": list(table.columns),
        "us": [list(row) for row in table.us],
    }


def _power(table: GridTable) -> Any:
    if len(table.rows) == len(table.columns) == 1:
        return table.us[0][0]
    rows = [list(row) for row in table.us]
    return {"chunk_tokens": list(table.rows), "sequences": list(table.columns), "p": rows}


def _alpha(table: AxisTable) -> Any:
    if len(table.axis) == 1:
        return table.values[0]
    return {"sequences": list(table.axis), "alpha": list(table.values)}


def _dump(value: Any, indent: str = "") -> str:
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + indent + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + "\n" + indent + "]"
    return json.dumps(value, allow_nan=False)


def _profile(check: Check, data: object) -> Profile:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise ConfigError(f"{check.where}: schema_version: {version!r} must be {SCHEMA_VERSION}")
    top = check.mapping(data, "", TOP)
    metadata = check.mapping(top.get("metadata"), "metadata", METADATA, more=True)
    for key in METADATA[:-2]:
        check.text(metadata.get(key), f"metadata.{key}")
    check.whole(metadata.get("tensor_parallel_size"), "metadata.tensor_parallel_size")
    check.choice(metadata.get("all_reduce"), "metadata.all_reduce", ("included", "absent"))
    shape = check.mapping(top.get("shape"), "shape", SHAPE)
    host = check.mapping(top.get("host"), "host", ("base_us", "per_sequence_us"))
    profile = Profile(
        name=check.text(top.get("name"), "name"),
        metadata=metadata,
        shape={key: check.whole(shape.get(key), f"shape.{key}") for key in SHAPE},
        token_ops=_op_tables(check, top, "token_ops", "tokens"),
        sequence_ops=_op_tables(check, top, "sequence_ops", "sequences"),
        attention=_attention(check, top.get("attention")),
        base_us=check.number(host.get("base_us"), "host.base_us", 0, 1e9),
        per_sequence_us=check.number(host.get("per_sequence_us"), "host.per_sequence_us", 0, 1e9),
    )
    check.raise_faults()
    return profile


def _attention(check: Check, value: object) -> Attention:
    keys = ("count", "prefill", "decode", "decode_in_mixed", "join", "skew")
    data = check.mapping(value, "attention", keys)
    skew = check.mapping(data.get("skew"), "attention.skew", ("decode", "mixed"))
    join = data.get("join")
    power = isinstance(join, dict) and join.get("rule") == "p_norm"
    join = check.mapping(join, "attention.join", ("rule", "p") if power else ("rule",))
    check.choice(join.get("rule"), "attention.join.rule", ("sum", "p_norm"))
    mixed = data.get("decode_in_mixed")
    return Attention(
        count=check.whole(data.get("count"), "attention.count"),
        prefill=_grid_table(check, data.get("prefill"), "attention.prefill", "chunk_tokens"),
        decode=_grid_table(check, data.get("decode"), "attention.decode", "sequences"),
        decode_in_mixed=mixed and _grid_table(check, mixed, "attention.decode_in_mixed", "sequences"),
        p=_power_table(check, join.get("p")) if power else None,
        skew_decode=_alpha_table(check, skew.get("decode"), "attention.skew.decode"),
        skew_mixed=_alpha_table(check, skew.get("mixed"), "attention.skew.mixed"),
    )


def _power_table(check: Check, value: object) -> GridTable:
    key = "attention.join.p"
    if not isinstance(value, dict):
        return constant_power(check.number(value, key, *POWERS))
    data = check.mapping(value, key, ("chunk_tokens", "sequences", "p"))
    rows = check.axis(data.get("chunk_tokens"), f"{key}.chunk_tokens")
    columns = check.axis(data.get("sequences"), f"{key}.sequences")
    table = check.items(data.get("p"), f"{key}.p")
    if table and rows and len(table) != len(rows):
        check.fault(f"{key}.p", f"has {len(table)} rows for {len(rows)} chunk_tokens")
    powers = tuple(_numbers(check, row, f"{key}.p[{i}]", len(columns), *POWERS) for i, row in enumerate(table))
    return GridTable(rows, columns, powers)


def _alpha_table(check: Check, value: object, key: str) -> AxisTable:
    if not isinstance(value, dict):
        return constant_alpha(check.number(value, key, 0, 1))
    data = check.mapping(value, key, ("sequences", "alpha"))
    axis = check.axis(data.get("sequences"), f"{key}.sequences")
    return AxisTable(axis, _numbers(check, data.get("alpha"), f"{key}.alpha", len(axis), 0, 1))


def _numbers(check: Check, value: object, key: str, length: int, low: float, high: float) -> Axis:
    given = check.items(value, key)
    if given and length and len(given) != length:
        check.fault(key, f"has {len(given)} numbers for {length} points")
    return tuple(check.number(number, f"{key}[{i}]", low, high) for i, number in enumerate(given))


def _op_tables(check: Check, top: dict[str, Any], key: str, axis: str) -> tuple[OpTable, ...]:
    tables = []
    for i, value in enumerate(check.items(top.get(key), key)):
        where = f"{key}[{i}]"
        data = check.mapping(value, where, ("op", "count", axis, "us"))
        xs = check.axis(data.get(axis), f"{where}.{axis}")
        us = check.times(data.get("us"), f"{where}.us", len(xs))
        op, count = check.text(data.get("op"), f"{where}.op"), check.whole(data.get("count"), f"{where}.count")
        tables.append(OpTable(op, count, xs, us))
    return tuple(tables)


def _grid_table(check: Check, value: object, key: str, rows: str) -> GridTable:
    data = check.mapping(value, key, (rows, "context_tokens", "us"))
    row_axis = check.axis(data.get(rows), f"{key}.{rows}")
    columns = check.axis(data.get("context_tokens"), f"{key}.context_tokens")
    us = check.items(data.get("us"), f"{key}.us")
    if us and row_axis and len(us) != len(row_axis):
        check.fault(f"{key}.us", f"has {len(us)} rows for {len(row_axis)} {rows}")
    table = tuple(check.times(row, f"{key}.us[{i}]", len(columns)) for i, row in enumerate(us))
    return GridTable(row_axis, columns, table)
