"""What iteration-level scheduling is worth at equal batch size and flat step time: E[longest of B] / E[N], no more.

Everybody waits from the start and a request of N tokens takes N iterations. Static batches of B take their longest
request's iterations each; continuous ones keep B slots busy (Yu et al., Orca, OSDI'22, section 3).
"""

from __future__ import annotations

import numpy as np
import pytest
from queues import PLATFORM, Z, requests, serve

from simulator import Scheduler
from simulator.costs.constant import Constant
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.dynamic import Dynamic
from simulator.schedulers.static import Static

BATCHES = 400  # per case
MEAN = 100


def geometric() -> np.ndarray:
    """P(N = k) for k = 1, 2, ...: the whole-number exponential of mean 100."""
    tokens = np.arange(1, 40 * MEAN)
    return (1 - 1 / MEAN) ** (tokens - 1) / MEAN


def truncated_exponential(longest: int, mean: float = 128.0) -> np.ndarray:
    """Exponential lengths, drawn again while above `longest`, rounded, at least 1 (Anyscale's benchmark, 2023)."""
    edges = np.minimum(np.arange(0, longest + 1) + 0.5, longest)
    edges[0] = 0.0
    below = 1 - np.exp(-edges / mean)
    below[1] = 1 - np.exp(-1.5 / mean)  # 0 counts as 1
    return np.diff(below) / below[-1]


def prize(share: np.ndarray, batch: int) -> float:
    """E[longest of `batch`] / E[N] for lengths 1, 2, ... with these probabilities."""
    tokens = np.arange(1, len(share) + 1)
    below = np.concatenate([[0.0], np.cumsum(share)])
    return float(np.diff(below**batch) @ tokens / (share @ tokens))


def drawn(share: np.ndarray, batch: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return rng.choice(np.arange(1, len(share) + 1), BATCHES * batch, p=share / share.sum()).tolist()


def iterations(outputs: list[int], scheduler: Scheduler, batch: int) -> int:
    """How many iterations serving `outputs` takes with so many slots; with one each, that is the time."""
    load = requests([0] * len(outputs), 1, outputs)
    log = serve(load, scheduler, Constant(PLATFORM, iteration_us=1.0), max_num_seqs=batch)
    assert log.sequences["emitted_tokens"].sum() == sum(outputs)
    count = len(log.iterations["start_ns"])
    assert log.end_ns == 1000 * count
    return count


UNIFORM = np.full(2 * MEAN, 1 / (2 * MEAN))
CASES = [
    *(pytest.param(geometric(), b, sum(1 / i for i in range(1, b + 1)), id=f"exponential-{b}") for b in (2, 8, 32)),
    *(pytest.param(UNIFORM, b, 2 * b / (b + 1), id=f"uniform-{b}") for b in (8, 64)),
    *(
        pytest.param(truncated_exponential(r), b, bound, id=f"anyscale-{r}")
        for r, b, bound in ((32, 16, 1.95), (128, 12, 2.11), (512, 8, 2.54), (1536, 4, 2.08))
    ),
]


@pytest.mark.parametrize(("share", "batch", "known"), CASES)
def test_the_prize_of_iteration_level_scheduling(share: np.ndarray, batch: int, known: float) -> None:
    """Iterations of these very lengths, exactly; then their ratio against the harmonic number or 2B / (B + 1).

    The standard error is that of a ratio of means over batches, Z of them allowed.
    """
    expected = prize(share, batch)
    assert expected == pytest.approx(known, rel=0.01)
    outputs = drawn(share, batch, seed=61)
    groups = np.array(outputs).reshape(-1, batch)
    longest = groups.max(axis=1)
    static = iterations(outputs, Static(batch, respond_at="token"), batch)
    continuous = iterations(outputs, Continuous(order="orca"), batch)
    assert static == longest.sum()
    assert sum(outputs) / batch <= continuous <= sum(outputs) / batch + max(outputs)  # Graham's bound (1966)

    ratio = static / (BATCHES * groups.mean())
    residuals = longest - ratio * groups.mean(axis=1)
    standard_error = residuals.std(ddof=1) / np.sqrt(BATCHES) / groups.mean()
    assert standard_error <= 0.05 * expected
    assert abs(ratio - expected) <= Z * standard_error
    assert static / continuous <= ratio


def test_fixed_lengths_leave_no_prize() -> None:
    """Static and continuous take the same iterations exactly: the gain is 1.0."""
    outputs = [50] * 64
    schedulers = [Static(8), Dynamic(8), Continuous(order="orca"), Chunked()]
    assert {iterations(outputs, scheduler, 8) for scheduler in schedulers} == {50 * 8}


def test_the_prize_grows_with_the_spread_of_lengths() -> None:
    """At a batch of 8: 1.83, 2.00, 2.54, 2.72 for lengths cut at 32, 128, 512, 1536."""
    prizes = [prize(truncated_exponential(longest), 8) for longest in (32, 128, 512, 1536)]
    assert prizes == [pytest.approx(value, abs=0.02) for value in (1.83, 2.00, 2.54, 2.72)]
    measured = []
    for longest in (32, 128, 512, 1536):
        outputs = drawn(truncated_exponential(longest), 8, seed=62)
        static = iterations(outputs, Static(8, respond_at="token"), 8)
        measured.append(static / iterations(outputs, Chunked(), 8))
    assert measured == sorted(measured)
