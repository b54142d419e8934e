"""Invariants 3, 5, 6, 7, 12, 13, 14: when things happen, and that it is always the same."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from naive import events, replay, rows, token_times
from strategies import IntegerCost, Piece, Setup, SteppedCost, setups

from simulator import BlockPool, Request, Reservation, RunLog
from simulator.plan import Limits
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static
from simulator.tokens import expand_itls
from simulator.usage import little

TABLES = ("iterations", "chunks", "spans", "events", "sequences")


@given(setups())
def test_invariant_03_the_clock_never_goes_back(setup: Setup) -> None:
    """An iteration takes at least 1 ns and starts no earlier than the one before it has ended."""
    log = setup.run()
    start, end = (log.iterations[name].tolist() for name in ("start_ns", "end_ns"))
    assert all(a < b for a, b in zip(start, end, strict=True))
    assert all(b <= a for a, b in zip(start[1:], end, strict=False))
    times = [time_ns for time_ns, kind, _, _ in events(log) if kind != "reject"]
    assert all(a <= b for a, b in pairwise(times))


@given(setups())
def test_invariant_05_causality(setup: Setup) -> None:
    """arrival <= scheduled < first token <= finish <= release, and a turn follows the one before it."""
    log = setup.run()
    played = replay(log)
    arrivals = {r.id: r for r in setup.requests}
    finish = dict(zip(log.ids, log.sequences["finish_ns"].tolist(), strict=True))
    for seq, row in enumerate(rows(log.sequences)):
        request = arrivals[log.ids[seq]]
        if not row["finished"]:
            assert row["scheduled_ns"] == row["first_token_ns"] == row["finish_ns"] == row["released_ns"] == -1
            continue
        after_ns = -1 if request.after is None else finish[request.after] + request.delay_ns
        assert row["arrival_ns"] == max(request.arrival_ns, after_ns)
        assert (
            row["arrival_ns"] <= row["scheduled_ns"] < row["first_token_ns"] <= row["finish_ns"] <= row["released_ns"]
        )
        times = token_times(log, played, seq)
        assert times == sorted(times)
        assert (times[0], times[-1]) == (row["first_token_ns"], row["finish_ns"])


def fixed_setups() -> list[Setup]:
    """A few runs that preempt, reject, wait for turns and hold slots."""
    requests = [
        Request(
            f"r{i}",
            i * i * 500,
            5 + 37 * i % 60,
            1 + 11 * i % 30,
            None,
            i % 3,
            after=f"r{i - 3}" if i % 5 == 4 else None,
        )
        for i in range(20)
    ]
    pieces = [
        Piece(Chunked, {"policy": "priority"}),
        Piece(Continuous, {"order": "orca", "policy": "sjf"}),
        Piece(Static, {"batch_size": 4, "batch_timeout_ms": 0.01}),
        Piece(Dynamic, {"respond_at": "token"}),
    ]
    pool, cost = Piece(BlockPool, {"num_gpu_blocks": 24, "block_size": 4}), IntegerCost(1_000, 10, 1)
    return [
        Setup(requests, piece, pool, Limits(8, 64, max_model_len=80), cost, asynchronous)
        for piece in pieces
        for asynchronous in (False, True)
    ]


def digests() -> list[str]:
    return [setup.run(fast_forward=fast).digest for setup in fixed_setups() for fast in (True, False)]


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_invariant_06_determinism_across_processes(hash_seed: str) -> None:
    logs = [setup.run() for setup in fixed_setups()]
    assert sum(int(log.sequences["preemptions"].sum()) for log in logs) > 20
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests", here))),
    }
    code = "from test_invariants_time import digests; print(*digests())"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert printed.stdout.split() == digests()


@given(setups())
def test_invariant_06_determinism_within_a_process(setup: Setup) -> None:
    assert setup.run().digest == setup.run().digest


@settings(max_examples=200)
@given(setups())
def test_invariant_07_fast_forward_equals_step(setup: Setup) -> None:
    fast, slow = setup.run(fast_forward=True), setup.run(fast_forward=False)
    assert fast.digest == slow.digest, [name for name in TABLES if _table(fast, name) != _table(slow, name)]


def _table(log: RunLog, name: str) -> dict[str, list[int]]:
    return {column: values.tolist() for column, values in getattr(log, name).items()}


@pytest.mark.parametrize("cost", [IntegerCost(1, 0, 0), SteppedCost(3, 1, 1)])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "memory", [Piece(BlockPool, {"num_gpu_blocks": 1_500}), Piece(Reservation, {"num_gpu_blocks": 1_500})]
)
@pytest.mark.parametrize("scheduler", [Piece(Chunked, {}), Piece(Static, {"batch_size": 2, "respond_at": "token"})])
def test_invariant_07_over_windows_longer_than_one_vector(
    cost: IntegerCost, asynchronous: bool, memory: Piece, scheduler: Piece
) -> None:
    requests = [Request("a", 0, 3, 9_000), Request("b", 100, 5, 9_003), Request("c", 15_000, 2, 30)]
    setup = Setup(requests, scheduler, memory, Limits(max_num_seqs=4, max_model_len=10_000), cost, asynchronous)
    fast, slow = setup.run(fast_forward=True), setup.run(fast_forward=False)
    assert fast.digest == slow.digest
    assert len(slow.iterations["end_ns"]) > 9_000


@given(setups())
def test_invariant_12_gaps_and_states_sum_to_the_latency(setup: Setup) -> None:
    """sum(ITL) = E2EL - TTFT over N - 1 gaps; the times in queue, prefill, decode and preempted sum to E2EL."""
    log = setup.run()
    played = replay(log)
    listed = expand_itls(log)
    for seq, row in enumerate(rows(log.sequences)):
        if not row["finished"]:
            continue
        gaps = [b - a for a, b in pairwise(token_times(log, played, seq))]
        assert gaps == listed[seq].tolist()
        assert len(gaps) == row["output_tokens"] - 1
        assert sum(gaps) == row["finish_ns"] - row["first_token_ns"]
        spent = [row[f"{state}_ns"] for state in ("queued", "prefill", "decode", "preempted")]
        assert min(spent) >= 0
        assert sum(spent) == row["finish_ns"] - row["arrival_ns"]
        assert row["queued_ns"] == row["scheduled_ns"] - row["arrival_ns"]


@given(setups())
def test_invariant_13_littles_law_exactly(setup: Setup) -> None:
    """Time average in the system x span = sum of the stays, in whole request-nanoseconds."""
    log = setup.run()
    stays = [(row["arrival_ns"], row["finish_ns"]) for row in rows(log.sequences) if row["finished"]]
    instants = sorted({time for stay in stays for time in stay})
    area = sum(
        (after - before) * sum(arrival <= before < finish for arrival, finish in stays)
        for before, after in pairwise(instants)
    )
    assert (area, area) == (sum(b - a for a, b in stays), little(log)[0])
    assert little(log)[0] == little(log)[1]


def doubled(setup: Setup) -> Setup:
    """Every cost, gap, delay and timer twice as long."""
    requests = [r._replace(arrival_ns=2 * r.arrival_ns, delay_ns=2 * r.delay_ns) for r in setup.requests]
    options = {
        key: 2 * value if key.endswith("_ms") and value is not None else value
        for key, value in setup.scheduler.options.items()
    }
    cost = type(setup.cost)(*(2 * c for c in setup.cost.coefficients))
    return setup._replace(
        requests=requests,
        scheduler=Piece(setup.scheduler.cls, options),
        cost=cost,
        host_overhead_ns=2 * setup.host_overhead_ns,
    )


@given(setups())
def test_invariant_14_scale(setup: Setup) -> None:
    """Double every cost, gap and timer, and every instant doubles, while every decision stays as it was."""
    once, twice = setup.run(), doubled(setup).run()
    for table in TABLES:
        for name, column in getattr(once, table).items():
            factor = 2 if name.endswith("_ns") else 1
            expected = np.where(column == -1, -1, factor * column)
            assert getattr(twice, table)[name].tolist() == expected.tolist(), name
