"""Laws that any serving engine obeys: conservation of time, light load, and what chunked prefill can and can't do."""

from __future__ import annotations

import numpy as np
import pytest
from queues import PLATFORM, linear, poisson, requests, serve

from simulator import BatchShape, Request, RunLog, Scheduler
from simulator.costs.base import CostModel
from simulator.costs.roofline import Roofline
from simulator.metrics import summary
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static
from simulator.tokens import expand_itls
from simulator.usage import queue_series

NS_PER_S = 1_000_000_000
SCHEDULERS = [
    pytest.param(lambda: Static(8, batch_timeout_ms=50, respond_at="token"), id="static"),
    pytest.param(lambda: Dynamic(8, respond_at="token"), id="dynamic"),
    pytest.param(Continuous, id="prefill_first"),
    pytest.param(lambda: Continuous(order="orca"), id="orca"),
    pytest.param(Chunked, id="chunked"),
]


def seconds(rate: float, count: int, seed: int) -> list[int]:
    """Poisson arrivals (ns), `rate` per second."""
    return poisson(count, rate / 1000, seed)


def mixture(count: int, rate: float, seed: int, prompt: int = 600, output: int = 60) -> list[Request]:
    """Poisson arrivals, uniform prompts and geometric outputs of these means."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 2 * prompt, count).tolist()
    return requests(seconds(rate, count, seed + 1), prompts, rng.geometric(1 / output, count).tolist())


# ---- Little's law --------------------------------------------------------------------------------------------------


def held_ns(log: RunLog, column: str) -> int:
    """The time integral of a step function of the queue (request-nanoseconds)."""
    series = queue_series(log)
    return int((series[column][:-1] * np.diff(series["time_ns"])).sum())


@pytest.mark.parametrize("blocks", [10**6, 200])
@pytest.mark.parametrize("make", SCHEDULERS)
def test_invariant_13_littles_law_holds_exactly_for_queue_and_slots(make: type[Scheduler], blocks: int) -> None:
    """Time averages, taken from events and iterations, are the sums of what each request says it spent there."""
    load = mixture(400, rate=20, seed=71)
    cost = linear(base_ns=2_000_000, per_token_ns=20_000, per_context_ns=50)
    log = serve(load, make(), cost, blocks=blocks, max_num_seqs=16, max_num_batched_tokens=2048)
    s, it = log.sequences, log.iterations
    waited = int((s["queued_ns"] + s["preempted_ns"]).sum())
    in_slots = int((s["released_ns"] - s["arrival_ns"]).sum()) - waited
    assert held_ns(log, "waiting") == waited
    assert held_ns(log, "running") == in_slots
    assert int((it["slots"] * (it["end_ns"] - it["start_ns"])).sum()) == in_slots
    assert waited > 0
    assert (s["preemptions"].sum() > 0) == (blocks == 200)


# ---- light load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cost", [linear(base_ns=3_000_000, per_token_ns=30_000, per_context_ns=70), Roofline(PLATFORM)]
)
@pytest.mark.parametrize("make", SCHEDULERS)
def test_alone_a_request_takes_its_prefill_and_its_decodes_and_nothing_else(
    make: type[Scheduler], cost: CostModel
) -> None:
    """TTFT = host + prefill(n) and the gap after token i = host + decode(1, n + i), to the nanosecond."""
    host_ns = 400_000
    lengths = [(1, 5), (17, 1), (500, 40), (2000, 3)]
    load = requests([i * 100 * NS_PER_S for i in range(4)], *zip(*lengths, strict=True))
    log = serve(load, make(), cost, max_num_batched_tokens=2048, host_overhead_ns=host_ns)
    start_ns = log.sequences["scheduled_ns"]
    for i, (prompt, output) in enumerate(lengths):
        prefill_ns = cost.iteration_ns(BatchShape(((prompt, 0),)))
        assert log.sequences["first_token_ns"][i] - start_ns[i] == host_ns + prefill_ns
        contexts = range(prompt + 1, prompt + output)
        assert expand_itls(log)[i].tolist() == [host_ns + cost.iteration_ns(BatchShape((), 1, c, c)) for c in contexts]
    assert (start_ns - log.sequences["arrival_ns"]).tolist() == [
        # A static batch of one waits for company: all but the last, which nobody can follow, run into the timeout.
        50_000_000 if log.info["scheduler"] == "static" and i < 3 else 0
        for i in range(4)
    ]


def test_alone_a_long_prompt_takes_the_sum_of_its_chunks() -> None:
    cost = Roofline(PLATFORM)
    log = serve(requests([0], 1200, 2), Chunked(), cost, max_num_batched_tokens=512)
    chunks = [(512, 0), (512, 512), (176, 1024)]
    assert log.sequences["first_token_ns"][0] == sum(cost.iteration_ns(BatchShape((chunk,))) for chunk in chunks)


# ---- chunked prefill -----------------------------------------------------------------------------------------------


def test_chunking_makes_a_lone_prompt_slower() -> None:
    """At rate 0 a prompt above the budget waits longer for its first token, the others as long as ever (vLLM 7604)."""
    prompts = [100, 512, 513, 2000, 4000]
    load = requests([i * 100 * NS_PER_S for i in range(5)], prompts, 8)
    small, whole = (
        first_tokens_ns(serve(load, Chunked(), Roofline(PLATFORM), max_num_batched_tokens=budget))
        for budget in (512, 8192)
    )
    assert (small[:2] == whole[:2]).all()
    assert (small[2:] > whole[2:]).all()


def first_tokens_ns(log: RunLog) -> np.ndarray:
    """Time to first token per request, ns."""
    return log.sequences["first_token_ns"] - log.sequences["arrival_ns"]


@pytest.mark.parametrize(
    ("cost", "gain"),
    [(linear(base_ns=5_000_000, per_token_ns=20_000, per_context_ns=60), 0.0), (Roofline(PLATFORM), 0.05)],
    ids=["linear", "roofline"],
)
def test_chunking_is_no_free_throughput(cost: CostModel, gain: float) -> None:
    """Everything there at once: chunks don't finish the lot sooner than whole prompts do (vLLM 6150, 3130).

    Where costs add up, more iterations are dearer, always. A roofline lets decodes ride along for free under a chunk
    that is bound by arithmetic, so spreading a prompt over more iterations may gain it a little: at most 5 %.
    """
    load = [r._replace(arrival_ns=0) for r in mixture(300, rate=1, seed=81, prompt=1500, output=150)]
    whole = serve(load, Continuous(order="orca"), cost, max_num_seqs=64, max_num_batched_tokens=8192)
    for budget in (2048, 512):
        chunks = serve(load, Chunked(), cost, max_num_seqs=64, max_num_batched_tokens=budget)
        assert chunks.end_ns >= (1 - gain) * whole.end_ns


def test_a_smaller_budget_smooths_decoding_and_delays_first_tokens() -> None:
    """P99 of the gaps falls with the budget, TTFT rises (vLLM 8121).

    Budgets start above the longest prompt (3000): beyond that they only decide how many prompts go together.
    """
    load = mixture(600, rate=5, seed=91, prompt=1500, output=100)
    cost = linear(base_ns=5_000_000, per_token_ns=20_000, per_context_ns=60)
    budgets = (4096, 2048, 1024, 512, 256)
    results = [summary(serve(load, Chunked(), cost, max_num_seqs=256, max_num_batched_tokens=b)) for b in budgets]
    gaps = [result["p99_itl_ms"] for result in results]
    firsts = [result["mean_ttft_ms"] for result in results]
    assert gaps == sorted(gaps, reverse=True)
    assert firsts == sorted(firsts)
    assert gaps[0] > 2 * gaps[-1]
    assert firsts[-1] > 1.2 * firsts[0]


def test_the_threshold_bounds_a_newcomers_wait_behind_a_hog() -> None:
    """A prompt of 40,000 tokens under a budget of 2048, and one of 10 tokens just after it.

    Without the threshold the newcomer's first token has to wait for the hog's last chunk; with it, for one iteration
    that is under way and its own.
    """
    cost = linear(base_ns=5_000_000, per_token_ns=20_000, per_context_ns=60)
    load = requests([0, 1000], [40_000, 10], 5)
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 16}
    hogged = serve(load, Chunked(), cost, **limits).sequences["first_token_ns"]
    capped = serve(load, Chunked(), cost, **limits, long_prefill_token_threshold=1024).sequences["first_token_ns"]
    chunks = [(2048, before) for before in range(0, 38_912, 2048)] + [(1088, 38_912)]
    hog_ns = sum(cost.iteration_ns(BatchShape((chunk,))) for chunk in chunks[:-1])
    assert hogged[1] == hogged[0] == hog_ns + cost.iteration_ns(BatchShape((chunks[-1], (10, 0))))
    first_two = [((1024, 0),), ((1024, 1024), (10, 0))]
    assert capped[1] == sum(cost.iteration_ns(BatchShape(chunks)) for chunks in first_two)
    assert capped[0] > hogged[0]
