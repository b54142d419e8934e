"""BurstGPT: https://github.com/HPMLL/BurstGPT, files with six columns (1, 2) and with eight (3).

The two new columns were inserted, not appended, so columns are found by name. `Timestamp` counts seconds from
midnight of the collection's first day. No response tokens means that the request failed. An empty session id is an
API call.
"""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import CUMULATIVE, Reader


class BurstGpt(Reader):
    """One request per row; a session's follow-up prompt states the whole conversation (often trimmed)."""

    name = "burstgpt"
    title = "BurstGPT: seconds since the first day's midnight, token counts, sessions in the third file"
    turns = CUMULATIVE
    columns: ClassVar = {
        "arrival_ns": ("Timestamp",),
        "prompt_tokens": ("Request tokens",),
        "output_tokens": ("Response tokens",),
        "total_tokens": ("Total tokens",),
        "session": ("Session ID",),
    }
