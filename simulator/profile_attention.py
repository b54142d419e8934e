"""The attention of a profile, from its JSON form and back; `simulator.profile` describes the keys."""

from __future__ import annotations

from typing import Any

from simulator.json_checks import Check
from simulator.profile_tables import (
    MOST_CALLS,
    Attention,
    Axis,
    AxisTable,
    GridTable,
    PrefillRoofline,
    constant_alpha,
    constant_power,
)

# Exponents below 1: a mixed call may take longer than its two halves one after the other.
POWERS = (0.25, 100)
CHUNKS, CONTEXTS, SEQUENCES, PROMPTS, TOTAL = (
    "chunk_tokens", "context_tokens", "sequences", "prompts", "total_tokens",
)  # fmt: skip
ROOFLINE = ("floor_us", "us_per_pair", "us_per_token", "us_per_context_token", "power")


def to_json(attention: Attention) -> dict[str, Any]:
    """The JSON object."""
    prefill = _grid(attention.prefill, CHUNKS, CONTEXTS)
    if attention.roofline is not None:
        prefill["roofline"] = {key: getattr(attention.roofline, key) for key in ROOFLINE}
    if attention.several is not None:
        prefill["several"] = _grid(attention.several, PROMPTS, CHUNKS)
    mixed = attention.decode_in_mixed
    return {
        "count": attention.count,
        "prefill": prefill,
        "decode": _grid(attention.decode, SEQUENCES, CONTEXTS),
        "decode_in_mixed": mixed and _grid(mixed, SEQUENCES, CONTEXTS),
        "join": {"rule": "sum"} if attention.p is None else {"rule": "p_norm", "p": _power(attention.p)},
        "skew": {"decode": _alpha(attention.skew_decode), "mixed": _alpha(attention.skew_mixed)},
    }


def _grid(table: GridTable, rows: str, columns: str) -> dict[str, Any]:
    total = {} if table.total_tokens is None else {TOTAL: table.total_tokens}
    return {rows: list(table.rows), columns: list(table.columns), **total, "us": [list(row) for row in table.us]}


def _power(table: GridTable) -> Any:
    if len(table.rows) == len(table.columns) == 1:
        return table.us[0][0]
    rows = [list(row) for row in table.us]
    return {CHUNKS: list(table.rows), SEQUENCES: list(table.columns), "p": rows}


def _alpha(table: AxisTable) -> Any:
    if len(table.axis) == 1:
        return table.values[0]
    return {SEQUENCES: list(table.axis), "alpha": list(table.values)}


def from_json(check: Check, value: object) -> Attention:
    """Check the JSON object; faults go to `check`."""
    keys = ("count", "prefill", "decode", "decode_in_mixed", "join", "skew")
    data = check.mapping(value, "attention", keys, optional=("decode_in_mixed",))
    skew = check.mapping(data.get("skew"), "attention.skew", ("decode", "mixed"))
    join = data.get("join")
    power = isinstance(join, dict) and join.get("rule") == "p_norm"
    join = check.mapping(join, "attention.join", ("rule", "p") if power else ("rule",))
    check.choice(join.get("rule"), "attention.join.rule", ("sum", "p_norm"))
    prefill, mixed = data.get("prefill"), data.get("decode_in_mixed")
    given = prefill if isinstance(prefill, dict) else {}
    roofline, several = given.get("roofline"), given.get("several")
    key = "attention.prefill"
    if several is not None and roofline is None:
        check.fault(f"{key}.several", "needs a roofline beside it")
    return Attention(
        count=check.whole(data.get("count"), "attention.count", MOST_CALLS),
        prefill=_grid_table(check, prefill, key, CHUNKS, CONTEXTS, ("roofline", "several")),
        decode=_grid_table(check, data.get("decode"), "attention.decode", SEQUENCES, CONTEXTS),
        decode_in_mixed=mixed and _grid_table(check, mixed, "attention.decode_in_mixed", SEQUENCES, CONTEXTS),
        p=_power_table(check, join.get("p")) if power else None,
        skew_decode=_alpha_table(check, skew.get("decode"), "attention.skew.decode"),
        skew_mixed=_alpha_table(check, skew.get("mixed"), "attention.skew.mixed"),
        roofline=None if roofline is None else _roofline(check, roofline, f"{key}.roofline"),
        several=None if several is None else _grid_table(check, several, f"{key}.several", PROMPTS, CHUNKS),
    )


def _roofline(check: Check, value: object, key: str) -> PrefillRoofline:
    data = check.mapping(value, key, ROOFLINE)
    floor, pair, token, context = (check.number(data.get(name), f"{key}.{name}", 1e-12, 1e9) for name in ROOFLINE[:-1])
    return PrefillRoofline(floor, pair, token, context, check.number(data.get("power"), f"{key}.power", *POWERS))


def _power_table(check: Check, value: object) -> GridTable:
    key = "attention.join.p"
    if not isinstance(value, dict):
        return constant_power(check.number(value, key, *POWERS))
    data = check.mapping(value, key, (CHUNKS, SEQUENCES, "p"))
    rows = check.axis(data.get(CHUNKS), f"{key}.{CHUNKS}")
    columns = check.axis(data.get(SEQUENCES), f"{key}.{SEQUENCES}")
    table = check.items(data.get("p"), f"{key}.p")
    if table and rows and len(table) != len(rows):
        check.fault(f"{key}.p", f"has {len(table)} rows for {len(rows)} {CHUNKS}")
    powers = tuple(_numbers(check, row, f"{key}.p[{i}]", len(columns), *POWERS) for i, row in enumerate(table))
    return GridTable(rows, columns, powers)


def _alpha_table(check: Check, value: object, key: str) -> AxisTable:
    if not isinstance(value, dict):
        return constant_alpha(check.number(value, key, 0, 1))
    data = check.mapping(value, key, (SEQUENCES, "alpha"))
    axis = check.axis(data.get(SEQUENCES), f"{key}.{SEQUENCES}")
    return AxisTable(axis, _numbers(check, data.get("alpha"), f"{key}.alpha", len(axis), 0, 1))


def _numbers(check: Check, value: object, key: str, length: int, low: float, high: float) -> Axis:
    given = check.items(value, key)
    if given and length and len(given) != length:
        check.fault(key, f"has {len(given)} numbers for {length} points")
    return tuple(check.number(number, f"{key}[{i}]", low, high) for i, number in enumerate(given))


def _grid_table(
    check: Check, value: object, key: str, rows: str, columns: str, more: tuple[str, ...] = ()
) -> GridTable:
    data = check.mapping(value, key, (rows, columns, "us"), optional=(TOTAL, *more))
    row_axis = check.axis(data.get(rows), f"{key}.{rows}")
    column_axis = check.axis(data.get(columns), f"{key}.{columns}", least=0 if columns == CONTEXTS else 1)
    us = check.items(data.get("us"), f"{key}.us")
    if us and row_axis and len(us) != len(row_axis):
        check.fault(f"{key}.us", f"has {len(us)} rows for {len(row_axis)} {rows}")
    table = tuple(check.times(row, f"{key}.us[{i}]", len(column_axis)) for i, row in enumerate(us))
    total = data.get(TOTAL)
    limit = None if total is None else check.number(total, f"{key}.{TOTAL}", 1, 1e15)
    return GridTable(row_axis, column_axis, table, limit)
