"""Slots, memory and tokens of hand-made runs, row by row."""

from __future__ import annotations

import pytest
from naive import replay, rows, steps, story
from serving import serve
from strategies import IntegerCost

from simulator import BlockPool, Request, Scheduler
from simulator.plan import BatchShape, IterationPlan
from simulator.request import DECODING
from simulator.schedulers.base import View
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.static import Static

THREE_AND_ONE = [Request("a", 0, 7, 4), Request("b", 0, 7, 4), Request("c", 0, 7, 4), Request("d", 100, 3, 2)]


@pytest.mark.parametrize("scheduler", [Chunked(), Continuous(), Continuous("orca")])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_tail_is_preempted_and_recomputes_prompt_and_tokens(scheduler: Scheduler, asynchronous: bool) -> None:
    """Six blocks of 4: all three fill their second block, then each needs a third, and none is free.

    c, the last one admitted, loses its two; with its two tokens it has 9 to compute again, before d that came later.
    """
    log = serve(scheduler, *THREE_AND_ONE, kv=BlockPool(7, 4), asynchronous=asynchronous)
    assert steps(log) == ["a+7 b+7 c+7", "| a b c", "| a b", "| a b", "c+9 d+3", "| c d"]
    assert log.iterations["kv_blocks"].tolist() == [6, 6, 6, 6, 4, 4]
    assert log.iterations["slots"].tolist() == [3, 3, 2, 2, 2, 2]
    preempted_ns = 1_000 if asynchronous else 2_000  # an asynchronous engine plans an iteration earlier
    assert f"{preempted_ns} preempt c" in story(log)
    c = rows(log.sequences)[2]
    assert (c["preemptions"], c["recomputed_tokens"], c["first_token_ns"], c["finish_ns"]) == (1, 8, 1_000, 6_000)
    assert (c["queued_ns"], c["prefill_ns"], c["preempted_ns"]) == (0, 2_000, 4_000 - preempted_ns)


def test_spans_break_where_a_sequence_is_preempted() -> None:
    log = serve(Chunked(), *THREE_AND_ONE, kv=BlockPool(7, 4))
    spans = [tuple(span.values()) for span in rows(log.spans)]
    assert spans == [(0, 0, 1, 3), (1, 0, 1, 3), (2, 0, 1, 1), (2, 4, 5, 5), (3, 4, 5, 5)]


def test_a_prompt_half_computed_is_preempted_and_starts_again() -> None:
    """b has the last of 4 blocks half full when a needs one more."""
    requests = Request("a", 0, 4, 6), Request("b", 0, 14, 1)
    log = serve(Chunked(), *requests, kv=BlockPool(6, 4), max_num_batched_tokens=5, max_num_seqs=5)
    assert steps(log)[:3] == ["a+4 b+1", "b+4 | a", "b+4 | a"]
    b = rows(log.sequences)[1]
    assert b["preemptions"] == 1
    assert b["recomputed_tokens"] == sum(chunk["tokens"] for chunk in rows(log.chunks) if chunk["sequence"] == 1) - 14
    assert b["prefill_ns"] + b["preempted_ns"] == b["finish_ns"]


BATCH = [Request("a", 0, 5, 2), Request("b", 0, 3, 4), Request("c", 0, 8, 1), Request("d", 10, 2, 2)]


def test_a_static_batch_is_padded_and_holds_its_slots() -> None:
    """Prompts padded to 8; a and c are done early and hold slot and memory; d waits for the whole batch."""
    log = serve(Static(3, respond_at="token"), *BATCH, kv=BlockPool(99, 4))
    assert steps(log) == ["a+5 b+3 c+8", "| a b", "| b", "| b", "d+2", "| d"]
    assert log.iterations["padding_tokens"].tolist() == [3 + 5, 1, 2, 2, 0, 0]
    assert log.iterations["slots"].tolist() == [3, 3, 3, 3, 1, 1]
    assert log.iterations["kv_blocks"].tolist() == [2 + 1 + 2, 5, 2 + 2 + 2, 6, 1, 1]
    assert log.sequences["first_token_ns"].tolist() == [1_000, 1_000, 1_000, 5_000]
    assert log.sequences["finish_ns"].tolist() == [2_000, 4_000, 1_000, 6_000]
    assert log.sequences["released_ns"].tolist() == [4_000, 4_000, 4_000, 6_000]


def test_a_static_batch_that_answers_at_its_end() -> None:
    log = serve(Static(3), *BATCH)
    assert log.sequences["first_token_ns"].tolist() == log.sequences["finish_ns"].tolist() == [4_000] * 3 + [6_000]
    decoding = [row["decode_ns"] for row in rows(log.sequences)]
    assert decoding == [3_000, 3_000, 3_000, 1_000]


def test_the_cost_model_sees_the_padded_rectangle() -> None:
    """Every row of the batch counts, with the length of the longest: the time is that of 3 x 8 tokens, then 3 rows."""
    shapes = []

    class Spy(IntegerCost):
        def iteration_ns(self, shape: BatchShape) -> int:
            shapes.append(shape)
            return 1_000

    serve(Static(3), *BATCH[:3], cost=Spy(), fast_forward=False)
    assert shapes == [
        BatchShape(((8, 0),) * 3),
        BatchShape((), 3, 3 * 9, 9),
        BatchShape((), 3, 3 * 10, 10),
        BatchShape((), 3, 3 * 11, 11),
    ]


def test_a_batch_whose_last_live_row_loses_its_memory_ends() -> None:
    """a is done and holds its blocks; b can't grow beside it, so the batch ends and b makes the next one alone."""
    log = serve(Static(2), Request("a", 0, 8, 1), Request("b", 0, 8, 5), kv=BlockPool(5, 4))
    assert steps(log) == ["a+8 b+8", "b+9", "| b", "| b", "| b"]
    assert story(log) == [
        "0 admit a",
        "0 admit b",
        "1000 preempt b",
        "1000 release a",
        "1000 admit b",
        "5000 release b",
    ]


class EveryOther(Chunked):
    """Rows decode in turns: even iterations of the clock the even ones, odd ones the odd."""

    decode_stable = False

    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        if plan.prefill:
            return plan._replace(decode=None)
        turn = view.now_ns // 1_000 % 2
        rows = [seq for seq in view.running if seq.state == DECODING]
        return plan._replace(decode=[seq for seq in rows if seq.index % 2 == turn] or rows)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_rows_may_sit_out_iterations(asynchronous: bool) -> None:
    requests = Request("a", 0, 4, 3), Request("b", 0, 4, 4), Request("c", 2_500, 3, 1)
    log = serve(EveryOther(), *requests, kv=BlockPool(20, 4), asynchronous=asynchronous)
    expected = ["a+4 b+4", "| b", "| a", "c+3", "| a", "| b", "| b"]
    if asynchronous:  # each iteration is planned when the one before begins; c is seen one later
        expected = ["a+4 b+4", "| a", "| b", "| a", "c+3", "| b", "| b"]
    assert steps(log) == expected
    assert log.sequences["emitted_tokens"].tolist() == [3, 4, 1]
    used = replay(log).blocks(4)
    assert log.iterations["kv_blocks"].tolist() == used
