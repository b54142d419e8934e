"""A small run as a picture of its slots: who is in them and what each is doing. Slots down, time across.

Every kind of bar has a pattern of its own, so that it can be read without colour. What the bars are is in `gantt_bars`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.gantt_bars import (
    DECODE,
    EMPTY,
    HELD,
    PADDING,
    PREEMPTED,
    PREFILL,
    RECOMPUTED,
    STALLED,
    Bar,
    Chart,
    chart,
    unit_of,
)
from experiments.style import BLUE, heading
from simulator.recorder import RunLog

WIDTH_IN, ROW_IN, FONT = 10.0, 0.27, 8.5
_RC: dict[Any, Any] = {"font.size": FONT, "hatch.linewidth": 0.7, "svg.hashsalt": "servesim"}


class Look(NamedTuple):
    """How a kind of bar is drawn: fill, hatch and its colour; and its character in text."""

    fill: str
    hatch: str
    line: str
    char: str


LOOKS = {
    PREFILL: Look(BLUE, "", BLUE, "p"),
    DECODE: Look("#BFE3F7", "", "#BFE3F7", "="),
    RECOMPUTED: Look(BLUE, "\\\\\\\\", "white", "r"),
    PADDING: Look("white", "xxxxx", "#444444", "/"),
    HELD: Look("#F7DDA5", "////", "#7A5200", "."),
    STALLED: Look("white", "...", "#444444", "-"),
    PREEMPTED: Look("#F2F2F2", "----", "#7A7A7A", "x"),
    EMPTY: Look("white", "", "white", " "),
}


def gantt(logs: Sequence[tuple[str, RunLog]], slots: int | None = None, what: str = "") -> Figure:
    """Runs with their titles, one above the other on one time axis, below a line that says `what` was run; `slots` as
    in `gantt_bars.chart`.

    Raises ValueError where there is no run, or one that is too large to draw or served nothing.
    """
    if not logs:
        raise ValueError("there is nothing to draw: no run was given")
    charts = [chart(log, slots) for _, log in logs]
    makespan_ns = max(c.makespan_ns for c in charts)
    size, unit = unit_of(makespan_ns)
    heights = [ROW_IN * c.lanes for c in charts]
    with mpl.rc_context(_RC):
        fig = Figure(figsize=(WIDTH_IN, sum(heights) + 0.35 * len(charts) + 0.9), layout="constrained")
        if what:
            heading(fig, what, lines_in_figure=0)
        panels = fig.subplots(len(charts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, _), one in zip(panels, logs, charts, strict=True):
            _panel(axes, one, size, makespan_ns)
            axes.set_title(f"{title}: {one.note}", loc="left", fontsize=FONT)
        panels[-1].set_xlabel(f"time since the start of the run ({unit})")
        seen = {bar.kind for c in charts for bar in c.bars} | {EMPTY}
        keys = [_patch(kind) for kind in LOOKS if kind in seen]
        fig.legend(
            handles=keys,
            loc="outside lower center",
            ncols=len(keys) if len(keys) < 6 else 4,
            frameon=False,
            handlelength=3,
        )
    return fig


def write_gantt(
    path_stem: Path | str, logs: Sequence[tuple[str, RunLog]], slots: int | None = None, what: str = ""
) -> list[Path]:
    """Write `gantt(logs, slots, what)` as PNG and SVG, the same bytes for the same runs; returns both paths.

    `path_stem` is the path without a suffix. Raises ValueError as `gantt` does.
    """
    stem = Path(path_stem)
    files = [stem.with_name(stem.name + suffix) for suffix in (".png", ".svg")]
    fig = gantt(logs, slots, what)
    stem.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_RC):
        fig.savefig(files[0], dpi=150, metadata={"Software": None})
        fig.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files


def gantt_text(log: RunLog, width: int = 80, slots: int | None = None) -> str:
    """The same for a terminal, at most `width` columns wide but no less than 40; `slots` as in `gantt_bars.chart`.

    A stay is written from [ to ]. A column shows what its middle falls on; where a whole number of columns can show
    every change, it does. Raises ValueError as `chart` does.
    """
    one = chart(log, slots)
    heads = _heads(one)
    indent = max(map(len, heads)) + 1
    columns = _columns(one, max(width, 40) - indent - 2)
    size, unit = unit_of(one.makespan_ns)
    lines = [one.note, f"{'':{indent}} 0{f'{one.makespan_ns / size:.4g} {unit}':>{columns - 1}}"]
    for lane, head in enumerate(heads):
        lines.append(f"{head:<{indent}}|{_text_lane(one, lane, columns)}|")
    seen = {bar.kind for bar in one.bars}
    lines.append("   ".join(f"{look.char} {kind}" for kind, look in LOOKS.items() if kind in seen))
    return "\n".join(lines)


def _heads(one: Chart) -> list[str]:
    return [f"slot {lane + 1}" if lane < one.slots else "preempted" for lane in range(one.lanes)]


def _stays(one: Chart, lane: int) -> list[list[Bar]]:
    """The bars of a lane, those of one stay together."""
    groups: list[list[Bar]] = []
    for bar in one.bars:
        if bar.lane == lane:
            if groups and (groups[-1][-1].sequence, groups[-1][-1].end_ns) == (bar.sequence, bar.start_ns):
                groups[-1].append(bar)
            else:
                groups.append([bar])
    return groups


def _panel(axes: Axes, one: Chart, size: int, until_ns: int) -> None:
    """Draw a run's lanes; the axis is in units of `size` nanoseconds and ends at `until_ns`."""
    empty = [Bar(lane, 0, EMPTY, 0, one.makespan_ns) for lane in range(one.slots)]
    _rectangles(axes, empty, size, facecolor="white", edgecolor="#AAAAAA", linewidth=0.6)
    for kind, look in LOOKS.items():
        bars = [bar for bar in one.bars if bar.kind == kind]
        _rectangles(axes, bars, size, facecolor=look.fill, hatch=look.hatch, edgecolor=look.line, linewidth=0)
    wide = [bar for bar in one.bars if (bar.end_ns - bar.start_ns) * 300 > until_ns]  # an edge would cover the others
    _rectangles(axes, wide, size, facecolor="none", edgecolor="black", linewidth=0.5)
    for lane in range(one.lanes):
        for stay in _stays(one, lane):
            _name(axes, one.names[stay[0].sequence], stay, lane, until_ns, size)
    axes.axvline(one.makespan_ns / size, color="black", linewidth=1.2)
    axes.set(xlim=(0, 1.002 * until_ns / size), ylim=(one.lanes - 0.4, -0.6))
    axes.set_yticks(range(one.lanes), _heads(one))
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _rectangles(axes: Axes, bars: list[Bar], size: int, **look: Any) -> None:
    corners = []
    for bar in bars:
        left, right, top, bottom = bar.start_ns / size, bar.end_ns / size, bar.lane - 0.42, bar.lane + 0.42
        corners.append([(left, top), (right, top), (right, bottom), (left, bottom)])
    axes.add_collection(PolyCollection(corners, **look), autolim=False)


