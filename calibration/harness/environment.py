"""What a measurement was taken on and with: host, versions, the state of the checkout. Nothing here fails."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from simulator import __version__

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 10.0


def output(command: list[str], timeout_s: float = PATIENCE_S) -> str | None:
    """What a command prints; None where it is missing, fails or takes longer than `timeout_s`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()


def host() -> dict[str, Any]:
    """Processor, cores this process may use, memory in bytes, operating system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_name(),
        "cores": cores,
        "memory_bytes": total_memory_bytes(),
        "os": platform.platform(),
        "machine": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Of this harness, Python and, where it is loaded, torch with its CUDA and cuDNN."""
    found = {"servesim": __version__, "python": platform.python_version()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found["cuda"] = str(torch.version.cuda)
            found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def checkout() -> dict[str, Any]:
    """Commit of this checkout and whether it was changed since; empty outside of one."""
    commit = output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    top = output(["git", "-C", str(ROOT), "rev-parse", "--show-toplevel"])
    if not commit or not top or Path(top).resolve() != ROOT:  # installed inside someone else's repository
        return {}
    return {"commit": commit, "dirty": bool(output(["git", "-C", str(ROOT), "status", "--porcelain", "-uno"]))}


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def total_memory_bytes() -> int:
    """Memory of the machine; 0 where the system doesn't tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def available_memory_bytes() -> int:
    """Memory that may be taken without swapping, within the limit of a control group; half of all where unknown."""
    found = [total_memory_bytes() // 2]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")] or found
        limit, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="utf-8") for name in ("max", "current"))
        found.append(int(limit) - int(used))
    except (OSError, ValueError, IndexError):
        pass  # no such files here, or no limit ("max")
    return max(min(found), 0)


def last_level_cache_bytes() -> int:
    """Bytes of the largest cache of the first processor; 0 where the system doesn't tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text[:-1]) * units[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes)
