"""How fast the engine is. `--benchmark-enable` runs full sizes and prints figures; without it, a small smoke run.

One core, every metric on: from requests in memory to the result's tables. The figures printed are of this process's CPU
time, which other work on the machine disturbs less; pytest-benchmark's own table has wall time. Nothing asserts a time.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.costs.base import CostModel
from simulator.costs.linear import Linear
from simulator.costs.roofline import Roofline
from simulator.metrics import request_table, summary
from simulator.schedulers.chunked import Chunked
from simulator.specs import Platform, get_gpu, get_model
from simulator.usage import iterations_by_mode, kv_usage, queue_series, rejections, utilisation

PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("h100"))
BLOCKS = 100_000  # enough for every load here: nothing is preempted
SLO = {"ttft": 1000.0, "tpot": 50.0}


def load(count: int, *, rate: float, prompt: int, output: int, seed: int = 0) -> list[Request]:
    """Poisson arrivals per second (all at once where `rate` is infinite), uniform lengths of these means."""
    rng = np.random.default_rng(seed)
    arrivals = np.zeros(count) if rate == float("inf") else np.cumsum(rng.exponential(1e9 / rate, count))
    prompts = rng.integers(prompt // 2, prompt * 3 // 2 + 1, count).tolist()
    outputs = rng.integers(1, 2 * output, count).tolist()
    rows = zip(arrivals.astype(np.int64).tolist(), prompts, outputs, strict=True)
    return [Request(f"r{i}", at_ns, p, o) for i, (at_ns, p, o) in enumerate(rows)]


def simulate(requests: list[Request], cost_model: CostModel, *, fast_forward: bool = True, **limits: int) -> RunLog:
    """A run of `chunked`."""
    return run(
        requests,
        scheduler=Chunked(),
        cost_model=cost_model,
        kv=BlockPool(BLOCKS),
        limits=Limits(max_model_len=32_768, **limits),
        fast_forward=fast_forward,
    )


def tables(log: RunLog) -> dict[str, Any]:
    """Everything that a result holds."""
    parts = (iterations_by_mode, utilisation, kv_usage, rejections, queue_series, request_table)
    return {"digest": log.digest, **summary(log, slo=SLO), **{part.__name__: part(log) for part in parts}}


def whole(requests: list[Request], cost_model: CostModel, **limits: int) -> RunLog:
    """From requests in memory to tables."""
    log = simulate(requests, cost_model, **limits)
    result = tables(log)
    assert result["completed"] == len(requests)
    assert result["preemptions"] == 0
    return log


def sized(benchmark: BenchmarkFixture, full: int) -> int:
    """`full` where times are taken, a fiftieth where this is a smoke test."""
    return full // 50 if benchmark.disabled else full


def rounds(benchmark: BenchmarkFixture) -> int:
    """How often something is timed."""
    return 1 if benchmark.disabled else 3


def best_s(benchmark: BenchmarkFixture, function: Callable[[], RunLog]) -> tuple[RunLog, float]:
    """The last RunLog and the CPU seconds of the fastest round."""
    times: list[float] = []

    def timed() -> RunLog:
        begun = time.process_time()
        log = function()
        times.append(time.process_time() - begun)
        return log

    log: RunLog = benchmark.pedantic(timed, rounds=rounds(benchmark), iterations=1)
    return log, min(times)


def cpu_s(function: Callable[[], RunLog]) -> float:
    """CPU seconds that one call takes."""
    begun = time.process_time()
    function()
    return time.process_time() - begun


@pytest.fixture
def say(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Notes figures with the benchmark and prints the line, where times are taken."""

    def note(line: str, **figures: float) -> None:
        benchmark.extra_info.update(figures)
        if not benchmark.disabled:
            with capsys.disabled():
                print(f"\n{line}")

    return note


@pytest.mark.parametrize("slots", [256, 512, 1024])
@pytest.mark.parametrize("kind", ["roofline", "linear"])
def test_requests_per_second_end_to_end(
    benchmark: BenchmarkFixture, say: Callable[..., None], kind: str, slots: int
) -> None:
    """Decode-heavy: prompts of 100 and outputs of 200 tokens on average, all there at once."""
    models = {"roofline": Roofline(PLATFORM), "linear": Linear(PLATFORM, base_ns=5_000_000, per_token_ns=20_000)}
    requests = load(sized(benchmark, 50_000), rate=float("inf"), prompt=100, output=200)
    log, took_s = best_s(benchmark, lambda: whole(requests, models[kind], max_num_seqs=slots))
    per_s, iterations = len(requests) / took_s, len(log.iterations["end_ns"])
    say(
        f"decode-heavy, {kind}, {slots} slots: {per_s:,.0f} requests/s end to end "
        f"({iterations / took_s:,.0f} iterations/s, {iterations:,} iterations)",
        requests_per_s=per_s,
    )


