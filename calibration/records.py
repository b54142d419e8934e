"""The folder of a measurement: raw.csv (a row per sample block), points.csv and meta.json.

raw.csv is appended to while timing; the other two are written anew under another name and renamed, so that what is
there is always whole.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from calibration.order import Visit
from calibration.points import Point, Timed, load_points, save_points
from calibration.timing import Labels, Sample
from simulator.errors import ConfigError

RAW, POINTS, META = "raw.csv", "points.csv", "meta.json"
RAW_COLUMNS = (
    "run", "order", "purpose", "attempt", *(field.name for field in fields(Point)),
    "dtype", "l2", "clock_mode", "calls", "t_us", "sm_mhz", "flag",
)  # fmt: skip


class Records:
    """The files of one measurement in `folder`, opened for appending. `run` counts its sessions from 1.

    Raises ConfigError where the folder can't be written.
    """

    def __init__(self, folder: Path, *, dtype: str, run: int) -> None:
        self.folder, self.run, self.dtype = folder, run, dtype
        path = folder / RAW
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
            self._file = path.open("a", newline="", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {folder}: can't be written: {error.strerror}") from None
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not path.stat().st_size:
            self._writer.writerow(RAW_COLUMNS)

    def sample(self, visit: Visit, order: int, attempt: int, labels: Labels, sample: Sample) -> None:
        """Append one sample block."""
        reading = sample.reading
        clocks = (f"{reading.sm_mhz:g}", reading.throttled) if reading else ("", "")
        point = astuple(replace(visit.point, mode=labels.mode))
        how = self.dtype, labels.l2, labels.clock_mode, sample.calls, f"{sample.us:.6g}"
        self._writer.writerow((self.run, order, visit.purpose, attempt, *point, *how, *clocks))
        self._file.flush()

    def save(self, rows: Iterable[Timed], meta: Mapping[str, Any]) -> None:
        """Write points.csv and meta.json."""
        ordered = sorted(rows, key=lambda row: row.point)
        _replace(self.folder / POINTS, lambda path: save_points(path, ordered))
        text = json.dumps(meta, indent=2, allow_nan=False) + "\n"
        _replace(self.folder / META, lambda path: path.write_text(text, encoding="utf-8"))

    def close(self) -> None:
        """Close raw.csv."""
        self._file.close()


def is_measured(folder: Path) -> bool:
    """Whether a measurement was begun in `folder`."""
    return any((folder / name).exists() for name in (RAW, POINTS, META))


def load(folder: Path) -> tuple[list[Timed], dict[str, Any]]:
    """Points and metadata so far; both empty where a run saved none before it was cut off. Raises ConfigError."""
    if not (folder / META).exists():
        return [], {}
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / META}: can't be read: {error}") from None
    if not isinstance(meta, dict):
        raise ConfigError(f"{folder / META}: isn't a JSON object")
    with (folder / POINTS).open(encoding="utf-8") as file:
        empty = sum(1 for _ in file) <= 1
    return ([] if empty else load_points(folder / POINTS)), meta


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    os.replace(partial, path)


def _cut_torn_line(path: Path) -> None:
    """Drop what a killed run left after the last line end."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])
