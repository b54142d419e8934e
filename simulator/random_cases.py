"""Random workloads and batch shapes for the contract checks: the same `random.Random` gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, cast

from simulator.cluster import run
from simulator.costs.base import CostModel
from simulator.kv import BlockPool, KvMemory, Reservation
from simulator.plan import BatchShape, Limits
from simulator.prefix import CachedPool
from simulator.radix_pool import RadixPool
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.schedulers.base import Scheduler


@dataclass(frozen=True)
class LinearCost(CostModel):
    """Whole nanoseconds per iteration, token computed and token in memory."""

    base_ns: int
    token_ns: int
    context_ns: int
    name = "linear"

    def iteration_ns(self, shape: BatchShape) -> int:
        """The weighted sum."""
        context = shape.decode_context + sum(new + before for new, before in shape.prefill)
        return self.base_ns + self.token_ns * shape.tokens + self.context_ns * context


POOLS: dict[str, type[BlockPool]] = {"paged": BlockPool, "cached": CachedPool, "radix": RadixPool}


@dataclass(frozen=True)
class Case:
    """A workload and an engine to run it on; its repr is what a failed check shows."""

    requests: Seq[Request]
    limits: Limits
    rule: str  # paged, cached, radix, or the rule of a Reservation
    num_gpu_blocks: int
    block_size: int
    cost: LinearCost
    host_overhead_ns: int
    async_scheduling: bool

    def memory(self) -> KvMemory:
        """A fresh one."""
        if self.rule in POOLS:
            return POOLS[self.rule](self.num_gpu_blocks, self.block_size)
        return Reservation(self.num_gpu_blocks, self.block_size, cast(Any, self.rule), self.limits.max_model_len)

    def run(self, scheduler: Scheduler, kv: KvMemory, *, fast_forward: bool = False) -> RunLog:
        """Everything that happens when `scheduler` serves the workload."""
        return run(
            self.requests,
            scheduler=scheduler,
            cost_model=self.cost,
            kv=kv,
            limits=self.limits,
            host_overhead_ns=self.host_overhead_ns,
            fast_forward=fast_forward,
            async_scheduling=self.async_scheduling,
        )


def random_case(rng: random.Random, caches: bool = False) -> Case:
    """A few requests, some of them follow-up turns, with limits and memory that may be tight.

    With `caches` the memory may have a prefix cache, and prompts may begin alike.
    """
    case = _random_case(rng)
    if not caches or case.rule != "paged" or rng.random() < 0.3:
        return case
    return replace(case, rule=rng.choice(["cached", "radix"]), requests=_alike(case.requests, rng))


def _alike(requests: Seq[Request], rng: random.Random) -> list[Request]:
    """`requests` with block ids that some of them share, or with a history where they follow a turn."""
    most = rng.choice([0, 3, 9])
    alike = []
    for i, request in enumerate(requests):
        if request.after is not None and rng.random() < 0.7:
            alike.append(request._replace(history_tokens=rng.randint(0, request.prompt_tokens)))
        else:
            blocks = [*range(rng.randint(0, most)), *range(1_000 * (i + 1), 1_000 * (i + 1) + 13)]
            alike.append(request._replace(prefix_hashes=tuple(blocks[: -(-request.prompt_tokens // 16)])))
    return alike


def _random_case(rng: random.Random) -> Case:
    requests = _random_requests(rng)
    max_model_len = rng.choice([90, 300, 300, 300])
    rule = rng.choice(["paged", "paged", "paged", "paged", "max", "pow2", "exact"])
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    room = max_model_len if rule == "max" else longest
    tokens = rng.choice([16, 40, 300])
    seqs = min(tokens, rng.choice([1, 3, 8, 16]))
    block_size = rng.choice([1, 4, 16])
    return Case(
        requests=requests,
        limits=Limits(seqs, tokens, rng.choice([None, None, 16, 40]), rng.choice([0, 0, 7, 20]), max_model_len),
        rule=rule,
        num_gpu_blocks=2 + int(room * rng.choice([0.7, 1, 1, 1.1, 1.3, 2, 10])) // block_size,
        block_size=block_size,
        cost=LinearCost(rng.choice([1, 1_000, 5_000_000]), rng.choice([0, 20_000]), rng.choice([0, 100])),
        host_overhead_ns=rng.choice([0, 3_000]),
        async_scheduling=rng.random() < 0.5,
    )


def _random_requests(rng: random.Random) -> list[Request]:
    horizon_ns = rng.choice([0, 10_000, 300_000, 10_000_000, 1_000_000_000])
    longest = rng.choice([5, 60, 200]), rng.choice([2, 15, 50])
    requests = []
    for i, arrival_ns in enumerate(sorted(rng.randint(0, horizon_ns) for _ in range(rng.randint(1, 15)))):
        output = rng.randint(1, longest[1])
        after = str(rng.randrange(i)) if i and rng.random() < 0.15 else None
        requests.append(
            Request(
                str(i), arrival_ns, rng.randint(1, longest[0]), output, max_tokens=2 * longest[1] + 2,
                priority=rng.randint(0, 2), after=after, delay_ns=rng.choice([0, 5, 1_000_000]),
            )
        )  # fmt: skip
    return requests


def random_shape(rng: random.Random) -> BatchShape:
    """A prefill, a decode or a mixed batch."""
    longest = rng.choice([10, 1_000, 30_000])
    chunks = [(rng.randint(1, longest), rng.randint(0, longest)) for _ in range(rng.choice([0, 0, 1, 3]))]
    contexts = [rng.randint(1, longest) for _ in range(rng.choice([0, 1, 7, 200]) if chunks else rng.randint(1, 300))]
    return BatchShape(chunks, len(contexts), sum(contexts), max(contexts, default=0))
