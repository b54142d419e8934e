from __future__ import annotations

import pytest
from serving import serve

from simulator import Request, Scheduler
from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import View


def test_what_a_scheduler_is_by_default() -> None:
    """First come, first served, bound by max_num_batched_tokens, and nothing is claimed."""
    scheduler = Scheduler()
    assert scheduler.queue_key() is None
    assert scheduler.token_limit(Limits(max_num_batched_tokens=77)) == 77
    assert (scheduler.respond_at, scheduler.name) == ("token", "")
    claims = ("decode_stable", "whole_prompts", "holds_slots", "work_conserving", "oracle")
    assert not any(getattr(scheduler, claim) for claim in claims)


def test_a_scheduler_without_a_plan() -> None:
    with pytest.raises(NotImplementedError):
        serve(Scheduler(), Request("a", 0, 5, 1))


class OneByOne(Scheduler):
    """All that a scheduler needs: a plan."""

    def plan(self, view: View) -> IterationPlan:
        if view.num_running or not len(view.waiting):
            return IterationPlan(decode=view.decoding)
        seq = next(iter(view.waiting))
        return IterationPlan([Slice(seq, seq.remaining)])


def test_the_shortest_scheduler_serves_and_is_stepped() -> None:
    log = serve(OneByOne(), Request("a", 0, 5, 3), Request("b", 0, 5, 2))
    assert log.sequences["finish_ns"].tolist() == [3_000, 5_000]
    assert log.info["scheduler"] == "OneByOne"
    assert not log.info["fast_forward"]
