"""Two or more results side by side: what differs in the numbers, and in what was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.results import Result, finite
from experiments.tables import aligned, compact, run_labels, sim_value
from simulator.errors import ConfigError

# Numbers that say what was asked for, or how long the simulation itself took: no metrics.
_SETTINGS = frozenset(
    ("num_prompts", "request_rate", "burstiness", "max_concurrency", "rtfx", "ramp_up_start_rps", "ramp_up_end_rps")
)
_SIM_METRICS = ("preemptions", "recomputed_tokens", "iterations", "iterations_by_mode", "utilisation", "kv_usage")
_MUST_AGREE = ("model_id", "num_prompts", "request_rate", "burstiness", "total_input_tokens", "total_output_tokens")
_SIM_MUST_AGREE = ("version", "config_hash", "seed", "cost_model", "cost_kind")


def metrics_of(result: Result) -> dict[str, float]:
    """Every metric of a result by name; those of the `sim` block by their path, `utilisation.busy`."""
    found = {k: v for k, v in result.items() if k not in _SETTINGS and finite(v) is not None}
    for name in _SIM_METRICS:
        _flatten(name, sim_value(result, name), found)
    return found


def _flatten(path: str, value: Any, into: dict[str, float]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{path}.{key}", inner, into)
    elif finite(value) is not None:
        into[path] = value


def compare(results: Sequence[Result]) -> dict[str, Any]:
    """Every metric that two results share: both values, and (b - a) / a in per cent (None where a is 0).

    `differences` states what else isn't the same. Raises ConfigError for other than two results.
    """
    if len(results) != 2:
        raise ConfigError(f"compare: needs two results, got {len(results)}")
    first, second = map(metrics_of, results)
    a, b = run_labels(results)
    return {
        "a": a,
        "b": b,
        "metrics": [
            {"metric": name, "a": value, "b": second[name], "error_pct": _error_pct(value, second[name])}
            for name, value in first.items()
            if name in second
        ],
        "differences": differences(results),
    }


def _error_pct(a: float, b: float) -> float | None:
    return (b - a) / a * 100 if a else None


def differences(results: Sequence[Result]) -> list[str]:
    """One line for each thing that should be equal for a fair comparison and isn't."""
    lines = []
    for name in (*_MUST_AGREE, *_SIM_MUST_AGREE):
        values = [result[name] if name in result else sim_value(result, name) for result in results]
        if any(value != values[0] for value in values):
            lines.append(f"{name} differs: {', '.join('none' if v is None else str(v) for v in values)}")
    return lines


def compare_table(results: Sequence[Result]) -> str:
    """The shared metrics of two or more results as text, each with its difference from the first in per cent.

    Raises ConfigError for fewer than two results.
    """
    if len(results) < 2:
        raise ConfigError(f"compare: needs at least two results, got {len(results)}")
    columns = [metrics_of(result) for result in results]
    labels = [label[-24:] for label in run_labels(results)]
    rows = [["metric", labels[0], *(cell for label in labels[1:] for cell in (label, "diff %"))]]
    for name, value in columns[0].items():
        if all(name in column for column in columns):
            others = [column[name] for column in columns[1:]]
            cells = [cell for other in others for cell in (compact(other), _signed(_error_pct(value, other)))]
            rows.append([name, compact(value), *cells])
    return "\n".join([*aligned(rows), *differences(results)])


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f}"
