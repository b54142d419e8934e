"""Figures of several runs together: the curves over request rates, or their distributions overlaid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from experiments.curves import NAMES, SHARE, distribution
from experiments.labels import run_labels, sim_value, subtitle, wrapped
from experiments.latencies import latencies_ms
from experiments.rates import is_unstable, lines_of, rate_lines, rate_of, swept
from experiments.results import Result, finite
from experiments.style import (
    BLUE,
    GREEN,
    ORANGE,
    Floats,
    figure,
    heading,
    legend,
    line_style,
    log_where_wide,
    time_unit,
)

BUDGET = "max_num_batched_tokens"
NAME_WIDTH = 32  # characters of a line beside bars


def plot_sweep(results: Sequence[Result], out_dir: Path | str) -> list[Path]:
    """The figures of several runs together. Returns the PNG files.

    Where a line (a scheduler with its options) was run at several request rates: latency against rate, and
    throughput against latency. Where all name their token budget: latency against that. Otherwise distributions
    overlaid, and throughput with the use of slots.
    """
    folder, lines = Path(out_dir), rate_lines(results)
    if any(len({rate_of(result) for result in runs}) > 1 for runs in lines.values()):
        return [
            _latency_against_rate(lines, folder / "latency_vs_rate"),
            _throughput_against_latency(lines, folder / "throughput_vs_latency"),
        ]
    budgets = {swept(result, BUDGET) for result in results}
    if len(budgets) > 1 and None not in budgets:
        return [_against_budget(lines_of(results, (BUDGET,)), folder / "latency_vs_budget")]
    written = [_slots(results, folder / "throughput")] if any(sim_value(r, "utilisation") for r in results) else []
    return [*_overlaid(results, folder / "distributions"), *written]


class Points(NamedTuple):
    """The points of a line in order of rate; the first `stable` of them lie below its first unstable run."""

    x: Floats
    y: Floats
    stable: int


def _points(runs: Sequence[Result], x: str, y: str) -> Points:
    known = [r for r in runs if finite(r.get(x)) is not None and finite(r.get(y)) is not None]
    xs, ys = np.array([(r[x], r[y]) for r in known], dtype=np.float64).reshape(-1, 2).T
    return Points(xs, ys, next((i for i, run in enumerate(known) if is_unstable(run)), len(known)))


def _latency_against_rate(lines: dict[str, list[Result]], path: Path) -> Path:
    runs = _all(lines)
    kinds = [kind for kind in ("mean", "p99") if any(f"{kind}_e2el_ms" in run for run in runs)]
    with figure(path, len(kinds), 3, 9.6, 2.7 * len(kinds) + 0.8, sharex=True) as (fig, axes):
        for row, kind in zip(axes, kinds, strict=True):
            for panel, name in zip(row, NAMES, strict=True):
                _against_rate(panel, lines, kind, name)
        for panel, title in zip(axes[0], NAMES.values(), strict=True):
            panel.set_title(title)
        for panel in axes[-1]:
            panel.set_xlabel("request rate (requests/s)")
        _marks(axes[0][0], [_points(runs, "request_rate", "mean_e2el_ms") for runs in lines.values()])
        legend(fig, min(len(lines), 4))
        heading(fig, f"Latency against request rate{_silent(runs)}", subtitle(runs))
    return path.with_suffix(".png")


def _against_rate(panel: Axes, lines: dict[str, list[Result]], kind: str, name: str) -> None:
    shown = {line: runs for line, runs in lines.items() if name != "tpot" or _streams(runs)}
    series = {line: _points(runs, "request_rate", f"{kind}_{name}_ms") for line, runs in shown.items()}
    divisor, unit = time_unit(*(points.y for points in series.values()))
    series = {line: points._replace(y=points.y / divisor) for line, points in series.items()}
    _draw_lines(panel, series, list(lines))
    log_where_wide(panel, "x", *(points.x for points in series.values()))
    log_where_wide(panel, "y", *(points.y for points in series.values()))
    panel.set_ylabel(f"{kind} {name.upper()} ({unit})")


def _throughput_against_latency(lines: dict[str, list[Result]], path: Path) -> Path:
    rates = [rate for runs in lines.values() for rate in map(rate_of, runs) if rate is not None]
    with figure(path, 1, 1, 7.0, 4.4) as (fig, axes):
        panel = axes[0][0]
        series = {name: _points(runs, "mean_e2el_ms", "output_throughput") for name, runs in lines.items()}
        divisor, unit = time_unit(*(points.x for points in series.values()))
        series = {name: points._replace(x=points.x / divisor) for name, points in series.items()}
        _draw_lines(panel, series, list(lines))
        log_where_wide(panel, "x", *(points.x for points in series.values()))
        panel.set(xlabel=f"mean end-to-end latency ({unit})", ylabel="output tokens per second", ylim=(0, None))
        _marks(panel, series.values())
        legend(fig, 2)
        span = f"from {min(rates):.3g} to {max(rates):.3g} requests/s along each line"
        heading(fig, f"Throughput against latency, {span}", subtitle(_all(lines)))
    return path.with_suffix(".png")


def _draw_lines(panel: Axes, series: dict[str, Points], names: list[str]) -> None:
    """A line each; what doesn't keep up hollow, behind a thin dotted line, and the last that does with a black edge."""
    for name, (x, y, stable) in series.items():
        style = line_style(names.index(name))
        panel.plot(x[:stable], y[:stable], **style._asdict(), markersize=5, label=name)
        panel.plot(x[max(stable - 1, 0) :], y[max(stable - 1, 0) :], color=style.color, linestyle=":", linewidth=1)
        panel.plot(x[stable:], y[stable:], color=style.color, marker=style.marker, markersize=5, linestyle="none",
                   markerfacecolor="white")  # fmt: skip
        if 0 < stable < len(x):
            panel.plot(x[stable - 1], y[stable - 1], color=style.color, marker=style.marker, markersize=8,
                       markeredgecolor="black", linestyle="none", zorder=3)  # fmt: skip


