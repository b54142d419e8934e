"""Schedules of three to five requests, derived by hand from each policy's rules and written as tables.

A request is a name followed by: when it arrives (ms), prompt tokens, output tokens. Every iteration takes 1 ms. A row
of a table is an iteration: when it starts (ms), who prefills how many tokens, who decodes, slots held when it was
planned, and, where a test asks for them, tokens of padding or who is preempted. A prompt's last chunk brings out the
first token.
"""

from __future__ import annotations

from typing import Any

import pytest
from steps import steps_of

from simulator import BlockPool, Limits, Request, RunLog, Scheduler, run
from simulator.costs.constant import Constant
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static
from simulator.specs import Platform, get_gpu, get_model

MS = 1_000_000
PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb"))


def requests(text: str) -> list[Request]:
    """One request per line: name, arrival in ms, prompt tokens, output tokens and, where given, its priority."""
    out = []
    for line in text.strip().splitlines():
        name, at_ms, prompt, output, *priority = line.split()
        out.append(
            Request(
                name, round(float(at_ms) * MS), int(prompt), int(output), priority=int(priority[0]) if priority else 0
            )
        )
    return out


def serve(load: str, scheduler: Scheduler, *, blocks: int = 1000, block_size: int = 16, **options: Any) -> RunLog:
    """A run of `load`; options that aren't `run`'s are limits. Stepping must give the same."""
    limits = Limits(**{key: options.pop(key) for key in list(options) if key in Limits._fields})
    logs = [
        run(
            requests(load),
            scheduler=scheduler,
            cost_model=Constant(PLATFORM, iteration_us=1000),
            kv=BlockPool(blocks + 1, block_size),
            limits=limits,
            fast_forward=fast_forward,
            **options,
        )
        for fast_forward in (True, False)
    ]
    assert logs[0].digest == logs[1].digest
    assert logs[0].sequences["finished"].all()
    return logs[0]


def shown(log: RunLog, extra: str = "") -> list[str]:
    """The run as a table's rows; `extra` is "padding", "preempted" or nothing."""
    rows = []
    for i, step in enumerate(steps_of(log)):
        prefill = " ".join(f"{name}:{tokens}" for name, tokens in step.rows if name not in step.decodes)
        cells = [f"{step.start_ns / MS:g}", prefill or "-", " ".join(step.decodes) or "-"]
        cells.append(str(log.iterations["slots"][i]))
        if extra == "padding":
            cells.append(str(log.iterations["padding_tokens"][i]))
        elif extra == "preempted":
            cells.append(" ".join(step.preempted) or "-")
        rows.append(" | ".join(cells))
    return rows


