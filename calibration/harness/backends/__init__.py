"""Devices that kernels are timed on, behind one interface: cuda, cpu, and fake, whose times are a known formula.

The plan, the loop, the statistics and the files are the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from calibration.points import Point
from simulator.specs import ModelSpec

# Device: (module, class). Imported when used, so that fake needs no torch.
BUILTIN = {
    "cuda": ("calibration.harness.backends.cuda", "CudaDevice"),
    "cpu": ("calibration.harness.backends.cpu", "CpuDevice"),
    "fake": ("calibration.harness.backends.fake", "FakeDevice"),
}

Call = Callable[[], object]


class OutOfMemory(Exception):
    """A point needs more memory than the device has free."""


class Unsupported(Exception):
    """The device has no kernel for a point's type or operation."""


class CaptureFailed(Exception):
    """The calls can't be recorded as a graph."""


def skip_status(error: Exception) -> str:
    """The status of a point that one of these errors stopped; empty for any other."""
    kinds = ((OutOfMemory, "skipped_oom"), (Unsupported, "skipped_unsupported"))
    return next((status for kind, status in kinds if isinstance(error, kind)), "")


class Reading(NamedTuple):
    """What the driver says about the device at one time; `throttled` names the reasons, joined by +."""

    sm_mhz: float
    memory_mhz: float = 0.0
    power_w: float = 0.0
    celsius: float = 0.0
    throttled: str = ""
    at_s: float = math.inf  # on the device's clock


class Built(NamedTuple):
    """A point as calls that do the same work on different data; each reads `bytes`.

    Or as `timed`, what other processes measured already: microseconds per call and calls of each sample block.
    """

    calls: Sequence[Call]
    bytes: int
    timed: Sequence[tuple[float, int]] = ()


class Timer(Protocol):
    """Times what is launched between start() and stop()."""

    def start(self) -> None:
        """Begin a block."""

    def stop_us(self) -> float:
        """End it, wait until its work is done, and return its microseconds."""


class Kernels(Protocol):
    """Turns points of one model into something to call; `engine` says in words what carries them out."""

    engine: str

    def build(self, point: Point) -> Built:
        """The calls of a point. Raises OutOfMemory, Unsupported."""


class Device(Protocol):
    """Where kernels run.

    `flush_bytes`: buffer sets that hold at least as much in total are cold when their turn comes again;
    `sustained_s`: how long a compute-bound point runs before it is timed, as on a busy server (0: not at all);
    `sampled_s`: how long a point's samples may take together; `asynchronous`: a call returns before its work is done.
    """

    kind: str
    graphs: bool
    asynchronous: bool
    flush_bytes: int
    sustained_s: float
    sampled_s: float

    def info(self) -> dict[str, Any]:
        """Name, memory and cache sizes in bytes, versions: what describes the device."""

    def clock_s(self) -> float:
        """Seconds on the clock that budgets and time limits go by."""

    def free_bytes(self) -> int:
        """Memory that may still be taken."""

    def ranks(self, tp: int) -> int:
        """Over how many devices an all-reduce of `tp` ranks can be timed here: `tp`, or 0."""

    def sync(self) -> None:
        """Wait until all launched work is done."""

    def timer(self) -> Timer:
        """A stopwatch for work on the device."""

    def capture(self, calls: Sequence[Call]) -> Call:
        """The calls as one graph. Raises CaptureFailed."""

    def reading(self) -> Reading | None:
        """The newest clocks, power and throttle reasons; None where the device doesn't tell."""

    def warnings(self) -> list[str]:
        """What casts doubt on the times so far, a line each."""

    def kernels(self, model: ModelSpec, *, dtype: str, tp: int, seed: int) -> Kernels:
        """The model's operations on this device. Raises ConfigError for a type that it doesn't have."""

    def skipped(self, error: Exception) -> str:
        """The status (of points.SKIPPED) of a point that failed with `error`; empty for a defect of ours."""

    def release(self) -> None:
        """Give back memory that no buffer holds."""

    def close(self) -> None:
        """Stop whatever watches the device."""


def open_device(kind: str, *, seed: int = 0) -> Device:
    """A device of BUILTIN. Raises MissingError where torch or the device is missing."""
    module, name = BUILTIN[kind]
    device: Device = getattr(import_module(module), name)(seed=seed)
    return device
