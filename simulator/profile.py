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
                     both may have basis: "measured" (default), or "fallback", from a roofline; and the n and k of
                     a linear layer's y[m, n] = x[m, k] W[n, k]^T
    attention        count (layers), and tables us[row][column]:
                     prefill {chunk_tokens, context_tokens, us}: a chunk after that many tokens; perhaps with
                       roofline {floor_us, us_per_pair, us_per_token, us_per_context_token, power}: the smooth
                       form that the times are a residual of, and
                       several {prompts, chunk_tokens, us}: as many equal prompts without history in one call
                     decode {sequences, context_tokens, us}: rows that attend to that many tokens each
                     decode_in_mixed (or null): the same rows inside a call that also holds a prefill chunk
                     decode, decode_in_mixed and several may have total_tokens: the largest row x column timed
                     join {rule: "sum"} or {rule: "p_norm", p}: how prefill and decode add up in a mixed call;
                     p is a number, or a table {chunk_tokens, sequences, p[chunk][sequences]}
                     skew {decode, mixed}: alpha in t = t(mean) + alpha (t(max) - t(mean)) for uneven contexts,
                     a number, or a table {sequences, alpha}
    host             base_us + per_sequence_us x sequences + per_layer_us (default 0) x layers, per iteration;
                     perhaps eager {base_us, per_layer_us, power}: what launching an iteration's kernels one by one
                     takes, joined to their time by a p-norm. Recorded, and used for no iteration
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from simulator import profile_attention
from simulator.errors import ConfigError
from simulator.hf_config import read_json
from simulator.json_checks import MOST, Check
from simulator.profile_tables import (
    BASES,
    MEASURED,
    MOST_CALLS,
    Attention,
    Axis,
    AxisTable,
    EagerHost,
    GridTable,
    OpTable,
    PrefillRoofline,
    constant_alpha,
    constant_power,
)
from simulator.suggest import did_you_mean

__all__ = [
    "METADATA", "SHAPE", "SHIPPED", "Attention", "Axis", "AxisTable", "EagerHost", "GridTable", "OpTable",
    "PrefillRoofline", "Profile", "constant_alpha", "constant_power", "load_profile", "shipped_profiles",
]  # fmt: skip
SCHEMA_VERSION = 1
SHIPPED = Path(__file__).parent / "profiles"
METADATA = (
    "gpu", "device", "model", "dtype", "engine", "source", "licence", "tensor_parallel_size", "all_reduce",
)  # fmt: skip
SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")

TOP = ("schema_version", "name", "metadata", "shape", "token_ops", "sequence_ops", "attention", "host")


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
    per_layer_us: float = 0.0
    eager: EagerHost | None = None

    @classmethod
    def from_json(cls, data: object, where: str) -> Profile:
        """Check a parsed JSON document. Raises ConfigError with one `file: key: ...` line per fault."""
        return _profile(Check(where), data)

    def to_json(self) -> dict[str, Any]:
        """The JSON document, as described in this module."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "metadata": self.metadata,
            "shape": self.shape,
            "token_ops": [_op(op, "tokens") for op in self.token_ops],
            "sequence_ops": [_op(op, "sequences") for op in self.sequence_ops],
            "attention": profile_attention.to_json(self.attention),
            "host": _host(self),
        }

    def save(self, path: str | Path) -> None:
        """Write the JSON document, one line per list of numbers."""
        Path(path).write_text(_dump(self.to_json()) + "\n", encoding="utf-8")


def load_profile(name_or_path: str | Path, key: str = "profile") -> Profile:
    """A shipped profile by name, or one from a JSON file. Raises ConfigError, with `key` for one that isn't there."""
    shipped = shipped_profiles()
    path = Path(name_or_path)
    if str(name_or_path) in shipped:
        path = SHIPPED / f"{name_or_path}.json"
    elif not path.is_file():
        names = ", ".join(shipped)
        nearest = did_you_mean(name_or_path, shipped)
        raise ConfigError(f"{key}: {str(name_or_path)!r} is neither a file nor one of {names}{nearest}")
    return Profile.from_json(read_json(path), str(path))


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def _op(table: OpTable, axis: str) -> dict[str, Any]:
    basis = {} if table.basis == MEASURED else {"basis": table.basis}
    linear = {"n": table.n, "k": table.k} if table.n else {}
    return {"op": table.op, "count": table.count, **basis, **linear, axis: list(table.axis), "us": list(table.us)}


def _host(profile: Profile) -> dict[str, Any]:
    host: dict[str, Any] = {"base_us": profile.base_us, "per_sequence_us": profile.per_sequence_us}
    if profile.per_layer_us:
        host["per_layer_us"] = profile.per_layer_us
    if profile.eager is not None:
        host["eager"] = asdict(profile.eager)
    return host


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
    host = check.mapping(top.get("host"), "host", ("base_us", "per_sequence_us"), optional=("per_layer_us", "eager"))
    eager = host.get("eager")
    profile = Profile(
        name=check.text(top.get("name"), "name"),
        metadata=metadata,
        shape={
            key: check.whole(shape.get(key), f"shape.{key}", MOST_CALLS if key == "layers" else MOST) for key in SHAPE
        },
        token_ops=_op_tables(check, top, "token_ops", "tokens"),
        sequence_ops=_op_tables(check, top, "sequence_ops", "sequences"),
        attention=profile_attention.from_json(check, top.get("attention")),
        base_us=check.number(host.get("base_us"), "host.base_us", 0, 1e9),
        per_sequence_us=check.number(host.get("per_sequence_us"), "host.per_sequence_us", 0, 1e9),
        per_layer_us=check.number(host.get("per_layer_us", 0.0), "host.per_layer_us", 0, 1e9),
        eager=None if eager is None else _eager(check, eager),
    )
    check.raise_faults()
    return profile


def _eager(check: Check, value: object) -> EagerHost:
    key = "host.eager"
    data = check.mapping(value, key, [field.name for field in fields(EagerHost)])
    base, per_layer = (check.number(data.get(name), f"{key}.{name}", 0, 1e9) for name in ("base_us", "per_layer_us"))
    return EagerHost(base, per_layer, check.number(data.get("power"), f"{key}.power", 1, 100))


def _op_tables(check: Check, top: dict[str, Any], key: str, axis: str) -> tuple[OpTable, ...]:
    tables: list[OpTable] = []
    for i, value in enumerate(check.items(top.get(key), key)):
        where = f"{key}[{i}]"
        data = check.mapping(value, where, ("op", "count", axis, "us"), optional=("basis", "n", "k"))
        xs = check.axis(data.get(axis), f"{where}.{axis}")
        us = check.times(data.get("us"), f"{where}.us", len(xs))
        op, count = (
            check.text(data.get("op"), f"{where}.op"),
            check.whole(data.get("count"), f"{where}.count", MOST_CALLS),
        )
        basis = data.get("basis", MEASURED)
        check.choice(basis, f"{where}.basis", BASES)
        if ("n" in data) != ("k" in data):
            check.fault(where, "n and k come together")
        n, k = (check.whole(data[key], f"{where}.{key}") if key in data else 0 for key in ("n", "k"))
        if any(table.op == op for table in tables):
            check.fault(f"{where}.op", f"{op!r} is there twice: its calls go into one count")
        tables.append(OpTable(op, count, xs, us, basis, n, k))
    return tuple(tables)
