"""The figure of a cost model: prefill and decode against size, against the GPU's peaks, and on its roofline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.config import RunConfig
from experiments.cost_measures import Iteration, Peaks, iteration, peaks
from experiments.style import BLUE, VERMILION, Line, figure, heading, legend, log_where_wide

MOST_PROMPT = 8192
MOST_ROWS = 1024
CONTEXT = 1024  # tokens that a decode row attends to
STYLES = {"prefill": Line(BLUE, "-", "o"), "decode": Line(VERMILION, (0, (5, 1.5)), "s")}


def plot_cost(run: RunConfig, path: Path) -> Path:
    """Draw the cost model of `run` as `path` .png and .svg. Returns the PNG file.

    Prefill is one prompt; decode is rows with CONTEXT tokens each, no more than the run's KV memory holds.
    """
    most = max(min(MOST_ROWS, run.memory.num_gpu_blocks * run.settings.engine.block_size // CONTEXT), 1)
    lines = {
        "prefill": [iteration(run, "prefill", 1, n) for n in _doubling(MOST_PROMPT)],
        "decode": [iteration(run, "decode", n, CONTEXT) for n in _doubling(most)],
    }
    top = peaks(run)
    with figure(path, 1, 3, 11.5, 3.9) as (fig, axes):
        time, share, roof = axes[0]
        _against_tokens(time, lines)
        _shares(share, lines, top)
        _roofline(roof, lines, top)
        legend(fig, 4)
        gpus = run.settings.engine.tensor_parallel_size
        name = f"{run.pieces.platform.model.name} on {f'{gpus} x ' if gpus > 1 else ''}{run.pieces.platform.gpu.name}"
        model = run.pieces.cost_model()
        bound = ", a lower bound on time" if model.is_bound else ""
        heading(fig, f"{name}: one iteration by the cost model {model.name}{bound}")
    return path.with_suffix(".png")


def _doubling(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length())]


def _label(phase: str) -> str:
    return "prefill, one prompt" if phase == "prefill" else f"decode, rows of {CONTEXT} tokens"


def _against_tokens(panel: Axes, lines: dict[str, list[Iteration]]) -> None:
    for phase, points in lines.items():
        style = STYLES[phase]
        x, y = [p.tokens for p in points], [p.ns / 1e6 for p in points]
        panel.plot(x, y, **style._asdict(), markersize=4, markerfacecolor="white", label=_label(phase))
    log_where_wide(panel, "x", *(np.array([p.tokens for p in points], dtype=np.float64) for points in lines.values()))
    log_where_wide(panel, "y", *(np.array([p.ns / 1e6 for p in points]) for points in lines.values()))
    panel.set(title="Time", xlabel="tokens computed in the iteration", ylabel="iteration time (ms)")


def _shares(panel: Axes, lines: dict[str, list[Iteration]], top: Peaks) -> None:
    for phase, points in lines.items():
        colour, marker = STYLES[phase].color, STYLES[phase].marker
        x = [p.tokens for p in points]
        flops = [p.flops / p.ns * 1e9 / top.flops * 100 for p in points]
        moved = [p.moved_bytes / p.ns * 1e9 / top.moved_bytes * 100 for p in points]
        panel.plot(x, flops, color=colour, marker=marker, markersize=4, label=f"{phase}: FLOP/s")
        panel.plot(x, moved, color=colour, marker=marker, markersize=4, markerfacecolor="white", linestyle=":",
                   label=f"{phase}: bytes/s")  # fmt: skip
    log_where_wide(panel, "x", *(np.array([p.tokens for p in points], dtype=np.float64) for points in lines.values()))
    panel.set(title="Use of the GPU", xlabel="tokens computed in the iteration", ylabel="% of peak", ylim=(0, 105))


def _roofline(panel: Axes, lines: dict[str, list[Iteration]], top: Peaks) -> None:
    everything = [p.intensity for points in lines.values() for p in points]
    x = np.geomspace(min(everything) / 1.5, max(*everything, top.ridge) * 1.5, 200)
    panel.plot(x, np.minimum(x * top.moved_bytes, top.flops) / 1e12, color="black", linewidth=1, label="roofline")
    panel.axvline(top.ridge, color="#777777", linewidth=0.8, linestyle=(0, (2, 2)))
    for phase, points in lines.items():
        speeds = [p.flops / p.ns / 1e3 for p in points]
        panel.plot([p.intensity for p in points], speeds, color=STYLES[phase].color, marker=STYLES[phase].marker,
                   markersize=4, markerfacecolor="white", linestyle="none")  # fmt: skip
        for point, speed in ((points[0], speeds[0]), (points[-1], speeds[-1])):
            panel.annotate(f"{point.tokens:,}", (point.intensity, speed), xytext=(5, -9), textcoords="offset points",
                           fontsize=7.5, color=STYLES[phase].color)  # fmt: skip
    log_where_wide(panel, "x", x)
    log_where_wide(panel, "y", np.array([min(everything) * top.moved_bytes / 1e12, top.flops / 1e12]))
    low = panel.get_ylim()[0]
    panel.text(top.ridge, low, f" ridge point\n {top.ridge:.0f} FLOP/byte", fontsize=7.5, va="bottom")
    panel.set(title="Roofline (numbers: tokens computed)", xlabel="arithmetic intensity (FLOP/byte)", ylabel="TFLOP/s")
