"""Measured folders that a simulated server wrote: what a tool should make of them is known to the nanosecond."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.from_run import ALLREDUCE_LATENCY_US
from simulator.cluster import run
from simulator.costs.table import Table
from simulator.plan import Limits
from simulator.prefix import CachedPool
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.specs import GIB, Platform, get_gpu, get_model, plan_memory

CLOCK_S = 27_536.25  # where the server's clock happened to stand
MODEL, GPU = "llama-3.1-8b", "rtx-pro-6000"


def meta(tp: int = 1, **engine: Any) -> dict[str, Any]:
    """A meta.json with the least that a benchmark writes."""
    return {
        "model": "meta-llama/Llama-3.1-8B",
        "vllm_version": "0.19.0",
        "engine_kwargs": {
            "model": "meta-llama/Llama-3.1-8B",
            "tensor_parallel_size": tp,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 1024,
            "max_model_len": None,
            **engine,
        },
        "kv_cache": None,
        "hardware": {
            "device_name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "device_total_memory_bytes": round(get_gpu(GPU).memory_gib * GIB),
        },
    }


def requests(count: int = 80, seed: int = 1) -> list[Request]:
    """A burst whose prompts share prefixes of 16-token blocks."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(0.02, count))
    arrivals -= arrivals[0]
    found = []
    for i in range(count):
        prompt = int(rng.integers(20, 900))
        shared = int(rng.integers(0, 5)) * 1000
        ids = tuple(shared + k if k < 10 else 10_000 * (i + 1) + k for k in range(-(-prompt // 16)))
        at = round(arrivals[i] * 1e9)
        found.append(Request(str(i), at, prompt, int(rng.integers(1, 200)), prefix_hashes=ids))
    return found


@functools.lru_cache
def simulated(tp: int, blocks: int | None, max_num_seqs: int, max_num_batched_tokens: int) -> RunLog:
    """The server's run."""
    platform = Platform(get_model(MODEL), get_gpu(GPU), tp)
    plan = plan_memory(
        platform.model,
        platform.gpu,
        tensor_parallel_size=tp,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
    )
    return run(
        requests(),
        scheduler=VllmV1(),
        cost_model=Table(
            platform, profile=f"rtxpro6000_llama-3.1-8b_tp{tp}", allreduce_latency_us=ALLREDUCE_LATENCY_US
        ),
        kv=CachedPool(blocks or plan.num_gpu_blocks),
        limits=Limits(max_num_seqs, max_num_batched_tokens, None, 0, 131072),
        async_scheduling=True,
    )


def write(folder: Path, document: dict[str, Any], *, tp: int = 1, blocks: int | None = None) -> None:
    """Simulate a server and write its run as a folder."""
    kwargs = document["engine_kwargs"]
    log = simulated(tp, blocks, kwargs["max_num_seqs"], kwargs["max_num_batched_tokens"])
    wanted = requests()
    s = log.sequences
    folder.mkdir(parents=True)
    rows, asked = [], []
    for i, request in enumerate(wanted):
        stamps = {"queued_ts": s["arrival_ns"], "scheduled_ts": s["scheduled_ns"]}
        stamps |= {"first_token_ts": s["first_token_ns"], "last_token_ts": s["finish_ns"]}
        row = {"request_id": f"bench-{i}", "input_toks": request.prompt_tokens, "output_toks": request.output_tokens}
        rows.append(row | {name: CLOCK_S + int(column[i]) / 1e9 for name, column in stamps.items()})
        asked.append({"timestamp": 0, "input_length": request.prompt_tokens, "output_length": request.output_tokens})
        asked[-1]["hash_ids"] = list(request.prefix_hashes)
    lines(folder / "requests.jsonl", rows)
    lines(folder / "workload.jsonl", asked)
    (folder / "meta.json").write_text(json.dumps(document | {"num_requests": len(rows)}))


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
