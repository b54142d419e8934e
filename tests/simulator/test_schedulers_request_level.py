"""`static` and `dynamic`: what makes a batch, and when. How it then runs is in test_batch and test_engine."""

from __future__ import annotations

import pytest
from naive import steps, story
from serving import serve

from simulator import BlockPool, Request
from simulator.errors import ConfigError
from simulator.plan import Limits
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static


def test_dynamic_takes_what_waits_when_the_server_gets_free() -> None:
    requests = [Request("a", 0, 2, 3)] + [Request(name, 100 * i, 2, 1) for i, name in enumerate("bcdef", start=1)]
    log = serve(Dynamic(3), *requests)
    assert steps(log) == ["a+2", "| a", "| a", "b+2 c+2 d+2", "e+2 f+2"]


@pytest.mark.parametrize(("size", "slots", "first"), [(3, 8, "a+2 b+2 c+2"), (8, 2, "a+2 b+2")])
def test_a_batch_is_no_larger_than_its_size_and_the_slots(size: int, slots: int, first: str) -> None:
    log = serve(Static(size), *[Request(name, 0, 2, 1) for name in "abcd"], max_num_seqs=slots)
    assert steps(log)[0] == first


@pytest.mark.parametrize(
    ("limit", "first"), [(None, "a+2 b+5 c+3"), (14, "a+2 b+5"), (10, "a+2 b+5"), (9, "a+2"), (1, "a+2")]
)
def test_prefill_tokens_are_counted_with_their_padding(limit: int | None, first: str) -> None:
    """2, 5 and 3 tokens make a rectangle of 3 x 5."""
    requests = Request("a", 0, 2, 1), Request("b", 0, 5, 1), Request("c", 0, 3, 1)
    assert steps(serve(Static(3), *requests, max_num_prefill_tokens=limit))[0] == first


def test_the_first_that_does_not_fit_the_memory_ends_the_batch() -> None:
    requests = Request("a", 0, 8, 1), Request("b", 0, 20, 1), Request("c", 0, 4, 1)
    log = serve(Static(3), *requests, kv=BlockPool(7, 4))
    assert steps(log) == ["a+8", "b+20 c+4"]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "abc"), ("priority", "bca"), ("sjf", "cab")])
def test_batches_of_one_in_the_order_of_the_queue(policy: str, order: str) -> None:
    requests = Request("a", 0, 2, 2, None, 3), Request("b", 0, 2, 3, None, 1), Request("c", 0, 2, 1, None, 2)
    log = serve(Static(1, policy=policy), *requests)
    assert "".join(line[-1] for line in story(log) if "admit" in line) == order
    assert log.info["policy"] == policy


def test_only_an_explicit_prefill_limit_bounds_a_batch() -> None:
    assert Static().token_limit(Limits()) is None
    assert Static().token_limit(Limits(max_num_prefill_tokens=77)) == 77


def test_dynamic_is_work_conserving_only_without_delay() -> None:
    assert Dynamic().work_conserving
    assert not Dynamic(max_queue_delay_ms=1).work_conserving
    assert not Static().work_conserving


def test_every_fault_of_the_options_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        Static(batch_size=0, batch_timeout_ms=-1, respond_at="never")
    assert caught.value.faults == [
        "scheduler.batch_size = 0: must be at least 1",
        "scheduler.batch_timeout_ms = -1: must not be negative",
        "scheduler.respond_at = never: must be batch_end or token",
    ]
    with pytest.raises(ConfigError, match=r"scheduler\.max_queue_delay_ms = -2"):
        Dynamic(max_queue_delay_ms=-2)
    with pytest.raises(ConfigError, match=r"scheduler\.policy = best"):
        Dynamic(policy="best")
