"""Invariants 1, 2, 4, 8, 9, 10, 11: what the engine holds, and what it may do with it."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from naive import events, replay, rows
from strategies import IntegerCost, Setup, setups

from simulator import BlockPool, Request, RunLog, Scheduler, run
from simulator.errors import PolicyError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import View
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic


class Orca(Continuous):
    def __init__(self) -> None:
        super().__init__("orca")


class Watcher:
    """A scheduler that notes what it could see each time it was asked."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.seen: list[tuple[int, int, int]] = []  # now_ns, waiting, running
        self.memory: list[tuple[int, int]] = []  # blocks taken, blocks held by sequences

    def __getattr__(self, name: str) -> object:
        return getattr(self.scheduler, name)

    def plan(self, view: View) -> IterationPlan:
        self.seen.append((view.now_ns, len(view.waiting), view.num_running))
        self.memory.append((view.kv.total - view.kv.free, sum(view.kv.held(seq) for seq in view.running)))
        return self.scheduler.plan(view)


@given(setups())
def test_invariant_01_conservation(setup: Setup) -> None:
    """submitted = finished + rejected + in the system, whenever the scheduler is asked, and at the end."""
    watcher = Watcher(setup.scheduler())
    log = setup.run(scheduler=watcher, fast_forward=False)
    s = rows(log.sequences)
    lost_turns = [i for i, reason in enumerate(log.reasons) if reason]
    for now_ns, waiting, running in watcher.seen:
        submitted = sum(row["arrival_ns"] <= now_ns for i, row in enumerate(s) if i not in lost_turns)
        before = sum(0 <= row["released_ns"] < now_ns for row in s)
        just_now = sum(row["released_ns"] == now_ns for row in s)  # some perhaps in answer to this very plan
        assert before <= submitted - waiting - running <= before + just_now
    assert len(s) == len(setup.requests) == sum(row["finished"] for row in s) + len(lost_turns)
    assert all(row["emitted_tokens"] == (row["output_tokens"] if row["finished"] else 0) for row in s)


@given(setups())
def test_invariant_01_tokens_are_conserved_in_every_iteration(setup: Setup) -> None:
    log = setup.run()
    played = replay(log)
    it = {name: column.tolist() for name, column in log.iterations.items()}
    assert it["decode_seqs"] == [len(seqs) for seqs in played.decoding]
    assert it["decode_context"] == played.decode_context
    assert it["prefill_tokens"] == played.prefill_tokens
    assert it["prefill_pairs"] == played.prefill_pairs
    assert it["slots"] == [len(holders) for holders in played.holders]
    for seq, row in enumerate(rows(log.sequences)):
        assert len(played.emissions[seq]) == row["emitted_tokens"]
        assert row["recomputed_tokens"] == played.lost[seq]


@given(setups())
def test_invariant_02_lifecycle_order(setup: Setup) -> None:
    """Admitted, perhaps preempted and admitted again, released once; or rejected and nothing else."""
    log = setup.run()
    lives = ["" for _ in log.ids]
    for _, kind, seq, _ in events(log):
        lives[seq] += {"admit": "A", "preempt": "P", "release": "F", "reject": "R"}[kind]
    # asynchronously, a sequence may be preempted with its last token in flight, which still comes out
    life = "(AP)*AP?F" if setup.asynchronous else "(AP)*AF"
    for row, story in zip(rows(log.sequences), lives, strict=True):
        assert re.fullmatch(life if row["finished"] else "R", story)
        assert row["preemptions"] == story.count("P")


@given(setups())
def test_invariant_04_blocks_in_use_equal_those_held(setup: Setup) -> None:
    """free + used = total whenever the scheduler is asked; every block is back at the end."""
    watcher, kv = Watcher(setup.scheduler()), setup.memory()
    setup.run(scheduler=watcher, kv=kv, fast_forward=False)
    assert all(taken == held <= kv.total for taken, held in watcher.memory)
    assert kv.free == kv.total


@given(setups())
def test_invariant_04_blocks_of_every_iteration(setup: Setup) -> None:
    """The column kv_blocks is what a count per token gives."""
    log = setup.run()
    played = replay(log)
    if setup.memory.cls is BlockPool:
        used = played.blocks(log.info["block_size"])
    else:
        reserved = [_reserved(setup, log.ids[seq]) for seq in range(len(log.ids))]
        used = [sum(reserved[seq] for seq in holders) for holders in played.holders]
    assert log.iterations["kv_blocks"].tolist() == used
    assert all(blocks <= log.info["num_gpu_blocks"] for blocks in used)


