"""The figure of a calibration: measured against predicted times, one panel per kind of operation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from calibration.points import WHOLE
from calibration.validate import Checked
from experiments.style import BLUE, VERMILION, figure, heading

BAND = 0.10
WIDE = 60  # a span beyond which only powers of ten fit below an axis
COLUMNS = 3
# Panel: the operations in it, in the order drawn.
PANELS = {
    "Linear layers": ("linear",), "Prefill attention": ("prefill",), "Decode attention": ("decode",),
    "Mixed attention": ("mixed",), "Whole layers and steps": WHOLE,
    "Other kernels": ("embedding", "norm", "rope", "activation", "add", "kv_write", "sampling", "allreduce"),
}  # fmt: skip


def write_measured_vs_predicted(path: Path, checked: Sequence[Checked], title: str, what: str) -> list[Path]:
    """Draw all checked points, fitted ones pale and held-out ones dark. Returns the files, .png and .svg."""
    panels = {name: points for name, ops in PANELS.items() if (points := [c for c in checked if c.row.point.op in ops])}
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with figure(path, rows, columns, 3.4 * columns + 0.2, 3.15 * rows + 0.5) as (fig, axes):
        heading(fig, title, what, lines_in_figure=2)
        for panel, (name, points) in zip(axes.flat, panels.items(), strict=False):
            _panel(panel, name, points)
        for panel in list(axes.flat)[len(panels) :]:
            panel.set_axis_off()
        fig.legend(handles=_key(), loc="outside lower center", ncols=4)
    return [path.with_suffix(".png"), path.with_suffix(".svg")]


def _panel(panel: Axes, name: str, points: Sequence[Checked]) -> None:
    held = [c for c in points if c.held_out]
    fitted = [c for c in points if not c.held_out]
    every = np.array([us for c in points for us in (c.row.median_us, c.prediction.us)])
    ends = np.array([every.min() / 1.5, every.max() * 1.5])
    panel.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="#dddddd", linewidth=0, zorder=1)
    panel.plot(ends, ends, color="black", linewidth=0.8, zorder=2)
    size = 10 if len(points) < 2000 else 3
    for part, colour, alpha, order in ((fitted, BLUE, 0.25, 3), (held, VERMILION, 0.6, 4)):
        xs, ys = [c.row.median_us for c in part], [c.prediction.us for c in part]
        panel.scatter(xs, ys, s=size, color=colour, alpha=alpha, linewidths=0, zorder=order, rasterized=True)
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    panel.set(xlabel="measured (us per call)", ylabel="predicted (us per call)")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ends[1] < WIDE * ends[0] else (1,)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:,.0f}" if us >= 1 else f"{us:g}"))
    panel.set_title(f"{name}\n{_error(held)}", fontsize=9)


def _error(held: Sequence[Checked]) -> str:
    if not held:
        return "no point held out"
    median = 100 * float(np.median([abs(c.error) for c in held]))
    return f"median error {median:.1f} %, {len(held):,} held out"


def _key() -> list[Line2D]:
    def dots(colour: str, label: str) -> Line2D:
        return Line2D([], [], color=colour, marker="o", linestyle="none", label=label)

    return [
        dots(VERMILION, "held out"), dots(BLUE, "fitted"),
        Line2D([], [], color="black", linewidth=0.8, label="predicted = measured"),
        Line2D([], [], color="#dddddd", linewidth=7, label=f"within {100 * BAND:.0f} %"),
    ]  # fmt: skip
