"""Strict values: what counts as a number, a time or a name in a trace, and the rule that a bad one breaks.

Python's own `int` and `float` are too kind for a border: they take `1_000`, `nan`, `True` and Arabic digits. Here a
number is ASCII digits with an optional sign, point and exponent; times become whole nanoseconds in decimal
arithmetic, so no digit of the file is lost to binary fractions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from simulator.clock import NS_PER_MS, NS_PER_S, NS_PER_US

UNITS = {"s": NS_PER_S, "ms": NS_PER_MS, "us": NS_PER_US, "ns": 1}
# A prompt attends to itself, so the square of a length must fit 63 bits.
MAX_TOKENS = 2**31 - 1
# 146 years: as an epoch it lasts until 2116, and the sum of two such times still fits 63 bits.
MAX_NS = 2**62
_MAX_INT = 2**63 - 1
# Seconds since 1970 between 2001 and 2049: what an epoch in a log looks like.
_EPOCH_S = (10**9, 25 * 10**8)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)

Parser = Callable[[Any], Any]


class BadValue(ValueError):
    """A value breaks a rule. `column` names where, if not the column being parsed; `value` is what stood there."""

    def __init__(self, rule: str, column: str | None = None, value: object = None) -> None:
        super().__init__(rule)
        self.rule = rule
        self.column = column
        self.value = value


def text_number(cell: str) -> Decimal:
    """The number that a CSV cell states, exactly; spaces around it are ignored. Raises BadValue."""
    text = cell.strip(" \t")
    if not text:
        raise BadValue("empty")
    if not _NUMBER.fullmatch(text):
        raise BadValue("not finite" if _NOT_FINITE.fullmatch(text) else "not a number")
    if math.isinf(float(text)):
        raise BadValue("not finite")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise BadValue("not a number") from None


def json_number(value: object) -> int | Decimal:
    """The number that a JSON value states, exactly. Raises BadValue for booleans, strings, null, NaN, Infinity."""
    if type(value) is int:
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise BadValue("not finite")
        return Decimal(repr(value))
    raise BadValue(f"{json_kind(value)}, not a number")


def json_kind(value: object) -> str:
    """What JSON calls a decoded value, with its article: `a string`, `a boolean`, `null` ..."""
    kinds = {bool: "a boolean", str: "a string", list: "an array", dict: "an object", type(None): "null or missing"}
    return kinds.get(type(value), "a number")


def text_tokens(cell: str) -> int:
    """A CSV cell as a token count: whole (2e3 and 10.0 are), not negative. Raises BadValue."""
    if len(cell) < 10 and cell.isdigit() and cell.isascii():
        return int(cell)
    return _tokens(text_number(cell))


def json_tokens(value: object) -> int:
    """A JSON value as a token count: whole (10.0 is), not negative. Raises BadValue."""
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    return _tokens(json_number(value))


def text_ns(unit: str) -> Callable[[str], int]:
    """A parser of CSV cells that hold a time in `unit` (s, ms, us, ns), to nanoseconds half up."""
    scale = UNITS[unit]

    def parse(cell: str) -> int:
        # Plain digits, with or without a point, need no Decimal: the same exact result in half the time.
        whole, _, fraction = cell.partition(".")
        digits = whole + fraction
        if 0 < len(whole) < 10 and len(digits) < 30 and digits.isdigit() and digits.isascii():
            parts: int = 10 ** len(fraction)
            return int(whole) * scale + (2 * int(fraction or "0") * scale + parts) // (2 * parts)
        return _nanoseconds(text_number(cell), unit)

    return parse


def json_ns(unit: str) -> Callable[[object], int]:
    """A parser of JSON values that hold a time in `unit` (s, ms, us, ns), to nanoseconds half up."""

    def parse(value: object) -> int:
        return _nanoseconds(json_number(value), unit)

    return parse


def text_label(cell: str) -> str | None:
    """A CSV cell as a name (an id, a session); None where it is empty. Raises BadValue on control characters."""
    text = cell.strip(" \t")
    if text and not text.isprintable():
        raise BadValue("holds control characters")
    return text or None


def json_label(value: object) -> str | None:
    """A JSON string or integer as a name; None where it is null or empty. Raises BadValue."""
    if value is None:
        return None
    if type(value) is int:
        return str(value)
    if isinstance(value, str):
        return text_label(value)
    raise BadValue(f"{json_kind(value)}, not a name (text or an integer)")


def json_name(value: object) -> str:
    """A JSON string or integer as a name that must be there. Raises BadValue."""
    name = json_label(value)
    if name is None:
        raise BadValue("null, missing or empty")
    return name


def text_integer(cell: str) -> int | None:
    """A CSV cell as a signed integer of 64 bits; None where it is empty. Raises BadValue."""
    return _integer(text_number(cell)) if cell.strip(" \t") else None


def json_integer(value: object) -> int | None:
    """A JSON value as a signed integer of 64 bits; None where it is null. Raises BadValue."""
    return None if value is None else _integer(json_number(value))


def json_hashes(value: object) -> tuple[int, ...] | None:
    """A JSON array of block ids, kept exactly (64 bits and more); None where it is absent. Raises BadValue."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise BadValue(f"{json_kind(value)}, not an array of integers")
    for item in value:
        if type(item) is not int:
            raise BadValue(f"holds {json_kind(item)} that is no integer", value=item)
    return tuple(value)


def text_hashes(cell: str) -> tuple[int, ...] | None:
    """A CSV cell of block ids joined by `|`, kept exactly; None where it is empty. Raises BadValue."""
    text = cell.strip(" \t")
    if not text:
        return None
    parts = text.split("|")
    for part in parts:
        if not re.fullmatch(r"-?[0-9]{1,40}", part):
            raise BadValue("not integers joined by |", value=cell)
    return tuple(map(int, parts))


def printable(text: str) -> str:
    """A text with everything that a terminal would act on, or not show, escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show(value: object, is_json: bool) -> str:
    """A value as the file wrote it, cut to 60 characters, safe to print on one line."""
    if isinstance(value, str):
        text = f'"{value}"' if is_json or value != value.strip() or not value else value
        text = text if text.isprintable() else ascii(value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, float) and not math.isfinite(value):
        text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    elif isinstance(value, int) and abs(value) > 10**50:
        text = f"an integer of {value.bit_length()} bits"
    else:
        text = ascii(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _tokens(number: int | Decimal) -> int:
    if number < 0:
        raise BadValue("negative")
    if number > MAX_TOKENS:
        raise BadValue(f"more than {MAX_TOKENS} tokens")
    whole = int(number)
    if whole != number:
        raise BadValue("not a whole number of tokens")
    return whole


def _integer(number: int | Decimal) -> int:
    if not -_MAX_INT <= number <= _MAX_INT:
        raise BadValue("beyond 64 bits")
    whole = int(number)
    if whole != number:
        raise BadValue("not a whole number")
    return whole


def _nanoseconds(number: int | Decimal, unit: str) -> int:
    if number < 0:
        raise BadValue("negative time")
    if number > MAX_NS // UNITS[unit]:
        raise BadValue(f"more than 146 years in {unit}{_epoch_hint(number)}")
    ns = number * UNITS[unit]
    return ns if isinstance(ns, int) else int(ns.to_integral_value(ROUND_HALF_UP))


def _epoch_hint(number: int | Decimal) -> str:
    for unit, ns in UNITS.items():
        if _EPOCH_S[0] * NS_PER_S <= number * ns <= _EPOCH_S[1] * NS_PER_S:
            return f"; looks like {unit} since 1970, so state the unit: {unit}"
    return ""
