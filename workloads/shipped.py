"""The traces that come with the package, by name. Licence texts and attributions are in `data/LICENSES`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Shipped(NamedTuple):
    """One shipped trace: a file in `workloads/data`. `block_size` where its block ids aren't of its format's usual."""

    file: str
    description: str
    licence: str
    source: str
    block_size: int | None = None


SHIPPED = {
    "azure-2023-conv": Shipped(
        "azure-2023-conv.csv.gz",
        "Azure conversation service, 16 November 2023, 58 minutes, 19,366 requests, complete",
        "CC-BY-4.0",
        "https://github.com/Azure/AzurePublicDataset",
    ),
    "azure-2023-code": Shipped(
        "azure-2023-code.csv.gz",
        "Azure code completion service, 16 November 2023, 57 minutes, 8,819 requests in bursts, complete",
        "CC-BY-4.0",
        "https://github.com/Azure/AzurePublicDataset",
    ),
    "mooncake-conversation-1k": Shipped(
        "mooncake-conversation-1k.jsonl.gz",
        "Mooncake conversation trace, first 1,000 requests, long prompts with block hashes",
        "Apache-2.0",
        "https://github.com/kvcache-ai/Mooncake",
    ),
    "burstgpt-1-400": Shipped(
        "burstgpt-1-400.csv.gz",
        "BurstGPT_1, first 400 requests: the slow first ten hours of 61 days",
        "CC-BY-4.0",
        "https://github.com/HPMLL/BurstGPT",
    ),
    "llmservingsim-sharegpt-300": Shipped(
        "llmservingsim-sharegpt-300.jsonl.gz",
        "300 requests of ShareGPT lengths within 29 s, with block hashes, as one vLLM server queued them",
        "MIT",
        "https://github.com/casys-kaist/LLMServingSim",
        block_size=16,
    ),
}

_DATA = Path(__file__).parent / "data"


def shipped_path(name: str) -> str | None:
    """Where the shipped trace of this name lies; None where there is none."""
    return str(_DATA / SHIPPED[name].file) if name in SHIPPED else None
