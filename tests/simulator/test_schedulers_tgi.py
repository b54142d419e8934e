"""`tgi`: its options, its counter, and how far its plan holds. Its schedules are in golden/test_engine_policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.request import Request, Sequence
from simulator.schedulers.base import View
from simulator.schedulers.tgi import Tgi

PREFILL = IterationPlan([Slice(Sequence(Request("a", 0, 5, 2), 0), 5)])
DECODE = IterationPlan()


def view(waiting: int) -> View:
    return cast(View, SimpleNamespace(waiting=[None] * waiting))


def after(scheduler: Tgi, *commits: tuple[IterationPlan, int]) -> Tgi:
    for plan, iterations in commits:
        scheduler.on_commit(view(0), plan, iterations)
    return scheduler


def test_the_defaults_are_those_of_version_3() -> None:
    scheduler = Tgi()
    assert scheduler.waiting_served_ratio == 0.3
    assert scheduler.max_waiting_tokens == 20
    assert scheduler.max_batch_prefill_tokens == 4096
    assert scheduler.max_batch_total_tokens is None
    assert scheduler.token_limit(Limits(max_num_batched_tokens=8)) is None


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"waiting_served_ratio": -0.1}, "scheduler.waiting_served_ratio = -0.1: must be at least 0"),
        ({"max_waiting_tokens": -1}, "scheduler.max_waiting_tokens = -1: must be at least 0"),
        ({"max_batch_prefill_tokens": 0}, "scheduler.max_batch_prefill_tokens = 0: must be at least 1"),
        ({"max_batch_total_tokens": 0}, "scheduler.max_batch_total_tokens = 0: must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tgi(**options)
    assert caught.value.faults == [fault]


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Tgi(-1, -1, 0, 0)
    assert len(caught.value.faults) == 4


@pytest.mark.parametrize(
    ("commits", "waiting", "horizon"),
    [
        ([(PREFILL, 1)], 1, 1),  # it decodes because it has just prefilled
        ([(PREFILL, 1), (DECODE, 1)], 1, 4),
        ([(PREFILL, 1), (DECODE, 4)], 1, 1),
        ([(PREFILL, 1), (DECODE, 5)], 1, None),  # anybody who fits is in already
        ([(PREFILL, 1), (DECODE, 9)], 1, None),
        ([(PREFILL, 1), (DECODE, 9), (PREFILL, 1), (DECODE, 2)], 1, 3),
        ([(PREFILL, 1), (DECODE, 1)], 0, None),
        ([(PREFILL, 1)], 0, None),
    ],
)
def test_its_plan_holds_until_max_waiting_tokens(
    commits: list[tuple[IterationPlan, int]], waiting: int, horizon: int | None
) -> None:
    assert after(Tgi(max_waiting_tokens=5), *commits).decode_horizon(view(waiting)) == horizon


@pytest.mark.parametrize("iterations", [1, 2, 7, 30])
def test_one_commit_of_k_iterations_is_k_commits_of_one(iterations: int) -> None:
    together = after(Tgi(), (PREFILL, 1), (DECODE, iterations))
    apart = after(Tgi(), (PREFILL, 1), *[(DECODE, 1)] * iterations)
    assert vars(together) == vars(apart)
