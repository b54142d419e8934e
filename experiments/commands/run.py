"""`servesim run`: a config, or every combination of its sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.parser import Parser
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from experiments.config import Plan
    from experiments.replay import Runs

MAX_ROWS = 12  # a longer account of waste is in summary.csv


def main(arguments: list[str]) -> int:
    """Run a config and print what came out. Returns the exit status."""
    parser = Parser(
        "run",
        "Run a config, or every combination of its sweep. Results that are complete already are kept.",
        "servesim run quickstart engine.max_num_seqs=64 fast_forward=false",
    )
    parser.add_argument("config", help="a file, or a name of `servesim list configs`")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="change the config; values are YAML")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="results go below (results)")
    parser.add_argument("--force", action="store_true", help="run again what is complete already")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    given = parser.parse(arguments)

    from experiments.claims import claims_table, findings
    from experiments.config import load
    from experiments.pictures import slots_text
    from experiments.rates import knee_notes
    from experiments.replay import Runs
    from experiments.run import run_plan, write_sweep
    from experiments.tables import comparison_table, console_block, waste_rows

    plan = load(given.config, given.overrides)
    check_folder(given.out)
    for notice in plan.notices:
        _say(f"notice: {notice}")
    outcomes = []
    for outcome in run_plan(plan, given.out, force=given.force, say=_say):
        outcomes.append(outcome)
        if plan.is_sweep and not outcome.skipped:
            _say(f"{outcome.run.label}: done in {outcome.result['sim']['wall_s']:.1f} s ({outcome.out_dir})")
    results = [outcome.result for outcome in outcomes]
    folder = write_sweep(plan, given.out, results) if plan.is_sweep else outcomes[0].out_dir
    runs = Runs(outcomes)
    small = _draw(plan, runs, folder)
    found = findings(plan.claims, runs)
    if given.json:
        claims = {"claims": [finding._asdict() for finding in found]} if found else {}
        print(json.dumps({"runs": results, **claims}, allow_nan=False))
        return 0
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
    return 0


def _draw(plan: Plan, runs: Runs, folder: Path) -> list[str]:
    """Draw what only runs with all their parts at hand can show; returns the labels of runs drawn as their slots."""
    from experiments.pictures import drawable, write_slots

    wanted = plan.runs[0].settings.figures
    small = [] if wanted == "cost" else drawable(runs)
    if small and wanted:
        write_slots(runs, small, folder)
    if wanted == "cost":
        from experiments.cost_plots import plot_cost

        plot_cost(plan.runs[0], folder / "cost_model")
    return small


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
