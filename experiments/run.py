"""Runs resolved configs: builds the workload and the engine's parts, simulates, and keeps the results."""

from __future__ import annotations

import csv
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from experiments.build import Workload, kv_memory, limits, machine, reserved_of, slots_of, workload
from experiments.config import Plan, RunConfig
from experiments.pieces import Pieces
from experiments.records import RunContext
from experiments.resolved import resolved_text
from experiments.results import is_complete, load_result, write_result
from simulator.clock import NS_PER_S, ns_from_us
from simulator.cluster import run as simulate
from simulator.errors import ConfigError, PolicyError, SimError
from simulator.recorder import RunLog
from simulator.request import Request

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A run that is done: its result, where it lies, and whether it was there already."""

    run: RunConfig
    out_dir: Path
    result: dict[str, Any]
    skipped: bool


def run_plan(plan: Plan, results_dir: Path, *, force: bool, say: Callable[[str], None]) -> Iterator[Outcome]:
    """Run everything in `plan` in order, each result written as soon as it is there.

    A run whose folder is complete is skipped unless `force`. `say` gets a line per notice. Raises what the config,
    the trace or a policy is at fault for; runs finished by then are kept.
    """
    for run in _first_of_each_file(plan.runs):
        if force or not is_complete(results_dir / run.folder):
            workload(run.settings)
    for i, run in enumerate(plan.runs, start=1):
        out_dir = results_dir / run.folder
        title = run.label or run.settings.name
        if not force and is_complete(out_dir):
            say(f"{title}: complete already, skipped ({out_dir}; --force runs it again)")
            kept = {**load_result(out_dir), "name": run.settings.name, "label": run.label or None}
            yield Outcome(run, out_dir, kept, skipped=True)
            continue
        yield Outcome(run, out_dir, execute(run, out_dir, f"{title} ({i}/{len(plan.runs)})"), skipped=False)


def _first_of_each_file(runs: list[RunConfig]) -> list[RunConfig]:
    """One run per trace and way of reading it: what can't be read is said before anything runs."""
    first: dict[tuple[Any, ...], RunConfig] = {}
    for run in runs:
        if (trace := run.settings.trace) is not None:
            first.setdefault((trace.path, trace.format, trace.unit, trace.zero_output, trace.strict), run)
    return list(first.values())


def execute(run: RunConfig, out_dir: Path, title: str = "") -> dict[str, Any]:
    """Simulate `run`, write its results to `out_dir`, and return what `result.json` holds.

    On a terminal a progress bar with this title shows how far it is.
    Raises ConfigError where not one request completed, with the reasons counted.
    """
    load = workload(run.settings)
    started = time.perf_counter()
    with _progress_bar(title, len(load.requests)) as progress:
        log = simulate_run(run, load.requests, progress)
    wall_s = time.perf_counter() - started
    _check_completed(run, log)
    context = replace(_context(run, load, wall_s), reserved=reserved_of(run, log, load.requests))
    result = write_result(out_dir, log, context)
    if run.settings.figures is True:
        from experiments.plots import plot_run

        plot_run(log, result, out_dir)
    return result


def simulate_run(run: RunConfig, requests: list[Request], progress: Progress | None = None) -> RunLog:
    """The RunLog of `run` over `requests`. Raises PolicyError, naming it, where an outside policy fails."""
    settings, pieces = run.settings, run.pieces
    try:
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
    except SimError:
        raise
    except Exception as error:
        if (place := _outside_place(error, pieces)) is None:
            raise
        raise PolicyError(f"{place}: {type(error).__name__}: {error}") from error


def _outside_place(error: Exception, pieces: Pieces) -> str | None:
    """Where in a user's own scheduler or cost model `error` was raised; None where it is ours."""
    for kind, cls in (("scheduler", pieces.scheduler_class), ("cost model", pieces.cost_class)):
        module = sys.modules.get(cls.__module__)
        if cls.__module__.startswith("simulator.") or module is None:
            continue
        for frame in reversed(_frames(error)):
            if frame.filename == getattr(module, "__file__", None):
                return f"{kind} {cls.__module__}:{cls.__qualname__} ({frame.filename}:{frame.lineno})"
    return None


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The stack of `error` and of what caused it: SimPy raises a copy of what a process has raised."""
    frames: list[traceback.FrameSummary] = []
    cause: BaseException | None = error
    while cause is not None:
        frames += traceback.extract_tb(cause.__traceback__)
        cause = cause.__cause__
    return frames


def write_sweep(plan: Plan, results_dir: Path, results: list[dict[str, Any]]) -> Path:
    """Write `summary.csv`, one line per run, and the figures of the sweep into its folder, and return that."""
    folder = results_dir / plan.name
    rows = [_summary_row(result) for result in results]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with _replacing(folder / "summary.csv") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    if plan.runs[0].settings.figures:
        from experiments.plots import plot_sweep

        plot_sweep(results, folder)
    return folder


def _summary_row(result: dict[str, Any]) -> dict[str, Any]:
    sim = result["sim"]
    flat = {**result, **sim, **sim.get("waste", {})}
    return {key: value for key, value in flat.items() if not isinstance(value, dict | list)}


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A file that takes the place of `path` once it is whole."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", newline="") as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _check_completed(run: RunConfig, log: RunLog) -> None:
    if log.sequences["finished"].any():
        return
    reasons = Counter(reason or "unfinished" for reason in log.reasons)
    counted = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    raise ConfigError(f"{run.label or run.settings.name}: no request completed, of {len(log.ids)}: {counted}")


def _context(run: RunConfig, load: Workload, wall_s: float) -> RunContext:
    settings, cost_model = run.settings, run.pieces.cost_model()
    profile = getattr(cost_model, "profile", None)
    return RunContext(
        name=settings.name,
        config_yaml=resolved_text(run),
        config_hash=run.hash,
        seed=settings.seed,
        model_id=run.pieces.platform.model.name,
        request_rate=load.request_rate,
        wall_s=wall_s,
        burstiness=None if settings.load is None or settings.load.requests else settings.load.burstiness,
        label=run.label or None,
        slo={name: ms for name, ms in settings.slo.model_dump().items() if ms is not None} or None,
        percentiles=settings.percentiles,
        scheduler_options=run.pieces.options["scheduler"],
        cost_model=cost_model.name,
        cost_is_bound=cost_model.is_bound,
        profile=getattr(profile, "name", None),
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
            bar.set_postfix_str(f"{simulated_s:.0f} s simulated, {speed_up:.0f}x real time", refresh=False)
            bar.update(answered - bar.n)

        yield progress
