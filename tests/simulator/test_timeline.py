from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tokensim import TokenSim

from simulator.recorder import RunLog
from simulator.timeline import HELD, chrome_trace, request_states

requests = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=8
).filter(lambda rows: any(output for _, _, output in rows))
sims = st.builds(TokenSim, requests, st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.8]))

COLUMNS = {
    "waiting": "queued_ns",
    "prefilling": "prefill_ns",
    "decoding": "decode_ns",
    "preempted": "preempted_ns",
}


@settings(max_examples=200, deadline=None)
@given(sims)
def test_states_have_no_gaps_and_sum_to_the_logs_columns(sim: TokenSim) -> None:
    log = sim.run()
    for row, states in enumerate(request_states(log, len(log.ids))):
        assert all(before[2] == after[1] for before, after in pairwise(states))
        spent = dict.fromkeys(COLUMNS, 0)
        for name, start, end in states:
            spent[name] += end - start
        if log.sequences["finished"][row]:
            assert {n: log.sequences[column][row] for n, column in COLUMNS.items()} == spent
        else:
            assert not states


def parsed(log: RunLog, **options: int) -> list[dict[str, object]]:
    trace = json.loads(json.dumps(chrome_trace(log, **options), allow_nan=False))
    events: list[dict[str, object]] = trace["traceEvents"]
    return events


def test_the_trace_parses_back_to_the_iterations_and_states() -> None:
    log = TokenSim([(0, 5, 9), (3, 2, 4), (400, 6, 7), (401, 3, 0)], seed=3).run()
    events = parsed(log)
    slices = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    starts = [round(e["ts"] * 1000) for e in slices]
    ends = [round((e["ts"] + e["dur"]) * 1000) for e in slices]
    assert starts == log.iterations["start_ns"].tolist()
    assert ends == log.iterations["end_ns"].tolist()
    assert [e["args"]["decode_seqs"] for e in slices] == log.iterations["decode_seqs"].tolist()
    assert {e["name"] for e in slices} <= {"extend", "decode", "mixed"}
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert lanes == set(log.ids)
    counters = [e for e in events if e["ph"] == "C"]
    assert {e["name"] for e in counters} == {"requests", "kv_blocks"}
    assert max(e["args"].get("running", 0) for e in counters) == log.iterations["slots"].max()


def test_a_long_run_is_cut_to_the_first_requests() -> None:
    log = TokenSim([(i * 1000, 3, 2) for i in range(20)], seed=4, churn=0).run()
    events = parsed(log, max_requests=2)
    last_us = log.sequences["released_ns"][:2].max() / 1000
    assert {e["tid"] for e in events if e["pid"] == 2} == {0, 1}
    assert all(e["ts"] <= last_us for e in events if "ts" in e)
    assert sum(e["ph"] == "X" and e["pid"] == 1 for e in events) < len(log.iterations["start_ns"])


def test_a_slot_held_after_the_last_token_shows() -> None:
    log = TokenSim([(0, 3, 2)], seed=5).run()
    released = dict(log.sequences, released_ns=log.sequences["finish_ns"] + 70)
    (states,) = request_states(dataclasses.replace(log, sequences=released), 1)
    assert states[-1] == (HELD, log.sequences["finish_ns"][0], log.sequences["finish_ns"][0] + 70)
