"""Figures of several runs together: the curves over request rates, or their distributions overlaid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.curves import NAMES, SHARE, distribution, legend
from experiments.results import Result, finite, latencies_ms
from experiments.style import BLUE, GREEN, ORANGE, Floats, figure, line_style, log_where_wide, time_unit
from experiments.tables import run_label, run_labels, sim_value


def plot_sweep(results: Sequence[Result], out_dir: Path | str) -> list[Path]:
    """The figures of several runs together. Returns the PNG files.

    Where a line (a scheduler with its options) was run at several request rates: latency against rate, and
    throughput against latency. Otherwise distributions overlaid, and throughput with the use of slots.
    """
    folder, lines = Path(out_dir), _lines(results)
    if any(len({_rate(result) for result in runs}) > 1 for runs in lines.values()):
        return [
            _latency_against_rate(lines, folder / "latency_vs_rate"),
            _throughput_against_latency(lines, folder / "throughput_vs_latency"),
        ]
    written = [_slots(results, folder / "throughput")] if any(sim_value(r, "utilisation") for r in results) else []
    return [*_overlaid(results, folder / "distributions"), *written]


def _rate(result: Result) -> float | None:
    return finite(result.get("request_rate"))


def _lines(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Runs by what they share apart from the request rate, each line in order of rate."""
    lines: dict[str, list[Result]] = {}
    for result in results:
        words = [w for w in run_label(result).split(", ") if not w.startswith(("request_rate=", "time_scale="))]
        name = ", ".join(words) or str(sim_value(result, "scheduler") or result.get("backend"))
        lines.setdefault(name, []).append(result)
    return {name: sorted(runs, key=lambda r: _rate(r) or 0.0) for name, runs in lines.items()}


def _points(runs: Sequence[Result], x: str, y: str) -> tuple[Floats, Floats]:
    pairs = [(finite(r.get(x)), finite(r.get(y))) for r in runs]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    xs, ys = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return xs, ys


def _latency_against_rate(lines: dict[str, list[Result]], path: Path) -> Path:
    runs = [run for line in lines.values() for run in line]
    kinds = [kind for kind in ("mean", "p99") if any(f"{kind}_e2el_ms" in run for run in runs)]
    with figure(path, len(kinds), 3, 9.6, 2.7 * len(kinds) + 0.8, sharex=True) as (fig, axes):
        for row, kind in zip(axes, kinds, strict=True):
            for panel, name in zip(row, NAMES, strict=True):
                _against_rate(panel, lines, kind, name)
        for panel, title in zip(axes[0], NAMES.values(), strict=True):
            panel.set_title(title)
        for panel in axes[-1]:
            panel.set_xlabel("request rate (requests/s)")
        legend(fig, min(len(lines), 4))
        fig.suptitle(f"Latency against request rate{_silent(lines)}", fontsize=10)
    return path.with_suffix(".png")


def _against_rate(panel: Axes, lines: dict[str, list[Result]], kind: str, name: str) -> None:
    series = {
        line: _points(runs, "request_rate", f"{kind}_{name}_ms")
        for line, runs in lines.items()
        if name != "tpot" or _streams(runs)
    }
    divisor, unit = time_unit(*(y for _, y in series.values()))
    series = {line: (x, y / divisor) for line, (x, y) in series.items()}
    _draw_lines(panel, series, list(lines))
    log_where_wide(panel, "x", *(x for x, _ in series.values()))
    log_where_wide(panel, "y", *(y for _, y in series.values()))
    panel.set_ylabel(f"{kind} {name.upper()} ({unit})")


