"""Runs resolved configs: builds the workload and the engine's parts, simulates, and keeps the results."""

from __future__ import annotations

import csv
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from experiments.blame import outside_named
from experiments.build import Workload, kv_memory, limits, machine, reserved_of, slots_of, workload
from experiments.config import Plan, RunConfig
from experiments.provenance import user_modules
from experiments.records import RunContext
from experiments.resolved import resolved_text
from experiments.results import keep_figures, load_result, naming, outdated, write_result
from simulator.clock import NS_PER_S, ns_from_us
from simulator.cluster import run as simulate
from simulator.errors import ConfigError, SimError, UserError
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.support import cost_support

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A run that is done: its result, where it lies, and whether it was there already."""

    run: RunConfig
    out_dir: Path
    result: dict[str, Any]
    skipped: bool


def run_plan(
    plan: Plan,
    results_dir: Path,
    *,
    force: bool,
    say: Callable[[str], None],
    failed: Callable[[RunConfig, SimError], None] | None = None,
) -> Iterator[Outcome]:
    """Run everything in `plan` in order, each result written as soon as it is there.

    A run whose folder holds what running it again would give is skipped unless `force`. `say` gets a line per notice.
    Raises what the config, the trace or a policy is at fault for; runs finished by then are kept. With `failed`, a run
    that fails is told to it instead, and the others go on; traces that can't be read are still raised, before any run.
    """
    due = {run.folder: why for run, why in unfinished(plan, results_dir, force=force)}
    _check_files([run for run in plan.runs if run.folder in due])
    for i, run in enumerate(plan.runs, start=1):
        out_dir = results_dir / run.folder
        title = run.label or run.settings.name
        if run.folder not in due:
            say(f"{title}: complete already, skipped ({out_dir}; --force runs it again)")
            kept = {**load_result(out_dir), "name": run.settings.name, "label": run.label or None}
            yield Outcome(run, out_dir, kept, skipped=True)
            continue
        if due[run.folder] and out_dir.exists():
            say(f"{title}: run again, as {due[run.folder]} ({out_dir})")
        try:
            result = execute(run, out_dir, f"{title} ({i}/{len(plan.runs)})")
        except SimError as error:
            if failed is None:
                raise
            failed(run, error)
            continue
        yield Outcome(run, out_dir, result, skipped=False)


def unfinished(plan: Plan, results_dir: Path, *, force: bool) -> list[tuple[RunConfig, str]]:
    """The runs of `plan` that have to run, each with why a result that is there doesn't do; all of them by `force`."""
    if force:
        return [(run, "") for run in plan.runs]
    reasons = ((run, outdated(results_dir / run.folder, figures=run.settings.figures is True)) for run in plan.runs)
    return [(run, why) for run, why in reasons if why is not None]


def _check_files(runs: list[RunConfig]) -> None:
    """Read one run per trace and way of reading it: what can't be read is said, all of it, before anything runs."""
    first: dict[tuple[Any, ...], RunConfig] = {}
    for run in runs:
        if (trace := run.settings.trace) is not None:
            first.setdefault((trace.path, trace.format, trace.unit, trace.zero_output, trace.strict), run)
    faults = []
    for run in first.values():
        try:
            workload(run.settings)
        except UserError as error:
            faults += error.faults
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))


def execute(run: RunConfig, out_dir: Path, title: str = "") -> dict[str, Any]:
    """Simulate `run`, write its results to `out_dir`, and return what `result.json` holds.

    On a terminal a progress bar with this title shows how far it is.
    Raises ConfigError where not one request completed, with the reasons counted.
    """
    load = workload(run.settings)
    with outside_named(run.pieces):  # ahead of the simulation: what a cost model lacks shall not cost an hour
        context = priced(context_of(run, load), run)
    started = time.perf_counter()
    with _progress_bar(title, len(load.requests)) as progress:
        log = simulate_run(run, load.requests, progress)
    context = replace(context, wall_s=time.perf_counter() - started)
    check_completed(run, log)
    support = cost_support(log, run.pieces.cost_model())
    warnings = [*context.warnings, *(support["notes"] if support else ())]
    reserved = reserved_of(run, log, load.requests)
    context = replace(context, reserved=reserved, cost_support=support, warnings=warnings)
    result = write_result(out_dir, log, context, user_modules((run.pieces.scheduler_class, run.pieces.cost_class)))
    if run.settings.figures is True:
        from experiments.plots import plot_run

        with naming(out_dir):
            drawn = plot_run(log, result, out_dir)
            keep_figures(out_dir, [file for png in drawn for file in (png, png.with_suffix(".svg"))])
    return result


