"""vidur's processed traces: https://github.com/microsoft/vidur, and any CSV with its `arrived_at` columns.

Seconds from the start of the trace. Lengths are taken as they stand: vidur itself lifts zero to one and cuts prompts
at its `max_tokens`; this reader does neither.
"""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import SINGLE, Reader


class Vidur(Reader):
    """One request per row; `request_id`, `session_id`, `priority` and `max_tokens` may be beside the lengths."""

    name = "vidur"
    title = "vidur trace: arrived_at in seconds, token counts"
    turns = SINGLE
    columns: ClassVar = {
        "arrival_ns": ("arrived_at",),
        "prompt_tokens": ("num_prefill_tokens",),
        "output_tokens": ("num_decode_tokens",),
        "id": ("request_id",),
        "session": ("session_id",),
        "priority": ("priority",),
        "max_tokens": ("max_tokens",),
    }
