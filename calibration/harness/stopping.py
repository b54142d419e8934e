"""When a measurement stops before it is done: out of time, or asked to. Standard library only."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

BUDGET, INTERRUPTED = "budget", "interrupted"


class Stopped(Exception):
    """The run ends here; its text is BUDGET or INTERRUPTED."""


class Watch:
    """Raises Stopped, when asked, once the clock is past `budget_s` from now or a signal came."""

    def __init__(self, clock_s: Callable[[], float], budget_s: float | None = None) -> None:
        self._clock_s = clock_s
        self._end_s = None if budget_s is None else clock_s() + budget_s
        self.interrupted = False

    def check(self) -> None:
        """Raise Stopped if it is time."""
        if self.interrupted:
            raise Stopped(INTERRUPTED)
        if self._end_s is not None and self._clock_s() >= self._end_s:
            raise Stopped(BUDGET)

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP as a wish to stop at the next sample; a second one stops at once.

        So that no file is left half written. Those that are ignored stay so, and all outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        wanted = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before: dict[signal.Signals, Any] = {
            each: signal.signal(each, note) for each in wanted if signal.getsignal(each) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
