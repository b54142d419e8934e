"""Plain CSV and JSON lines: any table with an arrival, a prompt length and an output length under usual names.

The arrival's name may end in its unit (`arrival_ms`); without one, and with no unit stated, it is taken as seconds,
with a warning. Every row states its whole prompt. Names match in any case.
"""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.rows import Rows
from workloads.readers.source import JSON, Source
from workloads.readers.values import UNITS

_ARRIVAL = ("arrival", "arrival_time", "arrival_timestamp", "arrived_at", "timestamp", "time", "start_time")
COLUMNS = {
    "arrival_ns": tuple(f"{name}_{unit}" for name in _ARRIVAL for unit in UNITS) + _ARRIVAL,
    "prompt_tokens": (
        "prompt_tokens", "input_tokens", "input_length", "input_len", "prompt_len", "prompt_length", "prompt_size",
        "num_prompt_tokens", "num_input_tokens", "num_prefill_tokens", "prefill_tokens", "context_tokens",
        "input_toks", "isl",
    ),
    "output_tokens": (
        "output_tokens", "output_length", "output_len", "completion_tokens", "generated_tokens", "generation_tokens",
        "num_output_tokens", "num_decode_tokens", "decode_tokens", "response_tokens",
        "output_toks", "osl",
    ),
    "id": ("request_id", "id", "req_id"),
    "session": ("session_id", "session", "conversation_id"),
    "priority": ("priority",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_new_tokens"),
    "prefix_hashes": ("hash_ids", "prefix_hashes", "block_hash_ids"),
}  # fmt: skip


class _Plain(Reader):
    """What both containers share: names, the unit in a name, and the refusal to guess between two columns."""

    turns = CUMULATIVE
    columns: ClassVar = COLUMNS
    folds_case = True

    def prepare(self, source: Source, names: list[str], bound: dict[str, str]) -> None:
        """Take the unit from the arrival's name; it must agree with a stated one."""
        for field in self.required:
            known = {alias.casefold() for alias in self.columns[field]}
            several = [name for name in names if self.fold(name) in known]
            if len(several) > 1:
                rule = f"each could be {field}; name the format, or keep one of them"
                source.faults.add(1, f"columns = {', '.join(several)}: {rule}")
        suffix = bound.get("arrival_ns", "").rpartition("_")[2].casefold()
        self._assumed = suffix not in UNITS and self.stated_unit is None
        if suffix in UNITS:
            if self.stated_unit not in (None, suffix):
                rule = f"the name says {suffix}, the stated unit is {self.stated_unit}"
                source.faults.add(1, f"column {bound['arrival_ns']}: {rule}")
            self.unit = suffix

    def finish(self, rows: Rows) -> None:
        """Say so where the unit was nobody's statement."""
        if self._assumed and len(rows):
            rows.warnings.append("no unit is stated and the arrival's name has none: taken as seconds")


class PlainCsv(_Plain):
    """Columns by name, one request per row; block ids joined by `|`."""

    name = "csv"
    title = "plain CSV: arrival_s (or _ms, _us, _ns), prompt_tokens, output_tokens"


class PlainJsonl(_Plain):
    """Keys by name, one object per line; block ids as an array."""

    name = "jsonl"
    title = "plain JSON lines: arrival_s (or _ms, _us, _ns), prompt_tokens, output_tokens"
    container = JSON
