"""splitwise-sim's traces: https://github.com/Mutinifni/splitwise-sim. `arrival_timestamp` is in seconds."""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import SINGLE, Reader


class SplitwiseSim(Reader):
    """One request per row, with its id."""

    name = "splitwise-sim"
    title = "splitwise-sim trace: arrival_timestamp in seconds, token counts"
    turns = SINGLE
    columns: ClassVar = {
        "arrival_ns": ("arrival_timestamp",),
        "prompt_tokens": ("prompt_size",),
        "output_tokens": ("token_size",),
        "id": ("request_id",),
    }