def _reserved(setup: Setup, name: str) -> int:
    request = next(r for r in setup.requests if r.id == name)
    rule, most = setup.memory.options["rule"], setup.memory.options["max_model_len"]
    output = request.output_tokens if request.max_tokens is None else request.max_tokens
    if rule == "pow2":
        output = next(2**k for k in range(40) if 2**k >= output)
    tokens = most if rule == "max" else min(most, request.prompt_tokens + output)
    return -(-tokens // setup.memory.options["block_size"])


@given(setups())
def test_invariant_08_limits(setup: Setup) -> None:
    """Tokens of an iteration, sequences, model length; a whole prompt may exceed the tokens when it is the only one."""
    log = setup.run()
    scheduler, bounds = setup.scheduler(), setup.limits
    most = scheduler.token_limit(bounds)
    for row in rows(log.iterations):
        lone = scheduler.whole_prompts and row["prefill_seqs"] == 1
        assert most is None or lone or row["prefill_tokens"] + row["decode_seqs"] <= most
        assert row["slots"] <= bounds.max_num_seqs
    for row in rows(log.sequences):
        assert not row["finished"] or row["prompt_tokens"] + row["output_tokens"] <= bounds.max_model_len
    if setup.scheduler.cls is Chunked:
        threshold, prefill = bounds.long_prefill_token_threshold, bounds.max_num_prefill_tokens
        assert not threshold or all(chunk["tokens"] <= threshold for chunk in rows(log.chunks))
        assert prefill is None or all(row["prefill_tokens"] <= prefill for row in rows(log.iterations))


@given(setups(policies=("fcfs", "priority")), st.data())
def test_invariant_09_no_oracle(setup: Setup, data: st.DataObject) -> None:
    """Another output length of one request changes nothing up to the iteration that emits its last shorter token."""
    assume(setup.requests)
    place = data.draw(st.integers(0, len(setup.requests) - 1))
    request = setup.requests[place]
    other = request._replace(output_tokens=data.draw(st.integers(1, 2 * request.output_tokens)))
    logs = [
        setup._replace(requests=[*setup.requests[:place], variant, *setup.requests[place + 1 :]]).run()
        for variant in (request, other)
    ]
    assume(not any(log.info["oracle"] or log.reasons[log.ids.index(request.id)] for log in logs))
    shorter = min(request.output_tokens, other.output_tokens)
    last = {replay(log).emissions[log.ids.index(request.id)][shorter - 1] for log in logs}
    assert len(last) == 1
    known = last.pop()
    a, b = (rows(log.iterations)[: known + 1] for log in logs)
    assert a == b
    a, b = ([row for row in rows(log.chunks) if row["iteration"] <= known] for log in logs)
    assert a == b
    a, b = ([e for e in events(log) if 0 <= e[3] <= known] for log in logs)
    assert a == b


@given(setups())
def test_invariant_10_work_conservation(setup: Setup) -> None:
    """No request is in the system while the engine of a policy that claims it stands still."""
    assume(setup.scheduler().work_conserving)
    log = setup.run()
    stays = [(row["arrival_ns"], row["released_ns"]) for row in rows(log.sequences) if row["finished"]]
    free_ns = 0
    for row in [*rows(log.iterations), {"start_ns": 2**62, "end_ns": 2**62}]:
        for arrival_ns, released_ns in stays:
            assert not max(arrival_ns, free_ns) < min(released_ns, row["start_ns"])
        free_ns = row["end_ns"]


@given(setups())
def test_invariant_11_progress(setup: Setup) -> None:
    """Whatever could ever be served is; whatever couldn't is rejected on arrival with its reason."""
    log = setup.run()
    reasons = dict(zip(log.ids, log.reasons, strict=True))
    for request in setup.requests:
        tokens = request.prompt_tokens + request.output_tokens
        if setup.memory.cls is BlockPool:
            too_big = tokens - 1 > (setup.memory.options["num_gpu_blocks"] - 1) * setup.memory.options["block_size"]
        else:
            too_big = _reserved(setup, request.id) > setup.memory.options["num_gpu_blocks"]
        expected = "exceeds_kv_capacity" if too_big else ""
        if tokens > setup.limits.max_model_len:
            expected = "exceeds_max_model_len"
        if request.after is not None and reasons[request.after]:
            expected = "earlier_turn_rejected"
        assert reasons[request.id] == expected


@given(setups(policies=("fcfs",)))
def test_invariant_11_first_come_first_served(setup: Setup) -> None:
    """First admissions follow the arrivals, those of follow-up turns too."""
    log = setup.run()
    first = {seq: place for place, (_, kind, seq, _) in reversed(list(enumerate(events(log)))) if kind == "admit"}
    admitted = sorted((first[seq], row["arrival_ns"]) for seq, row in enumerate(rows(log.sequences)) if row["finished"])
    arrivals = [arrival_ns for _, arrival_ns in admitted]
    assert arrivals == sorted(arrivals)


class Stubborn(Scheduler):
    """Serves what it finds at the very beginning and admits nobody afterwards."""

    def plan(self, view: View) -> IterationPlan:
        admitted = [] if view.now_ns else list(view.waiting)[:1]
        return IterationPlan([Slice(seq, seq.remaining) for seq in admitted], view.decoding)


def serve(*requests: Request, scheduler: type[Scheduler] = Chunked, blocks: int = 50, **bounds: int) -> RunLog:
    return run(
        requests,
        scheduler=scheduler(),
        cost_model=IntegerCost(),
        kv=BlockPool(blocks),
        limits=Limits(**{"max_model_len": 1_000, **bounds}),
    )


def test_invariant_11_a_stuck_engine_says_who_waits() -> None:
    with pytest.raises(PolicyError, match=r"Stubborn at t=2000 ns, iteration 2: .* 1 wait and 0 run .*'b', waiting"):
        serve(Request("a", 0, 3, 2), Request("b", 0, 4, 2), scheduler=Stubborn)


def test_invariant_11_one_that_never_fits_is_rejected_and_the_rest_goes_on() -> None:
    log = serve(
        Request("a", 0, 20, 5),
        Request("too big", 10, 49 * 16, 2),
        Request("too long", 20, 990, 11),
        Request("nothing in", 30, 0, 5),
        Request("nothing out", 40, 5, 0),
        Request("b", 50, 20, 5),
        Request("reply", 0, 5, 5, after="too big", delay_ns=7),
    )
    assert dict(zip(log.ids, log.reasons, strict=True)) == {
        "a": "",
        "reply": "earlier_turn_rejected",
        "too big": "exceeds_kv_capacity",
        "too long": "exceeds_max_model_len",
        "nothing in": "zero_input",
        "nothing out": "zero_output",
        "b": "",
    }
    rejected = [(time, log.ids[seq], iteration) for time, kind, seq, iteration in events(log) if kind == "reject"]
    assert rejected[:2] == [(10, "too big", -1), (10, "reply", -1)]
    assert int(log.sequences["finished"].sum()) == 2


@pytest.mark.parametrize(("output", "reason"), [(1, ""), (2, "exceeds_kv_capacity")])
def test_invariant_11_fifty_blocks_leave_49(output: int, reason: str) -> None:
    """Block 0 is the null block; the last token's keys and values are never written."""
    log = serve(Request("a", 0, 49 * 16, output))
    assert log.info["num_gpu_blocks"] == 49
    assert log.reasons == [reason]
    assert (log.iterations["kv_blocks"] == 49).all()


@pytest.mark.parametrize("prompt", [63, 64, 65])
@pytest.mark.parametrize("scheduler", [Chunked, Continuous, Orca, Dynamic])
def test_invariant_11_prompts_around_the_token_budget(prompt: int, scheduler: type[Scheduler]) -> None:
    """A prompt one token longer than max_num_batched_tokens is served like any other, cut or whole."""
    log = serve(Request("a", 0, prompt, 2), Request("b", 0, 5, 2), scheduler=scheduler, max_num_batched_tokens=64)
    assert log.reasons == ["", ""]
    firsts = [(c["sequence"], c["tokens"]) for c in rows(log.chunks) if c["iteration"] == 0]
    expected = {
        (Chunked, 63): [(0, 63), (1, 1)],
        (Chunked, 64): [(0, 64)],
        (Chunked, 65): [(0, 64)],
        (Dynamic, prompt): [(0, prompt), (1, 5)],  # a request-level batch knows no budget of tokens
    }
    assert firsts == expected.get((scheduler, prompt), [(0, prompt)])
    assert sum(c["tokens"] for c in rows(log.chunks)) == prompt + 5


@pytest.mark.parametrize(("prompt", "reason"), [(59, ""), (60, ""), (61, "exceeds_max_model_len")])
def test_invariant_08_model_length_is_prompt_and_output(prompt: int, reason: str) -> None:
    assert serve(Request("a", 0, prompt, 40), max_model_len=100).reasons == [reason]


@pytest.mark.parametrize("scheduler", [Chunked, Continuous])
def test_invariant_04_a_partly_filled_block_is_used_before_a_new_one(scheduler: type[Scheduler]) -> None:
    """Blocks are ceil((have + new) / 16) - ceil(have / 16): a request that just fits preempts nobody."""
    log = serve(Request("a", 0, 17, 16), Request("b", 0, 17, 16), blocks=5, scheduler=scheduler)
    assert log.sequences["preemptions"].tolist() == [0, 0]
    assert log.iterations["kv_blocks"].tolist() == [4] * 16
