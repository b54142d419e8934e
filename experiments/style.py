"""How figures look: legible in print and to the colour-blind, and the same bytes from the same numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), the ones that print dark enough on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000"
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1.5, 1.2)), (0, (8, 2)))
_MARKERS = "os^DvPX"
_HEADING, _LINE_IN = 9.5, 0.17  # a heading's font size in points, and the height of a line of text
_CHARACTERS_PER_INCH = 12.5  # at that size

_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "savefig.dpi": 150,
    "svg.hashsalt": "servesim",
}


class Line(NamedTuple):
    """One series told apart by colour, dashes and marker at once."""

    color: str
    linestyle: Any
    marker: str


def line_style(index: int) -> Line:
    """The style of the `index`-th series; 30 in a row differ."""
    turn = index // len(_COLOURS)
    return Line(
        _COLOURS[index % len(_COLOURS)], _DASHES[(index + turn) % len(_DASHES)], _MARKERS[index % len(_MARKERS)]
    )


@contextmanager
def figure(path: Path, rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[Any]:
    """A figure of `rows` x `columns` axes, in inches, written to `path` as .png and .svg when the block ends.

    Yields (figure, axes), the axes in a two-dimensional array.
    """
    with mpl.rc_context(_RC):
        fig = Figure(figsize=(width, height))
        yield fig, fig.subplots(rows, columns, squeeze=False, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path.with_suffix(".png"), metadata={"Software": None})
        fig.set_layout_engine("none")  # keep the arrangement: finding it takes half of the time
        fig.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})


def heading(fig: Figure, title: str, subtitle: str = "", lines_in_figure: int = 1) -> None:
    """A title and what was run above all axes, in as many lines as they need.

    The figure has room for `lines_in_figure` and grows by the others.
    """
    width = int(fig.get_figwidth() * _CHARACTERS_PER_INCH)
    lines = [line for text in (title, subtitle) for line in textwrap.wrap(text, width, break_on_hyphens=False)]
    fig.suptitle("\n".join(lines), fontsize=_HEADING)
    fig.set_figheight(fig.get_figheight() + (len(lines) - lines_in_figure) * _LINE_IN)


def legend(fig: Figure, most_columns: int) -> None:
    """One legend below all axes, where it covers no data, with each label once.

    It has as many columns as fit, at most `most_columns`, and the figure grows by the lines after the first.
    """
    entries: dict[str, Any] = {}
    for panel in fig.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    width = fig.get_figwidth()
    names = ["\n".join(textwrap.wrap(name, int((width - 0.8) * _CHARACTERS_PER_INCH))) for name in entries]
    for columns in range(min(most_columns, len(names)), 0, -1):
        shown = fig.legend(list(entries.values()), names, loc="outside lower center", ncols=columns, handlelength=3.2)
        size = shown.get_window_extent()
        if size.width <= (width - 0.1) * fig.dpi or columns == 1:
            fig.set_figheight(fig.get_figheight() + max(0.0, size.height / fig.dpi - 1.5 * _LINE_IN))
            return
        shown.remove()


def time_unit(*values_ms: Floats) -> tuple[float, str]:
    """What to divide milliseconds by so that the largest reads well, and the unit's name."""
    largest = max((float(values.max(initial=0)) for values in values_ms), default=0.0)
    return (1000.0, "s") if largest >= 10_000 else (1.0, "ms")


def log_where_wide(axes: Axes, which: str, *values: Floats) -> None:
    """A logarithmic axis ("x" or "y") with plain numbers where values span more than a factor of 20, else from 0."""
    positive = np.concatenate([v[v > 0] for v in values] or [np.empty(0)])
    axis = axes.xaxis if which == "x" else axes.yaxis
    if len(positive) and positive.max() > 20 * positive.min():
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", nonpositive="clip")
        if positive.max() < 100 * positive.min():
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}" if x >= 1 else f"{x:g}"))
    elif len(positive):
        (axes.set_xlim if which == "x" else axes.set_ylim)(0)
