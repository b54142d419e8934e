"""aiperf's (genai-perf's) rows, "Mooncake+": https://github.com/ai-dynamo/aiperf. Times are in milliseconds.

Rows of one `session_id` are its turns, and a row is a DELTA: the prompts and answers before it are prepended, so the
prompt sent is all earlier prompts, all earlier answers and this row's tokens. Block ids (one per 512 tokens of the
row's own part) likewise accumulate.

The first turn has a `timestamp`. A follow-up waits for the answer before it, then `delay`; or it has a `timestamp` of
its own, and comes at that time or when the answer before it is there, whichever is later. Neither means at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from workloads.readers.base import DELTA, Reader
from workloads.readers.rows import Dropped, Rows
from workloads.readers.source import JSON
from workloads.readers.values import MAX_TOKENS, BadValue, Parser, json_ns


@dataclass
class _Session:
    """What a session's next turn builds on."""

    last: int | Dropped
    arrival_ns: int
    tokens: int  # of all prompts and answers so far
    last_tokens: int  # of the last turn's own part and its answer
    hashes: tuple[int, ...]
    line: int


class Aiperf(Reader):
    """One turn per line; rows without a session are requests of their own."""

    name = "aiperf"
    title = "aiperf sessions: timestamp or delay in milliseconds, token counts of each turn's own part"
    container = JSON
    turns = DELTA
    default_unit = "ms"
    default_block_size = 512
    columns: ClassVar = {
        "arrival_ns": ("timestamp",),
        "delay_ns": ("delay",),
        "session": ("session_id",),
        "prompt_tokens": ("input_length",),
        "output_tokens": ("output_length",),
        "prefix_hashes": ("hash_ids",),
        "priority": ("priority",),
    }
    required = ("prompt_tokens", "output_tokens")
    marks = ("session_id", "delay")

    def __init__(self, unit: str | None = None, block_size: int | None = None) -> None:
        super().__init__(unit, block_size)
        self._sessions: dict[str, _Session] = {}
        self._follow_ups = 0
        self._grown = 0  # follow-ups that could hold the whole turn before them

    def parser(self, field: str) -> Parser:
        """Both times may be absent; which one must be there depends on the turn."""
        if field in ("arrival_ns", "delay_ns"):
            parse = json_ns(self.unit or "ms")
            return lambda value: None if value is None else parse(value)
        return super().parser(field)

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """One turn: chained to the one before it in its session, if there is one."""
        hashes = fields.pop("prefix_hashes")
        if hashes is not None:
            rows.check_hashes(hashes, fields["prompt_tokens"])
        if fields["arrival_ns"] is not None and fields["delay_ns"] is not None:
            raise BadValue("a turn has a timestamp or a delay, not both", "delay_ns")
        before = self._sessions.get(fields["session"]) if fields["session"] is not None else None
        if before is None:
            self._first(line, fields, hashes or (), rows)
        else:
            self._follow_up(line, fields, hashes or (), rows, before)

    def _first(self, line: int, fields: dict[str, Any], hashes: tuple[int, ...], rows: Rows) -> None:
        if fields["delay_ns"] is not None:
            raise BadValue("a session's first turn has no turn to wait for; give it a timestamp", "delay_ns")
        if fields["arrival_ns"] is None:
            raise BadValue("missing; a session's first turn needs an arrival", "arrival_ns", None)
        del fields["delay_ns"]
        place = rows.add(line, prefix_hashes=hashes, **fields)
        if fields["session"] is not None:
            tokens = fields["prompt_tokens"] + fields["output_tokens"]
            self._sessions[fields["session"]] = _Session(place, fields["arrival_ns"], tokens, tokens, hashes, line)

    def _follow_up(
        self, line: int, fields: dict[str, Any], hashes: tuple[int, ...], rows: Rows, before: _Session
    ) -> None:
        arrival_ns, delay_ns = fields.pop("arrival_ns"), fields.pop("delay_ns")
        own, output = fields.pop("prompt_tokens"), fields.pop("output_tokens")
        if arrival_ns is None and delay_ns is None:
            rows.note("neither timestamp nor delay (follow-up turns: they come at once)", line)
        if arrival_ns is not None and arrival_ns < before.arrival_ns:
            raise BadValue(f"earlier than the session's turn before it on line {before.line}", "arrival_ns")
        prompt = before.tokens + own
        if prompt > MAX_TOKENS:
            raise BadValue(f"the whole conversation has more than {MAX_TOKENS} tokens", "prompt_tokens")
        earliest_ns = before.arrival_ns + (delay_ns or 0) if arrival_ns is None else arrival_ns
        whole = before.hashes + hashes
        place = rows.add(
            line, earliest_ns, prompt if own else 0, output, after=before.last, delay_ns=delay_ns or 0,
            timed=arrival_ns is not None, prefix_hashes=whole, history_tokens=before.tokens, **fields,
        )  # fmt: skip
        self._follow_ups += 1
        self._grown += own >= before.last_tokens
        self._sessions[fields["session"]] = _Session(place, earliest_ns, prompt + output, own + output, whole, line)

    def finish(self, rows: Rows) -> None:
        """Deltas that always hold the turn before them are no deltas: prompts would be counted twice."""
        if self._follow_ups >= 2 and self._grown == self._follow_ups:
            rows.warnings.append(
                "every follow-up is at least as long as the turn before it and its answer: these rows look cumulative, "
                "and aiperf's are deltas, to which the conversation so far is added"
            )
