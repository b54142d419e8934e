"""`servesim run`: a config, or every combination of its sweep."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.parser import Parser
from simulator.errors import ConfigError, SimError, UserError

if TYPE_CHECKING:
    from experiments.config import Plan, RunConfig
    from experiments.replay import Runs
    from experiments.run import Outcome

Failure = tuple["RunConfig", SimError]

MAX_ROWS = 12  # a longer account of waste is in summary.csv


def main(arguments: list[str]) -> int:
    """Run a config and print what came out. Returns the exit status."""
    parser = Parser(
        "run",
        "Run a config, or every combination of its sweep. Results that are complete already are kept; a sweep goes on\n"
        "after a run that fails, and ends with that run's exit status.",
        "servesim run quickstart engine.max_num_seqs=64 fast_forward=false",
    )
    parser.add_argument("config", help="a file, or a name of `servesim list configs`")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="change the config; values are YAML")
    parser.add_argument(
        "--out", type=named_folder, default=Path("results"), metavar="DIR", help="results go below (results)"
    )
    parser.add_argument("--force", action="store_true", help="run again what is complete already")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    given = parser.parse(arguments)

    from experiments.config import load
    from experiments.run import unfinished

    plan = load(given.config, given.overrides)
    if unfinished(plan, given.out, force=given.force):
        check_folder(given.out)
    for notice in plan.notices:
        _say(f"notice: {notice}")
    failures: list[Failure] = []
    outcomes = _run_all(plan, given, failures)
    errors = [error for run, failure in failures for error in _lines(run, failure)]
    if outcomes:
        _report(plan, outcomes, given, errors)
    elif given.json:
        print(json.dumps({"runs": [], "errors": errors}))
    for error in errors:
        _say(error["message"])
    return _status([failure.exit_status for _, failure in failures])


def named_folder(text: str) -> Path:
    """An argument type: a folder's path."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} must name a folder; '.' is the current one")
    return Path(text)


def _run_all(plan: Plan, given: argparse.Namespace, failures: list[Failure]) -> list[Outcome]:
    """What became of the runs of `plan`; those that fail go to `failures`, except where there is but one to run."""
    from experiments.run import run_plan

    def failed(run: RunConfig, error: SimError) -> None:
        failures.append((run, error))
        _say(f"{run.label}: failed")

    outcomes = []
    for outcome in run_plan(plan, given.out, force=given.force, say=_say, failed=failed if plan.is_sweep else None):
        outcomes.append(outcome)
        if plan.is_sweep and not outcome.skipped:
            _say(f"{outcome.run.label}: done in {outcome.result['sim']['wall_s']:.1f} s ({outcome.out_dir})")
    return outcomes


def _lines(run: RunConfig, failure: SimError) -> list[dict[str, Any]]:
    """A failed run as entries of `errors`, one per fault, each a line that begins with the run's label."""
    kind = type(failure).__name__
    texts = failure.faults if isinstance(failure, UserError) else [f"{kind}: {failure}"]
    lines = [" ".join(text.split("\n")) for text in texts]
    return [
        {
            "label": run.label,
            "kind": kind,
            "exit_status": failure.exit_status,
            "message": line if line.startswith(f"{run.label}: ") else f"{run.label}: {line}",
        }
        for line in lines
    ]


def _status(statuses: list[int]) -> int:
    """The worst: 1, a defect of a policy, before what is wrong with what was given."""
    return 1 if 1 in statuses else max(statuses, default=0)


def _report(plan: Plan, outcomes: list[Outcome], given: argparse.Namespace, errors: list[dict[str, Any]]) -> None:
    """Write what the runs make together, and print it."""
    from experiments.claims import claims_table, findings
    from experiments.pictures import slots_text
    from experiments.rates import knee_notes
    from experiments.replay import Runs
    from experiments.tables import comparison_table, console_block, waste_rows

    results = [outcome.result for outcome in outcomes]
    folder = given.out / plan.name if plan.is_sweep else outcomes[0].out_dir
    runs = Runs(outcomes)
    small = _small(plan, runs)
    _write_together(plan, outcomes, runs, small, given.out, folder)
    found = findings(plan.claims, runs)
    if given.json:
        claims = {"claims": [finding._asdict() for finding in found]} if found else {}
        print(json.dumps({"runs": results, "errors": errors, **claims}, allow_nan=False))
        return
    print(comparison_table(results) if plan.is_sweep else console_block(results[0]))
    for note in knee_notes(results):
        print(note)
    if (small or found) and len(results) <= MAX_ROWS:
        print(f"\n{waste_rows(results)}")
    for label in small:
        print(f"\n{slots_text(runs, label)}")
    if found:
        print(f"\n{claims_table(found)}")
    print(f"\nresults: {folder}")
    if figures := sorted(folder.glob("*.png")):
        print(f"figures: {', '.join(figure.name for figure in figures)} (and as SVG) in that folder")


def _small(plan: Plan, runs: Runs) -> list[str]:
    """The labels of the runs that are small enough to show as their slots."""
    from experiments.pictures import drawable

    return [] if plan.runs[0].settings.figures == "cost" else drawable(runs)


def _write_together(
    plan: Plan, outcomes: list[Outcome], runs: Runs, small: list[str], results_dir: Path, folder: Path
) -> None:
    """The summary and the figures that need all runs at hand. A folder that takes none of it is no fault where all
    results were there already: they are what was asked for.
    """
    from experiments.results import naming
    from experiments.run import write_sweep

    wanted = plan.runs[0].settings.figures
    try:
        if plan.is_sweep:
            write_sweep(plan, results_dir, [outcome.result for outcome in outcomes])
        with naming(folder):
            if small and wanted:
                from experiments.pictures import write_slots

                write_slots(runs, small, folder)
            if wanted == "cost":
                _draw_cost(plan.runs[0], folder)
    except OSError as error:
        if not all(outcome.skipped for outcome in outcomes):
            raise
        _say(f"notice: {error.filename}: {error.strerror}; summary and figures in that folder stay as they were")


def _draw_cost(run: RunConfig, folder: Path) -> None:
    from experiments.blame import outside_named
    from experiments.cost_plots import plot_cost

    with outside_named(run.pieces):
        plot_cost(run, folder / "cost_model")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def check_folder(folder: Path) -> None:
    """Make the results folder, so that an hour's run doesn't end in a folder that can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".servesim-probe"
        probe.touch()
        probe.unlink()
    except FileExistsError:
        raise ConfigError(f"--out {folder}: a file is there, where a folder is expected") from None
    except OSError as error:
        raise ConfigError(f"--out {folder}: can't be written: {error.strerror}") from None