def _throughput_against_latency(lines: dict[str, list[Result]], path: Path) -> Path:
    rates = [rate for runs in lines.values() for rate in map(_rate, runs) if rate is not None]
    with figure(path, 1, 1, 6.4, 4.4) as (fig, axes):
        panel = axes[0][0]
        series = {name: _points(runs, "mean_e2el_ms", "output_throughput") for name, runs in lines.items()}
        divisor, unit = time_unit(*(x for x, _ in series.values()))
        series = {name: (x / divisor, y) for name, (x, y) in series.items()}
        _draw_lines(panel, series, list(lines))
        log_where_wide(panel, "x", *(x for x, _ in series.values()))
        panel.set(xlabel=f"mean end-to-end latency ({unit})", ylabel="output tokens per second", ylim=(0, None))
        legend(fig, min(len(lines), 4))
        span = f"from {min(rates):.3g} to {max(rates):.3g} requests/s along each line"
        fig.suptitle(f"Throughput against latency, {span}", fontsize=10)
    return path.with_suffix(".png")


def _draw_lines(panel: Axes, series: dict[str, tuple[Floats, Floats]], names: list[str]) -> None:
    for name, (x, y) in series.items():
        style = line_style(names.index(name))
        panel.plot(x, y, **style._asdict(), markersize=5, markerfacecolor="white", label=name)


def _streams(runs: Sequence[Result]) -> bool:
    return bool(sim_value(runs[0], "respond_at") != "batch_end")


def _silent(lines: dict[str, list[Result]]) -> str:
    names = [name for name, runs in lines.items() if not _streams(runs)]
    return f" ({', '.join(names)}: no tokens before the batch ends, so no TPOT)" if names else ""


def _overlaid(results: Sequence[Result], path: Path) -> list[Path]:
    """Distributions of all runs in the same axes; nothing where no run's latencies are on disk."""
    runs = dict(zip(run_labels(results), results, strict=True))
    known = {name: latencies_ms(run) for name, run in runs.items()}
    for name, run in runs.items():
        if not _streams([run]):
            known[name].pop("tpot", None)
    metrics = [metric for metric in NAMES if any(metric in columns for columns in known.values())]
    if not metrics:
        return []
    with figure(path, 1, len(metrics), max(5.4, 3.4 * len(metrics)), 3.6, sharey=True) as (fig, axes):
        styles = {name: line_style(i) for i, name in enumerate(runs)}
        for panel, metric in zip(axes[0], metrics, strict=True):
            distribution(panel, metric, [(c[metric], styles[n], n) for n, c in known.items() if metric in c])
        axes[0][0].set_ylabel(SHARE)
        legend(fig, min(len(runs), 4))
        fig.suptitle(f"Latency distributions{_silent({name: [run] for name, run in runs.items()})}", fontsize=10)
    return [path.with_suffix(".png")]


def _slots(results: Sequence[Result], path: Path) -> Path:
    """What distributions don't show: throughput, and what the slots were used for."""
    names = run_labels(results)
    rows = np.arange(len(results))[::-1]
    with figure(path, 1, 2, 8.4, 0.42 * len(results) + 1.5, sharey=True) as (fig, axes):
        left, right = axes[0]
        rates = np.array([finite(r.get("output_throughput")) or 0.0 for r in results])
        left.barh(rows, rates, height=0.6, color=BLUE)
        for row, rate in zip(rows, rates, strict=True):
            left.text(rate, row, f" {rate:,.0f}", va="center", fontsize=8)
        left.set(title="Throughput", xlabel="output tokens per second", xlim=(0, rates.max() * 1.15 or 1))
        left.set_yticks(rows, names)
        useful = np.array([100 * (finite(sim_value(r, "utilisation", "useful_slots")) or 0.0) for r in results])
        right.barh(rows, useful, height=0.6, color=GREEN, label="computing a token")
        right.barh(rows, 100 - useful, left=useful, height=0.6, color=ORANGE, hatch="///", edgecolor="white",
                   linewidth=0, label="held without computing")  # fmt: skip
        for row, share in zip(rows, useful, strict=True):
            right.text(1, row, f"{share:.0f} %", va="center", fontsize=8, color="white")
        right.set(title="Slots held", xlabel="% of slots x iterations", xlim=(0, 100))
        for panel in (left, right):
            panel.grid(visible=False, axis="y")
        legend(fig, 2)
        fig.suptitle("Throughput and use of slots", fontsize=10)
    return path.with_suffix(".png")
