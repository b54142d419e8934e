"""Other people's names for models and GPUs: a repository's, a driver's."""

from __future__ import annotations

import re

from simulator.errors import ConfigError
from simulator.spec_tables import GPUS, MODELS
from simulator.spec_types import GpuSpec, ModelSpec
from simulator.suggest import did_you_mean

# What a repository's name adds without changing the model's shape: tuned variants, conversions, the vendor.
_MODEL_EXTRAS = re.compile(r"^meta-|-(instruct|chat|hf|base|it|2507)(?=-|$)|-v0\.3(?=-|$)")
# Variants of a device with other bandwidths than the one that has the plain name.
_VARIANTS = {"pcie", "nvl", "laptop", "mig", "max"}


def model_named(text: str) -> ModelSpec:
    """The shipped model that a repository such as `meta-llama/Llama-3.1-8B-Instruct` holds. Raises ConfigError."""
    name = text.rstrip("/").rsplit("/", 1)[-1].lower()
    while (shorter := _MODEL_EXTRAS.sub("", name)) != name and name not in MODELS:
        name = shorter
    if name not in MODELS:
        hint = did_you_mean(name, MODELS) or f"; known are {', '.join(MODELS)}"
        raise ConfigError(f"model: {text!r} is none of the shipped models{hint}")
    return MODELS[name]


def gpu_named(device: str, memory_gib: float | None = None) -> GpuSpec:
    """The shipped GPU that a driver calls `device`, such as `NVIDIA GeForce RTX 4090`.

    Its memory must be within 5 % of `memory_gib` and of the size in the name, where known. Raises ConfigError.
    """
    words = re.findall(r"[a-z0-9]+", device.lower())
    sizes = [int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)]
    for name, spec in GPUS.items():
        wanted = [word for word in name.split("-") if not word.endswith("gb")]
        fits = memory_gib is None or abs(spec.memory_gib - memory_gib) < 0.05 * spec.memory_gib
        fits = fits and all(abs(spec.memory_gib - size) < 0.05 * size for size in sizes)
        if fits and all(word in words for word in wanted) and not _VARIANTS & set(words):
            return spec
    size = "" if memory_gib is None else f" with {memory_gib:.1f} GiB"
    raise ConfigError(f"gpu: {device!r}{size} has no shipped specification; known are {', '.join(GPUS)}")