def _marks(panel: Axes, series: Iterable[Points]) -> None:
    """Legend entries for what `_draw_lines` marks, where there is any."""
    if any(stable < len(x) for x, _, stable in series):
        panel.plot([], [], color="#999999", marker="o", markersize=8, markeredgecolor="black", linestyle="none",
                   label="knee: the highest rate it keeps up with")  # fmt: skip
        panel.plot([], [], color="#555555", marker="o", markersize=5, markerfacecolor="white", linestyle=":",
                   linewidth=1, label="queue still growing: depends on the run's length")  # fmt: skip


def _against_budget(lines: dict[str, list[Result]], path: Path) -> Path:
    panels = (("p99_itl_ms", "p99 ITL", "Gaps between tokens"), ("mean_ttft_ms", "mean TTFT", "Time to first token"),
              ("output_throughput", "output tokens per second", "Throughput"))  # fmt: skip
    with figure(path, 1, len(panels), 9.6, 3.5) as (fig, axes):
        for panel, (key, label, title) in zip(axes[0], panels, strict=True):
            found = {}
            for name, runs in lines.items():
                pairs = sorted((swept(r, BUDGET), finite(r.get(key))) for r in runs if swept(r, BUDGET) is not None)
                found[name] = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2).T
            divisor, unit = time_unit(*(y for _, y in found.values())) if key.endswith("_ms") else (1.0, "")
            for i, (name, (x, y)) in enumerate(found.items()):
                panel.plot(x, y / divisor, **line_style(i)._asdict(), markersize=5, label=name)
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            panel.set(title=title, xlabel="token budget of an iteration", ylabel=f"{label} ({unit})" if unit else label)
            panel.set_ylim(0, 1.08 * max(float(y.max()) for _, y in found.values()) / divisor)
        legend(fig, min(len(lines), 4))
        heading(fig, "Latency and throughput against the token budget (max_num_batched_tokens)", subtitle(_all(lines)))
    return path.with_suffix(".png")


def _streams(runs: Sequence[Result]) -> bool:
    return bool(sim_value(runs[0], "respond_at") != "batch_end")


def _all(lines: dict[str, list[Result]]) -> list[Result]:
    return [run for runs in lines.values() for run in runs]


def _silent(results: Sequence[Result]) -> str:
    names = dict.fromkeys(str(sim_value(run, "scheduler")) for run in results if not _streams([run]))
    return f" ({', '.join(names)}: no tokens before the batch ends, so no TPOT)" if names else ""


def _overlaid(results: Sequence[Result], path: Path) -> list[Path]:
    """Distributions of all runs in the same axes; nothing where no run's latencies are on disk."""
    runs = {
        f"{name} (queue grew until the last arrived)" if is_unstable(run) else name: run
        for name, run in zip(run_labels(results), results, strict=True)
    }
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
        heading(fig, f"Latency distributions{_silent(results)}", subtitle(results))
    return [path.with_suffix(".png")]


def _slots(results: Sequence[Result], path: Path) -> Path:
    """What distributions don't show: throughput, and what the slots were used for."""
    names = [wrapped(label, NAME_WIDTH) for label in run_labels(results)]
    rows = np.arange(len(results))[::-1]
    row_in = 0.27 + 0.15 * max(map(len, names))
    with figure(path, 1, 2, 8.4, row_in * len(results) + 1.5, sharey=True) as (fig, axes):
        left, right = axes[0]
        rates = np.array([finite(r.get("output_throughput")) or 0.0 for r in results])
        left.barh(rows, rates, height=0.6, color=BLUE)
        for row, rate in zip(rows, rates, strict=True):
            left.text(rate, row, f" {rate:,.0f}", va="center", fontsize=8)
        left.set(title="Throughput", xlabel="output tokens per second", xlim=(0, rates.max() * 1.15 or 1))
        left.set_yticks(rows, ["\n".join(lines) for lines in names])
        useful = np.array([100 * (finite(sim_value(r, "utilisation", "useful_slots")) or 0.0) for r in results])
        right.barh(rows, useful, height=0.6, color=GREEN, label="computing a token")
        right.barh(rows, 100 - useful, left=useful, height=0.6, color=ORANGE, hatch="///", edgecolor="white",
                   linewidth=0, label="held without computing")  # fmt: skip
        for row, share in zip(rows, useful, strict=True):
            right.text(1, row, f"{share:.0f} %", va="center", fontsize=8, color="white")
        right.set(title="Slots held", xlabel="% of slots held x iterations", xlim=(0, 100))
        for panel in (left, right):
            panel.grid(visible=False, axis="y")
        legend(fig, 2)
        heading(fig, "Throughput and use of slots", subtitle(results))
    return path.with_suffix(".png")
