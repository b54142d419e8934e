"""What clients saw, from a RunLog: per-request latencies, inter-token gaps and throughputs.

Names and formulas are those of `vllm bench serve` (serve.py): TPOT is (E2EL - TTFT) / (N - 1) and undefined
for one token; ITL pools every gap of every request; percentiles interpolate linearly; standard deviations are
population ones; the duration starts at the clock's zero. Latencies and throughputs are of completed requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.clock import NS_PER_MS, NS_PER_S
from simulator.recorder import REJECT, RunLog
from simulator.tokens import Ints, TokenFlow, token_flow

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]
Number = float | int | None

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def duration_ns(log: RunLog) -> int:
    """Nanoseconds from the clock's zero until every request is done: completed or rejected."""
    rejects = log.events["time_ns"][log.events["kind"] == REJECT]
    return max(log.end_ns, int(rejects.max(initial=0)), int(log.sequences["finish_ns"].max(initial=0)))


def request_table(log: RunLog) -> Columns:
    """One row per request, in order of arrival; -1 (NaN for `tpot_ns`) where it never happened.

    `tpot_ns` is NaN for outputs of one token. `queued_ns + prefill_ns + decode_ns + preempted_ns == e2el_ns`.
    """
    s = log.sequences
    finished = s["finished"] == 1
    ttft = np.where(finished, s["first_token_ns"] - s["arrival_ns"], -1)
    e2el = np.where(finished, s["finish_ns"] - s["arrival_ns"], -1)
    gaps = s["emitted_tokens"] - 1
    tpot = np.divide(e2el - ttft, gaps, out=np.full(len(gaps), np.nan), where=finished & (gaps > 0))
    columns = ("arrival_ns", "prompt_tokens", "emitted_tokens", "queued_ns", "prefill_ns", "decode_ns",
               "preempted_ns", "preemptions", "recomputed_tokens")  # fmt: skip
    return {
        **{name: s[name] for name in columns},
        "finished": finished,
        "ttft_ns": ttft,
        "tpot_ns": tpot,
        "e2el_ns": e2el,
    }


def weighted_percentile(values: ArrayLike, weights: ArrayLike, percents: ArrayLike) -> Floats:
    """`np.percentile(np.repeat(values, weights), percents)` (linear, to the last bit) without the repetition.

    NaN where all weights are 0.
    """
    points, weights = np.asarray(values), np.asarray(weights)
    share = np.true_divide(np.atleast_1d(np.asarray(percents, dtype=np.float64)), 100.0)
    order = np.argsort(points)
    until = np.cumsum(weights[order])
    if len(until) == 0 or until[-1] == 0:
        return np.full(len(share), np.nan)
    place = share * (until[-1] - 1)
    below = np.floor(place)
    part = place - below
    low = points[order[np.searchsorted(until, below, side="right")]]
    high = points[order[np.searchsorted(until, np.minimum(below + 1, until[-1] - 1), side="right")]]
    # The two branches are NumPy's own (_lerp): each is exact at its end.
    lerp: Floats = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return lerp


def percentile_key(percent: float, name: str) -> str:
    """The result key of a percentile in milliseconds, vLLM's spelling: `p99_ttft_ms`, `p99.9_ttft_ms`."""
    return f"p{percent:g}_{name}_ms"


def _spread(name: str, mean: float, std: float, points: Floats, percentiles: Sequence[float]) -> dict[str, Number]:
    """mean, median, std and percentiles of a latency in nanoseconds as result fields in milliseconds."""
    fields = {f"mean_{name}_ms": mean, f"median_{name}_ms": points[0], f"std_{name}_ms": std}
    fields.update({percentile_key(p, name): x for p, x in zip(percentiles, points[1:], strict=True)})
    return {key: None if np.isnan(x) else float(x) / NS_PER_MS for key, x in fields.items()}


