"""How far a measurement is: a bar on a terminal, else a line now and then. Standard library only."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TextIO

EVERY_S, EVERY_POINTS = 10.0, 25
BAR = 24


class Progress:
    """Says on `stream` how many of `total` timings are done, and how long the rest takes, at most `budget_s`."""

    def __init__(self, total: int, stream: TextIO, *, budget_s: float | None = None) -> None:
        self.total, self.done = total, 0
        self._stream, self._terminal = stream, stream.isatty()
        self._started = self._said = time.monotonic()
        self._budget_s = budget_s
        self._open = False

    def step(self, what: str) -> None:
        """One timing of `what` is done."""
        self.done += 1
        now = time.monotonic()
        if self._terminal:
            self._draw(what)
        elif self.done % EVERY_POINTS == 0 or now - self._said >= EVERY_S:
            self._print(self._text(what) + "\n")
            self._said = now

    def more(self, count: int) -> None:
        """`count` timings were added."""
        self.total += count

    def say(self, line: str) -> None:
        """A line that stays."""
        self.finish()
        self._print(line + "\n")

    def finish(self) -> None:
        """Leave the bar's line."""
        if self._open:
            width = shutil.get_terminal_size().columns
            self._print("\r" + " " * (width - 1) + "\r")
            self._open = False

    def left_s(self) -> float:
        """Seconds left, by the mean of the timings so far."""
        elapsed = time.monotonic() - self._started
        left = elapsed / max(self.done, 1) * (self.total - self.done)
        return left if self._budget_s is None else max(min(left, self._budget_s - elapsed), 0.0)

    def _text(self, what: str) -> str:
        share = self.done / max(self.total, 1)
        minutes, seconds = divmod(round(self.left_s()), 60)
        return f"{self.done}/{self.total} {share:4.0%}, {minutes}:{seconds:02d} left, {what}"

    def _draw(self, what: str) -> None:
        filled = round(BAR * self.done / max(self.total, 1))
        width = shutil.get_terminal_size().columns
        line = f"{'█' * filled}{'·' * (BAR - filled)} {self._text(what)}"[: width - 1]
        self._print("\r" + line.ljust(width - 1))
        self._open = True

    def _print(self, text: str) -> None:
        """Write at once; a reader who has left doesn't end the measurement."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()
