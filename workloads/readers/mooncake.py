"""Mooncake traces: https://github.com/kvcache-ai/Mooncake, FAST25-release.

`timestamp` is in milliseconds (on a 3 s grid in the conversation trace); `hash_ids` holds one chained id per block of
512 prompt tokens, the last block partial; a row's prompt is the whole conversation so far.
"""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.source import JSON


class Mooncake(Reader):
    """One request per line, with the ids of its prompt's blocks. No sessions."""

    name = "mooncake"
    title = "Mooncake trace: milliseconds, token counts, ids of 512-token prompt blocks"
    container = JSON
    turns = CUMULATIVE
    default_unit = "ms"
    default_block_size = 512
    columns: ClassVar = {
        "arrival_ns": ("timestamp",),
        "prompt_tokens": ("input_length",),
        "output_tokens": ("output_length",),
        "prefix_hashes": ("hash_ids",),
    }
