"""The curves that figures are made of: distributions and step functions of time."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from experiments.style import Floats, Line, log_where_wide, time_unit

NAMES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token after the first",
    "e2el": "End-to-end latency",
}
SHARE = "requests at or below (%)"
STEPS = 1500  # more changes than that are drawn as an envelope
BINS = 600


def distribution(panel: Axes, name: str, series: list[tuple[Floats, Line, str]]) -> None:
    """Latencies (sorted milliseconds, style, label) of the metric `name` as distributions in the same axes."""
    divisor, unit = time_unit(*(values for values, _, _ in series))
    scaled = [values / divisor for values, _, _ in series]
    for values, (_, style, label) in zip(scaled, series, strict=True):
        ecdf(panel, values, style, label)
    log_where_wide(panel, "x", *scaled)
    panel.set(title=NAMES[name], xlabel=f"{name.upper()} ({unit})", ylim=(0, 103))


def ecdf(axes: Axes, values: Floats, style: Line, label: str, points: int = 2000) -> None:
    """The empirical distribution of sorted `values` as a step line in per cent; long ones at even quantiles."""
    count = len(values)
    kept = np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(int))
    x, y = values[kept], (kept + 1) / count * 100
    x, y = np.concatenate([x[:1], x]), np.concatenate([[0.0], y])
    axes.plot(x, y, color=style.color, linestyle=style.linestyle, drawstyle="steps-post", label=label)


def envelope(time: Floats, value: Floats, bins: int) -> tuple[Floats, Floats, Floats, Floats]:
    """A step function in `bins` equal stretches of time: (edges, least, most and time average in each).

    `value[i]` holds from `time[i]`; the last one ends the range. Least and most are exact.
    """
    edges = np.linspace(time[0], time[-1], bins + 1)
    at = np.concatenate([time, edges[:-1]])
    held = np.concatenate([value, value[np.searchsorted(time, edges[:-1], side="right") - 1]]).astype(np.float64)
    order = np.argsort(at, kind="stable")
    at, held = at[order], held[order]
    lasts = np.diff(at, append=time[-1]) > 0  # what is overtaken at its own instant never shows
    at, held = at[lasts], held[lasts]
    starts = np.searchsorted(at, edges[:-1])
    area = np.add.reduceat(held * np.diff(at, append=time[-1]), starts)
    return edges, np.minimum.reduceat(held, starts), np.maximum.reduceat(held, starts), area / np.diff(edges)


def steps(axis: Axes, time: Floats, value: Floats, colour: str) -> bool:
    """Draw a step function; where it has too many changes to show, its envelope. Returns whether it did that."""
    if len(time) <= STEPS:
        axis.step(time, value, where="post", color=colour, linewidth=1.0)
        return False
    edges, least, most, mean = envelope(time, value, BINS)

    def closed(values: Floats) -> Floats:
        return np.append(values, values[-1])

    axis.fill_between(edges, closed(least), closed(most), step="post", color=colour, alpha=0.3, linewidth=0)
    axis.step(edges, closed(mean), where="post", color=colour, linewidth=0.9)
    return True
