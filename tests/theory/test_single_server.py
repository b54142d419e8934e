"""One slot and prompts without decodes are a single-server queue: M/D/1, M/G/1, M/M/1."""

from __future__ import annotations

import numpy as np
import pytest
from queues import TOKENS_PER_UNIT, UNIT_NS, assert_mean, linear, poisson, requests, serve, stays, wait_error, waits

from simulator import Request, Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static

PER_TOKEN_NS = UNIT_NS // TOKENS_PER_UNIT


def lindley(load: list[Request]) -> list[int]:
    """When each service begins (ns): at arrival or when the one before ends (Lindley's recursion)."""
    begins, end = [], 0
    for request in load:
        begins.append(max(request.arrival_ns, end))
        end = begins[-1] + request.prompt_tokens * PER_TOKEN_NS
    return begins


def pollaczek_khinchine(rate: float, services: np.ndarray, weights: np.ndarray) -> float:
    """Mean wait in M/G/1: rate x E[S^2] / (2 (1 - rho)), over a discrete distribution of services (units)."""
    mean, square = float((services * weights).sum()), float((services**2 * weights).sum())
    return rate * square / (2 * (1 - rate * mean))


@pytest.mark.parametrize(
    "scheduler",
    [Static(1), Dynamic(1), Continuous(), Continuous(order="orca"), Chunked()],
    ids=["static", "dynamic", "prefill_first", "orca", "chunked"],
)
def test_one_slot_is_lindleys_recursion_to_the_nanosecond(scheduler: Scheduler) -> None:
    prompts = np.random.default_rng(11).integers(1, 2000, 3000).tolist()
    load = requests(poisson(3000, 0.9, seed=12), prompts)
    log = serve(load, scheduler, linear(per_token_ns=PER_TOKEN_NS), max_num_seqs=1)
    assert log.sequences["scheduled_ns"].tolist() == lindley(load)


@pytest.mark.parametrize(("rho", "wait", "count"), [(0.5, 0.5, 20_000), (0.8, 2.0, 30_000), (0.9, 4.5, 40_000)])
def test_m_d_1(rho: float, wait: float, count: int) -> None:
    """Mean wait rho / (2 (1 - rho)). At rho 0.5 this is DistServe's TTFT: D = 0.1 s, R = 5/s give 0.150 s."""
    load = requests(poisson(count, rho, seed=21), TOKENS_PER_UNIT)
    log = serve(load, Chunked(), linear(per_token_ns=PER_TOKEN_NS), max_num_seqs=1)
    assert wait == pytest.approx(rho / (2 * (1 - rho)))
    assert_mean(waits(log), wait, error=0.08, expected_error=wait_error(count, rho, scv=0))
    np.testing.assert_allclose(stays(log), waits(log) + 1)


@pytest.mark.parametrize(("rho", "wait", "count"), [(0.5, 0.5417, 20_000), (0.8, 2.1667, 30_000), (0.9, 4.875, 40_000)])
def test_m_g_1_with_uniform_service(rho: float, wait: float, count: int) -> None:
    """Services uniform on 0.5 to 1.5, as prompts of 500 to 1500 tokens: Pollaczek-Khinchine."""
    tokens = np.arange(500, 1501)
    expected = pollaczek_khinchine(rho, tokens / TOKENS_PER_UNIT, np.full(len(tokens), 1 / len(tokens)))
    assert expected == pytest.approx(wait, rel=1e-3)
    prompts = np.random.default_rng(31).integers(500, 1501, count).tolist()
    load = requests(poisson(count, rho, seed=32), prompts)
    log = serve(load, Continuous(), linear(per_token_ns=PER_TOKEN_NS), max_num_seqs=1)
    assert_mean(waits(log), expected, error=0.08, expected_error=wait_error(count, rho, scv=1 / 12))


@pytest.mark.parametrize(("rho", "wait", "count"), [(0.5, 1.0, 30_000), (0.8, 4.0, 40_000)])
def test_m_m_1(rho: float, wait: float, count: int) -> None:
    """Exponential services, as geometric prompts of mean 1000: wait rho / (1 - rho).

    Stays are exponential: one in a hundred is above ln 100 / (1 - rho). In the heavier load too few are, for a
    comparison (at rho 0.9 even the mean of a million waits has a standard error of 2 %).
    """
    success = 1 / TOKENS_PER_UNIT
    tokens = np.arange(1, 40 * TOKENS_PER_UNIT)
    expected = pollaczek_khinchine(rho, tokens / TOKENS_PER_UNIT, success * (1 - success) ** (tokens - 1))
    assert expected == pytest.approx(wait, rel=2e-3)
    prompts = np.random.default_rng(41).geometric(success, count).tolist()
    load = requests(poisson(count, rho, seed=42), prompts)
    log = serve(load, Chunked(), linear(per_token_ns=PER_TOKEN_NS), max_num_seqs=1)
    assert_mean(waits(log), expected, error=0.08, expected_error=wait_error(count, rho, scv=1))
    if rho == 0.5:
        assert_mean(stays(log) > np.log(10) / (1 - rho), 0.1, error=0.08)
        assert_mean(stays(log) > np.log(100) / (1 - rho), 0.01, error=0.2)


def test_a_queue_in_front_of_one_server_counts_from_arrival() -> None:
    """Service 0.5 s, an arrival every 0.1 s, one at a time: 0.5 + 0.4 i, mean 1.9 s, longest 3.3 s (vLLM 54101)."""
    load = requests([i * 100 * UNIT_NS for i in range(8)], 500 * TOKENS_PER_UNIT)
    latency = stays(serve(load, Chunked(), linear(per_token_ns=PER_TOKEN_NS), max_num_seqs=1))
    assert latency.tolist() == [500 + 400 * i for i in range(8)]
    assert (latency.mean(), latency.max()) == (1900, 3300)
