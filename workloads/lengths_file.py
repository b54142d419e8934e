"""Lengths alone: a request trace, or a table of prompt and output lengths without arrivals, as a distribution."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TraceError
from workloads.readers.base import Reader
from workloads.readers.detect import has_lengths, head_names, refuse_markup
from workloads.readers.plain import COLUMNS
from workloads.readers.rows import Rows
from workloads.readers.source import JSON, Source
from workloads.shipped import shipped_path
from workloads.trace import load_trace, locate


class Lengths(Reader):
    """A CSV of prompt and output lengths under any plain name; every row is taken to arrive at 0."""

    name = "lengths"
    title = "lengths without arrivals"
    required = ("prompt_tokens", "output_tokens")
    folds_case = True
    columns: ClassVar = {field: COLUMNS[field] for field in ("prompt_tokens", "output_tokens")}

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """One pair of lengths."""
        rows.add(line, 0, **fields)


class JsonLengths(Lengths):
    """The same as one JSON object per line."""

    container = JSON


def read_lengths(path: str, column: str) -> NDArray[np.int64]:
    """The input or output lengths (`column`) of a shipped trace, a trace file or a lengths file, failed rows dropped.

    Raises TraceError with all faults.
    """
    if shipped_path(path) is None:
        source = Source(locate(path))
        refuse_markup(source)
        if has_lengths(head_names(source)):
            return _of_table(source, column)
    requests = load_trace(path).requests
    return np.array([r.prompt_tokens if column == "input" else r.output_tokens for r in requests], np.int64)


def _of_table(source: Source, column: str) -> NDArray[np.int64]:
    rows = Rows(source.faults)
    (JsonLengths if source.container == JSON else Lengths)().read(source, rows)
    if source.faults:
        raise source.faults.error()
    if not len(rows):
        raise TraceError(f"{source.path}: no lengths in the file")
    return np.array(rows.prompt_tokens if column == "input" else rows.output_tokens, np.int64)
