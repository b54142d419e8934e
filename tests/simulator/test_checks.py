"""Rejections on arrival, and plans that must not pass. The whole list of lies is in tests/contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from serving import serve

from simulator import BlockPool, Request, Scheduler
from simulator.checks import misfit
from simulator.errors import PolicyError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.request import Sequence
from simulator.schedulers.base import View
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (0, 5, "zero_input"),
        (-1, 5, "zero_input"),
        (5, 0, "zero_output"),
        (5, -1, "zero_output"),
        (60, 40, ""),
        (61, 40, "exceeds_max_model_len"),
        (81, 0, "zero_output"),
        (77, 4, ""),  # 80 tokens in memory
        (78, 4, "exceeds_kv_capacity"),
    ],
)
def test_what_can_never_be_served(prompt: int, output: int, reason: str) -> None:
    kv = BlockPool(8 if prompt < 70 else 6, 16)
    assert misfit(Request("a", 0, prompt, output), Limits(max_model_len=100), kv) == reason


Plan = Callable[[View], IterationPlan]


class Says(Scheduler):
    """Does as `Chunked`, but the first time that it is asked from `at_ns` on, what it is told."""

    name = "says"

    def __init__(self, plan: Plan, at_ns: int) -> None:
        self.told, self.at_ns, self.usual = plan, at_ns, Chunked()

    def plan(self, view: View) -> IterationPlan:
        if view.now_ns < self.at_ns:
            return self.usual.plan(view)
        self.at_ns = 10**9
        return self.told(view)


def whole(seq: Sequence) -> Slice:
    return Slice(seq, seq.remaining)


def first(view: View) -> Slice:
    return whole(next(iter(view.waiting)))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda v: IterationPlan([first(v)] * 3), "slices per sequence (limit 1): planned "),
        (lambda v: IterationPlan([Slice(next(iter(v.waiting)), 7)]), "tokens to prefill of 'c' (limit 6): planned 7"),
        (
            lambda v: IterationPlan([Slice(next(iter(v.waiting)), True)]),
            "tokens to prefill of 'c' (limit 6): planned True",
        ),
        (
            lambda v: IterationPlan([Slice(next(iter(v.running)), 1)]),
            "prefill of a sequence that neither waits nor prefills",
        ),
        (lambda v: IterationPlan([first(v)], v.decoding), "max_num_seqs (limit 2): planned 3"),
        (lambda v: IterationPlan(decode=[*v.running, *v.running]), "decode rows per sequence (limit 1): planned "),
        (
            lambda v: IterationPlan(decode=list(v.waiting)),
            "decode of a sequence that doesn't decode: planned Sequence('c'",
        ),
        (lambda v: IterationPlan(preempt=[*v.running] * 2), "preemptions per sequence (limit 1): planned "),
        (
            lambda v: IterationPlan(preempt=list(v.waiting)),
            "preemption of a sequence that doesn't run: planned Sequence('c'",
        ),
        (
            lambda v: IterationPlan(wait_until_ns=v.now_ns),
            "wait_until_ns must be later than now (limit 2000): planned 2000",
        ),
        (
            lambda v: IterationPlan(wait_until_ns=1_999),
            "wait_until_ns must be later than now (limit 2000): planned 1999",
        ),
    ],
)
def test_a_lie_is_named(plan: Plan, message: str) -> None:
    """At 2,000 ns a and b decode, and c waits with a prompt of 6."""
    requests = Request("a", 0, 5, 9), Request("b", 0, 5, 9), Request("c", 500, 6, 2)
    with pytest.raises(PolicyError) as caught:
        serve(Says(plan, 2_000), *requests, max_num_seqs=2)
    assert str(caught.value).startswith(f"scheduler says at t=2000 ns, iteration 2: {message}")


@pytest.mark.parametrize(
    "plan",
    [
        lambda v: IterationPlan(preempt=list(v.running)),
        lambda v: IterationPlan(decode=list(v.running)[:1]),
        lambda v: IterationPlan(decode=v.decoding, preempt=list(v.running)[1:]),
        lambda v: IterationPlan([first(v)], list(v.running)[:1], list(v.running)[1:]),
        lambda v: IterationPlan([first(v)], preempt=list(v.running)),
        lambda v: IterationPlan(wait_until_ns=2_001),
    ],
)
def test_unusual_but_legal(plan: Plan) -> None:
    requests = Request("a", 0, 5, 9), Request("b", 0, 5, 9), Request("c", 500, 6, 2)
    log = serve(Says(plan, 2_000), *requests, max_num_seqs=2)
    assert log.sequences["emitted_tokens"].tolist() == [9, 9, 2]


@pytest.mark.parametrize("output", [1, 2])
def test_a_lone_prompt_over_the_limit_is_for_whole_prompts_only(output: int) -> None:
    requests = Request("a", 0, 9, output), Request("b", 0, 3, 1)
    log = serve(Continuous(), *requests, max_num_batched_tokens=8)
    assert log.iterations["prefill_tokens"].tolist()[:2] == [9, 3]
    with pytest.raises(PolicyError, match=r"tokens of an iteration \(limit 8\): planned 12"):
        serve(Says(lambda v: IterationPlan(list(map(whole, v.waiting))), 0), *requests, max_num_batched_tokens=8)


def test_tokens_without_end_are_noticed() -> None:
    """Half a prompt, thrown away, and again: 64 times the memory and the longest sequence."""

    class Treadmill(Scheduler):
        def plan(self, view: View) -> IterationPlan:
            if view.num_running:
                return IterationPlan(preempt=list(view.running))
            return IterationPlan([Slice(seq, 4) for seq in view.waiting])

    with pytest.raises(PolicyError, match=r"tokens computed without one coming out \(limit 16640\): planned 16644"):
        serve(Treadmill(), Request("a", 0, 5, 9), kv=BlockPool(11, 16), max_model_len=100)
