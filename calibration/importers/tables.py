"""CSV tables of timings: every cell checked, every fault named with file, line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration.points import read_cells
from simulator.errors import ConfigError, raise_faults

Row = dict[str, Any]
LIMIT = 1e15
# Endings of columns that hold times.
TIMES = ("_us", "_ms", ".median")


def columns(path: Path) -> list[str]:
    """The names in a CSV file's first line; none where it isn't such a file. Raises ConfigError if it can't be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        return []


def read_table(
    path: Path, numbers: Sequence[str], text: str | None = None, optional: Sequence[str] = (), least: int = 0
) -> list[Row]:
    """The rows of a CSV file: `numbers` as floats, and a `text` column.

    Times (TIMES) are above 0, other numbers whole and at least `least`. A cell of `optional` may be empty: the row then
    lacks it. Other columns are ignored. Raises ConfigError with a line per fault, at most MAX_FAULTS, and for an empty
    table.
    """
    lines = read_cells(path, [*numbers, *optional, *([text] if text else [])])
    faults: list[str] = []
    rows = []
    for line, row in lines:
        if None in row:
            faults.append(f"{path}:{line}: has more cells than the first line has names")
            continue
        present = [*numbers, *(name for name in optional if row[name])]
        rows.append(_row(f"{path}:{line}", row, present, text, least, faults))
    if not lines:
        faults.append(f"{path}: holds no rows")
    raise_faults(path, faults)
    return rows


def _row(
    where: str, row: dict[str | None, str], numbers: Sequence[str], text: str | None, least: int, faults: list[str]
) -> Row:
    parsed: Row = {}
    for name in numbers:
        time = name.endswith(TIMES)
        try:
            value = float(row[name])
        except (TypeError, ValueError):
            value = math.nan
        if not (0 < value < LIMIT if time else least <= value < LIMIT and value.is_integer()):
            rule = "a number above 0" if time else f"a whole number of at least {least}"
            faults.append(f"{where}: {name} = {row[name]}: must be {rule}")
        parsed[name] = value
    if text:
        parsed[text] = (row[text] or "").strip()
        if not parsed[text]:
            faults.append(f"{where}: {text}: is empty")
    return parsed
