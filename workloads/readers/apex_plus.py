"""apex_plus's traces: https://github.com/microsoft/apex_plus. `StartTimeOffset` is in nanoseconds."""

from __future__ import annotations

from typing import ClassVar

from workloads.readers.base import SINGLE, Reader
from workloads.readers.source import JSON


class ApexPlus(Reader):
    """One request per line, with its id and a total that is checked."""

    name = "apex_plus"
    title = "apex_plus trace: StartTimeOffset in nanoseconds, token counts"
    container = JSON
    turns = SINGLE
    default_unit = "ns"
    columns: ClassVar = {
        "arrival_ns": ("StartTimeOffset",),
        "prompt_tokens": ("ContextTokens",),
        "output_tokens": ("GeneratedTokens",),
        "id": ("RequestID",),
        "total_tokens": ("TotalTokens",),
    }
