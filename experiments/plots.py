"""Figures of a run (`plot_run`) and of several (`plot_sweep`), each as PNG and SVG."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.curves import BINS, SHARE, distribution, ecdf, steps
from experiments.labels import run_label, subtitle
from experiments.rates import is_unstable
from experiments.results import Result
from experiments.style import (
    BLUE,
    GREEN,
    VERMILION,
    Floats,
    figure,
    heading,
    legend,
    line_style,
    log_where_wide,
    time_unit,
)
from experiments.sweep_plots import plot_sweep
from experiments.tables import compact
from simulator.clock import NS_PER_MS, NS_PER_S
from simulator.metrics import request_table
from simulator.plan import DECODE, EXTEND, MIXED
from simulator.recorder import RunLog
from simulator.usage import modes, queue_series

__all__ = ["plot_run", "plot_sweep"]

SCATTER = 3000  # points per forward mode


def plot_run(log: RunLog, result: Result, out_dir: Path | str) -> list[Path]:
    """The figures of one run: latency distributions, load over time, iteration times. Returns the PNG files."""
    folder, title, what = Path(out_dir), run_label(result), subtitle([result])
    caution = " (its queue grew until the last arrived)" if is_unstable(result) else ""
    return [
        _latency(log, title + caution, what, folder / "latency"),
        _load(log, title, what, folder / "load"),
        _iterations(log, title, what, folder / "iterations"),
    ]


def _latency(log: RunLog, title: str, what: str, path: Path) -> Path:
    table = request_table(log)
    done = table["finished"]
    late = log.info.get("respond_at") == "batch_end"
    names = ("e2el",) if late else ("ttft", "tpot", "e2el")
    with figure(path, 1, len(names), max(5.4, 3.4 * len(names)), 3.3, sharey=True) as (fig, axes):
        for panel, name, style in zip(axes[0], names, map(line_style, range(3)), strict=False):
            values = table[f"{name}_ns"][done] / NS_PER_MS
            values = np.sort(values[~np.isnan(values)])
            if len(values) == 0:
                panel.set_visible(False)
                continue
            distribution(panel, name, [(values, style._replace(linestyle="-"), name)])
            _mark_percentiles(panel, values)
        axes[0][0].set_ylabel(SHARE)
        note = ", answered when their batch ends" if late else ""
        heading(fig, f"{title}: latencies of {int(done.sum()):,} requests{note}", what)
    return path.with_suffix(".png")


def _mark_percentiles(panel: Axes, values: Floats) -> None:
    """Dots on the curve, numbers under the title, where they cover nothing."""
    divisor, unit = time_unit(values)
    points = np.percentile(values, (50, 99)) / divisor
    panel.plot(points, (50, 99), marker="o", markersize=4, color="black", linestyle="none", zorder=3)
    panel.set_title(f"{panel.get_title('left')}\np50 {compact(points[0])} {unit}, p99 {compact(points[1])} {unit}")


def _load(log: RunLog, title: str, what: str, path: Path) -> Path:
    series = queue_series(log)
    blocks = log.info.get("num_gpu_blocks")
    time, kv_time = series["time_ns"] / NS_PER_S, series["kv_time_ns"] / NS_PER_S
    panels = [
        ("Waiting", "requests", time, series["waiting"], VERMILION),
        ("Running (holding a slot)", "requests", time, series["running"], BLUE),
        ("KV blocks taken", "% of all", kv_time, series["kv_blocks"] / (blocks or 1) * 100, GREEN),
    ][: 3 if blocks else 2]
    with figure(path, len(panels), 1, 7.2, 1.6 * len(panels) + 0.7, sharex=True) as (fig, axes):
        binned = [steps(axis, x, y, colour) for axis, (_, _, x, y, colour) in zip(axes[:, 0], panels, strict=True)]
        for axis, (name, unit, *_) in zip(axes[:, 0], panels, strict=True):
            axis.set(title=name, ylabel=unit, ylim=(0, None))
        axes[-1, 0].set(xlabel="time since the start of the run (s)", xlim=(0, max(time[-1], kv_time[-1])))
        note = f" (line: mean, band: least to most, of each 1/{BINS} of the time)" if any(binned) else ""
        heading(fig, f"{title}: load over time{note}", what)
    return path.with_suffix(".png")


def _iterations(log: RunLog, title: str, what: str, path: Path) -> Path:
    it = log.iterations
    took = (it["end_ns"] - it["start_ns"]) / NS_PER_MS
    tokens = it["prefill_tokens"] + it["decode_seqs"] + it["padding_tokens"]
    mode = modes(log)
    with figure(path, 1, 2, 7.6, 3.4) as (fig, axes):
        left, right = axes[0]
        for i, name in enumerate((EXTEND, DECODE, MIXED)):
            mine = np.flatnonzero(mode == name)
            if len(mine) == 0:
                continue
            style = line_style(i)
            share = took[mine].sum() / took.sum() * 100
            ecdf(left, np.sort(took[mine]), style, "_")
            label = f"{name}: {len(mine):,} iterations, {share:.1f} % of the time"
            left.plot([], [], **style._asdict(), markerfacecolor="none", label=label)
            shown = mine[:: -(-len(mine) // SCATTER)]
            right.scatter(tokens[shown], took[shown], s=9, marker=style.marker, facecolors="none",
                          edgecolors=style.color, linewidths=0.7, alpha=0.7, rasterized=True)  # fmt: skip
        log_where_wide(left, "x", took)
        log_where_wide(right, "x", tokens.astype(np.float64))
        log_where_wide(right, "y", took)
        left.set(title="Distribution", xlabel="iteration time (ms)", ylabel="iterations at or below (%)", ylim=(0, 103))
        right.set(title="Against size", xlabel="tokens computed, padding included", ylabel="iteration time (ms)")
        legend(fig, 1)
        heading(fig, f"{title}: iteration times by forward mode", what)
    return path.with_suffix(".png")
