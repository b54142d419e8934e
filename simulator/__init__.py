"""servesim's simulator floor: engine, schedulers, KV memory and cost models, in integer nanoseconds.

The names below are imported on first use, so `import simulator.specs` needs the standard library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Request": "simulator.request",
    "Sequence": "simulator.request",
    "Slice": "simulator.plan",
    "IterationPlan": "simulator.plan",
    "BatchShape": "simulator.plan",
    "Limits": "simulator.plan",
    "Scheduler": "simulator.schedulers.base",
    "View": "simulator.schedulers.base",
    "decode_with_room": "simulator.schedulers.base",
    "BlockPool": "simulator.kv",
    "Reservation": "simulator.kv",
    "RunLog": "simulator.recorder",
    "run": "simulator.cluster",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
