"""What `nvidia-smi` says about a GPU: its settings once, its clocks while kernels run. Standard library only.

A missing or silent `nvidia-smi` means that nothing is known, never a failure.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from contextlib import suppress

from calibration.harness.backends import Reading
from calibration.harness.environment import output

SETTINGS = (
    "driver_version", "vbios_version", "power.limit", "power.max_limit", "clocks.max.sm", "clocks.max.memory",
    "clocks.applications.graphics", "persistence_mode", "ecc.mode.current", "mig.mode.current", "compute_mode",
)  # fmt: skip
WATCHED = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
# The newer drivers' name for the reasons, then the older ones'.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Bits of nvmlClocksEventReasons (nvml.h) that mean less than full speed under load.
THROTTLES = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
EVERY_MS = 100
STALE_S = 1.0
FORMAT = "--format=csv,noheader,nounits"


def answers() -> bool:
    """Whether there is one that answers in time; asked once, as each question to one that hangs costs that time."""
    return output(["nvidia-smi", "-L"]) is not None


def query(which: str, names: tuple[str, ...]) -> dict[str, str]:
    """The values of `names` for the GPU `which` (an index or a UUID); those that the driver knows."""
    line = output(["nvidia-smi", "-i", which, f"--query-gpu={','.join(names)}", FORMAT])
    if line is None:
        if len(names) == 1:
            return {}
        halves = names[: len(names) // 2], names[len(names) // 2 :]  # an unknown name fails them all
        return {name: value for half in halves for name, value in query(which, half).items()}
    cells = [cell.strip() for cell in line.splitlines()[0].split(",")] if line else []
    return dict(zip(names, cells, strict=False))


def settings(which: str) -> dict[str, str]:
    """Driver, limits and modes of a GPU, and a hash of its UUID; empty where nvidia-smi tells nothing."""
    found = query(which, ("uuid", *SETTINGS))
    uuid = found.pop("uuid", "")
    if uuid:
        found["uuid_sha256"] = hashlib.sha256(uuid.encode()).hexdigest()[:16]
    return found


def processes(which: str) -> list[int]:
    """Ids of the processes that compute on a GPU now; asked before this one does, they are all others."""
    lines = output(["nvidia-smi", "-i", which, "--query-compute-apps=pid", FORMAT]) or ""
    return [int(line) for line in lines.split() if line.isdigit()]


def throttles(mask: int) -> str:
    """The reasons of a bit mask that slow a device down, joined by +."""
    return "+".join(name for bit, name in THROTTLES.items() if mask & bit)


def parse(line: str) -> Reading | None:
    """A reading, now, from a line of WATCHED and a mask; None where the line isn't one. What isn't told is 0."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(WATCHED) + 1:
        return None
    numbers = []
    for cell in cells[:-1]:
        try:
            numbers.append(float(cell))
        except ValueError:  # "[N/A]"
            numbers.append(0.0)
    mask = 0
    with suppress(ValueError):
        mask = int(cells[-1], 0)
    sm_mhz, memory_mhz, power_w, celsius = numbers
    if not any(numbers):
        return None
    return Reading(sm_mhz, memory_mhz, power_w, celsius, throttles(mask), time.monotonic())


class Monitor:
    """Keeps the newest reading of a GPU, from an nvidia-smi that prints one every EVERY_MS, in a thread of its own."""

    def __init__(self, which: str | None) -> None:
        self._newest: Reading | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if which is None:
            return
        reason = next((name for name in REASONS if query(which, (name,))), None)
        if reason is None or not hasattr(os, "openpty"):
            return
        command = ["nvidia-smi", "-i", which, f"--query-gpu={','.join((*WATCHED, reason))}", FORMAT]
        # A terminal, since what writes into a pipe may hold its lines back.
        ours, theirs = os.openpty()
        try:
            self._process = subprocess.Popen(
                [*command, "-lms", str(EVERY_MS)],
                stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        except OSError:
            os.close(ours)
            return
        finally:
            os.close(theirs)
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()

    def reading(self) -> Reading | None:
        """The newest reading; None where there is none of the last second."""
        newest = self._newest
        return newest if newest and time.monotonic() - newest.at_s <= STALE_S else None

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _read(self, terminal: int) -> None:
        with suppress(OSError), os.fdopen(terminal, encoding="utf-8", errors="replace") as lines:
            for line in lines:  # ends, with an error on Linux, when the process does
                if reading := parse(line):
                    self._newest = reading