def test_iterations_per_second_when_every_one_is_mixed(benchmark: BenchmarkFixture, say: Callable[..., None]) -> None:
    """Prompts of 8000 tokens in chunks of 512 beside the decodes."""
    requests = load(sized(benchmark, 5000), rate=float("inf"), prompt=8000, output=200)
    limits = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    log, took_s = best_s(benchmark, lambda: whole(requests, Roofline(PLATFORM), **limits))
    iterations = len(log.iterations["end_ns"])
    mixed = ((log.iterations["prefill_seqs"] > 0) & (log.iterations["decode_seqs"] > 0)).mean()
    assert mixed > (0.8 if benchmark.disabled else 0.99)
    say(
        f"mixed iterations: {iterations / took_s:,.0f} iterations/s end to end ({iterations:,}, {mixed:.1%} mixed)",
        iterations_per_s=iterations / took_s,
    )


@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_fast_forward_against_stepping(benchmark: BenchmarkFixture, say: Callable[..., None], rate: float) -> None:
    """Light load, long answers: the same RunLog, sooner."""
    requests = load(sized(benchmark, 2500), rate=rate, prompt=100, output=400)
    cost = Roofline(PLATFORM)
    log, fast_s = best_s(benchmark, lambda: simulate(requests, cost))
    assert simulate(requests, cost, fast_forward=False).digest == log.digest
    slow_s = min(cpu_s(lambda: simulate(requests, cost, fast_forward=False)) for _ in range(rounds(benchmark)))
    gain = slow_s / fast_s
    say(
        f"fast-forward at {rate:g} requests/s: {gain:.1f} x as fast as stepping through "
        f"{len(log.iterations['end_ns']):,} iterations ({slow_s:.2f} s to {fast_s:.2f} s), digests equal",
        speed_up=gain,
    )


def staggered(count: int, slots: int) -> list[Request]:
    """With so many slots one request leaves and one joins in every iteration: lengths 1 to `slots`, then `slots`."""
    return [Request(f"r{i}", 0, 10, min(i + 1, slots)) for i in range(count)]


def test_an_iteration_costs_the_same_with_16_and_with_256_running(
    benchmark: BenchmarkFixture, say: Callable[..., None]
) -> None:
    """One joins and one leaves in every iteration of both; only the number of those who stay differs."""
    cost = Linear(PLATFORM, base_ns=5_000_000, per_token_ns=20_000, per_context_ns=50)
    count = sized(benchmark, 50_000)
    loads = {slots: staggered(count, slots) for slots in (16, 256)}
    for slots, requests in loads.items():
        table = serve_all(requests, cost, slots).iterations
        assert (table["prefill_seqs"][1 : count - slots + 1] == 1).all()
        assert (table["slots"][: count - slots + 1] == slots).all()
    few_s = many_s = float("inf")
    for _ in range(rounds(benchmark)):  # in turns, so that a busy machine slows both
        few_s = min(few_s, cpu_s(lambda: serve_all(loads[16], cost, 16)))
        many_s = min(many_s, cpu_s(lambda: serve_all(loads[256], cost, 256)))
    best_s(benchmark, lambda: serve_all(loads[256], cost, 256))
    few, many = few_s / count * 1e6, many_s / count * 1e6
    say(
        f"one join and one leave per iteration: {few:.1f} us with 16 running, {many:.1f} us with 256: "
        f"{many / few:.2f} times",
        few_us=few,
        many_us=many,
        ratio=many / few,
    )


def serve_all(requests: list[Request], cost_model: CostModel, slots: int) -> RunLog:
    """A run with so many slots."""
    return simulate(requests, cost_model, max_num_seqs=slots, max_num_batched_tokens=4096)


def million(count: int) -> dict[str, float]:
    """Time and memory of `count` short requests, in a process of its own."""

    def peak_mb() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    requests = load(count, rate=100.0, prompt=50, output=5)
    before_mb = peak_mb()
    begun = time.process_time()
    log = simulate(requests, Linear(PLATFORM, base_ns=2_000_000, per_token_ns=10_000))
    run_s = time.process_time() - begun
    run_mb = peak_mb() - before_mb
    tables(log)
    return {"run_s": run_s, "run_mb": run_mb, "all_s": time.process_time() - begun, "all_mb": peak_mb() - before_mb}


def test_a_million_short_requests(benchmark: BenchmarkFixture, say: Callable[..., None]) -> None:
    """Outputs of 5 tokens on average, 100 arrivals per second."""
    count = sized(benchmark, 1_000_000)
    command = [sys.executable, __file__, str(count)]
    ran = benchmark.pedantic(lambda: subprocess.run(command, capture_output=True, text=True, check=True), rounds=1)
    figures = json.loads(ran.stdout)
    say(
        f"{count:,} short requests: {figures['run_s']:.1f} s of CPU and {figures['run_mb']:,.0f} MB above the requests "
        f"for the run, {figures['all_s']:.1f} s and {figures['all_mb']:,.0f} MB with tables",
        **figures,
    )


if __name__ == "__main__":
    print(json.dumps(million(int(sys.argv[1]))))
