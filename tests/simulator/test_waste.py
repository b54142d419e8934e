"""The identities on random runs, each part against a walk over single cells, and figures worked out by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import IntegerCost, Setup, setups
from tokensim import TokenSim

from simulator import BlockPool, Limits, Request, Reservation, RunLog, Scheduler, run
from simulator.metrics import duration_ns
from simulator.recorder import ADMIT, PREEMPT, RELEASE
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.static import Static
from simulator.usage import utilisation
from simulator.waste import KvTime, SlotTime, kv_time, reserved_tokens, slot_time, waste_table, waste_text

token_runs = st.builds(
    TokenSim,
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.2, 0.8]),
)


def accounts(setup: Setup) -> tuple[RunLog, SlotTime, KvTime]:
    memory = setup.memory()
    log = setup.run(kv=memory)
    reserved = reserved_tokens(log, setup.requests, memory) if isinstance(memory, Reservation) else None
    kv = kv_time(log, reserved)
    assert kv is not None
    return log, slot_time(log), kv


# ---- identities ----------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(setups())
def test_slot_time_and_memory_add_up_exactly(setup: Setup) -> None:
    log, slots, kv = accounts(setup)
    assert slots.total == setup.limits.max_num_seqs * duration_ns(log)
    assert kv.total == log.info["num_gpu_blocks"] * log.info["block_size"] * duration_ns(log)
    assert min(*slots, *kv) >= 0
    took = log.iterations["end_ns"] - log.iterations["start_ns"]
    taken = sum(a * b for a, b in zip(log.iterations["kv_blocks"].tolist(), took.tolist(), strict=True))
    assert kv.used + kv.reserved_unused + kv.fragmentation == taken * log.info["block_size"]


@settings(max_examples=200)
@given(token_runs)
def test_slot_time_adds_up_for_any_legal_schedule(sim: TokenSim) -> None:
    """Also where rows sit out at random, and where the engine pauses while sequences hold slots."""
    log = sim.run()
    slots = slot_time(log)
    assert slots.total == log.info["max_num_seqs"] * duration_ns(log)
    assert min(slots) >= 0


@settings(max_examples=200)
@given(setups())
def test_each_part_is_what_single_cells_give(setup: Setup) -> None:
    log, slots, kv = accounts(setup)
    cells, fragmentation = walk(log)
    assert slots._replace(vacant=0, idle=0) == SlotTime(**cells, vacant=0, idle=0)
    assert kv.used == walk_used(log)
    if log.info["kv"] == "paged":
        assert kv.fragmentation == fragmentation
        assert kv.reserved_unused == 0


@settings(max_examples=100)
@given(setups())
def test_work_that_is_useful_is_done_once(setup: Setup) -> None:
    """With prompts of one token and iterations of 1 ns, useful time counts tokens: all but each request's last."""
    ones = [r._replace(prompt_tokens=1) for r in setup.requests]
    log, slots, _ = accounts(setup._replace(requests=ones, cost=IntegerCost(1, 0, 0), host_overhead_ns=0))
    s = log.sequences
    assume(not (s["recomputed_tokens"].any() and setup.scheduler().holds_slots))  # a longer row pads the others
    assert slots.useful == (s["emitted_tokens"] * s["finished"]).sum()
    assert slots.padding == 0


