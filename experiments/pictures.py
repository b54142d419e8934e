"""Runs that are small enough to look at: their slots as a picture and as text, and the figure of a cost model."""

from __future__ import annotations

from pathlib import Path

from experiments.gantt import gantt_text, write_gantt
from experiments.gantt_bars import MAX_SEQUENCES, MAX_SLOTS
from experiments.labels import subtitle
from experiments.replay import Runs

MAX_PICTURES = 4


def drawable(runs: Runs) -> list[str]:
    """The labels of the runs whose slots can be drawn, where there are a few of them; no more than MAX_PICTURES."""
    small = [label for label in runs.labels if runs.result(label)["num_prompts"] <= MAX_SEQUENCES]
    if len(small) > MAX_PICTURES:
        return []
    return [label for label in small if runs.log(label).iterations["slots"].max(initial=0) <= MAX_SLOTS]


def write_slots(runs: Runs, labels: list[str], folder: Path) -> list[Path]:
    """`gantt.png` and `.svg` in `folder`: the runs one above the other."""
    logs = [(_title(runs, label), runs.log(label)) for label in labels]
    what = subtitle([runs.result(label) for label in labels])
    return write_gantt(folder / "gantt", logs, _common(runs, labels), what)


def slots_text(runs: Runs, label: str) -> str:
    """The slots of a run for a terminal, 100 columns wide."""
    return f"{_title(runs, label)}: {gantt_text(runs.log(label), 100, _common(runs, [label]))}"


def _title(runs: Runs, label: str) -> str:
    return label or str(runs.log(label).info["scheduler"])


def _common(runs: Runs, labels: list[str]) -> int | None:
    """The slots of these runs, where they have equally many and those can be drawn: else each as it needs."""
    counts = {runs.slots(label) for label in labels}
    return counts.pop() if len(counts) == 1 and max(counts) <= MAX_SLOTS else None
