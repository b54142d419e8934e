"""`gpu: local`: the specification of the CUDA device in this machine, by the name its driver gives."""

from __future__ import annotations

import importlib
from typing import Any

from simulator.errors import MissingError
from simulator.names import gpu_named
from simulator.specs import GIB, GpuSpec


def local_gpu() -> GpuSpec:
    """The shipped specification of this machine's first CUDA device.

    Raises MissingError where torch or a device is missing, ConfigError where the device has no shipped specification.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise MissingError(
            "gpu: local needs torch, which isn't installed: pip install -e '.[calibrate]' in a clone"
        ) from None
    if not torch.cuda.is_available():
        raise MissingError("gpu: local found no CUDA device on this machine; name a GPU (`servesim list gpus`)")
    properties = torch.cuda.get_device_properties(0)
    return gpu_named(str(properties.name), properties.total_memory / GIB)
