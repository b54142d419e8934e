"""A simulated and a measured run in the same axes: latencies, and requests in the system over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.curves import SHARE, distribution
from experiments.labels import run_label, subtitle
from experiments.latencies import LATENCIES, latencies_ms, per_request
from experiments.results import ITERATIONS, Result, is_live
from experiments.style import Floats, figure, heading, legend, line_style
from simulator.clock import NS_PER_S

Curves = dict[str, tuple[Floats, Floats]]
TITLES = {"running": "Running", "waiting": "Waiting", "system": "In the system"}
GAUGES = {"running": "num_requests_running", "waiting": "num_requests_waiting"}


def plot_accuracy(result: Result, measured: Result, folder: Path) -> list[Path]:
    """Write `compare_latency` and `compare_load`, each PNG and SVG, where there is something to draw.

    Returns the PNG files.
    """
    labels, what = [run_label(result), run_label(measured)], subtitle([result])
    if is_live(measured):
        labels = [f"simulated: {labels[0]}", f"measured: {labels[1]}"]
    return [
        *_latency([latencies_ms(result), latencies_ms(measured)], labels, what, folder / "compare_latency"),
        *_load([_curves(result), _curves(measured)], labels, what, folder / "compare_load"),
    ]


def _latency(series: list[dict[str, Floats]], labels: list[str], what: str, path: Path) -> list[Path]:
    names = [name for name in LATENCIES if all(name in one for one in series)]
    if not names:
        return []
    with figure(path, 1, len(names), max(5.4, 3.4 * len(names)), 3.3, sharey=True) as (fig, axes):
        for panel, name in zip(axes[0], names, strict=True):
            styles = map(line_style, range(2))
            lines = [(one[name], style, label) for one, style, label in zip(series, styles, labels, strict=True)]
            distribution(panel, name, lines)
        axes[0][0].set_ylabel(SHARE)
        heading(fig, f"{labels[0]} and {labels[1]}: latencies", what)
        legend(fig, 2)
    return [path.with_suffix(".png")]


def _load(series: list[Curves], labels: list[str], what: str, path: Path) -> list[Path]:
    names = [name for name in TITLES if all(name in one for one in series)]
    if not names:
        return []
    with figure(path, len(names), 1, 7.2, 1.7 * len(names) + 1.0, sharex=True) as (fig, axes):
        for panel, name in zip(axes[:, 0], names, strict=True):
            for i, (one, label) in enumerate(zip(series, labels, strict=True)):
                _line(panel, one[name], i, label)
            panel.set(title=TITLES[name], ylabel="requests", ylim=(0, None))
            panel.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[-1, 0].set(xlabel="time since the first arrival (s)", xlim=(0, None))
        heading(fig, f"{labels[0]} and {labels[1]}: load over time", what)
        legend(fig, 2)
    return [path.with_suffix(".png")]


def _line(panel: Axes, curve: tuple[Floats, Floats], index: int, label: str) -> None:
    style = line_style(index)
    panel.step(*curve, where="post", color=style.color, linestyle=style.linestyle, linewidth=1.1, label=label)


def _curves(result: Result) -> Curves:
    """Requests by seconds since the first arrival: running and waiting where recorded, in the system where known."""
    found: Curves = {}
    columns = per_request(result)
    start = columns["arrival"].min() if "arrival" in columns else 0.0  # a client's clock may stand anywhere
    if "arrival" in columns and "e2el" in columns:
        done = ~np.isnan(columns["e2el"])
        arrival = columns["arrival"][done] - start
        changes = np.concatenate([arrival, arrival + columns["e2el"][done] / 1e3])
        order = np.argsort(changes, kind="stable")
        steps = np.where(order < len(arrival), 1, -1)
        found["system"] = changes[order], np.cumsum(steps).astype(np.float64)
    series = (result.get("measured") or {}).get("timeseries")
    if series:
        found |= {name: (np.array(series["t"]), np.array(series[name])) for name in GAUGES}
    elif result.get("out_dir"):
        table = pd.read_csv(Path(result["out_dir"]) / ITERATIONS, usecols=["start_ns", *GAUGES.values()])
        time = table["start_ns"].to_numpy() / NS_PER_S - start
        found |= {name: (time, table[column].to_numpy(dtype=np.float64)) for name, column in GAUGES.items()}
    return found
