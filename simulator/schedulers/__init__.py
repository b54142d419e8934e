"""Batching policies, one short file each. `BUILTIN` maps the names used in configs to their classes."""

from __future__ import annotations

BUILTIN = {
    "static": "simulator.schedulers.static:Static",
    "dynamic": "simulator.schedulers.dynamic:Dynamic",
    "continuous": "simulator.schedulers.continuous:Continuous",
    "chunked": "simulator.schedulers.chunked:Chunked",
    "vllm_v1": "simulator.schedulers.vllm_v1:VllmV1",
    "sglang": "simulator.schedulers.sglang:Sglang",
    "vllm_v0": "simulator.schedulers.vllm_v0:VllmV0",
    "orca": "simulator.schedulers.orca:Orca",
    "faster_transformer": "simulator.schedulers.faster_transformer:FasterTransformer",
    "tgi": "simulator.schedulers.tgi:Tgi",
    "trtllm": "simulator.schedulers.trtllm:TrtLlm",
}
