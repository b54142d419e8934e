"""Hypothesis strategies for whole runs: workloads, limits, memories, schedulers, costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from simulator import Request, RunLog, run
from simulator.costs.base import CostModel
from simulator.kv import BlockPool, KvMemory, Reservation
from simulator.plan import BatchShape, Limits
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.faster_transformer import FasterTransformer
from simulator.schedulers.orca import Orca
from simulator.schedulers.static import Static
from simulator.schedulers.tgi import Tgi
from simulator.schedulers.trtllm import TrtLlm
from simulator.schedulers.vllm_v0 import VllmV0

POLICIES = ("fcfs", "fcfs", "priority", "sjf")


class IntegerCost(CostModel):
    """base + per token + per token of context, whole nanoseconds: doubling the coefficients doubles every answer."""

    name = "integer"

    def __init__(self, base_ns: int = 1_000, token_ns: int = 0, context_ns: int = 0) -> None:
        self.coefficients = base_ns, token_ns, context_ns

    def __repr__(self) -> str:
        return f"IntegerCost{self.coefficients}"

    def iteration_ns(self, shape: BatchShape) -> int:
        base, token, context = self.coefficients
        held = shape.decode_context + sum(new + before for new, before in shape.prefill)
        return base + token * shape.tokens + context * held

    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        base, token, context = self.coefficients
        held = shape.decode_context + shape.decode_seqs * np.arange(k, dtype=np.int64)
        return base + token * shape.decode_seqs + context * held


class SteppedCost(IntegerCost):
    """The same with the inherited decode_run_ns."""

    decode_run_ns = CostModel.decode_run_ns


class Piece(NamedTuple):
    """A class and its options, made afresh for each run and readable in a failure."""

    cls: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self) -> Any:
        return self.cls(**self.options)

    def __repr__(self) -> str:
        return f"{self.cls.__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


class Setup(NamedTuple):
    """Everything that makes a run, but for how it is carried out."""

    requests: list[Request]
    scheduler: Piece
    memory: Piece
    limits: Limits
    cost: CostModel
    asynchronous: bool = False
    host_overhead_ns: int = 0

    def run(
        self, *, fast_forward: bool = True, scheduler: Scheduler | None = None, kv: KvMemory | None = None
    ) -> RunLog:
        return run(
            self.requests,
            scheduler=scheduler or self.scheduler(),
            cost_model=self.cost,
            kv=kv or self.memory(),
            limits=self.limits,
            host_overhead_ns=self.host_overhead_ns,
            fast_forward=fast_forward,
            async_scheduling=self.asynchronous,
        )


@st.composite
def workloads(draw: st.DrawFn, most: int = 16, turns: bool = True) -> list[Request]:
    """Requests in order of arrival, from one burst to a second apart; some of them follow-up turns."""
    gap = draw(st.sampled_from([0, 1_000, 20_000, 500_000, 60_000_000]))
    prompts = st.integers(1, draw(st.sampled_from([5, 60, 200])))
    outputs = st.integers(1, draw(st.sampled_from([2, 20, 100])))
    least = min(most, draw(st.sampled_from([0, 3, 8])))
    row = st.tuples(st.integers(0, gap), prompts, outputs, st.integers(0, 2), st.integers(0, 9))
    now, requests = 0, []
    for i, (wait, prompt, output, priority, turn) in enumerate(draw(st.lists(row, min_size=least, max_size=most))):
        now += wait
        after = str((i * 7 + turn) % i) if turns and i and turn > 7 else None
        max_tokens = (None, output, 128)[turn % 3]
        delay_ns = (0, 5, 1_000_000)[turn % 3]
        requests.append(Request(str(i), now, prompt, output, max_tokens, priority, after=after, delay_ns=delay_ns))
    return requests


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    tokens = draw(st.sampled_from([16, 40, 300]))
    return Limits(
        max_num_seqs=min(tokens, draw(st.sampled_from([1, 3, 8, 16]))),
        max_num_batched_tokens=tokens,
        max_num_prefill_tokens=draw(st.sampled_from([None, None, 8, 40])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 7, 20])),
        max_model_len=draw(st.sampled_from([100, 400, 400, 400])),
    )


@st.composite
def memories(draw: st.DrawFn, requests: list[Request], max_model_len: int) -> Piece:
    """A fresh memory: too small for some, with room for the longest request and a little more, or ample."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    rule = draw(st.sampled_from(["", "", "", "", "max", "pow2", "exact"]))
    longest = max((r.prompt_tokens + r.output_tokens for r in requests), default=1)
    tokens = (max_model_len if rule == "max" else longest) * draw(st.sampled_from([7, 10, 10, 11, 13, 20, 100])) // 10
    options = {"num_gpu_blocks": 2 + tokens // block_size, "block_size": block_size}
    if not rule:
        return Piece(BlockPool, options)
    return Piece(Reservation, {**options, "rule": rule, "max_model_len": max_model_len})


@st.composite
def schedulers(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES) -> Piece:
    """Every built-in policy with options."""
    policy = {"policy": draw(st.sampled_from(policies))}
    size = {"batch_size": draw(st.sampled_from([1, 3, 8])), "respond_at": draw(st.sampled_from(["batch_end", "token"]))}
    delay = {"max_queue_delay_ms": draw(st.sampled_from([0, 3.5]))}
    pieces = [
        Piece(Chunked, policy),
        Piece(Chunked, policy),
        Piece(Continuous, {"order": "prefill_first", **policy}),
        Piece(Continuous, {"order": "orca", **policy}),
        Piece(Static, {"batch_timeout_ms": draw(st.sampled_from([None, 0, 3.5])), **size, **policy}),
        Piece(Dynamic, {**delay, **size, **policy}),
        Piece(FasterTransformer, {**delay, **size, **policy}),
        Piece(VllmV0, {"watermark": draw(st.sampled_from([0.01, 0.2])), **policy}),
        Piece(TrtLlm, {"capacity": draw(st.sampled_from(["guaranteed_no_evict", "max_utilization"]))}),
        Piece(Orca, {}),
        Piece(
            Tgi,
            {
                "waiting_served_ratio": draw(st.sampled_from([0, 0.3, 1.2])),
                "max_waiting_tokens": draw(st.sampled_from([0, 3, 20])),
                "max_batch_prefill_tokens": draw(st.sampled_from([30, 4096])),
                "max_batch_total_tokens": draw(st.sampled_from([None, 300])),
            },
        ),
    ]
    return draw(st.sampled_from(pieces))


@st.composite
def setups(draw: st.DrawFn, most: int = 16, turns: bool = True, policies: tuple[str, ...] = POLICIES) -> Setup:
    """Whole runs, synchronous and asynchronous."""
    bounds = draw(limits())
    requests = draw(workloads(most, turns))
    cost = draw(st.sampled_from([IntegerCost, SteppedCost]))
    return Setup(
        requests=requests,
        scheduler=draw(schedulers(policies)),
        memory=draw(memories(requests, bounds.max_model_len)),
        limits=bounds,
        cost=cost(*(draw(st.sampled_from(choices)) for choices in ([1, 1_000, 5_000_000], [0, 20_000], [0, 100]))),
        asynchronous=draw(st.booleans()),
        host_overhead_ns=draw(st.sampled_from([0, 3_000])),
    )
