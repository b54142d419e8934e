"""The processor as a device: the same plan, loop and files as on a GPU, for a small model. Standard library and torch.

torch runs on all cores that this process may use but one, which is left to the rest of the machine: a kernel that waits
for a thread without a core takes many times as long. The number is recorded. One thread is timed by the time it had a
core: beside three busy processes on two cores a linear layer took 357 to 1319 us on the wall clock, 357 to 520 of a
core. Several threads are timed by the wall clock. There are no graphs and no clocks to read.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from calibration.harness.backends import Call, CaptureFailed, Kernels, Reading, skip_status
from calibration.harness.environment import available_memory_bytes, cpu_name, last_level_cache_bytes, total_memory_bytes
from simulator.errors import MissingError
from simulator.specs import ModelSpec

# A server's last-level cache may be hundreds of MB; to fill it for points of microseconds isn't worth the time. What
# is smaller than twice the cache is labelled hot.
ROTATED_BYTES = 16 << 20
MEMORY_SHARE = 0.7
BUSY_SHARE, SETTLED_S = 0.8, 5.0
_NO_MEMORY = ("can't allocate memory", "not enough memory")
_NO_KERNEL = ("not implemented for", "not supported", "unsupported")


# glibc's mallopt: give nothing back to the system, and take all but the largest blocks from the heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, (1 << 30, 32 << 20)


def keep_memory() -> None:
    """Keep memory that was taken once, as a GPU's allocator does; where the C library isn't glibc, do nothing.

    Else every large result is new to the process and paid for page by page: a decoder layer of 128 tokens took 2.9 ms
    instead of 2.1, its kernels one by one 1.8 instead of 1.7.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in zip((_TRIM_THRESHOLD, _MMAP_THRESHOLD), _KEPT_BYTES, strict=True):
            mallopt(option, value)


class CpuDevice:
    """See calibration.harness.backends.Device. Raises MissingError without torch."""

    kind = "cpu"
    graphs = False
    asynchronous = False
    sustained_s = 0.0
    sampled_s = 0.2

    def __init__(self, *, seed: int = 0) -> None:
        self._torch = load_torch()
        self._threads_before = self._torch.get_num_threads()
        self._torch.set_num_threads(threads())
        keep_memory()
        self._now_ns = time.thread_time_ns if self._torch.get_num_threads() == 1 else time.perf_counter_ns
        self._begun = time.monotonic(), time.process_time()
        self._cache_bytes = last_level_cache_bytes()
        self.flush_bytes = 2 * self._cache_bytes or ROTATED_BYTES

    def info(self) -> dict[str, Any]:
        """Name, memory, cache, threads."""
        torch = self._torch
        return {
            "name": cpu_name(),
            "memory_bytes": total_memory_bytes(),
            "l2_bytes": self._cache_bytes,
            "threads": torch.get_num_threads(),
            "timer": self._now_ns.__name__,
            "capability": torch.backends.cpu.get_cpu_capability(),
        }

    def clock_s(self) -> float:
        """Seconds of a steady clock."""
        return time.monotonic()

    def free_bytes(self) -> int:
        """A share of what is available, so that the machine doesn't swap."""
        return int(MEMORY_SHARE * available_memory_bytes())

    def ranks(self, tp: int) -> int:
        """None: processes of one processor say nothing about links between devices."""
        return 0

    def sync(self) -> None:
        """A call is done when it returns."""

    def timer(self) -> CpuTimer:
        """A stopwatch."""
        return CpuTimer(self._now_ns)

    def capture(self, calls: Sequence[Call]) -> Call:
        """There are no graphs."""
        raise CaptureFailed("a processor has no graphs")

    def reading(self) -> Reading | None:
        """It doesn't tell."""
        return None

    def warnings(self) -> list[str]:
        """That other processes had the cores meanwhile: kernels are always busy, so what is missing went to them."""
        wall, busy = time.monotonic() - self._begun[0], time.process_time() - self._begun[1]
        share = busy / max(wall * self._torch.get_num_threads(), 1e-9)
        if wall < SETTLED_S or share >= BUSY_SHARE:
            return []
        return [f"had {share:.0%} of its cores: other processes took the rest"]

    def kernels(self, model: ModelSpec, *, dtype: str, tp: int, seed: int) -> Kernels:
        """The model's operations in torch."""
        from calibration.harness.kernels import TorchKernels

        where = self._torch.device("cpu")
        return TorchKernels(self, where, model, dtype, tp=tp, seed=seed, rotated_bytes=ROTATED_BYTES)

    def skipped(self, error: Exception) -> str:
        """Memory and missing kernels by what torch says about them."""
        text = str(error)
        if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(t in text for t in _NO_MEMORY)):
            return "skipped_oom"
        if isinstance(error, NotImplementedError | RuntimeError) and any(t in text for t in _NO_KERNEL):
            return "skipped_unsupported"
        return skip_status(error)

    def release(self) -> None:
        """Buffers go when nothing refers to them."""

    def close(self) -> None:
        """Give torch back the threads it had."""
        self._torch.set_num_threads(self._threads_before)


class CpuTimer:
    """Time on the clock `now_ns`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns, self._started = now_ns, 0

    def start(self) -> None:
        """Begin a block."""
        self._started = self._now_ns()

    def stop_us(self) -> float:
        """Microseconds since."""
        return (self._now_ns() - self._started) / 1e3


def threads() -> int:
    """How many threads torch gets here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores - 1, 1)


def load_torch() -> Any:
    """The torch module. Raises MissingError."""
    try:
        return import_module("torch")
    except ImportError as error:
        hint = "see pytorch.org; --device fake needs none"
        raise MissingError(f"calibrate needs torch, which can't be imported: {error}; {hint}") from None