def table(text: str) -> list[str]:
    """A literal table's rows without its head."""
    return [" | ".join(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines()[1:]]


def ms(log: RunLog, column: str) -> dict[str, float]:
    """A column of times per request, in milliseconds."""
    return dict(zip(log.ids, (log.sequences[column] / MS).tolist(), strict=True))


# ---- iteration-level scheduling ------------------------------------------------------------------------------------

FIVE = """
A 0 2 5
B 0 2 3
C 0 2 8
D 0 2 4
E 0 2 2
"""


@pytest.mark.parametrize("scheduler", [Continuous(order="orca"), Chunked()], ids=["orca", "chunked"])
def test_a_slot_is_refilled_in_the_iteration_after_it_came_free(scheduler: Scheduler) -> None:
    """Three slots. B ends in the third iteration, D joins in the fourth; A ends in the fifth, E joins in the sixth."""
    assert shown(serve(FIVE, scheduler, max_num_seqs=3)) == table("""
        at | prefill     | decode | slots
        0  | A:2 B:2 C:2 | -      | 3
        1  | -           | A B C  | 3
        2  | -           | A B C  | 3
        3  | D:2         | A C    | 3
        4  | -           | A C D  | 3
        5  | E:2         | C D    | 3
        6  | -           | C D E  | 3
        7  | -           | C      | 1
    """)


def test_prefill_first_stalls_the_decodes_while_a_prompt_runs() -> None:
    assert shown(serve(FIVE, Continuous(), max_num_seqs=3)) == table("""
        at | prefill     | decode | slots
        0  | A:2 B:2 C:2 | -      | 3
        1  | -           | A B C  | 3
        2  | -           | A B C  | 3
        3  | D:2         | -      | 3
        4  | -           | A C D  | 3
        5  | -           | A C D  | 3
        6  | E:2         | -      | 3
        7  | -           | C D E  | 3
        8  | -           | C      | 1
        9  | -           | C      | 1
    """)


# Sizes of steps with four slots and five prompts (vLLM pull request 4162): prefill-first 4, 1, 4, 4, ...; where the
# decodes go first 4, 4, 4, ..., 1, 1.
EARLY_LEAVER = """
A 0 3 1
B 0 3 3
C 0 3 3
D 0 3 3
E 0 3 3
"""


def test_prefill_first_makes_steps_of_4_1_4_4() -> None:
    assert shown(serve(EARLY_LEAVER, Continuous(), max_num_seqs=4)) == table("""
        at | prefill         | decode  | slots
        0  | A:3 B:3 C:3 D:3 | -       | 4
        1  | E:3             | -       | 4
        2  | -               | B C D E | 4
        3  | -               | B C D E | 4
    """)


@pytest.mark.parametrize("scheduler", [Continuous(order="orca"), Chunked()], ids=["orca", "chunked"])
def test_decodes_first_makes_steps_of_4_4_4_1(scheduler: Scheduler) -> None:
    assert shown(serve(EARLY_LEAVER, scheduler, max_num_seqs=4)) == table("""
        at | prefill         | decode | slots
        0  | A:3 B:3 C:3 D:3 | -      | 4
        1  | E:3             | B C D  | 4
        2  | -               | B C D E | 4
        3  | -               | E      | 1
    """)


@pytest.mark.parametrize(
    "scheduler",
    [Continuous(), Continuous(order="orca"), Chunked(), Static(4), Dynamic(4)],
    ids=["prefill_first", "orca", "chunked", "static", "dynamic"],
)
def test_five_equal_requests_make_steps_of_4_4_4_1_1_1_everywhere(scheduler: Scheduler) -> None:
    """Nobody leaves before its batch does, so request-level and iteration-level batching are the same."""
    load = "\n".join(f"{name} 0 3 3" for name in "ABCDE")
    assert shown(serve(load, scheduler, max_num_seqs=4)) == table("""
        at | prefill         | decode  | slots
        0  | A:3 B:3 C:3 D:3 | -       | 4
        1  | -               | A B C D | 4
        2  | -               | A B C D | 4
        3  | E:3             | -       | 1
        4  | -               | E       | 1
        5  | -               | E       | 1
    """)


def test_prefill_first_packs_whole_prompts_up_to_the_budget_and_a_longer_one_alone() -> None:
    """Budget 8: B doesn't fit beside A; C is longer than any budget and goes alone; nobody overtakes."""
    load = """
        A 0 5 1
        B 0 4 2
        C 0 9 1
        D 0 2 1
    """
    assert shown(serve(load, Continuous(), max_num_batched_tokens=8)) == table("""
        at | prefill | decode | slots
        0  | A:5     | -      | 1
        1  | B:4     | -      | 1
        2  | C:9     | -      | 2
        3  | D:2     | -      | 2
        4  | -       | B      | 1
    """)


def test_orca_counts_the_decodes_in_the_budget() -> None:
    """Budget 6: beside A's decode 5 tokens are left, which B takes whole; C (4) has to wait until B decodes too."""
    load = """
        A 0   6 4
        B 0.5 5 3
        C 0.5 4 1
    """
    assert shown(serve(load, Continuous(order="orca"), max_num_batched_tokens=6)) == table("""
        at | prefill | decode | slots
        0  | A:6     | -      | 1
        1  | B:5     | A      | 2
        2  | C:4     | A B    | 3
        3  | -       | A B    | 2
    """)


# ---- chunked -------------------------------------------------------------------------------------------------------

HOG = """
H 0   20 2
N 0.5  3 2
"""


def test_a_long_prompt_eats_the_whole_budget() -> None:
    """Budget 8: the newcomer gets what the hog's last chunk leaves."""
    assert shown(serve(HOG, Chunked(), max_num_batched_tokens=8)) == table("""
        at | prefill | decode | slots
        0  | H:8     | -      | 1
        1  | H:8     | -      | 1
        2  | H:4 N:3 | -      | 2
        3  | -       | H N    | 2
    """)


def test_the_threshold_leaves_room_for_the_newcomer() -> None:
    log = serve(HOG, Chunked(), max_num_batched_tokens=8, long_prefill_token_threshold=4)
    assert shown(log) == table("""
        at | prefill | decode | slots
        0  | H:4     | -      | 1
        1  | H:4 N:3 | -      | 2
        2  | H:4     | N      | 2
        3  | H:4     | -      | 1
        4  | H:4     | -      | 1
        5  | -       | H      | 1
    """)
    assert ms(log, "first_token_ns") == {"H": 5, "N": 2}


def test_chunks_fill_what_the_decodes_leave_of_the_budget() -> None:
    """Budget 4: A decodes first, B's prompt takes the three tokens left, then C's what B leaves."""
    load = """
        A 0   4 5
        B 0.5 7 2
        C 0.5 3 1
    """
    assert shown(serve(load, Chunked(), max_num_batched_tokens=4)) == table("""
        at | prefill | decode | slots
        0  | A:4     | -      | 1
        1  | B:3     | A      | 2
        2  | B:3     | A      | 2
        3  | B:1 C:2 | A      | 3
        4  | C:1     | A B    | 3
    """)


def test_a_prefill_budget_of_its_own_bounds_the_chunks() -> None:
    load = """
        A 0 3 3
        B 0 3 1
    """
    assert shown(serve(load, Chunked(), max_num_prefill_tokens=2)) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | A:1 B:1 | -      | 2
        2  | B:2     | A      | 2
        3  | -       | A      | 1
    """)


def test_asynchronous_scheduling_sees_arrivals_and_finishes_one_iteration_later() -> None:
    """Iteration n+1 is planned when n starts, so B (0.5 ms) misses the second one.

    A's last token comes out at 3: the iteration of that instant was planned at 2, with A's slot still held, so C joins
    only in the one after it. For the same reason B's slot counts in the last one.
    """
    load = """
        A 0   2 3
        B 0.5 2 3
        C 0.6 2 2
    """
    assert shown(serve(load, Chunked(), max_num_seqs=2)) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | B:2     | A      | 2
        2  | -       | A B    | 2
        3  | C:2     | B      | 2
        4  | -       | C      | 1
    """)
    assert shown(serve(load, Chunked(), max_num_seqs=2, async_scheduling=True)) == table("""
        at | prefill | decode | slots
        0  | A:2     | -      | 1
        1  | -       | A      | 1
        2  | B:2     | A      | 2
        3  | -       | B      | 2
        4  | C:2     | B      | 2
        5  | -       | C      | 2
    """)


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scheduler",
    [Continuous(), Continuous(order="orca"), Chunked()],
    ids=["prefill_first", "orca", "chunked"],
)
def test_the_last_admitted_is_preempted_and_recomputes_prompt_and_own_tokens(scheduler: Scheduler) -> None:
    """Four blocks of four tokens, two each when both hold 8 tokens. A's ninth takes B's; B comes back with 4 + 5."""
    load = """
        A 0 4 6
        B 0 4 6
    """
    log = serve(load, scheduler, blocks=4, block_size=4)
    assert shown(log, "preempted") == table("""
        at | prefill | decode | slots | preempted
        0  | A:4 B:4 | -      | 2     | -
        1  | -       | A B    | 2     | -
        2  | -       | A B    | 2     | -
        3  | -       | A B    | 2     | -
        4  | -       | A B    | 2     | -
        5  | -       | A      | 1     | B
        6  | B:9     | -      | 1     | -
    """)
    assert log.sequences["preemptions"].tolist() == [0, 1]
    assert log.sequences["recomputed_tokens"].tolist() == [0, 8]
    assert log.iterations["kv_blocks"].tolist() == [2, 4, 4, 4, 4, 3, 3]


