"""Small real runs for tests of what is written, compared and drawn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.results import RunContext
from simulator.cluster import run
from simulator.costs.linear import Linear
from simulator.kv import BlockPool
from simulator.plan import Limits
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.static import Static
from simulator.specs import Platform, get_gpu, get_model

SCHEDULERS: dict[str, type[Scheduler]] = {"static": Static, "continuous": Continuous, "chunked": Chunked}
TOO_LONG = 5000  # tokens, more than fit


def requests(count: int, rate: float, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts, outputs = rng.integers(5, 400, count), rng.geometric(0.02, count)
    prompts[7] = TOO_LONG
    outputs[5] = 1
    columns = zip((arrivals * 1e9).tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [Request(f"r{i}", int(at), prompt, output) for i, (at, prompt, output) in enumerate(columns)]


def make_log(scheduler: str = "chunked", count: int = 60, rate: float = 20, blocks: int = 120) -> RunLog:
    """A run with a rejected request, a one-token answer and, with few blocks, preemptions."""
    cost = Linear(
        Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb")),
        base_ns=8_000_000,
        per_prefill_token_ns=50_000,
        per_decode_seq_ns=100_000,
    )
    return run(
        requests(count, rate),
        scheduler=SCHEDULERS[scheduler](),
        cost_model=cost,
        kv=BlockPool(blocks),
        limits=Limits(max_num_seqs=16, max_num_batched_tokens=256, max_model_len=4096),
    )


def make_context(scheduler: str = "chunked", request_rate: float = math.inf, **changes: Any) -> RunContext:
    options: dict[str, Any] = {
        "name": "demo",
        "config_yaml": f"scheduler: {scheduler}\n",
        "config_hash": "0123456789ab",
        "seed": 0,
        "model_id": "llama-3.1-8b",
        "request_rate": request_rate,
        "wall_s": 0.25,
        "cost_model": "linear",
        "workload": {"rows_read": 60},
        "versions": {"numpy": np.__version__},
    }
    return RunContext(**options | changes)
