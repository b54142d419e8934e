"""Azure LLM inference traces: 2023, 2024 and the multimodal one of 2025, told apart by each stamp, not by the file.

Source: https://github.com/Azure/AzurePublicDataset. 2023 writes seven fractional digits and no zone; 2024 writes six
digits or none with `+00:00`; 2025 writes three with `T` and `Z`. All digits count (seven are 100 ns), offsets are
converted to UTC, and a stamp without a zone is taken as UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from simulator.clock import NS_PER_S
from workloads.readers.base import SINGLE, Reader
from workloads.readers.values import MAX_NS, BadValue, Parser

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII)
_FRACTION: dict[int, int] = {
    n: 10 ** (11 - n) for n in range(3, 12)
}  # digits of seconds and fraction -> ns of the last one
_MINUTES_KEPT = 20_000  # two weeks of minutes


class Azure(Reader):
    """One request per row: stamp, prompt tokens, output tokens. No sessions, no prefixes."""

    name = "azure"
    title = "Azure LLM inference trace 2023/2024/2025: date and time stamps, token counts"
    turns = SINGLE
    default_unit = None
    columns: ClassVar = {
        "arrival_ns": ("TIMESTAMP",),
        "prompt_tokens": ("ContextTokens",),
        "output_tokens": ("GeneratedTokens",),
    }

    def parser(self, field: str) -> Parser:
        """Stamps for the arrival, the common parsers for the rest."""
        return Stamps() if field == "arrival_ns" else super().parser(field)


class Stamps:
    """Parses date-and-time stamps to nanoseconds since 1970, UTC. Raises BadValue.

    Most stamps share their minute with the one before, so whole minutes are looked up, not computed.
    """

    def __init__(self) -> None:
        self._minutes: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Nanoseconds since 1970 of one stamp; no digit is cut off."""
        minute_ns = self._minutes.get(text[:17])
        if minute_ns is None:
            return self._careful(text)
        tail = text[17:]
        digits = tail[:2] + tail[3:]
        if not digits.isdigit():
            tail = tail.removesuffix("+00:00").removesuffix("Z")
            digits = tail[:2] + tail[3:]
        scale = _FRACTION.get(len(digits))
        if scale is None or tail[2] != "." or tail > "60" or not (digits.isdigit() and digits.isascii()):
            return self._careful(text)
        return minute_ns + int(digits) * scale

    def _careful(self, text: str) -> int:
        match = _STAMP.fullmatch(text.strip())
        if match is None:
            raise BadValue("not a date and time like 2024-05-10 00:00:00.009930+00:00")
        date, minute, second, fraction, zone = match.groups()
        try:
            moment = datetime.fromisoformat(f"{date}T{minute}:{second}").replace(tzinfo=UTC)
            since = moment - datetime(1970, 1, 1, tzinfo=UTC) - _offset(zone)
        except (ValueError, OverflowError) as error:
            raise BadValue(f"no such date or time ({error})") from None
        seconds = since.days * 86_400 + since.seconds
        ns = seconds * NS_PER_S + int((fraction or "0").ljust(9, "0"))
        if not 0 <= ns <= MAX_NS:
            raise BadValue("not between 1970 and 2116")
        if _offset(zone) == timedelta(0) and text[10:11] in (" ", "T") and text[16:17] == ":":
            if len(self._minutes) >= _MINUTES_KEPT:
                self._minutes.clear()
            self._minutes[text[:17]] = (seconds - int(second)) * NS_PER_S
        return ns


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone == "Z":
        return timedelta(0)
    hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"offset {zone}")
    offset = timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset
