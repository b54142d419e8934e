"""What sets each engine's policy apart, in schedules of a few requests derived by hand: one table per rule.

Tables as in test_step_tables. A request is a name followed by: when it arrives (ms), prompt tokens, output tokens, the
max_tokens that its client states or "-".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from strategies import IntegerCost
from test_step_tables import MS, PLATFORM, ms, shown, table

from simulator import BlockPool, Limits, Request, RunLog, Scheduler, run
from simulator.costs.constant import Constant
from simulator.metrics import summary
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.faster_transformer import FasterTransformer
from simulator.schedulers.orca import Orca
from simulator.schedulers.tgi import Tgi
from simulator.schedulers.trtllm import TrtLlm
from simulator.schedulers.vllm_v0 import VllmV0


def requests(text: str) -> list[Request]:
    rows = [line.split() for line in text.strip().splitlines()]
    return [
        Request(name, round(float(at_ms) * MS), int(prompt), int(output), None if most == "-" else int(most))
        for name, at_ms, prompt, output, most in rows
    ]


def serve(load: str, policy: Callable[[], Scheduler], *, blocks: int = 1000, **limits: Any) -> RunLog:
    """Blocks of four tokens, 1 ms per iteration. Stepping must give the same."""
    logs = [
        run(
            requests(load),
            scheduler=policy(),
            cost_model=Constant(PLATFORM, iteration_us=1000),
            kv=BlockPool(blocks + 1, 4),
            limits=Limits(**limits),
            fast_forward=fast_forward,
        )
        for fast_forward in (True, False)
    ]
    assert logs[0].digest == logs[1].digest
    assert logs[0].sequences["finished"].all()
    return logs[0]


# ---- memory reserved for a whole life ------------------------------------------------------------------------------

SHORT_ANSWERS = """
A 0 4 2 4
B 0 4 4 4
C 0 4 1 4
"""


@pytest.mark.parametrize("policy", [Orca, TrtLlm])
def test_a_request_waits_until_room_for_all_it_may_come_to_need_is_promised_to_nobody(policy: type[Scheduler]) -> None:
    """Four blocks. A and B may get 8 tokens each, so all four are promised, though only two are taken."""
    log = serve(SHORT_ANSWERS, policy, blocks=4)
    assert shown(log) == table("""
        at | prefill | decode | slots
        0  | A:4 B:4 | -      | 2
        1  | -       | A B    | 2
        2  | C:4     | B      | 2
        3  | -       | B      | 1
    """)
    assert log.iterations["kv_blocks"].tolist() == [2, 4, 3, 2]


def test_memory_taken_block_by_block_admits_all_three() -> None:
    assert shown(serve(SHORT_ANSWERS, lambda: Continuous("orca"), blocks=4)) == table("""
        at | prefill     | decode | slots
        0  | A:4 B:4 C:4 | -      | 3
        1  | -           | A B    | 2
        2  | -           | B      | 1
        3  | -           | B      | 1
    """)


@pytest.mark.parametrize("policy", [Orca, TrtLlm])
def test_one_huge_max_tokens_keeps_everybody_behind_it_waiting(policy: type[Scheduler]) -> None:
    """H states 500 tokens, more than the four blocks hold, so it needs all of them to itself; C would fit beside A."""
    load = """
        A 0 4 3 4
        H 0 4 2 500
        C 0 1 1 1
    """
    assert shown(serve(load, policy, blocks=4)) == table("""
        at | prefill | decode | slots
        0  | A:4     | -      | 1
        1  | -       | A      | 1
        2  | -       | A      | 1
        3  | H:4     | -      | 1
        4  | -       | H      | 1
        5  | C:1     | -      | 1
    """)


@pytest.mark.parametrize(("max_model_len", "first"), [(16, "0 | A:4 | - | 1"), (8, "0 | A:4 B:2 | - | 2")])
@pytest.mark.parametrize("policy", [Orca, Tgi, TrtLlm])
def test_without_max_tokens_an_answer_may_get_as_long_as_the_model_takes(
    policy: type[Scheduler], max_model_len: int, first: str
) -> None:
    """Four blocks: room for one sequence of 16 tokens, or for two of 8."""
    load = """
        A 0 4 2 -
        B 0 2 1 -
    """
    assert shown(serve(load, policy, blocks=4, max_model_len=max_model_len))[0] == first


# ---- Orca ----------------------------------------------------------------------------------------------------------


def test_orca_runs_whole_prompts_beside_decodes_whatever_their_length_up_to_max_bs_requests() -> None:
    """Only the number of requests bounds an iteration: B's 9 tokens join although max_num_batched_tokens is 4."""
    load = """
        A 0   4 4 4
        B 0.5 9 2 2
        C 0.6 1 1 1
    """
    assert shown(serve(load, Orca, max_num_seqs=2, max_num_batched_tokens=4)) == table("""
        at | prefill | decode | slots
        0  | A:4     | -      | 1
        1  | B:9     | A      | 2
        2  | -       | A B    | 2
        3  | C:1     | A      | 2
    """)


