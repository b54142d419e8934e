"""A run is fixed by its requests and the durations of its iterations, whatever carried them out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from simulator import BlockPool, Request, RunLog, run
from simulator.batch import Batch
from simulator.cluster import execute
from simulator.costs.linear import Linear
from simulator.errors import PolicyError
from simulator.plan import BatchShape, IterationPlan, Limits
from simulator.replay import ReplayExecutor, durations_ns
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.specs import Platform, get_gpu, get_model

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512)
SCHEDULERS = (Chunked, VllmV1, Continuous, Static, Dynamic)


def requests() -> list[Request]:
    rng = random.Random(4)
    made = [Request(f"r{i}", rng.randrange(3_000_000), rng.randrange(1, 90), rng.randrange(1, 60)) for i in range(40)]
    return [*made, Request("later", 0, 20, 9, after="r3", delay_ns=50_000)]


def again(log: RunLog, scheduler: type[Any], times: list[int] | None = None) -> RunLog:
    return execute(
        requests(),
        scheduler=scheduler(),
        executor=ReplayExecutor(durations_ns(log) if times is None else times),
        kv=BlockPool(24),
        limits=LIMITS,
    )


def first(scheduler: type[Any]) -> RunLog:
    cost = Linear(Platform(get_model("tiny"), get_gpu("cpu")), base_ns=9_001, per_token_ns=703, per_context_ns=11)
    return run(requests(), scheduler=scheduler(), cost_model=cost, kv=BlockPool(24), limits=LIMITS)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_replayed_durations_give_the_identical_log(scheduler: type[Any]) -> None:
    log = first(scheduler)
    assert again(log, scheduler).digest == log.digest


def test_memory_was_tight_enough_to_preempt() -> None:
    assert first(Chunked).sequences["preemptions"].sum() > 0


def test_another_duration_gives_another_log() -> None:
    log = first(Chunked)
    times = durations_ns(log)
    times[3] += 1
    assert again(log, Chunked, times).digest != log.digest


def test_a_run_with_more_iterations_than_recorded_is_refused() -> None:
    log = first(Chunked)
    with pytest.raises(PolicyError, match=rf"replay: iteration {len(durations_ns(log)) - 1} .* isn't recorded"):
        again(log, Chunked, durations_ns(log)[:-1])


class Watching:
    """Notes what an executor is told, and takes 10 us per iteration."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.shapes: list[BatchShape] = []

    def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
        for victim in plan.preempt:
            assert victim in batch.running
        for piece in plan.prefill:
            assert piece.tokens <= piece.sequence.goal
        rows = batch.decoding if plan.decode is batch.decoding else plan.decode or ()
        gone = sum(seq in plan.preempt for seq in batch.running if seq.state == "decoding")
        decodes = len(rows) - (gone if rows is batch.decoding else 0)
        self.begun.append((now_ns, sum(piece.tokens for piece in plan.prefill), decodes))

    def iteration_ns(self, shape: BatchShape) -> int:
        self.shapes.append(shape)
        return 10_000


def test_an_executor_is_told_each_plan_before_it_begins_and_is_stepped_if_it_foresees_nothing() -> None:
    watching = Watching()
    log = execute(
        requests(), scheduler=Chunked(), executor=watching, kv=BlockPool(24), limits=LIMITS, fast_forward=True
    )
    it = log.iterations
    assert len(watching.shapes) == len(it["start_ns"])
    carried_out = [told for told in watching.begun if told[1] or told[2]]
    assert carried_out == list(
        zip(it["start_ns"].tolist(), it["prefill_tokens"].tolist(), it["decode_seqs"].tolist(), strict=True)
    )
