"""Frontier's traces (https://github.com/NetX-lab/Frontier): vidur's columns, a session and the prompt's block ids.

`block_hash_ids` joins the ids with `|`; a block holds 16 tokens unless stated.
"""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import CUMULATIVE, Reader
from workloads.readers.vidur import Vidur


class Frontier(Reader):
    """One request per row; a session's prompts are whole, and share the ids of their common blocks."""

    name = "frontier"
    title = "Frontier trace: arrived_at in seconds, token counts, session, ids of 16-token prompt blocks"
    turns = CUMULATIVE
    marks = ("block_hash_ids",)
    default_block_size = 16
    columns: ClassVar = Vidur.columns | {"prefix_hashes": ("block_hash_ids",)}