# ---- FasterTransformer ---------------------------------------------------------------------------------------------

RAGGED = """
A 0 2 3 -
B 0 3 1 -
C 0 1 2 -
D 0 2 2 -
"""


def test_faster_transformer_has_as_many_rows_as_the_longest_sequence_fits_the_memory() -> None:
    """Six blocks are three rows of 8 tokens. Prompts are padded to 3; B's row is held two iterations, C's one."""
    log = serve(RAGGED, lambda: FasterTransformer(4), blocks=6, max_model_len=8)
    assert shown(log, "padding") == table("""
        at | prefill     | decode | slots | padding
        0  | A:2 B:3 C:1 | -      | 3     | 3
        1  | -           | A C    | 3     | 1
        2  | -           | A      | 3     | 2
        3  | D:2         | -      | 1     | 0
        4  | -           | D      | 1     | 0
    """)
    assert ms(log, "finish_ns") == {"A": 3, "B": 3, "C": 3, "D": 5}
    assert shown(serve(RAGGED, lambda: Dynamic(4), blocks=6, max_model_len=8))[0] == "0 | A:2 B:3 C:1 D:2 | - | 4"


def test_faster_transformer_delays_a_batch_that_is_not_full() -> None:
    """A batch of two: B fills A's at 1; C's patience ends at 5 + 3; with D nothing more will arrive."""
    load = """
        A 0  2 2 -
        B 1  2 2 -
        C 5  2 2 -
        D 20 2 1 -
    """
    assert shown(serve(load, lambda: FasterTransformer(2, 3), max_model_len=100)) == table("""
        at | prefill | decode | slots
        1  | A:2 B:2 | -      | 2
        2  | -       | A B    | 2
        8  | C:2     | -      | 1
        9  | -       | C      | 1
        20 | D:2     | -      | 1
    """)


# ---- vLLM V0 -------------------------------------------------------------------------------------------------------

NEARLY_FULL = """
A 0 16 3 -
B 0 8  2 -
C 0 4  1 -
"""


def test_vllm_v0_admits_only_what_leaves_the_watermark_free() -> None:
    """A quarter of eight blocks stays free: C, whose block would be the seventh, waits until B has left."""
    assert shown(serve(NEARLY_FULL, lambda: VllmV0(watermark=0.25), blocks=8)) == table("""
        at | prefill   | decode | slots
        0  | A:16 B:8  | -      | 2
        1  | -         | A B    | 2
        2  | C:4       | -      | 2
        3  | -         | A      | 1
    """)
    assert shown(serve(NEARLY_FULL, lambda: VllmV0(watermark=0), blocks=8))[0] == "0 | A:16 B:8 C:4 | - | 3"


def test_vllm_v0_lets_a_request_that_is_alone_have_the_watermark_too() -> None:
    load = """
        A 0 28 1 -
        B 0 4  1 -
    """
    assert shown(serve(load, lambda: VllmV0(watermark=0.25), blocks=8)) == table("""
        at | prefill | decode | slots
        0  | A:28    | -      | 1
        1  | B:4     | -      | 1
    """)


