"""inference-sim's trace v2: https://github.com/inference-sim/inference-sim. A YAML header beside a CSV of rows.

The header states the time unit (us); the rows have 27 columns and are read by name, so optional columns shift nothing.
Either file may be given; the other is looked for under the same name. Arrivals count from the start of the run. Rows
whose status isn't `ok` were still sent, so they are replayed, with a warning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from workloads.readers import values
from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.rows import Rows
from workloads.readers.source import Source
from workloads.readers.values import Parser

_HEADERS = (".yaml", ".yml")
_US = ("us", "µs", "microseconds")


class InferenceSim(Reader):
    """One request per row, with its session and what became of it."""

    name = "inference-sim"
    title = "inference-sim trace v2: arrival_time_us, token counts, a YAML header beside the rows"
    turns = CUMULATIVE
    default_unit = "us"
    columns: ClassVar = {
        "arrival_ns": ("arrival_time_us",),
        "prompt_tokens": ("input_tokens",),
        "output_tokens": ("output_tokens",),
        "id": ("request_id",),
        "session": ("session_id",),
        "status": ("status",),
    }
    marks = ("client_id", "send_time_us", "first_chunk_time_us")

    @classmethod
    def companion(cls, path: str) -> str | None:
        """The CSV beside a YAML header; None where `path` is no such header or there is none."""
        if not path.lower().endswith(_HEADERS):
            return None
        rows = Path(path).with_suffix(".csv")
        return str(rows) if rows.is_file() else None

    def prepare(self, source: Source, names: list[str], bound: dict[str, str]) -> None:
        """Read the header file, where there is one: its time unit must be what the columns say."""
        for suffix in _HEADERS:
            header = Path(source.path).with_suffix(suffix)
            if header.is_file():
                self._check_header(header, source)
                return

    def _check_header(self, header: Path, source: Source) -> None:
        for line, text in enumerate(header.read_text("utf-8-sig", errors="replace").splitlines(), 1):
            key, _, value = text.partition(":")
            unit = value.split("#")[0].strip().strip("\"'")
            if key.strip() == "time_unit" and unit not in _US:
                rule = f"the column arrival_time_us of {source.path} says us"
                source.faults.add(None, f"{header}:{line}: time_unit = {values.show(unit, False)}: {rule}")

    def parser(self, field: str) -> Parser:
        """A status is a name; the rest is common."""
        return values.text_label if field == "status" else super().parser(field)

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """One request; one that failed when it was recorded is counted."""
        if fields.pop("status", "ok") not in ("ok", None):
            rows.note("a status other than ok; they are replayed as recorded", line)
        super().row(line, fields, rows)
