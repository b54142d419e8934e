"""When iterations start, what the engine sees by then, and when clients are answered."""

from __future__ import annotations

import pytest
from naive import steps, story
from serving import serve
from strategies import IntegerCost

from simulator import Request
from simulator.errors import PolicyError
from simulator.plan import IterationPlan, Slice
from simulator.schedulers.base import Scheduler, View
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static


def starts(log: object) -> list[int]:
    return log.iterations["start_ns"].tolist()  # type: ignore[attr-defined, no-any-return]


def test_the_engine_starts_when_something_arrives_and_idles_between() -> None:
    log = serve(Chunked(), Request("a", 70, 5, 2), Request("b", 9_000, 5, 1))
    assert starts(log) == [70, 1_070, 9_000]
    assert log.end_ns == 10_000


@pytest.mark.parametrize(
    ("arrival_ns", "seen_ns"), [(999, 1_000), (1_000, 1_000), (1_001, 2_000), (1_999, 2_000), (2_000, 2_000)]
)
def test_an_arrival_waits_for_the_end_of_the_iteration(arrival_ns: int, seen_ns: int) -> None:
    """One that comes at the very end is still seen."""
    log = serve(Chunked(), Request("a", 0, 5, 4), Request("b", arrival_ns, 5, 1))
    assert f"{seen_ns} admit b" in story(log)


@pytest.mark.parametrize(
    ("arrival_ns", "seen_ns", "starts_ns"),
    [(999, 1_000, 2_000), (1_000, 1_000, 2_000), (1_001, 2_000, 3_000), (2_000, 2_000, 3_000)],
)
def test_asynchronously_it_is_seen_one_iteration_later(arrival_ns: int, seen_ns: int, starts_ns: int) -> None:
    """The plan made when an iteration begins is carried out when it ends."""
    log = serve(Chunked(), Request("a", 0, 5, 6), Request("b", arrival_ns, 5, 1), asynchronous=True)
    assert f"{seen_ns} admit b" in story(log)
    assert starts(log)[steps(log).index("b+5 | a")] == starts_ns
    assert log.sequences["finish_ns"][1] == starts_ns + 1_000


def test_asynchronously_a_slot_comes_free_one_planning_later() -> None:
    """a ends at 2,000; what begins then was planned at 1,000, when a still had the only slot."""
    requests = Request("a", 0, 5, 2), Request("b", 10, 5, 2)
    log = serve(Chunked(), *requests, asynchronous=True, max_num_seqs=1)
    assert story(log) == ["0 admit a", "2000 release a", "2000 admit b", "4000 release b"]
    log = serve(Chunked(), *requests, Request("c", 0, 5, 9), asynchronous=True, max_num_seqs=2)
    assert steps(log)[:5] == ["a+5 c+5", "| a c", "| c", "b+5 | c", "| b c"]
    log = serve(Chunked(), *requests, Request("c", 0, 5, 9), max_num_seqs=2)
    assert steps(log)[:4] == ["a+5 c+5", "| a c", "b+5 | c", "| b c"]


@pytest.mark.parametrize(("asynchronous", "end_ns"), [(False, 3 * 1_400), (True, 3 * 1_000)])
def test_host_overhead_is_hidden_only_asynchronously(asynchronous: bool, end_ns: int) -> None:
    log = serve(Chunked(), Request("a", 0, 5, 3), asynchronous=asynchronous, host_overhead_ns=400)
    assert log.end_ns == end_ns


def test_tokens_and_contexts_make_the_time_of_an_iteration() -> None:
    cost = IntegerCost(1_000, 10, 1)
    log = serve(Chunked(), Request("a", 0, 5, 3), cost=cost, fast_forward=False)
    assert starts(log) == [0, 1_055, 1_055 + 1_016]
    assert log.end_ns == 1_055 + 1_016 + 1_017


class Alarm(Scheduler):
    """Nothing before 5,000 ns."""

    asked: list[int]

    def plan(self, view: View) -> IterationPlan:
        self.asked = [*getattr(self, "asked", []), view.now_ns]
        if view.now_ns < 5_000:
            return IterationPlan(wait_until_ns=5_000)
        return IterationPlan([Slice(seq, seq.remaining) for seq in view.waiting], view.decoding)


def test_a_scheduler_may_set_a_timer_and_arrivals_wake_it_before() -> None:
    alarm = Alarm()
    log = serve(alarm, Request("a", 100, 5, 1), Request("b", 300, 5, 1))
    assert alarm.asked == [0, 100, 300, 5_000, 6_000]
    assert story(log)[:2] == ["5000 admit a", "5000 admit b"]


def test_draining_says_that_nothing_more_arrives() -> None:
    seen = []

    class Looks(Chunked):
        def plan(self, view: View) -> IterationPlan:
            seen.append((view.now_ns, view.draining))
            return super().plan(view)

    serve(Looks(), Request("a", 0, 5, 1), Request("b", 400, 5, 1), Request("c", 7_000, 5, 1), fast_forward=False)
    assert seen == [(0, False), (1_000, False), (2_000, False), (7_000, True), (8_000, True)]


def test_a_full_static_batch_starts_and_the_rest_waits_for_the_end_of_arrivals() -> None:
    requests = [Request(name, 100 * i, 5, 2) for i, name in enumerate("abcde")]
    log = serve(Static(2), *requests, Request("f", 50_000, 5, 1))
    assert starts(log)[::2] == [100, 2_100, 50_000]
    assert steps(log)[::2] == ["a+5 b+5", "c+5 d+5", "e+5 f+5"]
    log = serve(Static(4), *requests)
    assert story(log)[-2:] == ["2300 admit e", "4300 release e"]


@pytest.mark.parametrize(
    ("timeout_ms", "start_ns"), [(0, 70), (0.0005, 570), (0.005, 5_070), (None, 8_000), (0.1, 8_000)]
)
def test_a_batch_that_does_not_fill_starts_after_its_timeout(timeout_ms: float | None, start_ns: int) -> None:
    """b arrives at 8,000 and fills it."""
    log = serve(Static(2, timeout_ms), Request("a", 70, 5, 1), Request("b", 8_000, 5, 1))
    assert starts(log)[0] == start_ns
    if timeout_ms is not None:
        log = serve(Dynamic(2, timeout_ms), Request("a", 70, 5, 1), Request("b", 8_000, 5, 1))
        assert starts(log)[0] == start_ns


def test_what_is_stuck_at_the_end_is_an_error_not_a_hang() -> None:
    class Drops(Chunked):
        def plan(self, view: View) -> IterationPlan:
            return super().plan(view)._replace(decode=None)

    with pytest.raises(
        PolicyError, match=r"scheduler chunked at t=1000 ns, iteration 1: .* 0 wait and 1 run \(9998 of"
    ):
        serve(Drops(), Request("a", 0, 5, 2))
