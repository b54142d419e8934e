from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokensim import TokenSim

from simulator import metrics, tokens, usage
from simulator.recorder import RunLog

requests = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=8
).filter(lambda rows: any(output for _, _, output in rows))
sims = st.builds(TokenSim, requests, st.integers(0, 2**32), st.sampled_from([0.0, 0.2, 0.8]))


def listed_gaps(sim: TokenSim) -> np.ndarray:
    gaps = [np.diff(row.times) for row in sim.rows if row.state == "finished"]
    return np.sort(np.concatenate(gaps)).astype(np.int64)


def batch_end(log: RunLog) -> RunLog:
    s = dict(log.sequences)
    s["first_token_ns"] = s["finish_ns"]
    return dataclasses.replace(log, sequences=s, info={**log.info, "respond_at": "batch_end"})


@settings(max_examples=300, deadline=None)
@given(sims)
def test_weighted_gaps_are_the_listed_gaps(sim: TokenSim) -> None:
    log = sim.run()
    gap, count = tokens.itl(log)
    assert (count > 0).all()
    np.testing.assert_array_equal(np.sort(np.repeat(gap, count)), listed_gaps(sim))


@settings(max_examples=200, deadline=None)
@given(sims)
def test_token_times_are_the_listed_times(sim: TokenSim) -> None:
    log = sim.run()
    flow = tokens.token_flow(log)
    listed = sorted(t for row in sim.rows for t in row.times)
    assert sorted(np.repeat(flow.time_ns, flow.tokens)) == listed
    for i, (row, gaps) in enumerate(zip(sim.rows, tokens.expand_itls(log), strict=True)):
        assert tokens.token_times(log, i).tolist() == row.times
        assert gaps.tolist() == np.diff(row.times).tolist()


@settings(max_examples=100, deadline=None)
@given(sims)
def test_invariant_12_gaps_sum_to_e2el_less_ttft_and_states_to_e2el(sim: TokenSim) -> None:
    log = sim.run()
    for log_ in (log, batch_end(log)):
        table = metrics.request_table(log_)
        for i, gaps in enumerate(tokens.expand_itls(log_)):
            if table["finished"][i]:
                assert gaps.sum() == table["e2el_ns"][i] - table["ttft_ns"][i]
                assert len(gaps) == table["emitted_tokens"][i] - 1
        done = table["finished"]
        states = sum(table[name] for name in ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns"))
        np.testing.assert_array_equal(states[done], table["e2el_ns"][done])
        gap, count = tokens.itl(log_)
        assert (gap * count).sum() == (table["e2el_ns"] - table["ttft_ns"])[done].sum()


weighted = st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 40)), min_size=1, max_size=40).filter(
    lambda rows: any(w for _, w in rows)
)


@settings(max_examples=300, deadline=None)
@given(weighted, st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_weighted_percentile_is_numpys_on_the_repeated_list(rows: list[tuple[int, int]], percents: list[float]) -> None:
    values, weights = (np.array(column) for column in zip(*rows, strict=True))
    want = np.percentile(np.repeat(values, weights), percents)
    np.testing.assert_array_equal(metrics.weighted_percentile(values, weights, percents), want)


def test_weighted_percentile_of_nothing_is_nan() -> None:
    assert np.isnan(metrics.weighted_percentile([], [], [50])).all()
    assert np.isnan(metrics.weighted_percentile([3], [0], [50, 99])).all()


def brute_summary(sim: TokenSim) -> dict[str, Any]:
    """The formulas of `vllm bench serve`, request by request and token by token."""
    done = [r for r in sim.rows if r.state == "finished"]
    seconds = sim.now / 1e9
    ttft = [r.times[0] - r.arrival for r in done]
    e2el = [r.times[-1] - r.arrival for r in done]
    tpot = [(r.times[-1] - r.times[0]) / (r.output - 1) for r in done if r.output > 1]
    itl = [b - a for r in done for a, b in zip(r.times, r.times[1:], strict=False)]
    out: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(sim.rows) - len(done),
        "total_input_tokens": sum(r.prompt for r in done),
        "total_output_tokens": sum(r.output for r in done),
        "request_throughput": len(done) / seconds,
        "output_throughput": sum(r.output for r in done) / seconds,
        "total_token_throughput": sum(r.output + r.prompt for r in done) / seconds,
    }
    for name, values in (("ttft", ttft), ("tpot", tpot), ("itl", itl), ("e2el", e2el)):
        arrays = np.array(values) / 1e6
        out[f"mean_{name}_ms"] = arrays.mean() if values else None
        out[f"median_{name}_ms"] = np.median(arrays) if values else None
        out[f"std_{name}_ms"] = arrays.std() if values else None
        for p in (50, 90, 99.9):
            out[f"p{p}_{name}_ms"] = np.percentile(arrays, p) if values else None
    return out


