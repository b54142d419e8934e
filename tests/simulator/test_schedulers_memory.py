"""Policies that keep counters: what the engine tells them, and how far it may run ahead of them."""

from __future__ import annotations

import pytest
from serving import serve

from simulator import Request
from simulator.plan import IterationPlan
from simulator.schedulers.base import View
from simulator.schedulers.continuous import Continuous


class Counting(Continuous):
    """Notes every commit; every third decode iteration on, its memory might change the plan."""

    has_memory = True

    def __init__(self, horizon: int | None = None) -> None:
        super().__init__()
        self.horizon = horizon
        self.commits: list[tuple[int, int, int]] = []  # chunks, iterations, sequences that hold a slot
        self.decodes = 0

    def on_commit(self, view: View, plan: IterationPlan, iterations: int) -> None:
        self.commits.append((len(plan.prefill), iterations, view.num_running))
        self.decodes += 0 if plan.prefill else iterations

    def decode_horizon(self, view: View) -> int | None:
        return None if self.horizon is None else self.horizon - self.decodes % self.horizon


TWO = Request("a", 0, 5, 9), Request("b", 3_500, 5, 4)


def test_every_iteration_is_committed_once_after_it_has_begun() -> None:
    """b arrives in the fourth iteration, has its tokens in the eighth; a ends in the tenth."""
    scheduler = Counting()
    serve(scheduler, *TWO, fast_forward=False)
    assert scheduler.commits == [(1, 1, 1), *[(0, 1, 1)] * 3, (1, 1, 2), *[(0, 1, 2)] * 3, *[(0, 1, 1)] * 2]


def test_skipped_iterations_are_committed_together() -> None:
    scheduler = Counting()
    serve(scheduler, *TWO)
    assert scheduler.commits == [(1, 1, 1), (0, 3, 1), (1, 1, 2), (0, 3, 2), (0, 2, 1)]


def test_nothing_is_skipped_beyond_the_horizon() -> None:
    scheduler = Counting(horizon=2)
    serve(scheduler, Request("a", 0, 5, 9))
    assert scheduler.commits == [(1, 1, 1), *[(0, 2, 1)] * 4]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("horizon", [None, 1, 3])
def test_as_many_iterations_are_committed_as_are_run(horizon: int | None, asynchronous: bool) -> None:
    for fast_forward in (False, True):
        scheduler = Counting(horizon)
        log = serve(scheduler, *TWO, asynchronous=asynchronous, fast_forward=fast_forward)
        assert sum(iterations for _, iterations, _ in scheduler.commits) == len(log.iterations["start_ns"])


def test_without_memory_nobody_is_asked() -> None:
    class Forgetful(Counting):
        has_memory = False

    scheduler = Forgetful(horizon=1)
    serve(scheduler, *TWO)
    assert scheduler.commits == []
