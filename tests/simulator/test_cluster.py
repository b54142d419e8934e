"""Arrivals, follow-up turns, and what a run says about itself."""

from __future__ import annotations

import pytest
from naive import story
from strategies import IntegerCost

from simulator import BlockPool, Request, Reservation, RunLog, run
from simulator.errors import ConfigError
from simulator.plan import Limits
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.static import Static


def serve(*requests: Request, asynchronous: bool = False, **bounds: int) -> RunLog:
    """One millisecond, 1,000 ns, per iteration."""
    return run(
        requests,
        scheduler=Chunked(),
        cost_model=IntegerCost(),
        kv=BlockPool(100),
        limits=Limits(**bounds),
        async_scheduling=asynchronous,
    )


def test_no_request_at_all() -> None:
    log = serve()
    assert (log.end_ns, log.ids, len(log.iterations["end_ns"])) == (0, [], 0)


def test_rows_are_in_order_of_arrival_and_ties_as_given() -> None:
    log = serve(Request("late", 9, 1, 1), Request("b", 3, 1, 1), Request("a", 3, 1, 1), max_num_seqs=1)
    assert log.ids == ["b", "a", "late"]
    assert story(log)[::2] == ["3 admit b", "1003 admit a", "2003 admit late"]


@pytest.mark.parametrize(("delay_ns", "earliest_ns", "arrival_ns"), [(0, 0, 3_000), (7, 0, 3_007), (7, 9_000, 9_000)])
def test_a_turn_arrives_after_its_delay(delay_ns: int, earliest_ns: int, arrival_ns: int) -> None:
    log = serve(Request("a", 0, 5, 3), Request("b", earliest_ns, 5, 2, after="a", delay_ns=delay_ns))
    b = log.ids.index("b")
    assert log.sequences["arrival_ns"][b] == log.sequences["scheduled_ns"][b] == arrival_ns
    assert log.sequences["finish_ns"][b] == arrival_ns + 2_000


def test_several_may_follow_one_and_one_each_other() -> None:
    log = serve(
        Request("a", 0, 5, 1), Request("b", 0, 5, 1, after="a"), Request("c", 0, 5, 1, after="a"),
        Request("d", 0, 5, 1, after="b"),
    )  # fmt: skip
    assert dict(zip(log.ids, log.sequences["arrival_ns"].tolist(), strict=True)) == {
        "a": 0,
        "b": 1_000,
        "c": 1_000,
        "d": 2_000,
    }


def test_a_turn_may_stand_before_the_one_it_follows() -> None:
    log = serve(Request("b", 0, 5, 1, after="a"), Request("a", 10, 5, 1))
    assert dict(zip(log.ids, log.sequences["arrival_ns"].tolist(), strict=True)) == {"b": 1_010, "a": 10}


def test_turns_after_a_rejected_one_are_rejected_when_it_is() -> None:
    log = serve(
        Request("a", 70, 9_000, 1), Request("b", 0, 5, 1, after="a", delay_ns=5), Request("c", 0, 5, 1, after="b")
    )
    assert dict(zip(log.ids, log.reasons, strict=True)) == {
        "a": "exceeds_max_model_len", "b": "earlier_turn_rejected", "c": "earlier_turn_rejected",
    }  # fmt: skip
    assert story(log) == ["70 reject a", "70 reject b", "70 reject c"]


def test_a_long_session_whose_first_turn_is_rejected() -> None:
    turns = [Request(str(i), 0, 5, 1, after=str(i - 1)) for i in range(1, 3_000)]
    log = serve(Request("0", 0, 9_000, 1), *turns)
    assert log.reasons[0] == "exceeds_max_model_len"
    assert set(log.reasons[1:]) == {"earlier_turn_rejected"}


def test_a_long_session_that_never_waits() -> None:
    log = serve(*[Request(str(i), 0, 5, 1, after=str(i - 1) if i else None) for i in range(3_000)])
    assert log.end_ns == 3_000_000


def test_a_turn_that_follows_nothing_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        serve(
            Request("a", 0, 5, 1), Request("b", 0, 5, 1, after="nobody"), Request("c", 0, 5, 1, after="b"),
            Request("d", 0, 5, 1, after="e"), Request("e", 0, 5, 1, after="d"),
        )  # fmt: skip
    assert caught.value.faults == [f"request {name!r} follows a turn that never comes" for name in "bcde"]


def test_two_requests_of_one_name_are_refused() -> None:
    """A follower wouldn't know whom it follows."""
    with pytest.raises(ConfigError, match="'a'"):
        serve(Request("a", 0, 5, 1), Request("a", 3, 5, 1), Request("b", 0, 5, 1, after="a"))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_turns_queue_among_other_arrivals_in_order_of_arrival(asynchronous: bool) -> None:
    """t arrives at 1,050 ns, between y and z, all of them while x is being served."""
    log = serve(
        Request("a", 0, 5, 1),
        Request("x", 5, 5, 2),
        Request("y", 1_010, 5, 1),
        Request("z", 1_060, 5, 1),
        Request("t", 0, 5, 1, after="a", delay_ns=50),
        asynchronous=asynchronous,
        max_num_seqs=1,
    )
    assert [line.split()[-1] for line in story(log) if "admit" in line] == ["a", "x", "y", "t", "z"]


def test_progress_is_reported_now_and_then() -> None:
    seen: list[tuple[int, int]] = []
    requests = [Request(str(i), i * 10_000, 5, 1) for i in range(600)]
    run(
        requests,
        scheduler=Chunked(),
        cost_model=IntegerCost(),
        kv=BlockPool(100),
        on_progress=lambda now_ns, answered: seen.append((now_ns, answered)),
    )
    assert seen == [(255 * 10_000 + 1_000, 256), (511 * 10_000 + 1_000, 512)]


def test_a_run_says_what_it_was() -> None:
    log = run(
        [Request("a", 0, 5, 3)],
        scheduler=Static(policy="priority"),
        cost_model=IntegerCost(),
        kv=Reservation(80, 4, "exact", 90),
        limits=Limits(4, 64, None, 8, 90),
        async_scheduling=True,
    )
    expected = {
        "scheduler": "static", "policy": "priority", "respond_at": "batch_end", "oracle": True, "cost_model": "integer",
        "kv": "reserve", "num_gpu_blocks": 80, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 64,
        "max_num_prefill_tokens": None, "long_prefill_token_threshold": 8, "max_model_len": 90, "fast_forward": True,
        "async_scheduling": True,
    }  # fmt: skip
    assert expected.items() <= log.info.items()
