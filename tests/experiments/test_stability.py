"""Which runs keep up with their arrivals: against queues whose capacity is known, and in tables and figures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_plots import words

from experiments.rates import knee, knee_notes, rate_lines
from experiments.stability import MAX_PILE_UP, MIN_REQUESTS, stability
from experiments.sweep_plots import plot_sweep
from experiments.tables import comparison_table
from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.costs.constant import Constant
from simulator.schedulers.chunked import Chunked
from simulator.specs import Platform, get_gpu, get_model

PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb"))
MS = 1_000_000


def served(load: float, count: int = 4000, seed: int = 0) -> RunLog:
    """One request at a time, 10 ms each, Poisson arrivals at `load` of its capacity: an M/D/1 queue."""
    gaps = np.random.default_rng(seed).exponential(10 * MS / load, count)
    requests = [Request(str(i), int(at), 1, 1) for i, at in enumerate(np.cumsum(gaps))]
    cost = Constant(PLATFORM, iteration_us=10_000)
    return run(requests, scheduler=Chunked(), cost_model=cost, kv=BlockPool(1000), limits=Limits(max_num_seqs=1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.9])
def test_a_queue_below_capacity_keeps_up(load: float, seed: int) -> None:
    assert stability(served(load, seed=seed)).unstable is False


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [1.1, 1.5, 4.0])
def test_above_capacity_what_cannot_be_served_piles_up(load: float, seed: int) -> None:
    """The share of arrivals beyond capacity is 1 - 1 / load."""
    found = stability(served(load, seed=seed))
    assert found.unstable
    assert found.pile_up == pytest.approx(1 - 1 / load, abs=0.04)


def test_a_queue_that_shrinks_is_not_called_unstable() -> None:
    burst = [Request(f"b{i}", 0, 1, 1) for i in range(1200)]
    rest = [Request(str(i), i * 20 * MS, 1, 1) for i in range(1, 2000)]
    log = run(
        burst + rest, scheduler=Chunked(), cost_model=Constant(PLATFORM, iteration_us=10_000), kv=BlockPool(1000),
        limits=Limits(max_num_seqs=1),
    )  # fmt: skip
    found = stability(log)
    assert found.unstable is False
    assert found.pile_up is not None
    assert found.pile_up < -MAX_PILE_UP


def test_there_is_no_answer_with_few_requests_or_all_at_once() -> None:
    assert stability(served(2.0, MIN_REQUESTS - 1)) == (None, None)
    together = [Request(str(i), 5, 1, 1) for i in range(100)]
    log = run(together, scheduler=Chunked(), cost_model=Constant(PLATFORM), kv=BlockPool(1000))
    assert stability(log) == (None, None)


def result(line: str, rate: float, unstable: bool) -> dict[str, object]:
    latencies = {
        f"{kind}_{name}_ms": 10.0 * rate for kind in ("mean", "p99") for name in ("ttft", "tpot", "itl", "e2el")
    }
    return {
        "label": f"{line}, request_rate={rate:g}", "request_rate": rate, "request_throughput": rate,
        "output_throughput": 100 * rate, "completed": 9, "duration": 1.0, **latencies,
        "sim": {"scheduler": line, "respond_at": "token", "unstable": unstable},
    }  # fmt: skip


RESULTS = [result(line, rate, rate > top) for line, top in (("slow", 2), ("fast", 8)) for rate in (8.0, 1.0, 2.0, 4.0)]


def test_the_knee_is_the_highest_rate_up_to_which_a_line_keeps_up() -> None:
    lines = rate_lines(RESULTS)
    assert {name: knee(runs) for name, runs in lines.items()} == {"slow": 2, "fast": 8}
    assert knee([result("x", 1, True), result("x", 2, False)]) is None
    assert knee_notes(RESULTS) == ["slow: keeps up to 2 requests/s; at 4/s its queue grows."]
    assert knee_notes([result("x", 1, True), result("x", 2, True)]) == [
        "x: keeps up with none of the rates; at 1/s its queue grows."
    ]


def test_a_table_quotes_no_latency_of_an_unstable_run() -> None:
    table = comparison_table(RESULTS)
    rows = {line.split("  ")[0]: line.split() for line in table.splitlines() if "/s  " in line}
    assert rows["slow, 2/s"].count("grows") == 0
    assert rows["slow, 4/s"].count("grows") == 3
    assert "grows: with the queue" in table
    assert "grows" not in comparison_table([r for r in RESULTS if "slow" not in str(r["label"])])


def test_figures_mark_the_knee_and_what_lies_beyond(tmp_path: Path) -> None:
    (against_rate, against_latency) = plot_sweep(RESULTS, tmp_path)
    for path in (against_rate, against_latency):
        said = words(path.with_suffix(".svg").read_text())
        assert "knee: the highest rate it keeps up with" in said
        assert "queue still growing" in said
    plot_sweep([r for r in RESULTS if "slow" not in str(r["label"])], tmp_path)
    assert not re.search("knee|growing", words(against_rate.with_suffix(".svg").read_text()))
