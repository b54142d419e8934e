"""vLLM V1's loop on hand-made requests, each rule by itself (numbers as in `simulator.schedulers.chunked`)."""

from __future__ import annotations

import pytest
from naive import rows, steps, story
from serving import serve

from simulator import BlockPool, Request, Reservation
from simulator.errors import ConfigError
from simulator.schedulers.chunked import Chunked


def test_running_first_then_waiting_under_one_budget() -> None:
    """Decodes take one token each, a running prompt goes on before a waiting one starts."""
    log = serve(
        Chunked(),
        Request("a", 0, 3, 5),
        Request("b", 0, 12, 2),
        Request("c", 0, 2, 2),
        max_num_batched_tokens=8,
        max_num_seqs=8,
    )
    assert steps(log)[:4] == ["a+3 b+5", "b+7 | a", "c+2 | a b", "| a c"]


@pytest.mark.parametrize(
    ("prompt", "expected"), [(7, ["a+7 b+1", "b+2 | a"]), (8, ["a+8", "b+3 | a"]), (9, ["a+8", "a+1 b+3"])]
)
def test_a_prompt_is_cut_at_the_budget(prompt: int, expected: list[str]) -> None:
    log = serve(Chunked(), Request("a", 0, prompt, 4), Request("b", 0, 3, 4), max_num_batched_tokens=8, max_num_seqs=8)
    assert steps(log)[:2] == expected


def test_a_running_prompt_may_take_the_token_of_a_later_decode() -> None:
    """a is older than b and c: with long chunks it leaves nothing of the budget for their tokens."""
    log = serve(
        Chunked(), Request("a", 0, 30, 2), Request("b", 0, 1, 3), Request("c", 0, 1, 3),
        max_num_batched_tokens=8, max_num_seqs=8, long_prefill_token_threshold=6,
    )  # fmt: skip
    assert steps(log)[:2] == ["a+6 b+1 c+1", "a+6 | b c"]
    log = serve(
        Chunked(), Request("a", 0, 30, 2), Request("b", 0, 1, 3), Request("c", 0, 1, 3),
        max_num_batched_tokens=7, max_num_seqs=7, long_prefill_token_threshold=6,
    )  # fmt: skip
    assert steps(log)[:3] == ["a+6 b+1", "a+6 | b", "a+6 | b"]


def test_a_long_prompt_leaves_room_for_others_with_a_threshold() -> None:
    requests = Request("hog", 0, 40, 1), Request("b", 0, 4, 1)
    log = serve(Chunked(), *requests, max_num_batched_tokens=10, max_num_seqs=10)
    assert steps(log) == ["hog+10"] * 4 + ["b+4"]
    log = serve(Chunked(), *requests, max_num_batched_tokens=10, max_num_seqs=10, long_prefill_token_threshold=6)
    assert steps(log)[0] == "hog+6 b+4"


def test_the_prefill_part_of_the_budget_has_its_own_limit() -> None:
    log = serve(
        Chunked(), Request("a", 0, 4, 9), Request("b", 0, 9, 2), Request("c", 0, 9, 2),
        max_num_batched_tokens=64, max_num_prefill_tokens=6,
    )  # fmt: skip
    assert steps(log)[:5] == ["a+4 b+2", "b+6 | a", "b+1 c+5 | a", "c+4 | a b", "| a c"]


def test_no_more_sequences_than_slots() -> None:
    log = serve(Chunked(), *[Request(name, 0, 2, 2) for name in "abcde"], max_num_seqs=2)
    assert steps(log) == ["a+2 b+2", "| a b", "c+2 d+2", "| c d", "e+2", "| e"]