@settings(max_examples=100, deadline=None)
@given(sims)
def test_summary_equals_the_formulas_over_listed_tokens(sim: TokenSim) -> None:
    log = sim.run()
    got = metrics.summary(log, percentiles=(50, 90, 99.9))
    for key, want in brute_summary(sim).items():
        assert got[key] == (None if want is None else pytest.approx(want, rel=1e-9, abs=1e-12)), key
    assert got["request_goodput"] is None


@settings(max_examples=100, deadline=None)
@given(sims)
def test_peaks_equal_a_sweep_over_every_instant(sim: TokenSim) -> None:
    log = sim.run()
    stretched = dataclasses.replace(  # seconds matter to the buckets
        log,
        iterations={n: c * 10**7 if n.endswith("_ns") else c for n, c in log.iterations.items()},
        sequences={n: c * 10**7 if n.endswith("_ns") else c for n, c in log.sequences.items()},
    )
    done = [r for r in sim.rows if r.state == "finished"]
    start = min(r.arrival for r in done)
    buckets: dict[int, int] = {}
    for r in done:
        for t in r.times:
            bucket = (t - start) * 10**7 // 10**9
            buckets[bucket] = buckets.get(bucket, 0) + 1
    got = metrics.summary(stretched)
    assert got["max_output_tokens_per_s"] == max(buckets.values())
    # Half-open stays [arrival, finish): a departure goes before an arrival at the same instant.
    want = max(sum(r.arrival <= t < r.times[-1] for r in done) for t in {r.arrival for r in done})
    assert got["max_concurrent_requests"] == want


@settings(max_examples=100, deadline=None)
@given(sims, st.integers(0, 500), st.integers(0, 100), st.integers(0, 2000))
def test_goodput_counts_requests_that_meet_every_limit(sim: TokenSim, ttft: int, tpot: int, e2el: int) -> None:
    log = sim.run()
    good = 0
    for r in sim.rows:
        if r.state == "finished":
            per_token = (r.times[-1] - r.times[0]) / (r.output - 1) if r.output > 1 else 0
            good += r.times[0] - r.arrival <= ttft and per_token <= tpot and r.times[-1] - r.arrival <= e2el
    slo = {"ttft": ttft / 1e6, "tpot": tpot / 1e6, "e2el": e2el / 1e6}
    assert metrics.goodput_count(log, slo) == good
    assert metrics.summary(log, slo=slo)["request_goodput"] == pytest.approx(good / (sim.now / 1e9))


def test_tpot_weights_requests_equally_and_itl_weights_tokens() -> None:
    """Two lone requests of 2 and 100 tokens with different steps: both means by hand."""
    log = one_by_one([(2, 30), (100, 10)])
    got = metrics.summary(log)
    assert got["mean_tpot_ms"] == pytest.approx((30 + 10) / 2)
    assert got["mean_itl_ms"] == pytest.approx((30 + 99 * 10) / 100)


