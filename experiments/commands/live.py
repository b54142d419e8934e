"""`servesim live`: a config on a real decoder and the wall clock."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.parser import Parser, choice, whole
from experiments.commands.run import check_folder, named_folder

if TYPE_CHECKING:
    from experiments.config import Plan
    from experiments.run import Outcome

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def main(arguments: list[str]) -> int:
    """Measure a config and print what came out. Returns the exit status."""
    from experiments.live_device import DEVICES, DTYPE_NAMES

    parser = Parser(
        "live",
        "Run a config on a real decoder, in real time: scheduler, memory and load are those of a simulated run, torch\n"
        "carries out the iterations with random weights of the model's shapes. The cost model isn't used. Results are\n"
        "like those of `servesim run`; `servesim compare SIMULATED LIVE` shows how far the simulation is off.\n"
        "Asynchronous scheduling, prefix caching and several GPUs aren't supported.",
        "servesim live live_tiny --device cpu",
    )
    parser.add_argument("config", help="a file, or a name of `servesim list configs`")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="change the config; values are YAML")
    parser.add_argument(
        "--device", type=choice(DEVICES), metavar="|".join(DEVICES), help="default: cuda; of gpu: cpu, the processor"
    )
    parser.add_argument(
        "--dtype", type=choice(DTYPE_NAMES), metavar="D",
        help="bf16, fp16 or fp32 (default: bf16; on the processor fp32)",
    )  # fmt: skip
    parser.add_argument("--runs", type=whole, default=3, metavar="N", help="how often; the median run is kept (3)")
    parser.add_argument(
        "--max-duration", type=duration_s, default=600.0, metavar="T",
        help="refuse loads whose arrivals alone last longer: seconds, or 10m, 1h (10m)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=named_folder, default=Path("results"), metavar="DIR", help="results go below (results)"
    )
    parser.add_argument("--force", action="store_true", help="measure again what is complete already")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    given = parser.parse(arguments)

    from experiments.config import load
    from experiments.live import LiveOptions, run_live
    from experiments.live_device import LiveDevice

    plan = load(given.config, given.overrides)
    processor = all(run.pieces.platform.gpu.name == "cpu" for run in plan.runs)
    device = LiveDevice(given.device or ("cpu" if processor else "cuda"), given.dtype)
    check_folder(given.out)
    for notice in plan.notices:
        _say(f"notice: {notice}")
    options = LiveOptions(given.runs, given.max_duration)
    _report(plan, list(run_live(plan, given.out, device, options, force=given.force, say=_say)), given)
    return 0


def duration_s(text: str) -> float:
    """An argument type: a time above 0 in seconds, or with s, m or h behind it."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh]?)", text)
    seconds = float(found[1]) * SECONDS[found[2]] if found else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a time above 0: seconds, or 90s, 10m, 1h")
    return seconds


def _report(plan: Plan, outcomes: list[Outcome], given: argparse.Namespace) -> None:
    from experiments.live_errors import errors_text
    from experiments.live_result import host_text, live_text, spread_text
    from experiments.run import write_summary
    from experiments.tables import comparison_table, console_block

    results = [outcome.result for outcome in outcomes]
    if plan.is_sweep:
        write_summary(given.out / plan.name / "live-summary.csv", results)
    if given.json:
        print(json.dumps({"runs": results}, allow_nan=False))
        return
    print(comparison_table(results) if plan.is_sweep else console_block(results[0]))
    for outcome in outcomes:
        print(f"\n{live_text(outcome.result)}\n{host_text(outcome.result)}")
        for text in filter(None, (spread_text(outcome.result), errors_text(outcome.result))):
            print(text)
        for warning in outcome.result["sim"]["warnings"]:
            print(f"caution: {warning}")
        print(f"results: {outcome.out_dir}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