def test_vllm_v0_decodes_only_when_nothing_can_be_prefilled() -> None:
    load = """
        A 0   2 4 -
        B 0.5 2 2 -
        C 1.5 2 2 -
    """
    assert shown(serve(load, VllmV0)) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | B:2     | -      | 2
        2  | C:2     | -      | 3
        3  | -       | A B C  | 3
        4  | -       | A      | 1
        5  | -       | A      | 1
    """)


# ---- TGI -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waiting", "prefilled_at"), [(11, 21), (12, 2)])
def test_tgi_at_ratio_1_2_stops_ten_for_twelve_and_not_for_eleven(waiting: int, prefilled_at: int) -> None:
    """Eleven have to wait for max_waiting_tokens, 20 decodes, from 1 to 20 ms."""
    load = "".join(f"R{i} 0 2 30 30\n" for i in range(10)) + "".join(f"W{i} 1.5 2 1 1\n" for i in range(waiting))
    rows = shown(serve(load, lambda: Tgi(waiting_served_ratio=1.2)))
    prefills = [row.split(" | ")[0] for row in rows if "W0:2" in row]
    assert prefills == [str(prefilled_at)]


def test_tgi_prefills_alone_once_enough_wait_for_those_that_run() -> None:
    """Two run, so at a ratio of 1 it takes two to interrupt them: C waits for D."""
    load = """
        A 0   2 5 5
        B 0   2 5 5
        C 0.5 2 2 2
        D 2.5 2 2 2
    """
    assert shown(serve(load, lambda: Tgi(waiting_served_ratio=1))) == table("""
        at | prefill | decode  | slots
        0  | A:2 B:2 | -       | 2
        1  | -       | A B     | 2
        2  | -       | A B     | 2
        3  | C:2 D:2 | -       | 4
        4  | -       | A B C D | 4
        5  | -       | A B     | 2
    """)


def test_tgi_rounds_the_number_that_has_to_wait_down() -> None:
    """floor(0.6 x 2) = 1."""
    load = """
        A 0   2 3 3
        B 0   2 3 3
        C 0.5 2 1 1
    """
    assert shown(serve(load, lambda: Tgi(waiting_served_ratio=0.6))) == table("""
        at | prefill | decode | slots
        0  | A:2 B:2 | -      | 2
        1  | -       | A B    | 2
        2  | C:2     | -      | 3
        3  | -       | A B    | 2
    """)


def test_tgi_prefills_any_number_after_max_waiting_tokens_decodes() -> None:
    """Three decodes, from 1 to 3; the count begins anew with the prefill at 4."""
    load = """
        A 0   2 9 9
        B 0.5 2 1 1
        C 2.5 2 1 1
        D 4.5 2 1 1
    """
    assert shown(serve(load, lambda: Tgi(waiting_served_ratio=9, max_waiting_tokens=3))) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | -       | A      | 1
        2  | -       | A      | 1
        3  | -       | A      | 1
        4  | B:2 C:2 | -      | 3
        5  | -       | A      | 1
        6  | -       | A      | 1
        7  | -       | A      | 1
        8  | D:2     | -      | 2
        9  | -       | A      | 1
        10 | -       | A      | 1
    """)


