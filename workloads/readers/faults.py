"""All faults of a file at once: one line each, the first twenty printed, the rest counted."""

from __future__ import annotations

from simulator.errors import TraceError
from workloads.readers.values import printable, show

PRINTED = 20


class Faults:
    """Collects `FILE:LINE: COLUMN = VALUE: rule` lines. Line numbers are physical and count from 1."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_json = False
        self.count = 0
        self._lines: list[str] = []
        self._hints: list[str] = []

    def add(self, line: int | None, rule: str) -> None:
        """A fault of a whole line, or of the file where `line` is None."""
        place = self.path if line is None else f"{self.path}:{line}"
        text = printable(f"{place}: {rule}")
        if text in self._lines:  # looking at the head of a file and reading it find the same thing
            return
        self.count += 1
        if len(self._lines) < PRINTED:
            self._lines.append(text)

    def add_value(self, line: int, column: str, value: object, rule: str) -> None:
        """A fault of one value."""
        self.add(line, f"{column} = {show(value, self.is_json)}: {rule}")

    def hint(self, text: str) -> None:
        """Advice that follows from the faults; printed after them, not counted."""
        self._hints.append(f"{self.path}: {text}")

    def __bool__(self) -> bool:
        return self.count > 0

    def error(self) -> TraceError:
        """Everything collected, as the one error to raise."""
        more = self.count - len(self._lines)
        rest = [f"{self.path}: {more} more faults like these"] if more else []
        return TraceError([*self._lines, *rest, *self._hints])
