"""Runs over request rates: which belong to one line, which of them keep up, and where a line's knee is."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.labels import RATES, line_names, run_label, sim_value
from experiments.results import Result, finite


def rate_of(result: Result) -> float | None:
    """Requests per second that a run was asked for; None where all came at once."""
    return finite(result.get("request_rate"))


def is_unstable(result: Result) -> bool:
    """Whether the run's queue was still growing when its last request arrived; see `experiments.stability`."""
    return sim_value(result, "unstable") is True


def swept(result: Result, key: str) -> float | None:
    """The number that a run's label gives `key`, as in `request_rate=4`; None where it gives none."""
    for word in run_label(result).split(", "):
        name, _, text = word.partition("=")
        if name == key:
            try:
                return float(text)
            except ValueError:
                return None
    return None


def lines_of(results: Sequence[Result], apart: Sequence[str] = RATES) -> dict[str, list[Result]]:
    """Runs that differ in the keys `apart` alone, by the name of their line, in the order given."""
    lines: dict[str, list[Result]] = {}
    for name, result in zip(line_names(results, apart), results, strict=True):
        lines.setdefault(name, []).append(result)
    return lines


def rate_lines(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The lines of a sweep over rates, each in order of rate."""
    return {name: sorted(runs, key=lambda r: rate_of(r) or 0.0) for name, runs in lines_of(results).items()}


def knee(runs: Sequence[Result]) -> float | None:
    """The highest rate, of those run, up to which a line keeps up; None where not even with the lowest.

    `runs` in order of rate. What is above is unstable or comes after something that is.
    """
    kept = None
    for run in runs:
        if is_unstable(run):
            return kept
        kept = rate_of(run)
    return kept


def knee_notes(results: Sequence[Result]) -> list[str]:
    """A line on every scheduler that was run at several rates and doesn't keep up with all of them."""
    notes = []
    for name, runs in rate_lines(results).items():
        first = next((rate_of(run) for run in runs if is_unstable(run)), None)
        if len(runs) > 1 and first is not None:
            kept = knee(runs)
            start = f"keeps up to {kept:g} requests/s" if kept else "keeps up with none of the rates"
            notes.append(f"{name}: {start}; at {first:g}/s its queue grows.")
    return notes
