"""Whose fault an exception is: a scheduler or cost model from outside that fails is named, and is no defect of ours."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from experiments.pieces import Pieces
from simulator.errors import PolicyError, SimError


@contextmanager
def outside_named(pieces: Pieces) -> Iterator[None]:
    """Within it, what an outside scheduler or cost model raises, or lacks, becomes a PolicyError that names it.

    That holds for `SystemExit` too, which would end the program as if all were well. Everything else passes.
    """
    try:
        yield
    except (SimError, KeyboardInterrupt):
        raise
    except BaseException as error:
        for cause in _causes(error):
            if (place := _place(cause, pieces)) is not None:
                raise PolicyError(f"{place}: {type(cause).__name__}: {cause}") from error
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what caused it. SimPy raises a copy of what a process has raised, or fails while it makes one."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            value = getattr(frame.f_locals.get("event"), "_value", None)
            if frame.f_globals.get("__name__") == "simpy.core" and isinstance(value, BaseException):
                yield value
        cause = cause.__cause__


def _place(error: BaseException, pieces: Pieces) -> str | None:
    """Which outside class is at fault for `error`, and the line where it can be told; None where it is ours."""
    outside = [
        (f"{kind} {cls.__module__}:{cls.__qualname__}", cls)
        for kind, cls in (("scheduler", pieces.scheduler_class), ("cost model", pieces.cost_class))
        if not cls.__module__.startswith("simulator.")
    ]
    stack = list(reversed(list(traceback.walk_tb(error.__traceback__))))
    for within in (True, False):  # two classes may share a file: first the one whose method it is
        for name, cls in outside:
            files, methods = _files(cls), tuple(f"{base.__qualname__}." for base in cls.__mro__)
            for frame, line in stack:
                code = frame.f_code
                if code.co_filename in files and (not within or code.co_qualname.startswith(methods)):
                    return f"{name} ({code.co_filename}:{line})"
    return next((name for name, cls in outside if _lacks(cls, error)), None)


def _files(cls: type) -> set[str]:
    """The source files of `cls` and of its bases from outside."""
    modules = {base.__module__ for base in cls.__mro__ if not base.__module__.startswith("simulator.")} - {"builtins"}
    return {str(getattr(sys.modules.get(module), "__file__", None)) for module in modules}


def _lacks(cls: type, error: BaseException) -> bool:
    """Whether `error` says that `cls` has no such attribute, or a method that takes other arguments."""
    if isinstance(error, AttributeError):
        return error.obj is cls or isinstance(error.obj, cls)
    return isinstance(error, TypeError) and str(error).startswith(f"{cls.__qualname__}.")
