"""`servesim kv explain`: where a GPU's memory goes, and how many KV blocks are left."""

from __future__ import annotations

import json

from experiments.commands.parser import Parser, choice, share, whole


def main(arguments: list[str]) -> int:
    """Print the memory plan term by term. Returns the exit status."""
    parser = Parser(
        "kv",
        "Explain the KV memory of a model on a GPU, term by term.",
        "servesim kv explain --model llama-3.1-8b --gpu a100-80gb",
    )
    parser.add_argument("action", type=choice(["explain"]), metavar="explain")
    parser.add_argument("--model", required=True, metavar="M", help="a name of `servesim list models`, or a file")
    parser.add_argument("--gpu", required=True, metavar="G", help="a name of `servesim list gpus`, a file, or local")
    parser.add_argument("--tensor-parallel-size", type=whole, default=1, metavar="N", help="GPUs (default 1)")
    parser.add_argument("--gpu-memory-utilization", type=share, default=0.9, metavar="X", help="(default 0.9)")
    parser.add_argument("--block-size", type=whole, default=16, metavar="N", help="tokens (default 16)")
    parser.add_argument("--max-num-batched-tokens", type=whole, default=2048, metavar="N", help="(default 2048)")
    parser.add_argument("--max-num-seqs", type=whole, default=256, metavar="N", help="(default 256)")
    parser.add_argument("--max-model-len", type=whole, metavar="N", help="tokens (default: the model's)")
    parser.add_argument("--num-gpu-blocks-override", type=whole, metavar="N", help="blocks, instead of planning")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse(arguments)

    from experiments.local_gpu import local_gpu
    from simulator.specs import get_gpu, get_model, plan_memory

    plan = plan_memory(
        get_model(given.model),
        local_gpu() if given.gpu == "local" else get_gpu(given.gpu),
        tensor_parallel_size=given.tensor_parallel_size,
        gpu_memory_utilization=given.gpu_memory_utilization,
        block_size=given.block_size,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
    )
    print(json.dumps(plan.as_dict(), indent=2) if given.json else plan.text())
    return 0
