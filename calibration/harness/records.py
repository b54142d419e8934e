"""The folder of a measurement: raw.csv (a row per sample block), points.csv and meta.json.

raw.csv is appended to while timing; the other two are written anew under another name and renamed, so that what is
there is always whole.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

from calibration.harness.order import Visit
from calibration.harness.timing import Labels, Sample
from calibration.points import Point, Timed, load_points, save_points
from simulator.errors import ConfigError
from simulator.hf_config import is_number, read_json
from simulator.json_checks import Check

RAW, POINTS, META = "raw.csv", "points.csv", "meta.json"
RAW_COLUMNS = (
    "run", "order", "purpose", "attempt", *(field.name for field in fields(Point)),
    "dtype", "l2", "clock_mode", "calls", "t_us", "sm_mhz", "flag",
)  # fmt: skip


class Records:
    """The files of one measurement in `folder`, opened for appending. `run` counts its sessions from 1.

    Its methods raise ConfigError where the folder can't be written.
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
        with _writing(self.folder / RAW):
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
        with suppress(OSError):  # of a full disk, which writing has said
            self._file.close()


def is_measured(folder: Path) -> bool:
    """Whether a measurement was begun in `folder`."""
    return any((folder / name).exists() for name in (RAW, POINTS, META))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder and keep other measurements out of it meanwhile; one that stays empty is removed again.

    Raises ConfigError where it can't be made, or another measurement is at it.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"--out {folder}: can't be written: {error.strerror}") from None
    try:
        _lock(folder, handle)
        yield
    finally:
        os.close(handle)
        if made:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def _lock(folder: Path, handle: int) -> None:
    """Lock an open folder until it is closed, where the system has such locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"--out {folder}: another measurement writes there; wait, or name another folder") from None
    except (ImportError, OSError):
        return


def load(folder: Path) -> tuple[list[Timed], dict[str, Any]]:
    """Points and metadata so far; both empty where a run saved none before it was cut off. Raises ConfigError."""
    if not (folder / META).exists():
        if (folder / POINTS).exists():
            raise ConfigError(f"{folder / META}: not there, and it says what the points beside it are of")
        return [], {}
    meta = _meta(folder / META)
    return (load_points(folder / POINTS) if _has_rows(folder / POINTS) else []), meta


def _meta(path: Path) -> dict[str, Any]:
    """meta.json, with what a run goes on from checked."""
    meta = read_json(path)
    check = Check(str(path))
    check.mapping(meta, "", ("anchors", "drifts", "warnings"), more=True)
    for i, run in enumerate(check.items(meta.get("runs"), "runs")):
        check.text(check.mapping(run, f"runs[{i}]", ("started",), more=True).get("started"), f"runs[{i}].started")
    anchors = meta.get("anchors")
    for key, us in check.mapping(anchors, "anchors", tuple(anchors) if isinstance(anchors, dict) else ()).items():
        check.times(us, f"anchors.{key}", 0)
    lists: dict[str, tuple[Callable[[Any], bool], str]] = {
        "drifts": (is_number, "numbers"), "warnings": (lambda text: isinstance(text, str), "texts"),
    }  # fmt: skip
    for key, (kind, what) in lists.items():
        value = meta.get(key)
        if value is not None and not (isinstance(value, list) and all(map(kind, value))):
            check.fault(key, f"must be a list of {what}")
    check.raise_faults()
    return meta


def _has_rows(path: Path) -> bool:
    """Whether points.csv has more than a first line."""
    try:
        with path.open("rb") as file:
            return sum(1 for _ in zip(file, range(2), strict=False)) > 1
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _writing(path):
            write(partial)
            os.replace(partial, path)
    except ConfigError:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Within it, a disk that is full or gone is a line that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}; --resume goes on from what is kept") from None


def _cut_torn_line(path: Path) -> None:
    """Drop what a killed run left after the last line end."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