def _plain_spread(name: str, values: NDArray[Any], percentiles: Sequence[float]) -> dict[str, Number]:
    if len(values) == 0:
        return _spread(name, np.nan, np.nan, np.full(len(percentiles) + 1, np.nan), percentiles)
    points = np.percentile(values, [50, *percentiles])
    return _spread(name, float(np.mean(values)), float(np.std(values)), points, percentiles)


def _weighted_spread(name: str, values: Ints, weights: Ints, percentiles: Sequence[float]) -> dict[str, Number]:
    points = weighted_percentile(values, weights, [50, *percentiles])
    if np.isnan(points[0]):
        return _spread(name, np.nan, np.nan, points, percentiles)
    total = float(weights.sum())
    mean = float((values.astype(np.float64) * weights).sum()) / total
    std = float(np.sqrt(((values - mean) ** 2 * weights).sum() / total))
    return _spread(name, mean, std, points, percentiles)


def goodput_count(log: RunLog, slo: Mapping[str, float]) -> int:
    """Completed requests that meet every limit of `slo` (milliseconds, keys ttft, tpot, e2el; a tie passes).

    One-token outputs count as a TPOT of 0, as in vLLM.
    """
    table = request_table(log)
    good = table["finished"].astype(bool)
    for name, limit_ms in slo.items():
        good &= np.nan_to_num(table[f"{name}_ns"]) <= limit_ms * NS_PER_MS
    return int(good.sum())


def peak_tokens_per_s(log: RunLog, flow: TokenFlow) -> float:
    """Most tokens in one 1-second bucket, counted from the first completed request's arrival (vLLM)."""
    if len(flow.time_ns) == 0:
        return 0.0
    start = log.sequences["arrival_ns"][log.sequences["finished"] == 1].min()
    seconds, where = np.unique((flow.time_ns - start) // NS_PER_S, return_inverse=True)
    return float(np.bincount(where, weights=flow.tokens, minlength=len(seconds)).max())


def peak_concurrency(log: RunLog) -> int:
    """Most completed requests in the system at once; at a tie a departure goes before an arrival (vLLM)."""
    done = log.sequences["finished"] == 1
    arrivals = np.sort(log.sequences["arrival_ns"][done])
    gone = np.searchsorted(np.sort(log.sequences["finish_ns"][done]), arrivals, side="right")
    return int((np.arange(1, len(arrivals) + 1) - gone).max(initial=0))


def summary(
    log: RunLog, percentiles: Sequence[float] = PERCENTILES, slo: Mapping[str, float] | None = None
) -> dict[str, Number]:
    """The totals and latencies of `vllm bench serve`'s result, in its order, then queueing and preemptions.

    `duration` in seconds, throughputs per second, latencies in milliseconds; None where nothing defines a
    value (the goodput without `slo`, TPOT where all outputs have one token).
    """
    s = log.sequences
    done = s["finished"] == 1
    table = request_table(log)
    flow = token_flow(log)
    seconds = duration_ns(log) / NS_PER_S
    completed, inputs = int(done.sum()), int(s["prompt_tokens"][done].sum())
    outputs = int(s["emitted_tokens"][done].sum())

    def rate(amount: int) -> float:
        return amount / seconds if seconds > 0 else 0.0

    tpot = table["tpot_ns"][done]
    return {
        "duration": seconds,
        "completed": completed,
        "failed": len(done) - completed,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rate(completed),
        "request_goodput": None if not slo else rate(goodput_count(log, slo)),
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
        "max_output_tokens_per_s": peak_tokens_per_s(log, flow),
        "max_concurrent_requests": peak_concurrency(log),
        "rtfx": 0.0,
        **_plain_spread("ttft", table["ttft_ns"][done], percentiles),
        **_plain_spread("tpot", tpot[~np.isnan(tpot)], percentiles),
        **_weighted_spread("itl", flow.gap_ns, flow.gap_count, percentiles),
        **_plain_spread("e2el", table["e2el_ns"][done], percentiles),
        **_plain_spread("queue", s["queued_ns"][done], percentiles),
        "preemptions": int(s["preemptions"].sum()),
    }