def test_tgi_decodes_at_least_once_between_two_prefills() -> None:
    """Nobody has to wait for others at a ratio of 0; B is there at 1, C at 3, right after a prefill."""
    load = """
        A 0   2 4 4
        B 0.5 2 2 2
        C 2.5 2 1 1
    """
    assert shown(serve(load, lambda: Tgi(waiting_served_ratio=0))) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | -       | A      | 1
        2  | B:2     | -      | 2
        3  | -       | A B    | 2
        4  | C:2     | -      | 2
        5  | -       | A      | 1
    """)


def test_tgi_bounds_the_prompts_of_a_batch_by_tokens_rounded_up_to_a_block() -> None:
    """7 tokens are two blocks of four, which A and B fill; L is longer than any batch and goes alone."""
    load = """
        A 0 5 1 1
        B 0 3 1 1
        C 0 1 1 1
        L 0 9 1 1
        D 0 1 1 1
    """
    assert shown(serve(load, lambda: Tgi(max_batch_prefill_tokens=7))) == table("""
        at | prefill | decode | slots
        0  | A:5 B:3 | -      | 2
        1  | C:1     | -      | 1
        2  | L:9     | -      | 1
        3  | D:1     | -      | 1
    """)


def test_tgi_bounds_prompts_and_potential_tokens_of_all_and_stops_at_the_first_over_budget() -> None:
    """A and B may come to 15 of 17 tokens, so C (6) waits for A to end, and D (2), which would fit, behind C."""
    load = """
        A 0   4 3 4
        B 0   2 5 5
        C 0.5 2 2 4
        D 0.5 1 1 1
    """
    assert shown(serve(load, lambda: Tgi(max_batch_total_tokens=17))) == table("""
        at | prefill | decode | slots
        0  | A:4 B:2 | -      | 2
        1  | -       | A B    | 2
        2  | -       | A B    | 2
        3  | C:2 D:1 | -      | 3
        4  | -       | B C    | 2
        5  | -       | B      | 1
    """)


@pytest.mark.parametrize(("max_tokens", "first"), [(5, "0 | A:4 B:4 | - | 2"), (6, "0 | A:4 | - | 1")])
def test_tgi_takes_blocks_for_all_tokens_but_the_last_up_front(max_tokens: int, first: str) -> None:
    """Four blocks: 4 + 5 - 1 tokens are two of them, 4 + 6 - 1 tokens three."""
    load = f"""
        A 0 4 2 {max_tokens}
        B 0 4 2 {max_tokens}
    """
    assert shown(serve(load, lambda: Tgi(max_batch_total_tokens=100), blocks=4))[0] == first


def test_tgi_does_not_interrupt_for_a_batch_that_would_be_too_small() -> None:
    """Two wait for two, but only C fits beside them: it waits for four decodes, from 1 to 4."""
    load = """
        A 0   4 6 8
        B 0   4 6 8
        C 0.5 4 1 4
        D 0.5 4 1 8
    """
    policy = lambda: Tgi(waiting_served_ratio=1, max_waiting_tokens=4, max_batch_total_tokens=32)  # noqa: E731
    assert shown(serve(load, policy)) == table("""
        at | prefill | decode | slots
        0  | A:4 B:4 | -      | 2
        1  | -       | A B    | 2
        2  | -       | A B    | 2
        3  | -       | A B    | 2
        4  | -       | A B    | 2
        5  | C:4     | -      | 3
        6  | -       | A B    | 2
        7  | D:4     | -      | 1
    """)


# ---- TensorRT-LLM --------------------------------------------------------------------------------------------------

GROWING = """
A 0   4 6 6
B 0   4 6 6
C 4.5 2 1 1
"""


def test_max_utilization_pauses_the_last_started_which_computes_all_again() -> None:
    """Four blocks, two each when both hold 8 tokens. A's ninth takes B's; B comes back with 4 + 5 tokens.

    The block that is left at 5 would do for C, but nobody is admitted in an iteration that paused somebody.
    """
    log = serve(GROWING, lambda: TrtLlm("max_utilization"), blocks=4)
    assert shown(log, "preempted") == table("""
        at | prefill | decode | slots | preempted
        0  | A:4 B:4 | -      | 2     | -
        1  | -       | A B    | 2     | -
        2  | -       | A B    | 2     | -
        3  | -       | A B    | 2     | -
        4  | -       | A B    | 2     | -
        5  | -       | A      | 1     | B
        6  | B:9 C:2 | -      | 2     | -
    """)
    assert log.sequences["recomputed_tokens"].tolist() == [0, 8, 0]


def test_guaranteed_no_evict_admits_one_after_the_other_instead() -> None:
    """A and B may get 10 tokens each, three blocks; C fits beside B, and behind it."""
    assert shown(serve(GROWING, TrtLlm, blocks=4), "preempted") == table("""
        at | prefill | decode | slots | preempted
        0  | A:4     | -      | 1     | -
        1  | -       | A      | 1     | -
        2  | -       | A      | 1     | -
        3  | -       | A      | 1     | -
        4  | -       | A      | 1     | -
        5  | -       | A      | 1     | -
        6  | B:4 C:2 | -      | 2     | -
        7  | -       | B      | 1     | -
        8  | -       | B      | 1     | -
        9  | -       | B      | 1     | -
        10 | -       | B      | 1     | -
        11 | -       | B      | 1     | -
    """)


@pytest.mark.parametrize("capacity", ["guaranteed_no_evict", "max_utilization"])
def test_trtllm_keeps_prompts_whole_within_max_num_tokens(capacity: str) -> None:
    """6 tokens: C's 5 don't fit beside two decodes; L is longer than any iteration and the only prompt of its own."""
    load = """
        A 0   6 4 4
        B 0.5 5 3 3
        C 0.5 5 2 2
        L 0.5 9 1 1
        D 0.5 1 1 1
    """
    assert shown(serve(load, lambda: TrtLlm(capacity), max_num_batched_tokens=6, max_num_seqs=6)) == table("""
        at | prefill | decode | slots
        0  | A:6     | -      | 1
        1  | B:5     | A      | 2
        2  | -       | A B    | 2
        3  | -       | A B    | 2
        4  | C:5     | -      | 1
        5  | L:9     | C      | 2
        6  | D:1     | -      | 1
    """)


def under_pressure(capacity: str, blocks: int) -> RunLog:
    """40 requests at once, 4,000 + 2,000 tokens each; a token of prefill costs a tenth of an iteration of decode."""
    return run(
        [Request(str(i), 0, 4000, 2000, 2000) for i in range(40)],
        scheduler=TrtLlm(capacity),
        cost_model=IntegerCost(10 * MS, MS),
        kv=BlockPool(blocks + 1),
        limits=Limits(max_num_batched_tokens=8192),
    )


def test_the_capacity_policies_are_equal_while_memory_suffices() -> None:
    no_evict, max_utilization = (under_pressure(c, 40 * 375) for c in ("guaranteed_no_evict", "max_utilization"))
    assert no_evict.digest == max_utilization.digest


def test_pausing_costs_throughput_and_pauses_between_tokens_once_memory_is_short() -> None:
    """Room for ten and a half requests: 18 pauses and the prompts computed again cost a fifth of the throughput.

    How much depends on what computing again costs; TensorRT-LLM issue 16827 saw 41 % and nine times the TPOT.
    """
    logs = [under_pressure(capacity, 3938) for capacity in ("guaranteed_no_evict", "max_utilization")]
    assert [int(log.sequences["preemptions"].sum()) for log in logs] == [0, 18]
    no_evict, max_utilization = (summary(log) for log in logs)
    assert max_utilization["output_throughput"] < 0.8 * no_evict["output_throughput"]
    assert max_utilization["p99_tpot_ms"] > 2 * no_evict["p99_tpot_ms"]