def _name(axes: Axes, name: str, stay: list[Bar], lane: int, until_ns: int, size: int) -> None:
    """Write the name in the longest bar of work, else across the whole stay, else nowhere."""
    plain = [bar for bar in stay if bar.kind in (PREFILL, DECODE)] or stay
    longest = max(plain, key=lambda bar: bar.end_ns - bar.start_ns)
    room_ns = until_ns * (len(name) * 0.65 + 0.6) * FONT / 72 / (WIDTH_IN - 0.9)  # roughly: em widths of what's drawn
    whole = Bar(lane, longest.sequence, "", stay[0].start_ns, stay[-1].end_ns)
    bar = next((bar for bar in (longest, whole) if bar.end_ns - bar.start_ns >= room_ns), None)
    if bar is not None:
        box = None if bar.kind == DECODE else {"facecolor": "white", "linewidth": 0, "pad": 0.8}
        middle = (bar.start_ns + bar.end_ns) / 2 / size
        axes.text(middle, lane, name, ha="center", va="center_baseline", fontsize=FONT, bbox=box)


def _patch(kind: str) -> Patch:
    look = LOOKS[kind]
    edge = "#AAAAAA" if kind == EMPTY else look.line
    return Patch(facecolor=look.fill, hatch=look.hatch, edgecolor=edge, linewidth=0.6, label=kind)


def _columns(one: Chart, most: int) -> int:
    """How many columns: `most`, or the largest number below that puts every change on a column's edge."""
    edges = (edge for bar in one.bars for edge in (bar.start_ns, bar.end_ns))
    steps = one.makespan_ns // gcd(one.makespan_ns, *edges)
    return most // steps * steps or most


def _text_lane(one: Chart, lane: int, columns: int) -> str:
    text = [" "] * columns

    def column(at_ns: int) -> int:
        """The first column whose middle isn't before `at_ns`."""
        return -((one.makespan_ns - 2 * columns * at_ns) // (2 * one.makespan_ns))

    for stay in _stays(one, lane):
        longest = max(stay, key=lambda bar: (bar.kind == DECODE, bar.end_ns - bar.start_ns))
        for bar in stay:
            begin, end = column(bar.start_ns), column(bar.end_ns)
            text[begin:end] = LOOKS[bar.kind].char * (end - begin)
        first, last = column(stay[0].start_ns), column(stay[-1].end_ns) - 1
        if last > first:
            text[first], text[last] = "[", "]"
        name = one.names[stay[0].sequence]
        for begin, end in ((column(longest.start_ns), column(longest.end_ns)), (first, last)):
            begin, end = max(begin, first + 1), min(end, last)
            if end - begin >= len(name):
                place = (begin + end - len(name)) // 2
                text[place : place + len(name)] = name
                break
    return "".join(text)
