"""When requests arrive: gamma gaps with the arithmetic of `vllm bench serve`, constant gaps, all at once, ramps.

The rule (vLLM, benchmarks/serve.py): each gap, the first one included, is Gamma(shape = burstiness, scale = 1 /
(rate x burstiness)), so the mean rate is `rate` and the gaps' coefficient of variation 1 / sqrt(burstiness): 1 is a
Poisson process, less is burstier, infinity is constant spacing. Arrivals are the running sums, all multiplied so that
the last one equals num_prompts / rate, unless the rate ramps or `rescale` is false. Rescaling conditions the process
on its length, which queueing formulas don't.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError

RAMPS = ("linear", "exponential")


def arrival_times_ns(
    num_prompts: int,
    request_rate: float,
    rng: np.random.Generator,
    *,
    burstiness: float = 1.0,
    rescale: bool = True,
    ramp_up_strategy: str | None = None,
    ramp_up_start_rps: float | None = None,
    ramp_up_end_rps: float | None = None,
) -> NDArray[np.int64]:
    """Arrivals in whole nanoseconds, not falling. `request_rate` is per second; infinity means all at 0.

    With a ramp the rate goes from start to end over the requests (not over time), linearly or exponentially, and
    `request_rate` isn't used. Raises ConfigError with all faults.
    """
    ramp = (ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps)
    faults = arrival_faults(num_prompts, request_rate, burstiness, ramp)
    if faults:
        raise ConfigError(faults)
    if ramp_up_strategy is None and math.isinf(request_rate):
        return np.zeros(num_prompts, np.int64)
    rates = _rates(num_prompts, request_rate, ramp)
    if math.isinf(burstiness):
        gaps = 1.0 / rates
    else:
        gaps = rng.gamma(shape=burstiness, scale=1.0 / (rates * burstiness), size=num_prompts)
    times = np.cumsum(gaps)
    if rescale and ramp_up_strategy is None and times[-1] != 0:
        times = times * (num_prompts / request_rate / times[-1])
    if times[-1] > 4e9:
        raise ConfigError(f"request_rate = {request_rate}: {num_prompts} requests would take more than 126 years")
    return np.floor(times * 1e9 + 0.5).astype(np.int64)


Ramp = tuple[str | None, float | None, float | None]


def arrival_faults(num_prompts: int, request_rate: float, burstiness: float, ramp: Ramp) -> list[str]:
    """What is wrong with these numbers, one line each; empty where all is well."""
    strategy, start_rps, end_rps = ramp
    faults = []
    if isinstance(num_prompts, bool) or not isinstance(num_prompts, int) or num_prompts < 1:
        faults.append(f"num_prompts = {num_prompts}: a whole number of at least 1")
    if not _positive(request_rate):
        faults.append(f"request_rate = {request_rate}: requests per second, above 0 (inf: all at once)")
    if not _positive(burstiness):
        faults.append(f"burstiness = {burstiness}: above 0 (1: Poisson, less: burstier, inf: constant spacing)")
    if strategy is not None and strategy not in RAMPS:
        faults.append(f"ramp_up_strategy = {strategy}: one of {', '.join(RAMPS)}")
    for name, rps in (("ramp_up_start_rps", start_rps), ("ramp_up_end_rps", end_rps)):
        if strategy is None and rps is not None:
            faults.append(f"{name} = {rps}: needs a ramp_up_strategy ({', '.join(RAMPS)})")
        if strategy is not None and not (_positive(rps) and math.isfinite(rps or 0.0)):
            faults.append(f"{name} = {rps}: finite requests per second, above 0")
    return faults


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _rates(num_prompts: int, request_rate: float, ramp: Ramp) -> NDArray[np.float64]:
    strategy, start_rps, end_rps = ramp
    if strategy is None or start_rps is None or end_rps is None:
        return np.full(num_prompts, float(request_rate))
    progress = np.arange(num_prompts) / max(num_prompts - 1, 1)
    if strategy == "linear":
        return start_rps + (end_rps - start_rps) * progress
    # Python's power, as vLLM uses it: NumPy's differs in the last bit.
    ratio = end_rps / start_rps
    return np.array([start_rps * ratio**p for p in progress.tolist()])