def one_by_one(runs: list[tuple[int, int]]) -> RunLog:
    """Lone requests, one after the other: (output tokens, milliseconds of each decode step)."""
    sim = TokenSim([(0, 1, 1)], seed=0)
    iterations, spans, sequences, now = [], [], [], 0
    for i, (output, step_ms) in enumerate(runs):
        start, begin = now, len(iterations)
        for k in range(output):
            iterations.append(
                (now, now + step_ms * 10**6, int(k == 0), int(k == 0), int(k == 0), 0, int(k > 0), 0, 1, 1)
            )
            now += step_ms * 10**6
        spans.append((i, begin, begin + 1, begin + output - 1))
        first = iterations[begin][1]
        row = (start, 1, output, output, 1, start, first, now, now, 0, 0, 0, 0, 0, first - start, now - first, 0)
        sequences.append(row)
    log = sim.run()
    return dataclasses.replace(
        log,
        iterations=dict(zip(log.iterations, np.array(iterations).T, strict=True)),
        spans=dict(zip(log.spans, np.array(spans).T, strict=True)),
        sequences=dict(zip(log.sequences, np.array(sequences).T, strict=True)),
    )


def test_a_batch_that_answers_at_its_end_has_gaps_of_zero() -> None:
    log = batch_end(TokenSim([(0, 3, 4), (5, 3, 1), (9, 2, 7)], seed=1).run())
    got = metrics.summary(log)
    assert got["mean_itl_ms"] == got["p99_itl_ms"] == got["mean_tpot_ms"] == 0
    assert got["mean_ttft_ms"] == got["mean_e2el_ms"]
    gap, count = tokens.itl(log)
    assert np.repeat(gap, count).tolist() == [0] * (3 + 6)


def test_one_token_outputs_have_no_tpot_and_no_itl() -> None:
    got = metrics.summary(TokenSim([(0, 3, 1), (5, 3, 1)], seed=2).run(), slo={"tpot": 0})
    assert got["mean_tpot_ms"] is got["p99_tpot_ms"] is got["mean_itl_ms"] is got["std_itl_ms"] is None
    assert got["request_goodput"] == got["request_throughput"]


def test_the_duration_runs_from_the_clocks_zero_to_the_last_rejection() -> None:
    sim = TokenSim([(100, 1, 1), (10**6, 5, 0)], seed=3)
    log = sim.run()
    reject = log.events["time_ns"].max()
    assert metrics.duration_ns(log) == reject >= 10**6
    assert metrics.summary(log)["failed"] == 1


def test_percentile_keys_are_vllms() -> None:
    assert [metrics.percentile_key(p, "ttft") for p in (99, 99.0, 99.9)] == [
        "p99_ttft_ms",
        "p99_ttft_ms",
        "p99.9_ttft_ms",
    ]


def test_a_preemption_whose_recomputation_gives_the_last_token() -> None:
    for seed in range(300):
        sim = TokenSim([(0, 4, 2), (3, 2, 3)], seed=seed, churn=0.9)
        log = sim.run()
        last = log.spans["sequence"] == 0
        if (
            log.sequences["preemptions"][0]
            and len(sim.rows[0].times) == 2
            and (log.spans["last"] < log.spans["first"])[last].all()
        ):
            assert tokens.token_times(log, 0).tolist() == sim.rows[0].times
            return
    raise AssertionError("no seed produced the case")


def test_a_run_in_which_nothing_completed_has_counts_and_no_latencies() -> None:
    log = TokenSim([(7, 1, 0), (9, 3, 0)], seed=1).run()
    got = metrics.summary(log, slo={"ttft": 1})
    assert (got["completed"], got["failed"], got["request_goodput"]) == (0, 2, 0)
    assert got["max_output_tokens_per_s"] == got["max_concurrent_requests"] == got["output_throughput"] == 0
    assert {value for key, value in got.items() if key.endswith("_ms")} == {None}
    assert tokens.expand_itls(log)[0].tolist() == []
    assert usage.little(log) == (0, 0)
    assert usage.kv_usage(log)["max"] == usage.utilisation(log)["useful_slots"] == 0
    assert usage.queue_series(log)["kv_blocks"].tolist() == []
