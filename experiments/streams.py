"""What becomes of standard output and standard error while a command works."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class _Deaf:
    """A stream whose reader may leave: what is said after that is lost, and the work goes on."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


class _LastText:
    """Holds the text written last, and passes what came before on to standard error."""

    def __init__(self) -> None:
        self.last = ""

    def write(self, text: str) -> int:
        """Hold `text`; a line end belongs to the text before it."""
        if text == "\n":
            self.last += text
        elif text:
            sys.stderr.write(self.last)
            self.last = text
        return len(text)

    def flush(self) -> None:
        """Nothing is held that should be seen already."""


@contextlib.contextmanager
def document_alone() -> Iterator[None]:
    """Only the text that is written last, a command's document, goes to standard output.

    What a user's own scheduler prints goes to standard error, and so does everything where no document is written.
    """
    held = _LastText()
    done = False
    try:
        with contextlib.redirect_stdout(held):
            yield
        done = True
    finally:
        (sys.stdout if done else sys.stderr).write(held.last)


@contextlib.contextmanager
def lenient_streams() -> Iterator[None]:
    """A reader of standard error who has enough stops nothing; a stream that is closed takes everything."""
    with contextlib.ExitStack() as stack:
        for name, redirect in (("stdout", contextlib.redirect_stdout), ("stderr", contextlib.redirect_stderr)):
            if getattr(sys, name) is None:
                stack.enter_context(redirect(stack.enter_context(open(os.devnull, "w"))))
        stack.enter_context(contextlib.redirect_stderr(_Deaf(sys.stderr)))
        yield
