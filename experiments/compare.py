"""Two or more results side by side: what differs in the numbers, and in what was run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.labels import differing, run_labels, settings_of, sim_value, wrapped
from experiments.results import Result, finite
from experiments.tables import GROWS, aligned, cautions, compact, is_unseen, is_unsettled
from simulator.errors import ConfigError

# Numbers that say what was asked for, or how long the simulation itself took: no metrics.
_SETTINGS = frozenset(
    ("num_prompts", "request_rate", "burstiness", "max_concurrency", "rtfx", "ramp_up_start_rps", "ramp_up_end_rps")
)
_SIM_METRICS = ("preemptions", "recomputed_tokens", "iterations", "iterations_by_mode", "utilisation", "kv_usage")
_MUST_AGREE = ("model_id", "num_prompts", "request_rate", "burstiness", "total_input_tokens", "total_output_tokens")
_SIM_MUST_AGREE = ("version", "seed", "cost_model", "cost_kind")
_HEADER = 28  # columns for a run's name


def metrics_of(result: Result) -> dict[str, float]:
    """Every metric of a result by name; those of the `sim` block by their path, `utilisation.busy`.

    Times between tokens that nobody saw are none.
    """
    found = {
        k: v for k, v in result.items() if k not in _SETTINGS and finite(v) is not None and not is_unseen(result, k)
    }
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

    `differences` states what else isn't the same, and `notes` what to read the numbers with. Raises ConfigError for
    other than two results.
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
        "notes": cautions(results),
    }


def _error_pct(a: float, b: float) -> float | None:
    return (b - a) / a * 100 if a else None


def differences(results: Sequence[Result], aside: Sequence[str] = ()) -> list[str]:
    """One line for each thing that should be equal for a fair comparison and isn't: of configs, every key.

    Where a config isn't at hand, all that is known of it is its hash. What begins with a word of `aside` may differ.
    """
    lines = []
    for name in (*_MUST_AGREE, *_SIM_MUST_AGREE):
        values = [result[name] if name in result else sim_value(result, name) for result in results]
        if any(value != values[0] for value in values):
            lines.append(f"{name} differs: {_listed(values)}")
    settings = [settings_of(result) for result in results]
    keys = differing(settings) if all(settings) else []
    for key in keys:
        if key not in _SIM_MUST_AGREE:
            lines.append(f"{key} differs: {_listed([one.get(key, 'unused') for one in settings])}")
    hashes = [sim_value(result, "config_hash") for result in results]
    if not keys and any(value != hashes[0] for value in hashes):
        lines.append(f"config_hash differs: {_listed(hashes)}")
    return [line for line in lines if not line.startswith(tuple(aside))]


def _listed(values: Sequence[Any]) -> str:
    return ", ".join("none" if value is None else str(value) for value in values)


def compare_table(results: Sequence[Result]) -> str:
    """The shared metrics of two or more results as text, each with its difference from the first in per cent.

    Raises ConfigError for fewer than two results.
    """
    if len(results) < 2:
        raise ConfigError(f"compare: needs at least two results, got {len(results)}")
    columns = [metrics_of(result) for result in results]
    rows = _head(run_labels(results))
    for name, value in columns[0].items():
        if all(name in column for column in columns):
            cells = [_cell(*pair, name) for pair in zip(results, columns, strict=True)]
            row = [name, cells[0]]
            for cell, column in zip(cells[1:], columns[1:], strict=True):
                percent = None if GROWS in (cells[0], cell) else _error_pct(value, column[name])
                row += [cell, _signed(percent)]
            rows.append(row)
    return "\n".join([*aligned(rows), *differences(results), *cautions(results)])


def _cell(result: Result, metrics: dict[str, float], name: str) -> str:
    return GROWS if is_unsettled(result, name) else compact(metrics[name])


def _head(labels: Sequence[str]) -> list[list[str]]:
    """The labels as the table's first lines, the last of each beside the figures."""
    names = [wrapped(label, _HEADER) for label in labels]
    height = max(map(len, names))
    names = [[""] * (height - len(name)) + name for name in names]
    rows = []
    for i in range(height):
        last = i == height - 1
        others = [cell for name in names[1:] for cell in (name[i], "diff %" if last else "")]
        rows.append(["metric" if last else "", names[0][i], *others])
    return rows


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f}"
