"""The CUDA device against a stand-in for torch.cuda, and nvidia-smi against a script in its place."""

import math
import os
import stat
import time
from types import SimpleNamespace

import pytest

from calibration.harness.backends import BUILTIN, CaptureFailed, OutOfMemory, Reading, cuda, open_device, smi
from simulator.errors import ConfigError, MissingError, SimError
from simulator.specs import MODELS


class OutOfCudaMemory(RuntimeError):
    pass


class Event:
    clock_ms = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Event.clock_ms

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at - self.at


class Graph:
    """What torch.cuda.graph is: a context that records, or fails with what went wrong inside."""

    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        if error is not None and "capturing" in str(error):
            raise RuntimeError("operation failed due to a previous error during capture") from error


class Cuda:
    OutOfMemoryError = OutOfCudaMemory
    Event = Event

    def __init__(self, available=True, count=2, major=9):
        self.available, self.count, self.major = available, count, major
        self.stream, self.broken, self.emptied, self.synced = "usual", False, 0, 0

    def is_available(self):
        return self.available

    def set_device(self, index):
        assert index == 0

    def get_device_properties(self, index):
        return SimpleNamespace(
            name="NVIDIA H200", total_memory=150_000_000_000, L2_cache_size=50 << 20, multi_processor_count=132,
            major=self.major, minor=0, uuid="1234",
        )  # fmt: skip

    def device_count(self):
        return self.count

    def synchronize(self):
        self.synced += 1
        if self.broken:
            raise RuntimeError("CUDA error:\nan illegal memory access")

    def memory_reserved(self):
        return 3000

    def memory_allocated(self):
        return 1000

    def mem_get_info(self):
        return 8000, 100_000

    def Stream(self):
        return "its own"

    def set_stream(self, stream):
        self.stream = stream

    def empty_cache(self):
        self.emptied += 1
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access")

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: "replayed")

    def graph(self, graph, stream):
        assert stream == self.stream == "its own", "captured where it was warmed up"
        return Graph()


@pytest.fixture
def no_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def opened(monkeypatch, no_smi):
    def open_with(**options):
        fake = Cuda(**options)
        torch = SimpleNamespace(
            cuda=fake, float16="half", bfloat16="bf16", randn=lambda *shape, **kind: shape, mm=lambda a, b: None
        )
        monkeypatch.setattr(cuda, "load_torch", lambda: torch)
        return cuda.CudaDevice(), fake

    return open_with


def test_no_cuda_is_missing_with_the_hint(opened):
    with pytest.raises(MissingError, match="--device cpu"):
        opened(available=False)


def test_no_torch_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    for kind in set(BUILTIN) - {"fake"}:
        with pytest.raises(MissingError, match="needs torch"):
            open_device(kind)
    assert open_device("fake").kind == "fake"


def test_it_describes_itself(opened):
    device, _ = opened()
    info = device.info()
    assert (info["name"], info["memory_bytes"], info["l2_bytes"]) == ("NVIDIA H200", 150_000_000_000, 50 << 20)
    assert info["capability"] == "9.0"
    assert info["nvidia_smi"] == "absent"
    assert device.flush_bytes == 100 << 20
    assert device.free_bytes() == int(0.9 * (8000 + 2000))
    assert [device.ranks(n) for n in (1, 2, 3)] == [0, 2, 0]
    assert device.reading() is None
    assert device.warnings() == []
    device.close()


def test_events_are_in_microseconds(opened):
    device, _ = opened()
    timer = device.timer()
    timer.start()
    Event.clock_ms += 1.5
    assert timer.stop_us() == pytest.approx(1500)


def test_a_graph_is_replayed_and_a_failed_capture_is_said(opened):
    device, fake = opened()
    called = []
    assert device.capture([lambda: called.append(1), lambda: called.append(2)])() == "replayed"
    assert called == [1, 2]

    def wait():
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    with pytest.raises(CaptureFailed, match=r"^operation not permitted when stream is capturing$"):
        device.capture([wait])
    assert fake.stream == "its own"

    def fill():
        raise OutOfCudaMemory("out of memory")

    with pytest.raises(OutOfCudaMemory):
        device.capture([fill])


