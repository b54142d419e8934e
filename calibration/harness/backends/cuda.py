"""A CUDA GPU as a device: events, graphs, clocks. Standard library and torch only.

All work is launched on one stream of its own, so that what warms up, is captured and is timed shares its workspaces.
Not yet run on hardware: written against torch 2.11 and 2.13, and tested with a stand-in for torch.cuda.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Sequence
from typing import Any

from calibration.harness.backends import (
    Call,
    CaptureFailed,
    Kernels,
    OutOfMemory,
    Reading,
    Unsupported,
    skip_status,
    smi,
)
from calibration.harness.backends.cpu import load_torch
from simulator.errors import ConfigError, MissingError, SimError
from simulator.specs import ModelSpec

L2_BYTES = 64 << 20  # where torch doesn't tell
MEMORY_SHARE = 0.9  # of what is free: fragments and workspaces take the rest
WARM_S, BETWEEN_S, STEADY = 10.0, 0.3, 0.01
WARM_SIZE = 4096
_NO_MEMORY = ("out of memory", "ALLOC_FAILED")  # of CUDA and its libraries, beside torch's own allocator
# What an operation meets that another version of torch has otherwise: that mustn't cost the other points.
_OTHER_TORCH = (AssertionError, AttributeError, ImportError, TypeError, ValueError)
BF16_MAJOR = 8  # compute capability, Ampere


class CudaDevice:
    """The first visible GPU; see calibration.harness.backends.Device. Raises MissingError without torch or CUDA."""

    kind = "cuda"
    graphs = True
    asynchronous = True
    sustained_s = 0.3
    sampled_s = 2.0

    def __init__(self, *, seed: int = 0) -> None:
        self._torch = torch = load_torch()
        if not torch.cuda.is_available():
            raise MissingError("no CUDA device on this machine; `--device cpu` times the processor")
        self._properties = torch.cuda.get_device_properties(0)
        self._which = _smi_name(self._properties)
        computing = smi.processes(self._which) if self._which else []
        others = [pid for pid in computing if pid != os.getpid()]
        torch.cuda.set_device(0)
        self._stream = torch.cuda.Stream()  # the default one can't be captured
        torch.cuda.set_stream(self._stream)
        self.l2_bytes = int(getattr(self._properties, "L2_cache_size", 0)) or L2_BYTES
        self.flush_bytes = 2 * self.l2_bytes
        self._others = len(others)
        self._monitor = smi.Monitor(self._which)
        gc.freeze()  # torch collects garbage before every capture; what is loaded by now isn't any

    def info(self) -> dict[str, Any]:
        """Name, memory and cache, multiprocessors, driver, limits, modes."""
        torch, found = self._torch, self._properties
        return {
            "name": str(found.name),
            "count": torch.cuda.device_count(),
            "memory_bytes": int(found.total_memory),
            "l2_bytes": self.l2_bytes,
            "multiprocessors": int(found.multi_processor_count),
            "capability": f"{found.major}.{found.minor}",
            "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
            "nvidia_smi": (smi.settings(self._which) if self._which else {}) or "absent",
        }

    def clock_s(self) -> float:
        """Seconds of a steady clock."""
        return time.monotonic()

    def free_bytes(self) -> int:
        """Free for CUDA, and held by torch's allocator without use."""
        cuda = self._torch.cuda
        idle = cuda.memory_reserved() - cuda.memory_allocated()
        return int(MEMORY_SHARE * (cuda.mem_get_info()[0] + idle))

    def ranks(self, tp: int) -> int:
        """`tp` where there are as many GPUs."""
        return tp if 2 <= tp <= self._torch.cuda.device_count() else 0

    def sync(self) -> None:
        """Wait for the device."""
        self._torch.cuda.synchronize()

    def timer(self) -> CudaTimer:
        """A pair of events."""
        return CudaTimer(self._torch.cuda)

    def capture(self, calls: Sequence[Call]) -> Call:
        """The calls as a CUDA graph. Raises CaptureFailed; OutOfMemory stays what torch raises for it."""
        cuda = self._torch.cuda
        self.sync()
        graph = cuda.CUDAGraph()
        try:
            with cuda.graph(graph, stream=self._stream):
                for call in calls:
                    call()
        except RuntimeError as error:
            first = error.__context__ or error  # ending a capture that failed fails with less of a reason
            if isinstance(first, cuda.OutOfMemoryError):
                raise first from None
            with contextlib.suppress(RuntimeError):
                self.sync()
            raise CaptureFailed(" ".join(str(first).split())[:120]) from error
        replay: Call = graph.replay
        return replay

    def reading(self) -> Reading | None:
        """The driver's newest word."""
        return self._monitor.reading()

    def warnings(self) -> list[str]:
        """Other processes on the GPU when the run began."""
        return [f"other processes use the GPU ({self._others} of them): times are theirs too"] if self._others else []

    def kernels(self, model: ModelSpec, *, dtype: str, tp: int, seed: int) -> Kernels:
        """The model's operations in torch, once the device is warm. Raises ConfigError for the type."""
        from calibration.harness.kernels import TorchKernels

        torch = self._torch
        if dtype == "bfloat16" and self._properties.major < BF16_MAJOR:
            raise ConfigError(f"--dtype bf16: {self._properties.name} has no bfloat16 units; fp16 or fp32 it can")
        self._warm(getattr(torch, dtype))
        return TorchKernels(self, torch.device("cuda", 0), model, dtype, tp=tp, seed=seed)

    def skipped(self, error: Exception) -> str:
        """What torch and CUDA refuse is a reason to skip a point, as long as the device still answers.

        Raises SimError where it doesn't.
        """
        if isinstance(error, self._torch.cuda.OutOfMemoryError):
            return "skipped_oom"
        if isinstance(error, _OTHER_TORCH):
            return "skipped_unsupported"
        if isinstance(error, OutOfMemory | Unsupported) or not isinstance(error, RuntimeError):
            return skip_status(error)
        try:
            self.sync()
        except RuntimeError:
            text = " ".join(str(error).split())[:200]
            raise SimError(f"the GPU stopped answering: {text}; --resume goes on without losing a point") from None
        return "skipped_oom" if any(words in str(error) for words in _NO_MEMORY) else "skipped_unsupported"

    def release(self) -> None:
        """Give unused memory back to CUDA, if it still answers."""
        with contextlib.suppress(RuntimeError):
            self._torch.cuda.empty_cache()

    def close(self) -> None:
        """Stop watching the clocks."""
        self._monitor.close()

    def _warm(self, dtype: Any) -> None:
        """Multiply matrices until three clocks in a row differ by 1 % at most, or for ten seconds.

        That is at least BETWEEN_S x 3, also where there are no clocks to read.
        """
        torch = self._torch
        x = torch.randn(WARM_SIZE, WARM_SIZE, device="cuda", dtype=dtype)
        seen: list[float] = []
        begun = time.monotonic()
        while (elapsed := time.monotonic() - begun) < WARM_S:
            while time.monotonic() < begun + elapsed + BETWEEN_S:
                for _ in range(20):
                    torch.mm(x, x)
                self.sync()
            reading = self.reading()
            seen = [*seen[-2:], reading.sm_mhz if reading else 0.0]
            if len(seen) == 3 and max(seen) - min(seen) <= STEADY * max(seen):
                break


class CudaTimer:
    """Time between two events on the current stream."""

    def __init__(self, cuda: Any) -> None:
        self._begin, self._end = (cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Begin a block."""
        self._begin.record()

    def stop_us(self) -> float:
        """Microseconds between the events, once the second has come."""
        self._end.record()
        self._end.synchronize()
        return float(self._begin.elapsed_time(self._end)) * 1e3


def _smi_name(properties: Any) -> str | None:
    """What nvidia-smi knows the device by: its UUID where torch tells, else its place. None where it says nothing."""
    if not smi.answers():
        return None
    uuid = f"GPU-{getattr(properties, 'uuid', '')}"
    if smi.query(uuid, ("name",)):
        return uuid
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
