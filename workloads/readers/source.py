"""A file as text, rows or records with physical line numbers, whatever it is packed in.

gzip is recognised by content, never by name; a byte-order mark is dropped; what is no text at all is named.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from simulator.errors import TraceError
from workloads.readers.faults import Faults

CSV = "csv"
JSON = "json"

_GZIP = b"\x1f\x8b"
_MAGIC = {
    b"PK\x03\x04": "a ZIP archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x28\xb5\x2f\xfd": "Zstandard data",
    b"PAR1": "an Apache Parquet file",
    b"ARROW1": "an Apache Arrow file",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF document",
    b"SQLite format 3": "an SQLite database",
    b"\xff\xfe": "UTF-16 text (save it as UTF-8)",
    b"\xfe\xff": "UTF-16 text (save it as UTF-8)",
}
_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
_BLANK = re.compile(r"\s*")


class Source:
    """One trace file. Faults met while reading go to `faults`; iteration then ends.

    Raises TraceError at once where there is nothing to read: no regular file, empty, or not text.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.faults = Faults(path)
        self._gzip = False
        head = self._head()
        self.container = JSON if head.lstrip()[:1] in ("{", "[") else CSV
        self.head = head
        self.faults.is_json = self.container == JSON

    def sha256(self) -> str:
        """SHA-256 of the file's bytes as they lie on disk (packed, if they are), hexadecimal."""
        with open(self.path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def csv_rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, cells) per record, header included; blank lines are skipped but counted."""
        line = 1
        with self._text() as stream:
            rows = csv.reader(stream, strict=True)
            while True:
                try:
                    row = next(rows, None)
                except (csv.Error, UnicodeDecodeError, *_DAMAGE) as error:
                    self._broken(line, error)
                    return
                if row is None:
                    return
                if len(row) > 1 or (row and row[0].strip()):
                    yield line, row
                line = rows.line_num + 1

    def json_records(self) -> Iterator[tuple[int, Any]]:
        """(line, value) per JSON line, or per element where the file is one JSON array."""
        if self.head.lstrip().startswith("["):
            yield from self._json_array()
            return
        for line, text in self._lines():
            if text.isspace():
                continue
            try:
                value = _DECODER.decode(text)
            except (ValueError, RecursionError) as error:
                self.faults.add(line, f"not valid JSON: {_json_problem(error)}")
                continue
            yield line, value

    def document(self) -> Any:
        """The whole file as one JSON value, or None where it isn't one."""
        text = "".join(text for _, text in self._lines())
        try:
            return _DECODER.decode(text)
        except (ValueError, RecursionError):
            return None

    def _head(self) -> str:
        try:
            if not stat.S_ISREG(Path(self.path).stat().st_mode):
                kind = "a directory" if Path(self.path).is_dir() else "not a regular file"
                raise TraceError(f"{self.path}: {kind}; a trace is a file")
            with open(self.path, "rb") as raw:
                start = raw.read(8)
            self._gzip = start.startswith(_GZIP)
            with self._bytes() as stream:
                data = stream.read(4096)
        except OSError as error:
            if not isinstance(error, gzip.BadGzipFile):
                raise TraceError(f"{self.path}: can't be read: {error.strerror or error}") from None
            raise self._damaged(error) from None
        except ValueError as error:
            raise TraceError(f"{self.path!r}: not a path: {error}") from None
        except _DAMAGE as error:
            raise self._damaged(error) from None
        return self._text_of(data)

    def _text_of(self, data: bytes) -> str:
        if not data.strip():
            raise TraceError(f"{self.path}: the file is empty")
        if data.startswith(_GZIP):
            raise TraceError(f"{self.path}: gzip data inside gzip data; unpack it once")
        for magic, kind in _MAGIC.items():
            if data.startswith(magic):
                raise TraceError(f"{self.path}: {kind}, not a request trace in CSV or JSON lines")
        if b"\0" in data:
            raise TraceError(f"{self.path}: binary data (holds NUL bytes), not a request trace in CSV or JSON lines")
        return data.decode("utf-8-sig", errors="replace")

    def _damaged(self, error: BaseException) -> TraceError:
        return TraceError(f"{self.path}: damaged gzip data: {error}")

    def _bytes(self) -> io.BufferedIOBase:
        if self._gzip:
            return gzip.open(self.path, "rb")
        return open(self.path, "rb")

    def _text(self) -> TextIO:
        return io.TextIOWrapper(self._bytes(), encoding="utf-8-sig", newline="")  # type: ignore[type-var]

    def _lines(self) -> Iterator[tuple[int, str]]:
        line = 0
        with self._text() as stream:
            while True:
                line += 1
                try:
                    text = stream.readline()
                except (UnicodeDecodeError, *_DAMAGE) as error:
                    self._broken(line, error)
                    return
                if not text:
                    return
                yield line, text

    def _json_array(self) -> Iterator[tuple[int, Any]]:
        text = "".join(text for _, text in self._lines())
        at, line, counted = text.find("[") + 1, 1, 0
        while at:  # 0 where nothing could be read
            at = _skip(text, at)
            line, counted = line + text.count("\n", counted, at), at
            try:
                value, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if text[at : at + 1] != "]" or text[_skip(text, at + 1) :]:
                    self.faults.add(line, f"not valid JSON: {_json_problem(error)}")
                return
            yield line, value
            at = _skip(text, at)
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] != "]":
                self.faults.add(line, "not valid JSON: the array isn't closed after this element")
                return

    def _broken(self, line: int, error: Exception) -> None:
        if isinstance(error, UnicodeDecodeError):
            self.faults.add(self._undecodable_line(), f"not UTF-8 text (byte 0x{error.object[error.start]:02x})")
        elif isinstance(error, csv.Error):
            self.faults.add(line, f"not valid CSV: {error}")
        else:
            self.faults.add(None, f"damaged gzip data after line {line - 1} (a cut download?): {error}")

    def _undecodable_line(self) -> int:
        # Text is decoded in large pieces, so the line is looked up only once something is wrong.
        line = 0
        with self._bytes() as stream, suppress(UnicodeDecodeError, *_DAMAGE):
            for raw in stream:
                line += 1
                raw.decode()
        return max(line, 1)


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _json_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return str(error).split(";")[0]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!a} appears twice in one object")
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)
