"""`servesim kv explain`: where a GPU's memory goes, and how many KV blocks are left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from experiments.commands.parser import Parser, choice, share, whole
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from simulator.specs import GpuSpec, ModelSpec


def main(arguments: list[str]) -> int:
    """Print the memory plan term by term. Returns the exit status."""
    parser = Parser(
        "kv",
        "Explain the KV memory of a model on a GPU, term by term.",
        "servesim kv explain --model llama-3.1-8b --gpu a100-80gb",
    )
    parser.add_argument("action", type=choice(["explain"]), metavar="explain")
    parser.add_argument(
        "--model", type=_model, required=True, metavar="M", help="a name of `servesim list models`, or a file"
    )
    parser.add_argument(
        "--gpu", type=_gpu, required=True, metavar="G", help="a name of `servesim list gpus`, a file, or local"
    )
    parser.add_argument("--tensor-parallel-size", type=whole, default=1, metavar="N", help="GPUs (default 1)")
    parser.add_argument("--gpu-memory-utilization", type=share, default=0.9, metavar="X", help="(default 0.9)")
    parser.add_argument("--block-size", type=whole, default=16, metavar="N", help="tokens (default 16)")
    parser.add_argument("--max-num-batched-tokens", type=whole, default=2048, metavar="N", help="(default 2048)")
    parser.add_argument("--max-num-seqs", type=whole, default=256, metavar="N", help="(default 256)")
    parser.add_argument("--max-model-len", type=whole, metavar="N", help="tokens (default: the model's)")
    parser.add_argument("--num-gpu-blocks-override", type=whole, metavar="N", help="blocks, instead of planning")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse(arguments)

    from simulator.specs import plan_memory

    longest, given_length = given.model.max_model_len, given.max_model_len
    if given_length is not None and given_length > longest:
        rule = f"must be at most the {longest} tokens that {given.model.name} takes"
        raise ConfigError(f"servesim kv: argument --max-model-len: {given_length}: {rule}")
    plan = plan_memory(
        given.model,
        given.gpu,
        tensor_parallel_size=given.tensor_parallel_size,
        gpu_memory_utilization=given.gpu_memory_utilization,
        block_size=given.block_size,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
    )
    room = plan.usable_blocks * given.block_size
    if given_length is not None and given_length > room:
        rule = f"must be at most the {room} tokens that the KV memory holds"
        raise ConfigError(f"servesim kv: argument --max-model-len: {given_length}: {rule}")
    print(json.dumps(plan.as_dict(), indent=2) if given.json else plan.text())
    return 0


def _model(name: str) -> ModelSpec:
    from simulator.specs import get_model

    return get_model(name)


def _gpu(name: str) -> GpuSpec:
    from experiments.local_gpu import local_gpu
    from simulator.specs import get_gpu

    return local_gpu() if name == "local" else get_gpu(name)
