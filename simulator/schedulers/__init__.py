"""Batching policies, one short file each. `BUILTIN` maps the names used in configs to their classes."""

from __future__ import annotations

BUILTIN = {
    "static": "simulator.schedulers.static:Static",
    "dynamic": "simulator.schedulers.dynamic:Dynamic",
    "continuous": "simulator.schedulers.continuous:Continuous",
    "chunked": "simulator.schedulers.chunked:Chunked",
}
