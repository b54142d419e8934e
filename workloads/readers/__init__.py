"""Trace formats, one per file, by name; detection goes down this table, so the particular come before the general."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from simulator.errors import ConfigError
from workloads.readers.base import Reader

BUILTIN = {
    "azure": "workloads.readers.azure:Azure",
    "burstgpt": "workloads.readers.burstgpt:BurstGpt",
    "frontier": "workloads.readers.frontier:Frontier",
    "vidur": "workloads.readers.vidur:Vidur",
    "splitwise-sim": "workloads.readers.splitwise_sim:SplitwiseSim",
    "inference-sim": "workloads.readers.inference_sim:InferenceSim",
    "apex_plus": "workloads.readers.apex_plus:ApexPlus",
    "bailian": "workloads.readers.bailian:Bailian",
    "llmservingsim": "workloads.readers.llmservingsim:LlmServingSim",
    "aiperf": "workloads.readers.aiperf:Aiperf",
    "mooncake": "workloads.readers.mooncake:Mooncake",
    "csv": "workloads.readers.plain:PlainCsv",
    "jsonl": "workloads.readers.plain:PlainJsonl",
}


def reader_class(name: str) -> type[Reader]:
    """The reader of this name: a built-in one, or `package.module:Class` from outside. Raises ConfigError."""
    target = BUILTIN.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        near = get_close_matches(name, BUILTIN, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"format = {name}: no such trace format{hint} (known: {', '.join(BUILTIN)}, or pkg.module:Class)"
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"format = {name}: can't be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Reader)):
        raise ConfigError(f"format = {name}: not a subclass of workloads.readers.base.Reader")
    return found
