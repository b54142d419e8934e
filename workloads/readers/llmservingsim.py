"""LLMServingSim's workloads: https://github.com/casys-kaist/LLMServingSim. Times are in nanoseconds.

A flat row is one request. A row with `sub_requests` is an agent's session: each states its whole prompt, and comes
when the one before it has been answered and its tool has run for `tool_duration_ns`. Both kinds may share a file. Rows
are counted as requests: a row with three sub-requests counts three.
"""

from __future__ import annotations

from typing import Any, ClassVar

from workloads.readers import values
from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.rows import Rows
from workloads.readers.source import JSON
from workloads.readers.values import BadValue, Parser


class LlmServingSim(Reader):
    """Flat requests and chained sub-requests; token-id lists are ignored."""

    name = "llmservingsim"
    title = "LLMServingSim workload: arrival_time_ns, token counts, chained sub_requests with tool durations"
    container = JSON
    turns = CUMULATIVE
    default_unit = "ns"
    columns: ClassVar = {
        "arrival_ns": ("arrival_time_ns",),
        "prompt_tokens": ("input_toks",),
        "output_tokens": ("output_toks",),
        "session": ("session_id",),
        "sub_requests": ("sub_requests",),
    }
    required = ("arrival_ns",)
    marks = ("input_toks", "sub_requests")

    def parser(self, field: str) -> Parser:
        """Lengths are missing where there are sub-requests, and these are parsed one by one."""
        if field == "sub_requests":
            return _list_or_none
        return super().parser(field)

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """A request, or a session's chain of them."""
        chain = fields.pop("sub_requests")
        if chain is None:
            for field in ("prompt_tokens", "output_tokens"):
                if fields[field] is None:
                    raise BadValue("null or missing, not a number", field)
            rows.add(line, **fields)
            return
        for field in ("prompt_tokens", "output_tokens"):
            if fields[field] is not None:
                raise BadValue("a row has lengths of its own or sub_requests, not both", field)
        self._chain(line, fields, chain, rows)

    def _chain(self, line: int, fields: dict[str, Any], chain: list[Any], rows: Rows) -> None:
        turns = [_sub_request(i, sub, self.unit or "ns") for i, sub in enumerate(chain)]
        session = fields["session"] or f"row {rows.read}"
        after: Any = None
        earliest_ns, delay_ns = fields["arrival_ns"], 0
        for i, (prompt, output, tool_ns) in enumerate(turns):
            earliest_ns += delay_ns
            after = rows.add(
                line, earliest_ns, prompt, output, id=f"{session}/{i}", session=session, after=after,
                delay_ns=delay_ns, timed=i == 0,
            )  # fmt: skip
            delay_ns = tool_ns


def _list_or_none(value: object) -> list[Any] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise BadValue("not a list of requests" if value != [] else "an empty list of requests")
    return value


def _sub_request(number: int, sub: object, unit: str) -> tuple[int, int, int]:
    """Prompt tokens, output tokens and tool time of one sub-request; a tool that isn't named takes no time."""
    place = f"sub_requests[{number}]"
    if not isinstance(sub, dict):
        raise BadValue("not an object with input_toks and output_toks", place, sub)
    parsed = []
    for key, parse in (
        ("input_toks", values.json_tokens),
        ("output_toks", values.json_tokens),
        ("tool_duration_ns", values.json_ns(unit)),
    ):
        raw = sub.get(key, 0 if key == "tool_duration_ns" else None)
        try:
            parsed.append(parse(raw))
        except BadValue as bad:
            raise BadValue(bad.rule, f"{place}.{key}", raw) from None
    return parsed[0], parsed[1], parsed[2]
