"""A simulated result held against a measured run: errors per metric, and per request, matched by order of arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.compare import differences
from experiments.labels import differing, run_label, settings_of, sim_value
from experiments.latencies import LATENCIES, per_request
from experiments.live_errors import errors_text
from experiments.live_result import live_text, spread_text
from experiments.results import Result, finite, is_live
from experiments.tables import aligned, compact, is_unseen
from simulator.metrics import percentile_key

Floats = NDArray[np.float64]
Columns = dict[str, Floats]

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
# What a live run has otherwise than the simulated one, and should.
_OF_TIMES = ("cost_model", "cost_kind", "pins.cost_model", "config_hash", "host_overhead_us")
TOTALS = (
    ("makespan s", "duration"),
    ("requests/s", "request_throughput"),
    ("output tok/s", "output_throughput"),
    ("total tok/s", "total_token_throughput"),
)


def accuracy(result: Result, measured: Result) -> dict[str, Any]:
    """Every shared metric of `result` (a) and `measured` (b) with (a - b) / b in per cent, and per-request errors.

    `per_request` holds the mean absolute error in per cent of TTFT, TPOT and E2EL over the requests that both have,
    matched by order of arrival; it is {} where one of the two doesn't have single requests. `differences` says what
    else isn't the same.
    """
    ours, theirs = per_request(result), per_request(measured)
    live = is_live(measured)
    stated = live and measured["sim"]["live"]["runs"] > 1  # medians over runs, which no run's single requests give
    metrics = [_metric(key, *values) for _, key in TOTALS if (values := _both(result, measured, key))]
    for name in (*LATENCIES, "itl"):
        for statistic in STATISTICS:
            pairs = ((result, ours), (measured, {} if stated else theirs))
            a, b = (_statistic(r, columns, name, statistic) for r, columns in pairs)
            key = f"mean_{name}_ms" if statistic == "mean" else f"{statistic}_{name}_ms"
            seen = not any(is_unseen(r, key) for r in (result, measured))
            if a is not None and b is not None and seen:
                metrics.append(_metric(key, a, b))
    errors, lines = _per_request(ours, theirs)
    if live:
        lines += differences([result, measured], _OF_TIMES)
    return {
        "a": run_label(result),
        "b": run_label(measured),
        "reference": "b",
        "metrics": metrics,
        "per_request": errors,
        "preemptions": {"a": sim_value(result, "preemptions"), "b": sim_value(measured, "preemptions")},
        "differences": [*_counts(result, measured), *lines],
    }


def _metric(key: str, a: float, b: float) -> dict[str, Any]:
    return {"metric": key, "a": a, "b": b, "error_pct": (a - b) / b * 100 if b else None}


def _both(result: Result, measured: Result, key: str) -> tuple[float, float] | None:
    a, b = finite(result.get(key)), finite(measured.get(key))
    return None if a is None or b is None else (a, b)


def _statistic(result: Result, columns: Columns, name: str, statistic: str) -> float | None:
    """From single requests where they are there, so that both sides' percentiles are made alike; else as stated."""
    values = columns.get(name)
    if values is not None and not np.isnan(values).all():
        values = values[~np.isnan(values)]
        return float(values.mean() if statistic == "mean" else np.percentile(values, float(statistic[1:])))
    if name == "itl" and (gaps := result.get("itls")) and any(gaps):
        pooled = np.concatenate([np.asarray(gap, dtype=np.float64) for gap in gaps]) * 1e3
        return float(pooled.mean() if statistic == "mean" else np.percentile(pooled, float(statistic[1:])))
    if statistic == "mean":
        return finite(result.get(f"mean_{name}_ms"))
    stated = result.get(percentile_key(float(statistic[1:]), name))
    return finite(result.get(f"median_{name}_ms") if stated is None and statistic == "p50" else stated)


def _counts(result: Result, measured: Result) -> list[str]:
    lines = []
    for key in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
        values = _both(result, measured, key)
        if values and values[0] != values[1]:
            lines.append(f"{key} differs: {values[0]}, measured {values[1]}")
    return lines


def _per_request(ours: Columns, theirs: Columns) -> tuple[dict[str, float], list[str]]:
    shared = [name for name in LATENCIES if name in ours and name in theirs]
    if not shared:
        return {}, []
    counts = len(ours[shared[0]]), len(theirs[shared[0]])
    if counts[0] != counts[1]:
        return {}, [f"requests differ: {counts[0]}, measured {counts[1]}; single requests can't be matched"]
    done = ~np.isnan(ours[shared[-1]]) & ~np.isnan(theirs[shared[-1]])
    lines = []
    for name in ("input", "output"):
        if name in ours and name in theirs and (other := int((ours[name] != theirs[name])[done].sum())):
            lines.append(f"{name} tokens of {other} of {counts[0]} requests differ: is it the same workload?")
    errors = {}
    for name in shared:
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.abs(ours[name] / theirs[name] - 1)
        error = error[np.isfinite(error)]
        if len(error):
            errors[f"{name}_mape_pct"] = float(error.mean() * 100)
    return errors, lines


def accuracy_table(result: Result, measured: Result) -> str:
    """The same as text."""
    found = accuracy(result, measured)
    metrics = {m["metric"]: m for m in found["metrics"]}
    rows = [["", *STATISTICS]]
    for name in (*LATENCIES, "itl"):
        keys = [f"{s}_{name}_ms" for s in STATISTICS]
        if any(key in metrics for key in keys):
            cells = [metrics.get(key) for key in keys]
            rows.append([f"{name} ms", *(compact(m and m["a"]) for m in cells)])
            rows.append(["  measured", *(compact(m and m["b"]) for m in cells)])
            rows.append(["  error %", *(_signed(m and m["error_pct"]) for m in cells)])
    totals = [["", "simulated", "measured", "error %"]]
    totals += [[title, _figure(m["a"]), _figure(m["b"]), _signed(m["error_pct"])]
               for title, key in TOTALS if (m := metrics.get(key))]  # fmt: skip
    preempted = found["preemptions"]
    if preempted["a"] is not None or preempted["b"] is not None:
        totals.append(["preemptions", compact(preempted["a"]), compact(preempted["b"]), "-"])
    lines = [f"{found['a']} against {found['b']}", "", *aligned(totals), "", *aligned(rows), ""]
    if found["per_request"]:
        errors = ", ".join(f"{k.split('_')[0]} {v:.2f} %" for k, v in found["per_request"].items())
        lines.append(f"per request, mean absolute error: {errors}")
    if is_live(measured):
        lines += filter(None, [live_text(measured), spread_text(measured)])
        if not any(key.startswith(_OF_TIMES) for key in differing([settings_of(result), settings_of(measured)])):
            lines += filter(None, [errors_text(measured)])  # of the very times that were simulated
    return "\n".join([*lines, *found["differences"]]).rstrip()


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.2f}"


def _figure(value: float) -> str:
    return f"{value:,.2f}"