def simulate_run(run: RunConfig, requests: list[Request], progress: Progress | None = None) -> RunLog:
    """The RunLog of `run` over `requests`. Raises PolicyError, naming it, where an outside policy fails."""
    settings, pieces = run.settings, run.pieces
    with outside_named(pieces):
        return simulate(
            requests,
            scheduler=pieces.scheduler(),
            cost_model=pieces.cost_model(),
            kv=kv_memory(run),
            limits=limits(run),
            host_overhead_ns=ns_from_us(settings.host_overhead_us),
            fast_forward=settings.fast_forward,
            async_scheduling=settings.engine.async_scheduling,
            on_progress=progress,
        )


def write_sweep(plan: Plan, results_dir: Path, results: list[dict[str, Any]]) -> Path:
    """Write `summary.csv`, one line per run, and the figures of the sweep into its folder, and return that."""
    folder = results_dir / plan.name
    write_summary(folder / "summary.csv", results)
    if plan.runs[0].settings.figures:
        from experiments.plots import plot_sweep

        with naming(folder):
            plot_sweep(results, folder)
    return folder


def write_summary(path: Path, results: list[dict[str, Any]]) -> None:
    """Write the scalars of results as CSV, one line per run."""
    rows = [_summary_row(result) for result in results]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with _replacing(path) as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _summary_row(result: dict[str, Any]) -> dict[str, Any]:
    sim = result["sim"]
    flat = {**result, **sim, **sim.get("waste", {})}
    return {key: value for key, value in flat.items() if not isinstance(value, dict | list)}


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A file that takes the place of `path` once it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            with partial.open("w", newline="") as file:
                yield file
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_completed(run: RunConfig, log: RunLog) -> None:
    """Raise ConfigError where not one request completed, with the reasons counted."""
    if log.sequences["finished"].any():
        return
    reasons = Counter(reason or "unfinished" for reason in log.reasons)
    counted = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    raise ConfigError(f"{run.label or run.settings.name}: no request completed, of {len(log.ids)}: {counted}")


def priced(context: RunContext, run: RunConfig) -> RunContext:
    """`context` with what gives the times of `run`."""
    cost_model = run.pieces.cost_model()
    profile = getattr(getattr(cost_model, "profile", None), "name", None)
    return replace(context, cost_model=cost_model.name, cost_is_bound=cost_model.is_bound, profile=profile)


def context_of(run: RunConfig, load: Workload) -> RunContext:
    """What is known of a run before it: all but its cost model, how long it takes and what it reserves."""
    settings = run.settings
    return RunContext(
        name=settings.name,
        config_yaml=resolved_text(run),
        config_hash=run.hash,
        seed=settings.seed,
        model_id=run.pieces.platform.model.name,
        request_rate=load.request_rate,
        wall_s=0.0,
        burstiness=None if settings.load is None or settings.load.requests else settings.load.burstiness,
        label=run.label or None,
        slo={name: ms for name, ms in settings.slo.model_dump().items() if ms is not None} or None,
        percentiles=settings.percentiles,
        scheduler_options=run.pieces.options["scheduler"],
        workload=load.info,
        machine=machine(run),
        versions={name: version(name) for name in ("simpy", "numpy")},
        warnings=[*run.notices, *(vain.notice for vain in run.in_vain.values())],
        save_detailed=settings.save_detailed,
        slots=slots_of(run),
    )


@contextmanager
def _progress_bar(title: str, num_requests: int) -> Iterator[Progress | None]:
    """A bar on standard error where that is a terminal: simulated time, requests, speed-up over real time."""
    if not sys.stderr.isatty():
        yield None
        return
    started = time.perf_counter()
    columns, rows = shutil.get_terminal_size()  # never 0, as some pseudo-terminals say and tqdm would believe
    layout = "{desc} |{bar:12}| {n_fmt}/{total_fmt} requests{postfix}"
    with tqdm(total=num_requests, desc=title, bar_format=layout, leave=False, ncols=columns, nrows=rows) as bar:

        def progress(now_ns: int, answered: int) -> None:
            simulated_s = now_ns / NS_PER_S
            speed_up = simulated_s / max(time.perf_counter() - started, 1e-9)
            bar.set_postfix_str(f"{speed_up:.0f}x real time, {simulated_s:.0f} s simulated", refresh=False)
            bar.update(answered - bar.n)

        yield progress
