"""A server that takes everybody who waits is Inoue's batch-service queue (Queueing models with batch service, 2021).

`dynamic` without a bound on the batch, equal prompts (so nothing is padded) and one output token: a batch of b takes
alpha b + tau.
"""

from __future__ import annotations

import numpy as np
import pytest
from queues import UNIT_NS, assert_mean, linear, poisson, requests, serve, stays
from scipy import stats

from simulator import Request, RunLog
from simulator.schedulers.dynamic import Dynamic

# (rate, alpha, tau): mean stay, mean batch, Inoue's upper bound on the mean stay.
GOLDEN = {
    (0.05, 1.0, 2.0): (3.24694, 1.0108, 3.24812),
    (0.5, 1.0, 2.0): (7.49931, 2.2871, 7.66667),
    (0.9, 1.0, 2.0): (37.63104, 18.0066, 37.63158),
    (5.0, 0.1, 3.0): (9.16667, 30.000, 9.16667),
    (0.5, 1.0, 0.0): (1.66667, 1.1491, 1.66667),
}
COUNT = {(0.9, 1.0, 2.0): 120_000}
CASES = [pytest.param(*case, id="-".join(map(str, case))) for case in GOLDEN]


def exact(rate: float, alpha: float, tau: float, states: int = 400) -> tuple[float, float]:
    """(mean stay, mean batch) from the chain of batch sizes: the next is Poisson(rate (alpha b + tau)), or 1 after 0.

    The arrivals during a batch of length h wait h / 2 each on average, then their own batch: with batches weighted by
    their size, E[W] = (rate / 2 E[h^2] + E[b h]) / E[b].
    """
    sizes = np.arange(1, states + 1)
    length = alpha * sizes + tau
    chain = stats.poisson.pmf(np.arange(states + 1)[None, :], rate * length[:, None])
    chain[:, 1] += chain[:, 0]
    chain = chain[:, 1:] / chain[:, 1:].sum(axis=1, keepdims=True)
    share = np.full(states, 1 / states)
    for _ in range(2000):
        share = share @ chain
    batch = float(share @ sizes)
    return float(share @ (rate / 2 * length**2 + sizes * length)) / batch, batch


def inoue_bound(rate: float, alpha: float, tau: float) -> float:
    """phi = min(phi_0, phi_1): the mean stay never exceeds it."""
    load = rate * alpha
    phi_0 = (alpha + tau) / (2 * (1 - load)) * (1 + 2 * rate * tau + (1 - rate * tau) / (1 + load))
    phi_1 = 1.5 * tau / (1 - load) + alpha / 2 * (load + 2) / (1 - load**2)
    return min(phi_0, phi_1)


def all_at_once(load: list[Request], alpha_ns: int, tau_ns: int) -> list[int]:
    """When each request is done (ns): a batch is all who have arrived when the server is free."""
    done: list[int] = []
    free = 0
    while len(done) < len(load):
        start = max(free, load[len(done)].arrival_ns)
        batch = sum(1 for request in load[len(done) : len(done) + 10_000] if request.arrival_ns <= start)
        free = start + alpha_ns * batch + tau_ns
        done += [free] * batch
    return done


def serve_batches(load: list[Request], alpha: float, tau: float) -> RunLog:
    cost = linear(base_ns=round(tau * UNIT_NS), per_seq_ns=round(alpha * UNIT_NS))
    return serve(load, Dynamic(batch_size=10**9), cost)


@pytest.mark.parametrize(("rate", "alpha", "tau"), CASES)
def test_the_golden_table_follows_from_the_chain_of_batch_sizes(rate: float, alpha: float, tau: float) -> None:
    stay, batch, bound = GOLDEN[rate, alpha, tau]
    assert exact(rate, alpha, tau) == (pytest.approx(stay, abs=1e-5), pytest.approx(batch, abs=1e-4))
    assert inoue_bound(rate, alpha, tau) == pytest.approx(bound, abs=1e-5)


@pytest.mark.parametrize(("rate", "alpha", "tau"), CASES)
def test_dynamic_batches_are_everybody_who_waits_to_the_nanosecond(rate: float, alpha: float, tau: float) -> None:
    load = requests(poisson(3000, rate, seed=51), 8)
    log = serve_batches(load, alpha, tau)
    assert log.sequences["finish_ns"].tolist() == all_at_once(load, round(alpha * UNIT_NS), round(tau * UNIT_NS))
    assert log.iterations["padding_tokens"].sum() == 0


@pytest.mark.parametrize(("rate", "alpha", "tau"), CASES)
def test_mean_stay_and_mean_batch_of_dynamic(rate: float, alpha: float, tau: float) -> None:
    stay, batch, _ = GOLDEN[rate, alpha, tau]
    log = serve_batches(requests(poisson(COUNT.get((rate, alpha, tau), 12_000), rate, seed=52), 8), alpha, tau)
    assert_mean(stays(log), stay, error=0.06)
    assert_mean(log.iterations["prefill_seqs"], batch, error=0.05)
