from __future__ import annotations

import pytest
from naive import steps, story
from serving import serve

from simulator import BlockPool, Request
from simulator.errors import ConfigError
from simulator.plan import Limits
from simulator.schedulers.continuous import Continuous

FIVE = [Request(name, 0, 3, 3) for name in "abcde"]


def test_prefill_first_stops_the_decodes_for_a_prompt() -> None:
    log = serve(Continuous(), Request("a", 0, 3, 4), Request("b", 1_500, 3, 2))
    assert steps(log) == ["a+3", "| a", "b+3", "| a b", "| a"]


def test_orca_joins_prompts_and_decodes() -> None:
    log = serve(Continuous("orca"), Request("a", 0, 3, 4), Request("b", 1_500, 3, 2))
    assert steps(log) == ["a+3", "| a", "b+3 | a", "| a b"]


@pytest.mark.parametrize(("order", "sizes"), [("prefill_first", [4, 4, 4, 1, 1, 1]), ("orca", [4, 4, 4, 1, 1, 1])])
def test_five_prompts_in_four_slots(order: str, sizes: list[int]) -> None:
    """Sizes of the steps, as in vllm-project/vllm pull request 4162; nobody leaves before the others here."""
    log = serve(Continuous(order), *FIVE, max_num_seqs=4)
    assert (log.iterations["prefill_seqs"] + log.iterations["decode_seqs"]).tolist() == sizes


@pytest.mark.parametrize("order", ["prefill_first", "orca"])
def test_whoever_leaves_makes_room_at_once(order: str) -> None:
    requests = Request("a", 0, 3, 2), Request("b", 0, 3, 4), Request("c", 0, 3, 2)
    log = serve(Continuous(order), *requests, max_num_seqs=2)
    expected = (
        ["a+3 b+3", "| a b", "c+3", "| b c", "| b"]
        if order == "prefill_first"
        else ["a+3 b+3", "| a b", "c+3 | b", "| b c"]
    )
    assert steps(log) == expected


@pytest.mark.parametrize(
    ("order", "prompt", "expected"),
    [
        ("prefill_first", 4, "a+4 b+4"),
        ("prefill_first", 5, "a+5"),
        ("prefill_first", 9, "a+9"),
        ("orca", 4, "a+4 b+4"),
        ("orca", 5, "a+5"),
        ("orca", 9, "a+9"),
    ],
)
def test_prompts_stay_whole_and_one_over_the_budget_goes_alone(order: str, prompt: int, expected: str) -> None:
    log = serve(
        Continuous(order), Request("a", 0, prompt, 1), Request("b", 0, 4, 1), max_num_batched_tokens=8, max_num_seqs=8
    )
    assert steps(log)[0] == expected


def test_orcas_decodes_count_in_the_budget() -> None:
    requests = Request("a", 0, 2, 9), Request("b", 0, 2, 9), Request("c", 500, 3, 2), Request("d", 500, 3, 2)
    log = serve(Continuous("orca"), *requests, max_num_batched_tokens=7, max_num_seqs=7)
    assert steps(log)[:4] == ["a+2 b+2", "c+3 | a b", "d+3 | a b c", "| a b d"]


@pytest.mark.parametrize(("order", "first"), [("prefill_first", "a+3 b+3"), ("orca", "a+3 b+3")])
def test_a_limit_for_prefill_tokens(order: str, first: str) -> None:
    log = serve(Continuous(order), *FIVE, max_num_prefill_tokens=8)
    assert steps(log)[0] == first


def test_the_token_limit_is_that_of_the_order() -> None:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_num_prefill_tokens=100)
    assert Continuous().token_limit(limits) == 100
    assert Continuous().token_limit(limits._replace(max_num_prefill_tokens=3)) == 4  # decodes aren't prefill
    assert Continuous().token_limit(limits._replace(max_num_prefill_tokens=None)) == 64
    assert Continuous("orca").token_limit(limits) == 64


@pytest.mark.parametrize("order", ["prefill_first", "orca"])
def test_a_step_that_preempted_admits_nobody(order: str) -> None:
    """c loses 4 blocks at 2,000, of which a and b take 2; d, more important, comes in one step later."""
    requests = Request("a", 0, 7, 6, None, 1), Request("b", 0, 7, 6, None, 1), Request("c", 0, 15, 6, None, 2)
    log = serve(
        Continuous(order, "priority"), *requests, Request("d", 100, 3, 2, None, 0), kv=BlockPool(9, 4), max_num_seqs=3
    )
    assert steps(log)[:4] == ["a+7 b+7 c+15", "| a b c", "| a b", "d+3" if order == "prefill_first" else "d+3 | a b"]


def test_admission_needs_memory_for_the_whole_prompt() -> None:
    log = serve(Continuous(), Request("a", 0, 8, 2), Request("b", 0, 20, 1), Request("c", 0, 4, 1), kv=BlockPool(7, 4))
    assert story(log)[:3] == ["0 admit a", "2000 release a", "2000 admit b"]


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.order = lifo: must be prefill_first or orca"):
        Continuous("lifo")
