"""`gpu: local`: the specification of the CUDA device in this machine, by the name its driver gives."""

from __future__ import annotations

import importlib
import re
from typing import Any

from simulator.errors import ConfigError, MissingError
from simulator.specs import GIB, GPUS, GpuSpec

# Variants of a device with other bandwidths than the one that has the plain name.
_VARIANTS = {"pcie", "nvl", "laptop", "mig", "max"}


def local_gpu() -> GpuSpec:
    """The shipped specification of this machine's first CUDA device.

    Raises MissingError where torch or a device is missing, ConfigError where the device has no shipped specification.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise MissingError("gpu: local needs torch, which isn't installed: pip install 'servesim[calibrate]'") from None
    if not torch.cuda.is_available():
        raise MissingError("gpu: local found no CUDA device on this machine; name a GPU (`servesim list gpus`)")
    properties = torch.cuda.get_device_properties(0)
    return match_gpu(str(properties.name), properties.total_memory / GIB)


def match_gpu(device: str, memory_gib: float) -> GpuSpec:
    """The specification whose name occurs in the driver's name `device` and whose memory is within 5 %.

    Raises ConfigError where there is none.
    """
    words = re.findall(r"[a-z0-9]+", device.lower())
    for name, spec in GPUS.items():
        wanted = [word for word in name.split("-") if not word.endswith("gb")]
        fits = abs(spec.memory_gib - memory_gib) < 0.05 * spec.memory_gib
        if fits and all(word in words for word in wanted) and not _VARIANTS & set(words):
            return spec
    raise ConfigError(
        f"gpu: local is {device!r} with {memory_gib:.1f} GiB, which has no shipped specification;"
        f" name one of {', '.join(GPUS)}, or a file"
    )