def test_chunked_admits_only_what_fits_whole_and_nobody_overtakes() -> None:
    """Four blocks of four tokens: B (13 tokens) needs four, so it waits for A; C, which would fit, waits behind B."""
    load = """
        A 0 4  3
        B 0 13 1
        C 0 2  1
    """
    assert shown(serve(load, Chunked(), blocks=4, block_size=4)) == table("""
        at | prefill | decode | slots
        0  | A:4     | -      | 1
        1  | -       | A      | 1
        2  | -       | A      | 1
        3  | B:13    | -      | 1
        4  | C:2     | -      | 1
    """)


# ---- order of the queue --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "ABCD"), ("priority", "ADBC"), ("sjf", "ACBD")])
@pytest.mark.parametrize("kind", [Static, Dynamic, Continuous, Chunked])
def test_one_slot_serves_in_the_order_of_the_queue(kind: type[Scheduler], policy: str, order: str) -> None:
    """A runs alone from the start; the rest queue up behind it, in an order that never interrupts it."""
    load = """
        A 0   2 5 9
        B 0.1 2 3 1
        C 0.2 2 2 1
        D 0.3 2 4 0
    """
    scheduler = kind(1, policy=policy) if kind in (Static, Dynamic) else kind(policy=policy)  # type: ignore[call-arg]
    log = serve(load, scheduler, max_num_seqs=1)
    assert "".join(sorted("ABCD", key=ms(log, "scheduled_ns").__getitem__)) == order