def test_the_first_that_does_not_fit_stops_the_scan() -> None:
    """The whole prompt must fit the free blocks, not its first chunk; c, which would fit, waits behind b."""
    log = serve(
        Chunked(), Request("a", 0, 8, 3), Request("b", 0, 20, 1), Request("c", 0, 4, 1),
        kv=BlockPool(7, 4), max_num_batched_tokens=16, max_num_seqs=8,
    )  # fmt: skip
    assert steps(log) == ["a+8", "| a", "| a", "b+16", "b+4 c+4"]


def test_priority_is_the_order_of_the_queue_and_of_the_victims() -> None:
    """The running one with the largest (priority, arrival) loses its memory, wherever it stands."""
    requests = Request("a", 0, 7, 4, None, 5), Request("b", 0, 7, 4, None, 1), Request("c", 0, 7, 4, None, 3)
    log = serve(Chunked("priority"), *requests, Request("d", 100, 3, 2, None, 9), kv=BlockPool(7, 4), max_num_seqs=3)
    assert steps(log) == ["b+7 c+7 a+7", "| a b c", "| b c", "| b c", "a+9 d+3", "| a d"]
    tie = serve(
        Chunked("priority"),
        *[Request(n, t, 7, 4, None, 1) for n, t in (("a", 0), ("b", 2), ("c", 1))],
        kv=BlockPool(7, 4),
    )
    assert next(line for line in story(tie) if "preempt" in line).endswith("preempt b")


def test_a_victim_that_was_planned_already_gives_its_token_back() -> None:
    """The smallest priority stands last: a, first in the list, has been planned when it turns out to be the victim."""
    requests = Request("a", 0, 8, 4, None, 9), Request("b", 10, 8, 4, None, 1)
    log = serve(Chunked("priority"), *requests, kv=BlockPool(6, 4))
    assert steps(log)[:3] == ["a+8", "b+8 | a", "| b"]
    assert rows(log.sequences)[0]["preemptions"] == 1


def test_a_step_that_preempted_admits_nobody() -> None:
    """c loses 4 blocks at 2,000, of which a and b take 2. d, before it in the queue, gets in one step later."""
    requests = Request("a", 0, 7, 6, None, 1), Request("b", 0, 7, 6, None, 1), Request("c", 0, 15, 6, None, 2)
    log = serve(Chunked("priority"), *requests, Request("d", 100, 3, 2, None, 0), kv=BlockPool(9, 4), max_num_seqs=3)
    assert steps(log)[:5] == ["a+7 b+7 c+15", "| a b c", "| a b", "d+3 | a b", "| a b d"]


def test_a_waiting_one_never_preempts_one_that_runs() -> None:
    """However important: only a running request that lacks memory does."""
    log = serve(
        Chunked("priority"), Request("a", 0, 8, 4, None, 9), Request("b", 10, 8, 4, None, 0), kv=BlockPool(4, 4)
    )
    assert story(log) == ["0 admit a", "4000 release a", "4000 admit b", "8000 release b"]


def test_shortest_job_first_is_an_oracle_and_says_so() -> None:
    requests = Request("a", 0, 2, 9), Request("b", 0, 2, 3), Request("c", 0, 2, 5), Request("d", 0, 2, 3)
    log = serve(Chunked("sjf"), *requests, max_num_seqs=1)
    assert [line.split()[2] for line in story(log) if "admit" in line] == ["b", "d", "c", "a"]
    assert log.info["oracle"]
    assert not serve(Chunked("priority"), *requests).info["oracle"]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.policy = lifo: must be one of fcfs, priority, sjf"):
        Chunked("lifo")


def test_reserved_memory_is_taken_once_and_never_preempts() -> None:
    kv = Reservation(8, 10, "exact", max_model_len=100)
    log = serve(Chunked(), Request("a", 0, 25, 9, 15), Request("b", 0, 25, 9, 16), Request("c", 0, 5, 5, 5), kv=kv)
    assert log.iterations["kv_blocks"].tolist() == [4] * 9 + [6] * 5 + [5] * 4
    assert story(log)[:2] == ["0 admit a", "9000 release a"]
