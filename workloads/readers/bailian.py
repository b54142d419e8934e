"""Qwen-Bailian traces: https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.

`timestamp` is in seconds; `hash_ids` holds one id per block of 16 prompt tokens; `parent_chat_id` names the turn
before (-1 for none). A row's prompt is the whole conversation, and it arrives at its own time. A parent outside the
file (a trace that was cut) makes its row the root of a session, with a warning.
"""

from __future__ import annotations

from typing import Any, ClassVar

from workloads.readers import values
from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.rows import Rows
from workloads.readers.source import JSON
from workloads.readers.values import Parser

_ROOT = "-1"


class Bailian(Reader):
    """One turn per line; the session is the chat id of the conversation's first turn in the file."""

    name = "bailian"
    title = "Qwen-Bailian trace: seconds, token counts, parent turns, ids of 16-token prompt blocks"
    container = JSON
    turns = CUMULATIVE
    default_block_size = 16
    columns: ClassVar = {
        "arrival_ns": ("timestamp",),
        "prompt_tokens": ("input_length",),
        "output_tokens": ("output_length",),
        "id": ("chat_id",),
        "parent": ("parent_chat_id",),
        "prefix_hashes": ("hash_ids",),
    }
    required = ("arrival_ns", "prompt_tokens", "output_tokens", "id", "parent")

    def __init__(self, unit: str | None = None, block_size: int | None = None) -> None:
        super().__init__(unit, block_size)
        self._turns: dict[str, tuple[str, int, int]] = {}  # chat id -> parent, arrival, line

    def parser(self, field: str) -> Parser:
        """A chat id must be there; a parent of null is none, like -1."""
        if field in ("id", "parent"):
            return values.json_name if field == "id" else values.json_label
        return super().parser(field)

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """Remember the turn; sessions are known once all turns are."""
        parent = fields.pop("parent") or _ROOT
        self._turns.setdefault(fields["id"], (parent, fields["arrival_ns"], line))
        super().row(line, fields | {"session": fields["id"]}, rows)

    def finish(self, rows: Rows) -> None:
        """Follow every turn's parents up to its root."""
        roots: dict[str, str] = {}
        for chat in self._turns:
            self._root(chat, roots, rows)
        sessions = rows.extras.get("session", [])
        rows.extras["session"] = [roots.get(chat, chat) for chat in sessions]

    def _root(self, chat: str, roots: dict[str, str], rows: Rows) -> None:
        path: dict[str, None] = {}
        at = chat
        while at not in roots:
            path[at] = None
            parent, arrival_ns, line = self._turns[at]
            if parent != _ROOT and parent not in self._turns:
                rows.note("a parent outside the file", line)
            if parent == _ROOT or parent not in self._turns:
                roots[at] = at
            elif parent in path:
                rows.faults.add_value(line, "parent_chat_id", parent, "a turn can't be its own ancestor")
                roots[at] = at
            elif self._turns[parent][1] > arrival_ns:
                where = f"its parent on line {self._turns[parent][2]} arrives later"
                rows.faults.add_value(line, "parent_chat_id", parent, where)
                roots[at] = at
            else:
                at = parent
        roots.update(dict.fromkeys(path, roots[at]))
