"""servesim's workloads: request traces in the formats people have, and synthetic load.

    trace = load_trace("azure-2023-conv", limit=2000)       # a shipped name, or a file in any known format
    trace.requests, trace.info
    synthesize(num_prompts=1000, request_rate=8.0, seed=0, input_len=512, output_len={"uniform": [100, 1000]})

The names below are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "SHIPPED": "workloads.shipped",
    "Reader": "workloads.readers.base",
    "Trace": "workloads.trace",
    "TraceInfo": "workloads.info",
    "draw_lengths": "workloads.lengths",
    "load_trace": "workloads.trace",
    "synthesize": "workloads.synthetic",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'workloads' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
