from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokensim import TokenSim

from simulator import usage
from simulator.metrics import duration_ns
from simulator.recorder import ADMIT, PREEMPT, REJECT, RELEASE

requests = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=8
).filter(lambda rows: any(output for _, _, output in rows))
sims = st.builds(TokenSim, requests, st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.8]))


@settings(max_examples=300, deadline=None)
@given(sims)
def test_used_tokens_are_what_the_running_rows_hold(sim: TokenSim) -> None:
    log = sim.run()
    assert usage.used_tokens(log).tolist() == sim.used_tokens
    shares = usage.kv_usage(log)
    took = log.iterations["end_ns"] - log.iterations["start_ns"]
    assert shares["mean"] == pytest.approx((log.iterations["kv_blocks"] * took).sum() / 1000 / sim.now)
    assert shares["mean_used"] == pytest.approx((np.array(sim.used_tokens) * took).sum() / 4000 / sim.now)
    assert shares["mean_unused"] >= -1e-12
    assert shares["max"] == log.iterations["kv_blocks"].max() / 1000


@settings(max_examples=100, deadline=None)
@given(sims)
def test_invariant_13_littles_law_holds_exactly(sim: TokenSim) -> None:
    area, stays = usage.little(sim.run())
    assert area == stays == sum(r.times[-1] - r.arrival for r in sim.rows if r.state == "finished")


@settings(max_examples=100, deadline=None)
@given(sims)
def test_queue_series_agree_with_the_rows(sim: TokenSim) -> None:
    log = sim.run()
    series = usage.queue_series(log)
    assert (np.diff(series["time_ns"]) > 0).all()
    assert min(series["waiting"].min(), series["running"].min()) >= 0
    assert series["waiting"][-1] == series["running"][-1] == 0
    at = np.searchsorted(series["time_ns"], log.iterations["start_ns"], side="right") - 1
    np.testing.assert_array_equal(series["running"][at], log.iterations["slots"])
    np.testing.assert_array_equal(series["waiting"][at], usage.waiting_at_iterations(log))
    held = np.diff(series["kv_time_ns"], append=series["kv_time_ns"][-1]) * series["kv_blocks"]
    took = log.iterations["end_ns"] - log.iterations["start_ns"]
    assert held.sum() == (took * log.iterations["kv_blocks"]).sum()


def test_a_request_that_finishes_after_its_preemption_leaves_the_queue() -> None:
    """Asynchronous scheduling: preempted with the last token in flight."""
    log = TokenSim([(0, 3, 2)], seed=1).run()
    events = {
        "time_ns": [0, 5, 9],
        "kind": [ADMIT, PREEMPT, RELEASE],
        "sequence": [0, 0, 0],
        "iteration": [0, 1, 1],
    }
    series = usage.queue_series(dataclasses.replace(log, events={k: np.array(v) for k, v in events.items()}))
    assert series["time_ns"].tolist() == [0, 5, 9]
    assert series["waiting"].tolist() == [0, 1, 0]
    assert series["running"].tolist() == [1, 0, 0]


@settings(max_examples=50, deadline=None)
@given(sims)
def test_modes_and_shares_add_up(sim: TokenSim) -> None:
    log = sim.run()
    by_mode = usage.iterations_by_mode(log)
    assert list(by_mode) == ["extend", "decode", "mixed"]
    assert sum(m["count"] for m in by_mode.values()) == len(log.iterations["start_ns"])
    assert sum(m["time_share"] for m in by_mode.values()) == pytest.approx(1)
    got = usage.utilisation(log)
    assert got["model_flops"] is got["bandwidth"] is None
    slots = (got["useful_slots_of_max"], got["waiting_slots_of_max"], got["empty_slots_of_max"])
    assert sum(slots) == pytest.approx(1)
    assert min(slots) >= 0
    busy = (log.iterations["end_ns"] - log.iterations["start_ns"]).sum()
    assert got["busy"] == pytest.approx(busy / duration_ns(log))


def test_machine_shares_by_hand() -> None:
    """One request, 3 prompt tokens in one chunk, then two decode steps, all by hand."""
    log = next(
        log
        for log in (TokenSim([(0, 3, 3)], seed=s, churn=0).run() for s in range(100))
        if log.chunks["tokens"].tolist() == [3]
    )
    machine = usage.Machine(
        params=10, layers=2, heads=3, head_dim=4, kv_bytes_per_token=5, weight_bytes=7, peak_flops=1e9,
        bandwidth_bytes_s=1e9, gpus=2,
    )  # fmt: skip
    flops = 2 * 10 * (3 + 2) + 4 * 2 * 3 * 4 * (3 * 4 // 2 + 4 + 5)
    moved = 3 * 7 + 5 * (4 + 5 + 3 + 2)
    got = usage.utilisation(log, machine)
    assert got["useful_slots"] == got["useful_slots_of_max"] == 1
    assert got["model_flops"] == pytest.approx(flops / (2 * duration_ns(log)))
    assert got["bandwidth"] == pytest.approx(moved / (2 * duration_ns(log)))


def test_slots_split_into_useful_waiting_and_empty_by_hand() -> None:
    """A static batch of 4 slots: two rows hold theirs for 4 iterations, one of them is done after 2."""
    log = TokenSim([(0, 3, 3)], seed=1).run()
    zero = np.zeros(4, np.int64)
    columns = {
        "start_ns": np.arange(4),
        "end_ns": np.arange(4) + 1,
        "prefill_seqs": np.array([2, 0, 0, 0]),
        "prefill_tokens": np.array([7, 0, 0, 0]),
        "decode_seqs": np.array([0, 2, 1, 1]),
        "padding_tokens": np.array([1, 0, 1, 1]),
        "slots": np.full(4, 2),
    }
    log = dataclasses.replace(
        log,
        iterations={name: columns.get(name, zero) for name in log.iterations},
        info={**log.info, "max_num_seqs": 4},
    )
    got = usage.utilisation(log)
    assert got["useful_slots"] == 6 / 8
    assert got["useful_slots_of_max"] == 6 / 16
    assert got["waiting_slots_of_max"] == 2 / 16
    assert got["empty_slots_of_max"] == 8 / 16
    assert got["padding"] == 3 / 14


def test_without_a_block_limit_there_is_no_kv_share() -> None:
    log = TokenSim([(0, 3, 3)], seed=1).run()
    log.info["num_gpu_blocks"] = None
    assert set(usage.kv_usage(log).values()) == {None}


def test_rejections_are_counted_per_reason() -> None:
    log = TokenSim([(0, 3, 3), (5, 1, 0), (7, 1, 0)], seed=1).run()
    assert usage.rejections(log) == {"exceeds_kv_capacity": 2}
    assert (log.events["kind"] == REJECT).sum() == 2
    assert (log.events["kind"] == PREEMPT).sum() == log.sequences["preemptions"].sum()
