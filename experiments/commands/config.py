"""`servesim config`: validate, show, copy, the schema, and the config of a measured run."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from experiments.commands.parser import Parser, choice
from experiments.config import Plan, find, load
from experiments.measured import META, REQUESTS, find_run, is_measured
from experiments.resolved import resolved_text
from experiments.schema import config_schema
from simulator.errors import ConfigError

ACTIONS = ("validate", "show", "cp", "schema", "from-run")


def main(arguments: list[str]) -> int:
    """Run one of the actions. Returns the exit status."""
    parser = Parser(
        "config",
        "validate CONFIG: report every fault.  show CONFIG: the resolved runs, with the source of every value.\n"
        "cp NAME [FILE]: copy a shipped config, to change it.  schema: the JSON Schema of a config.\n"
        "from-run DIR --profile P: the config that replays a measured run (requests.jsonl, meta.json, perhaps\n"
        "workload.jsonl), and the trace that it needs beside it.",
        "servesim config show quickstart engine.max_num_seqs=64",
    )
    parser.add_argument("action", type=choice(ACTIONS), metavar="|".join(ACTIONS))
    parser.add_argument(
        "config", nargs="?", help="a file, or a name of `servesim list configs`; for from-run, a folder"
    )
    parser.add_argument("rest", nargs="*", metavar="key.path=value", help="overrides; for cp, the file to write")
    for_run = parser.add_argument_group("for from-run")
    for_run.add_argument("--profile", metavar="P", help="kernel times: a name of `servesim profile list`, or a file")
    for_run.add_argument("--model", metavar="M", help="a name, or a Hugging Face config.json (default: meta.json's)")
    for_run.add_argument("--gpu", metavar="G", help="a name, or a file (default: meta.json's)")
    for_run.add_argument("--out", type=Path, metavar="FILE", help="the config to write (default: DIR's name here)")
    given = parser.parse(arguments)
    if given.action == "from-run":
        return _from_run(given)
    if unused := [name for name in ("profile", "model", "gpu", "out") if getattr(given, name) is not None]:
        raise ConfigError(f"servesim config {given.action}: --{unused[0]} is an option of from-run")
    if given.action == "schema":
        if given.config is not None:
            raise ConfigError(f"servesim config schema: takes no argument, and got {given.config}")
        print(json.dumps(config_schema(), indent=2, allow_nan=False))
        return 0
    if given.config is None:
        raise ConfigError(f"servesim config {given.action}: needs a CONFIG, a file or a shipped name")
    if given.action == "cp":
        return _copy(given.config, given.rest)
    plan = load(given.config, given.rest)
    for notice in plan.notices:
        print(f"notice: {notice}", file=sys.stderr)
    if given.action == "show":
        print("\n---\n".join(_shown(plan)))
    else:
        runs = "1 run" if len(plan.runs) == 1 else f"{len(plan.runs)} runs"
        print(f"{plan.source}: valid, {runs}")
        for run in plan.runs if plan.is_sweep else []:
            print(f"  {run.label}")
    return 0


def _from_run(given: argparse.Namespace) -> int:
    from experiments.from_run import default_out, write_config

    if given.config is None or given.rest:
        got = f"and got {', '.join([given.config, *given.rest])}" if given.rest else "and got none"
        raise ConfigError(f"servesim config from-run: needs one folder, {got}")
    folder = find_run(given.config)
    if not is_measured(folder):
        why = f"no {REQUESTS} in this folder" if folder.is_dir() else "no such folder"
        raise ConfigError(f"{folder}: {why}; a measured run is a folder with {REQUESTS} and {META}")
    if given.profile is None:
        raise ConfigError("servesim config from-run: needs --profile P, a name of `servesim profile list` or a file")
    out = given.out or default_out(folder)
    trace, notices = write_config(folder, given.profile, out, model=given.model, gpu=given.gpu)
    for notice in notices:
        print(f"notice: {notice}", file=sys.stderr)
    load(str(out), [])
    print(f"{out} (its trace: {trace})")
    return 0


def _shown(plan: Plan) -> list[str]:
    if not plan.is_sweep:
        return [resolved_text(run).rstrip() for run in plan.runs]
    return [
        f"# {run.label}\n" + resolved_text(run).replace("# Running this file", "# Running this document alone").rstrip()
        for run in plan.runs
    ]


def _copy(config: str, rest: list[str]) -> int:
    if len(rest) > 1:
        raise ConfigError(f"servesim config cp: takes one file to write, and got {', '.join(rest)}")
    source = find(config)
    target = Path(rest[0] if rest else source.name)
    if target.is_dir():
        target = target / source.name
    elif rest and rest[0].endswith("/"):
        raise ConfigError(f"{rest[0]}: no such folder")
    if target.exists():
        raise ConfigError(f"{target}: exists already; name another file to write")
    shutil.copyfile(source, target)
    print(target)
    return 0
