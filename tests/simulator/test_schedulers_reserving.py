"""Engines that set memory aside for whole lives: `orca`, `tgi`, `trtllm`, `faster_transformer`; and V0's watermark."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from naive import steps
from serving import serve
from strategies import IntegerCost

from simulator import BlockPool, Request, Reservation, Scheduler
from simulator.errors import ConfigError
from simulator.plan import Limits
from simulator.random_cases import random_case
from simulator.request import Sequence
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.faster_transformer import FasterTransformer
from simulator.schedulers.orca import Orca
from simulator.schedulers.reserving import most_tokens
from simulator.schedulers.tgi import Tgi
from simulator.schedulers.trtllm import TrtLlm
from simulator.schedulers.vllm_v0 import VllmV0

RESERVING = [Orca, Tgi, TrtLlm, FasterTransformer]


@pytest.mark.parametrize(
    ("max_tokens", "unwritten", "tokens"), [(20, 0, 30), (20, 1, 29), (None, 0, 100), (None, 1, 99), (500, 0, 100)]
)
def test_room_is_kept_for_what_was_stated_within_what_the_model_takes(
    max_tokens: int | None, unwritten: int, tokens: int
) -> None:
    seq = Sequence(Request("a", 0, 10, 5, max_tokens), 0)
    assert most_tokens(seq, Limits(max_model_len=100), unwritten) == tokens


def test_the_room_of_a_sequence_is_what_it_takes_up_in_the_end() -> None:
    seq = Sequence(Request("a", 0, 10, 5, 20), 0)
    assert [BlockPool(9, 4).room(seq, tokens) for tokens in (1, 4, 5, 30)] == [1, 1, 2, 8]
    assert [Reservation(9, 4, "exact").room(seq, tokens) for tokens in (1, 30)] == [8, 8]


@pytest.mark.parametrize("policy", RESERVING)
def test_nobody_is_ever_preempted(policy: Callable[[], Scheduler]) -> None:
    """Also in memories where taking blocks as they are needed has to preempt."""
    short = 0
    for example in range(60):
        case = random_case(random.Random(f"reserving/{example}"))
        log = case.run(policy(), case.memory())
        assert not log.sequences["preemptions"].any(), case
        short += int(case.run(TrtLlm("max_utilization"), case.memory()).sequences["preemptions"].any())
    assert short > 5


@pytest.mark.parametrize("policy", [Orca, TrtLlm])
def test_memory_that_reserves_by_itself_gives_the_same_schedule(policy: Callable[[], Scheduler]) -> None:
    """The policy's accounting over a pool, and contiguous reservations of prompt + max_tokens of the same size."""
    rng = random.Random(1)
    requests = [
        Request(str(i), 900 * i, rng.randint(1, 60), rng.randint(1, 30), max_tokens=40) for i in range(40)
    ]  # fmt: skip
    paged = serve(policy(), *requests, kv=BlockPool(41, 4), max_model_len=100)
    reserved = serve(policy(), *requests, kv=Reservation(40, 4, "exact"), max_model_len=100)
    assert steps(paged) == steps(reserved)
    assert paged.sequences["finish_ns"].tolist() == reserved.sequences["finish_ns"].tolist()


def test_orca_has_no_budget_of_tokens() -> None:
    assert Orca().token_limit(Limits(max_num_batched_tokens=8)) is None
    log = serve(Orca(), *[Request(str(i), 0, 50, 1) for i in range(4)], max_num_batched_tokens=8, max_num_seqs=8)
    assert len(steps(log)) == 1


@pytest.mark.parametrize(("blocks", "rows"), [(3, 1), (4, 1), (8, 2), (100, 3)])
def test_faster_transformer_runs_one_row_at_least_and_no_more_than_its_batch(blocks: int, rows: int) -> None:
    """Four blocks of four tokens to a row; a memory smaller than that still serves what fits."""
    log = serve(
        FasterTransformer(3), *[Request(name, 0, 2, 2) for name in "abc"], kv=BlockPool(blocks + 1, 4), max_model_len=16
    )
    assert log.iterations["slots"][0] == rows


def test_faster_transformer_pays_for_its_padding_as_dynamic_does() -> None:
    requests = [Request("a", 0, 30, 9), Request("b", 0, 2, 2), Request("c", 0, 9, 4)]
    logs = [
        serve(policy, *requests, cost=IntegerCost(1_000, 10, 1), max_model_len=64)
        for policy in (FasterTransformer(3), Dynamic(3))
    ]
    assert logs[0].digest == logs[1].digest


@pytest.mark.parametrize("name", ["evict", "MAX_UTILIZATION", ""])
def test_an_unknown_capacity_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"scheduler.capacity = {name}: must be guaranteed_no_evict or max_util"):
        TrtLlm(name)


@pytest.mark.parametrize("watermark", [-0.1, 1, 2])
def test_a_watermark_of_all_memory_or_less_than_none_is_refused(watermark: float) -> None:
    with pytest.raises(ConfigError, match=rf"scheduler.watermark = {watermark}: must be at least 0 and below 1"):
        VllmV0(watermark)


@pytest.mark.parametrize(("blocks", "admitted"), [(99, "a+392 b+4"), (100, "a+396")])
def test_the_default_watermark_is_one_percent_rounded_down(blocks: int, admitted: str) -> None:
    """a leaves one block free: for b where 1 % of the memory isn't a block yet, for nobody where it is."""
    requests = Request("a", 0, 4 * (blocks - 1), 1), Request("b", 0, 4, 1)
    assert steps(serve(VllmV0(), *requests, kv=BlockPool(blocks + 1, 4)))[0] == admitted