# ---- request-level batching ----------------------------------------------------------------------------------------

RAGGED = """
A 0 2 3
B 0 3 1
C 0 1 2
D 0 2 2
E 0 2 2
"""


@pytest.mark.parametrize("respond_at", ["token", "batch_end"])
def test_static_pads_prompts_and_holds_finished_rows_until_the_batch_is_done(respond_at: str) -> None:
    """Prompts of 2, 3 and 1 make a rectangle of 3 x 3. B's row is held for two iterations, C's for one."""
    log = serve(RAGGED, Static(3, respond_at=respond_at))
    assert shown(log, "padding") == table("""
        at | prefill     | decode | slots | padding
        0  | A:2 B:3 C:1 | -      | 3     | 3
        1  | -           | A C    | 3     | 1
        2  | -           | A      | 3     | 2
        3  | D:2 E:2     | -      | 2     | 0
        4  | -           | D E    | 2     | 0
    """)
    assert ms(log, "released_ns") == {"A": 3, "B": 3, "C": 3, "D": 5, "E": 5}
    if respond_at == "token":
        assert ms(log, "first_token_ns") == {"A": 1, "B": 1, "C": 1, "D": 4, "E": 4}
        assert ms(log, "finish_ns") == {"A": 3, "B": 1, "C": 2, "D": 5, "E": 5}
    else:
        assert ms(log, "first_token_ns") == ms(log, "finish_ns") == ms(log, "released_ns")


SPARSE = """
A 0  2 2
B 2  2 2
C 5  2 2
D 20 2 1
"""


def test_static_waits_for_a_full_batch() -> None:
    assert shown(serve(SPARSE, Static(2))) == table("""
        at | prefill | decode | slots
        2  | A:2 B:2 | -      | 2
        3  | -       | A B    | 2
        20 | C:2 D:2 | -      | 2
        21 | -       | C      | 2
    """)


def test_static_starts_a_batch_that_waited_long_enough_or_will_never_fill() -> None:
    """C has waited its 4 ms at 9; nothing comes after D."""
    assert shown(serve(SPARSE, Static(2, batch_timeout_ms=4))) == table("""
        at | prefill | decode | slots
        2  | A:2 B:2 | -      | 2
        3  | -       | A B    | 2
        9  | C:2     | -      | 1
        10 | -       | C      | 1
        20 | D:2     | -      | 1
    """)


def test_dynamic_takes_what_waits_when_the_server_gets_free() -> None:
    """A runs alone for 3 ms; B, C and D, who came meanwhile, share the next batch, and E comes too late for it."""
    load = """
        A 0   2 3
        B 0.5 2 2
        C 1   4 1
        D 2.9 2 2
        E 3.1 2 1
    """
    log = serve(load, Dynamic(4))
    assert shown(log, "padding") == table("""
        at | prefill     | decode | slots | padding
        0  | A:2         | -      | 1     | 0
        1  | -           | A      | 1     | 0
        2  | -           | A      | 1     | 0
        3  | B:2 C:4 D:2 | -      | 3     | 4
        4  | -           | B D    | 3     | 1
        5  | E:2         | -      | 1     | 0
    """)


def test_dynamic_takes_a_batch_at_most_and_waits_its_delay_at_most() -> None:
    """Batches of two, 3 ms of delay: A and B fill one at 1; C waits until 5 in vain; D is the last one ever."""
    load = """
        A 0  2 1
        B 1  2 1
        C 2  2 1
        D 20 2 1
    """
    assert shown(serve(load, Dynamic(2, max_queue_delay_ms=3))) == table("""
        at | prefill | decode | slots
        1  | A:2 B:2 | -      | 2
        5  | C:2     | -      | 1
        20 | D:2     | -      | 1
    """)