def test_failures_are_reasons_to_skip_while_the_gpu_answers(opened):
    device, fake = opened()
    assert device.skipped(OutOfCudaMemory("CUDA out of memory")) == "skipped_oom"
    assert device.skipped(OutOfMemory("needs more")) == "skipped_oom"
    assert device.skipped(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")) == "skipped_oom"
    assert device.skipped(RuntimeError("no kernel image")) == "skipped_unsupported"
    assert device.skipped(NotImplementedError("for Half")) == "skipped_unsupported"
    assert device.skipped(TypeError("unexpected keyword")) == "skipped_unsupported", "of another version of torch"
    assert device.skipped(ZeroDivisionError()) == ""
    device.release()
    assert fake.emptied == 1
    fake.broken = True
    with pytest.raises(SimError, match="stopped answering: illegal memory access; --resume"):
        device.skipped(RuntimeError("illegal memory access"))
    device.release()  # says nothing on top of it


def test_a_type_that_it_does_not_compute_is_refused(opened):
    device, _ = opened(major=7)
    with pytest.raises(ConfigError, match="--dtype bf16: NVIDIA H200 has no bfloat16 units"):
        device.kernels(MODELS["tiny"], dtype="bfloat16", tp=1, seed=0)


def test_it_warms_until_the_clock_is_steady(opened, monkeypatch):
    device, _ = opened()
    clocks = iter([900.0, 1200.0, 1700.0, 1710.0, 1705.0, 1.0])
    monkeypatch.setattr(cuda, "BETWEEN_S", 0.001)
    monkeypatch.setattr(device, "reading", lambda: Reading(next(clocks)))
    device._warm("half")
    assert next(clocks) == 1.0, "three within 1 %"


SCRIPT = """#!/bin/sh
case "$*" in
  *event_reasons*) {newer} ;;
esac
case "$*" in
  *-lms*) while :; do echo "1410, 1593, 312.50, 61, 0x0000000000000024"; /bin/sleep 0.05; done ;;
  *compute-apps*) echo 4242; echo {pid} ;;
  *reasons.active*) echo 0x0 ;;
  *-L*) echo "GPU 0: NVIDIA H200" ;;
  *vbios_version*) exit 1 ;;
  *query-gpu=uuid*) echo GPU-1234, 575.57 ;;
  *query-gpu=name*) [ "$2" = GPU-1234 ] && echo NVIDIA H200 || exit 6 ;;
  *driver_version*) echo 575.57 ;;
  *persistence_mode*) echo Enabled ;;
  *uuid*) echo GPU-1234 ;;
  *) exit 1 ;;
esac
"""


@pytest.fixture
def with_smi(tmp_path, monkeypatch):
    def install(newer=":"):
        path = tmp_path / "nvidia-smi"
        path.write_text(SCRIPT.format(newer=newer, pid=os.getpid()))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def _first(monitor):
    until = time.monotonic() + 20
    while (reading := monitor.reading()) is None and time.monotonic() < until:
        time.sleep(0.01)
    return reading


@pytest.mark.parametrize("newer", [":", "exit 2"])
def test_clocks_are_read_while_kernels_run(with_smi, newer):
    with_smi(newer)
    monitor = smi.Monitor("0")
    try:
        assert _first(monitor)._replace(at_s=math.inf) == Reading(
            1410, 1593, 312.5, 61, "sw_power_cap+sw_thermal_slowdown"
        )
    finally:
        monitor.close()
    assert monitor._process.returncode is not None


def test_settings_are_those_that_the_driver_knows(with_smi):
    with_smi()
    found = smi.settings("0")
    assert found["driver_version"] == "575.57"
    assert "vbios_version" not in found
    assert len(found["uuid_sha256"]) == 16
    assert "GPU-1234" not in str(found)


def test_other_processes_on_the_gpu_are_warned_of(with_smi, opened):
    with_smi()
    device, _ = opened()
    try:
        assert device.warnings() == ["other processes use the GPU (1 of them): times are theirs too"]
        assert device._which == "GPU-1234"
    finally:
        device.close()


def test_a_driver_that_is_missing_or_silent_tells_nothing(no_smi):
    assert smi.settings("0") == {}
    assert smi.processes("0") == []
    monitor = smi.Monitor("0")
    assert monitor.reading() is None
    monitor.close()


def test_a_reading_is_taken_from_a_line():
    assert smi.parse("1410, 1593, [N/A], 61, 0x0000000000000000")[:5] == Reading(1410, 1593, 0, 61)[:5]
    assert smi.parse("1410, 1593, 300.1, 61, [N/A]")[:5] == Reading(1410, 1593, 300.1, 61)[:5]
    assert smi.parse("Unable to determine the device handle") is None
    assert smi.parse("[N/A], [N/A], [N/A], [N/A], 0x0") is None
    assert smi.throttles(0x1 | 0x8 | 0x40 | 0x80) == "hw_slowdown+hw_thermal_slowdown+hw_power_brake"