def walk(log: RunLog) -> tuple[dict[str, int], int]:
    """Slot-nanoseconds of the cells with a sequence in them, and the rest of last blocks, found one by one."""
    cells: Counter[str] = Counter(dict.fromkeys(("useful", "padding", "held", "stalled", "recomputed"), 0))
    fragmentation = 0
    most: dict[int, int] = defaultdict(int)  # tokens that a sequence ever had in memory
    for took, members, chunks, decodes, padded, computed in iterations(log):
        longest = max(chunks.values(), default=0)
        for seq in members:
            if seq in chunks:
                tokens, after = chunks[seq], computed[seq]
                width = longest if padded else tokens
                old = min(tokens, max(0, most[seq] - (after - tokens)))
                cuts = [took * part // width for part in (0, old, tokens, width)]
                for name, begin, end in zip(("recomputed", "useful", "padding"), cuts, cuts[1:], strict=False):
                    cells[name] += end - begin
            elif seq in decodes:
                cells["useful"] += took
            else:
                total = int(log.sequences["prompt_tokens"][seq] + log.sequences["output_tokens"][seq])
                cells["held" if computed[seq] == total - 1 else "stalled"] += took
            most[seq] = max(most[seq], computed[seq])
            fragmentation += -computed[seq] % log.info["block_size"] * took
    return dict(cells), fragmentation


def walk_used(log: RunLog) -> int:
    return sum(took * sum(computed[seq] for seq in members) for took, members, *_, computed in iterations(log))


def iterations(log: RunLog) -> Any:
    """Each iteration: its length, who is in it, chunks, decodes, whether it is padded, tokens in memory after it."""
    chunks: dict[int, dict[int, int]] = defaultdict(dict)
    for i, seq, tokens in zip(*(log.chunks[c].tolist() for c in ("iteration", "sequence", "tokens")), strict=True):
        chunks[i][seq] = tokens
    decodes: dict[int, set[int]] = defaultdict(set)
    for seq, first, last in zip(*(log.spans[c].tolist() for c in ("sequence", "first", "last")), strict=True):
        for i in range(first, last + 1):
            if log.iterations["decode_seqs"][i]:
                decodes[i].add(seq)
    events: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, kind, seq in zip(*(log.events[c].tolist() for c in ("iteration", "kind", "sequence")), strict=True):
        events[i].append((kind, seq))
    members: set[int] = set()
    late: set[int] = set()
    computed: dict[int, int] = {}
    columns = (log.iterations[c].tolist() for c in ("start_ns", "end_ns", "slots", "padding_tokens"))
    for i, (start_ns, end_ns, slots, padding) in enumerate(zip(*columns, strict=True)):
        members -= late
        late = set()
        for kind, seq in events[i]:
            if kind == ADMIT:
                members.add(seq)
                computed[seq] = 0
            elif kind == PREEMPT:
                members.remove(seq)
            elif kind == RELEASE and seq in members:
                late.add(seq)
        if len(members) != slots:  # it was planned when they had gone
            members -= late
        assert len(members) == slots
        for seq in members:
            computed[seq] += chunks[i].get(seq, 0) + (seq in decodes[i])
        yield end_ns - start_ns, set(members), chunks[i], decodes[i], padding > 0, computed


# ---- by hand -------------------------------------------------------------------------------------------------------


def serve(load: list[tuple[int, int, int]], scheduler: Scheduler, memory: Any = None, **options: Any) -> RunLog:
    """Requests as (arrival, prompt, output); every iteration takes 10 ns. Options that aren't `run`'s are limits."""
    limits = Limits(**{key: options.pop(key) for key in list(options) if key in Limits._fields})
    requests = [Request(str(i), *row) for i, row in enumerate(load)]
    memory = memory or BlockPool(1001, 4)
    return run(requests, scheduler=scheduler, cost_model=IntegerCost(10, 0, 0), kv=memory, limits=limits, **options)


FOUR = [(0, 1, output) for output in (2, 5, 8, 12)]


def test_four_slots_of_2_5_8_and_12_iterations_are_useful_for_27_of_48() -> None:
    log = serve(FOUR * 2, Static(batch_size=4), max_num_seqs=4)
    slots = slot_time(log)
    assert slots == SlotTime(useful=540, padding=0, held=420, stalled=0, recomputed=0, vacant=0, idle=0)
    assert slots.useful_share == slots.useful_share_of_held == 27 / 48
    assert slots.busy_share == 1
    assert utilisation(log)["useful_slots"] == 27 / 48


def test_continuous_batching_leaves_slots_empty_only_at_the_end() -> None:
    """The last one, of 12 iterations, gets the slot that the third leaves after 8: 20 iterations in all."""
    slots = slot_time(serve(FOUR * 2, Continuous(order="orca"), max_num_seqs=4))
    assert slots == SlotTime(useful=540, padding=0, held=0, stalled=0, recomputed=0, vacant=4 * 200 - 540, idle=0)


def test_slots_may_be_more_than_the_batch_but_not_fewer() -> None:
    log = serve(FOUR, Static(batch_size=4), max_num_seqs=256)
    assert slot_time(log, 4) == SlotTime(270, 0, 210, 0, 0, 0, 0)
    assert slot_time(log, 5) == SlotTime(270, 0, 210, 0, 0, 120, 0)
    assert slot_time(log).total == 256 * 120
    with pytest.raises(ValueError, match=r"3 slots .*held 4 at once"):
        slot_time(log, 3)


def test_a_padded_prefill_is_divided_by_tokens_to_the_last_nanosecond() -> None:
    """Prompts of 3, 4 and 7 tokens in 10 ns: floor(30/7) and floor(40/7) are useful, then one decode iteration."""
    slots = slot_time(serve([(0, 3, 2), (0, 4, 2), (0, 7, 2)], Static(batch_size=3), max_num_seqs=3))
    assert slots == SlotTime(4 + 5 + 10 + 30, 6 + 5, 0, 0, 0, 0, 0)


def test_decodes_are_stalled_by_a_prefill_of_others() -> None:
    """A prefills in 0-10 and decodes, B arrives at 15 and prefills in 20-30; the engine idles in 0-5."""
    slots = slot_time(serve([(5, 2, 4), (20, 2, 2)], Continuous(), max_num_seqs=3))
    assert slots == SlotTime(useful=60, padding=0, held=0, stalled=10, recomputed=0, vacant=80, idle=15)
    assert slots.waiting == 10
    assert slots.empty == 95


def test_asynchronous_scheduling_holds_a_slot_for_one_iteration_more() -> None:
    load = [(0, 1, 2), (0, 1, 5)]
    assert slot_time(serve(load, Chunked(), max_num_seqs=2)) == SlotTime(70, 0, 0, 0, 0, 30, 0)
    ahead = serve(load, Chunked(), max_num_seqs=2, async_scheduling=True)
    assert slot_time(ahead) == SlotTime(70, 0, 10, 0, 0, 20, 0)


def test_recomputed_is_what_was_in_memory_before_the_preemption() -> None:
    """8 blocks of 1 token. Two prompts of 3: both decode once (8 tokens), then B loses its 4 and A goes on alone.

    A ends with 5 tokens in memory (its last one isn't written). B computes 4 again and 1 new one in one iteration,
    of which floor(40 / 5) ns are recomputed, then decodes once.
    """
    log = serve([(0, 3, 3), (0, 3, 4)], Continuous(), BlockPool(9, 1), max_num_seqs=2)
    assert log.sequences["recomputed_tokens"].tolist() == [0, 4]
    assert slot_time(log) == SlotTime(useful=20 + 20 + 10 + 2 + 10, padding=0, held=0, stalled=0, recomputed=8,
                                      vacant=30, idle=0)  # fmt: skip
    assert kv_time(log) == KvTime(10 * (6 + 8 + 5 + 5 + 6), 0, 0, 0, 10 * (2 + 0 + 3 + 3 + 2))


def test_paged_memory_wastes_the_rest_of_the_last_block() -> None:
    """Blocks of 4, 5 of them: 3, then 4, then 5 tokens of one request."""
    log = serve([(0, 3, 3)], Chunked(), BlockPool(6, 4), max_num_seqs=1)
    assert kv_time(log) == KvTime(10 * (3 + 4 + 5), 0, 0, 10 * (1 + 0 + 3), 10 * (16 + 16 + 12))


@pytest.mark.parametrize(
    ("rule", "wanted", "reserved"), [("exact", 6, 9), ("pow2", 6, 11), ("max", 6, 18), ("exact", None, 6)]
)
def test_reserved_memory_is_used_late_or_never(rule: str, wanted: int | None, reserved: int) -> None:
    """3 prompt tokens and 3 of output: 3, 4, 5 in memory. 5 blocks of 4; the engine idles for the first 7 ns."""
    requests = [Request("a", 7, 3, 3, wanted)]
    memory = Reservation(5, 4, rule, 18)  # type: ignore[arg-type]
    log = run(requests, scheduler=Chunked(), cost_model=IntegerCost(10, 0, 0), kv=memory, limits=Limits(1))
    tokens = reserved_tokens(log, requests, memory)
    assert tokens.tolist() == [reserved]
    rounded = -(-reserved // 4) * 4
    assert kv_time(log, tokens) == KvTime(
        used=10 * (3 + 4 + 5),
        not_yet_used=10 * (2 + 1 + 0),
        never_used=30 * (reserved - 5),
        fragmentation=30 * (rounded - reserved),
        free=30 * (20 - rounded) + 7 * 20,
    )
    with pytest.raises(ValueError, match="don't give the blocks"):
        kv_time(log, tokens + 4)
    with pytest.raises(ValueError, match="without the tokens reserved"):
        kv_time(log)


def test_tables_and_text() -> None:
    log = serve([(0, 3, 2), (0, 4, 2), (0, 7, 2)], Static(batch_size=3), max_num_seqs=3)
    table = waste_table(log)
    assert list(table) == [
        "slots", "makespan_s", "slots_useful", "slots_padding", "slots_waiting", "slots_recomputed", "slots_empty",
        "busy", "useful_of_held", "kv_used", "kv_reserved_unused", "kv_fragmentation", "kv_free",
    ]  # fmt: skip
    assert table["slots_useful"] == 49 / 60
    assert sum(v for k, v in table.items() if k.startswith("slots_")) == pytest.approx(1)
    assert sum(v for k, v in table.items() if k.startswith("kv_")) == pytest.approx(1)
    assert waste_text(log).splitlines()[:2] == [
        "slots x makespan: 3 x 2e-08 s",
        "slot time: useful 81.7%, padding 18.3%, waiting 0.0%, recomputed 0.0%, empty 0.0%",
    ]


def test_what_cant_be_told_of_memory_is_left_out() -> None:
    log = serve([(0, 3, 3)], Chunked(), Reservation(5, 4, "max", 18), max_num_seqs=1)
    assert not any(key.startswith("kv_") for key in waste_table(log))
    log.info["num_gpu_blocks"] = None
    assert kv_time(log, np.array([18])) is None


def test_memory_that_may_be_shared_is_left_out() -> None:
    """Four tokens were there when the request was admitted: found in a prefix cache."""
    log = serve([(0, 7, 3)], Chunked(), max_num_seqs=1)
    log.chunks["context"] += 4
    assert kv_time(log) is None
    assert slot_time(log) == SlotTime(30, 0, 0, 0, 0, 0, 0)


def test_a_run_in_which_nothing_was_served_is_idle_throughout() -> None:
    log = serve([(50, 3, 0)], Chunked(), max_num_seqs=2)
    assert slot_time(log) == SlotTime(0, 0, 0, 0, 0, 0, 100)
    assert kv_time(log) == KvTime(0, 0, 0, 0, 4000 * 50)
