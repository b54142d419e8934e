"""Models and GPUs by name or by file, and the memory plan for both. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from simulator.errors import ConfigError
from simulator.memory_plan import MemoryPlan, plan_memory
from simulator.spec_tables import GPUS, MODELS
from simulator.spec_types import GIB, Gemm, GpuSpec, ModelSpec, Platform, check_tensor_parallel
from simulator.suggest import did_you_mean

__all__ = [
    "GIB",
    "GPUS",
    "MODELS",
    "Gemm",
    "GpuSpec",
    "MemoryPlan",
    "ModelSpec",
    "Platform",
    "check_tensor_parallel",
    "get_gpu",
    "get_model",
    "plan_memory",
]


def get_model(name_or_path: str) -> ModelSpec:
    """A model of MODELS by name, or read from a Hugging Face config.json. Raises ConfigError."""
    found = MODELS.get(name_or_path)
    return found or ModelSpec.from_hf_config(_existing("model", name_or_path, MODELS))


def get_gpu(name_or_path: str) -> GpuSpec:
    """A GPU of GPUS by name, or read from a JSON file with GpuSpec's fields as keys. Raises ConfigError."""
    found = GPUS.get(name_or_path)
    return found or GpuSpec.from_json(_existing("gpu", name_or_path, GPUS))


def _existing(key: str, given: str, known: Mapping[str, object]) -> Path:
    """`given` as a path, if something is there; else the ConfigError with the nearest name."""
    path = Path(given)
    if given and path.exists() and (os.sep in given or path.is_file()):
        return path
    last = given.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]  # of "meta-llama/Llama-3.1-8B", the model's part
    nearest = did_you_mean(last, known)
    raise ConfigError(f"{key}: {given!r} is neither a file nor one of {', '.join(known)}{nearest}")
