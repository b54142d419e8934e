"""Loads, runs and the statistics of their means, for comparing the engine with closed forms of queueing theory.

Time is in units of 1 ms: a service of 1.0 takes 1,000,000 ns. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator import BlockPool, Limits, Request, RunLog, Scheduler, run
from simulator.costs.base import CostModel
from simulator.costs.linear import Linear
from simulator.specs import Platform, get_gpu, get_model

UNIT_NS = 1_000_000
TOKENS_PER_UNIT = 1000  # a prompt of so many tokens is a service of 1.0
PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb"))
# Two-sided: a right engine fails one comparison in 16,000 at 4 standard errors (one in 3,600 with 40 batch means).
Z = 4.0
BATCHES = 40


def linear(**coefficients: int) -> Linear:
    """A cost model of whole-number coefficients."""
    return Linear(PLATFORM, **coefficients)


def poisson(count: int, rate: float, seed: int) -> list[int]:
    """Arrival instants (ns) of a Poisson process, `rate` per unit of time, not conditioned on its length."""
    gaps = np.random.default_rng(seed).exponential(UNIT_NS / rate, count)
    return [int(at) for at in np.cumsum(gaps)]


def requests(
    arrivals_ns: Sequence[int], prompts: Sequence[int] | int, outputs: Sequence[int] | int = 1
) -> list[Request]:
    """Requests in order; a single number is everybody's."""
    count = len(arrivals_ns)
    prompts = [prompts] * count if isinstance(prompts, int) else prompts
    outputs = [outputs] * count if isinstance(outputs, int) else outputs
    rows = zip(arrivals_ns, prompts, outputs, strict=True)
    return [Request(str(i), at, int(prompt), int(output)) for i, (at, prompt, output) in enumerate(rows)]


def serve(
    load: list[Request], scheduler: Scheduler, cost_model: CostModel, *, blocks: int = 10**9, **options: Any
) -> RunLog:
    """A run without any limit but those given (`run`'s options and limits mixed); all requests must finish."""
    bounds = {"max_num_seqs": 10**9, "max_num_batched_tokens": 10**9, "max_model_len": 10**9}
    bounds |= {key: options.pop(key) for key in list(options) if key in Limits._fields}
    log = run(
        load, scheduler=scheduler, cost_model=cost_model, kv=BlockPool(blocks), limits=Limits(**bounds), **options
    )
    assert log.sequences["finished"].all()
    return log


def waits(log: RunLog) -> NDArray[np.float64]:
    """Time from arrival to admission per request, in units."""
    return (log.sequences["scheduled_ns"] - log.sequences["arrival_ns"]) / UNIT_NS


def stays(log: RunLog) -> NDArray[np.float64]:
    """Time from arrival to the last token per request, in units."""
    return (log.sequences["finish_ns"] - log.sequences["arrival_ns"]) / UNIT_NS


def assert_mean(samples: ArrayLike, expected: float, *, error: float, expected_error: float = 0.0) -> None:
    """The mean of a stationary, autocorrelated series is `expected`, within Z standard errors.

    The standard error is that of BATCHES means of successive samples, after the first twentieth is dropped, or
    `expected_error` where that is larger: in heavy load, batch means spread too little just when the mean is low. It
    must be at most `error`, so that the comparison says something. Both errors are shares of `expected`.
    """
    values = np.asarray(samples, dtype=np.float64)
    values = values[len(values) // 20 :]
    values = values[: len(values) // BATCHES * BATCHES]
    means = values.reshape(BATCHES, -1).mean(axis=1)
    standard_error = max(means.std(ddof=1) / np.sqrt(BATCHES), expected_error * expected)
    assert standard_error <= error * expected
    assert abs(means.mean() - expected) <= Z * standard_error


def wait_error(count: int, rho: float, scv: float) -> float:
    """Standard error of the mean of `count` successive waits in M/G/1, as a share of the mean, in heavy traffic.

    `scv`: squared coefficient of variation of the service. W. Whitt, Planning queueing simulations, Management Science
    35 (1989); for M/M/1 the limit of Daley's exact variance (1968), rho (2 + 5 rho - 4 rho^2 + rho^3) / (1 - rho)^4.
    """
    return float(np.sqrt(2 * (1 + scv) / count) / (1 - rho))
