"""Synthetic load: arrivals and lengths drawn from separate streams of one seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.errors import ConfigError
from simulator.request import Request
from workloads.arrivals import arrival_faults, arrival_times_ns
from workloads.lengths import draw_lengths, length_faults

# The last word of a stream's seed. A stream never depends on how much another one draws, so changing the lengths
# leaves the arrivals as they were.
_ARRIVALS, _INPUT, _OUTPUT, _PRIORITY = range(4)


def synthesize(
    *,
    num_prompts: int,
    request_rate: float,
    input_len: Any,
    output_len: Any,
    seed: int = 0,
    burstiness: float = 1.0,
    rescale: bool = True,
    ramp_up_strategy: str | None = None,
    ramp_up_start_rps: float | None = None,
    ramp_up_end_rps: float | None = None,
    priority: Any = None,
) -> list[Request]:
    """`num_prompts` requests in order of arrival, ids "0", "1" ...

    Arrivals as in `workloads.arrivals` (requests per second; the first gap counts), lengths as in
    `workloads.lengths` (tokens). `priority` gives weighted classes, [[priority, weight], ...]. The same seed gives the
    same requests; arrivals, input, output and priority have streams of their own.

    Raises ConfigError with all faults at once, TraceError where an empirical file can't be read.
    """
    ramp = (ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps)
    faults = arrival_faults(num_prompts, request_rate, burstiness, ramp)
    faults += length_faults(input_len, "input_len") + length_faults(output_len, "output_len")
    faults += _priority_faults(priority)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        faults.append(f"seed = {seed}: a whole number of at least 0")
    if faults:
        raise ConfigError(faults)
    arrivals = arrival_times_ns(
        num_prompts, request_rate, _rng(seed, _ARRIVALS), burstiness=burstiness, rescale=rescale,
        ramp_up_strategy=ramp_up_strategy, ramp_up_start_rps=ramp_up_start_rps, ramp_up_end_rps=ramp_up_end_rps,
    )  # fmt: skip
    inputs = draw_lengths(input_len, num_prompts, _rng(seed, _INPUT), key="input_len", column="input")
    outputs = draw_lengths(output_len, num_prompts, _rng(seed, _OUTPUT), key="output_len", column="output")
    priorities = _priorities(priority, num_prompts, _rng(seed, _PRIORITY))
    rows = zip(arrivals.tolist(), inputs.tolist(), outputs.tolist(), priorities, strict=True)
    return [
        Request(str(i), arrival_ns, prompt, output, priority=level)
        for i, (arrival_ns, prompt, output, level) in enumerate(rows)
    ]


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _priority_faults(priority: Any) -> list[str]:
    if priority is None:
        return []
    rule = "a list of [priority, weight] pairs, whole numbers with weights above 0"
    try:
        good = bool(priority) and all(type(level) is int and 0 < weight < float("inf") for level, weight in priority)
    except (TypeError, ValueError):
        good = False
    return [] if good else [f"priority = {priority}: {rule}"]


def _priorities(priority: Any, n: int, rng: np.random.Generator) -> list[int]:
    if priority is None:
        return [0] * n
    levels, weights = zip(*priority, strict=True)
    share = np.array(weights, float)
    drawn: list[int] = rng.choice(np.array(levels, np.int64), size=n, p=share / share.sum()).tolist()
    return drawn
