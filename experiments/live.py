"""`servesim live`: a config's scheduler, memory and load on a real decoder and the wall clock.

The engine is the simulator's, so a live run makes the decisions that a simulated one of the same iteration times makes;
at the end of each it is simulated again from its recorded times, and has to come out identical.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.blame import outside_named
from experiments.build import Workload, kv_memory, limits, reserved_of, slots_of, workload
from experiments.config import Plan, RunConfig
from experiments.live_errors import Timed, Watching, iteration_errors
from experiments.live_result import BUSY, medians, middle, spread
from experiments.provenance import user_modules
from experiments.records import RunContext, result_fields
from experiments.resolved import resolved_text
from experiments.results import Result, keep_figures, load_result, naming, outdated, write_result
from experiments.run import Outcome, check_completed, context_of
from simulator.checks import misfit
from simulator.clock import NS_PER_S, NS_PER_US
from simulator.cluster import execute
from simulator.errors import ConfigError, SimError
from simulator.fastforward import Executor
from simulator.recorder import RunLog
from simulator.replay import durations_ns
from simulator.request import Request

if TYPE_CHECKING:
    from experiments.live_device import LiveDevice
    from experiments.live_executor import LiveExecutor, WallClock

Say = Callable[[str], None]


@dataclass(frozen=True)
class LiveOptions:
    """How to measure: how often, and how long a load's arrivals may last."""

    runs: int
    max_duration_s: float


def run_live(
    plan: Plan, results_dir: Path, device: LiveDevice, options: LiveOptions, *, force: bool, say: Say
) -> Iterator[Outcome]:
    """Measure everything in `plan` in order; results that are complete are kept unless `force`.

    Raises ConfigError, before any run, where one can't be live or doesn't fit the device.
    """
    loads = [workload(run.settings) for run in plan.runs]
    faults = [f for run, load in zip(plan.runs, loads, strict=True) for f in refusals(run, load, options)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    sizes = [sizes_of(run, load.requests, device) for run, load in zip(plan.runs, loads, strict=True)]
    for run, size in zip(plan.runs, sizes, strict=True):
        device.check_memory(title_of(run), run.pieces.platform.model, size)
    for run, load, size in zip(plan.runs, loads, sizes, strict=True):
        out_dir = results_dir / run.settings.name / f"live-{_hash(run, device)}-{run.settings.seed}"
        kept = None if force else _kept(out_dir, run, options)
        if kept is not None:
            say(f"{title_of(run)}: measured already, skipped ({out_dir}; --force runs it again)")
            yield Outcome(run, out_dir, kept, skipped=True)
        else:
            yield Outcome(run, out_dir, _measure(run, load, size, device, options, out_dir, say), skipped=False)


def title_of(run: RunConfig) -> str:
    """What to call a run in a line."""
    return run.label or run.settings.name


def refusals(run: RunConfig, load: Workload, options: LiveOptions) -> list[str]:
    """Why `run` can't be live: a line each."""
    engine, title = run.settings.engine, title_of(run)
    lines = []
    if engine.async_scheduling:
        lines.append("engine.async_scheduling = true: iterations are carried out one after another; false runs live")
    if engine.tensor_parallel_size > 1:
        lines.append(f"engine.tensor_parallel_size = {engine.tensor_parallel_size}: the decoder runs on one device")
    if engine.enable_prefix_caching:
        lines.append("engine.enable_prefix_caching = true: the decoder's sequences share no pages; false runs live")
    if run.settings.kv.name == "radix":
        lines.append("kv.name = radix: the decoder's sequences share no pages; paged and reserve run live")
    last_s = _last_s(load)
    if last_s > options.max_duration_s:
        lines.append(
            f"the last request arrives after {last_s:,.1f} s of real time, and --max-duration is"
            f" {options.max_duration_s:,g} s: take fewer requests (trace.limit, load.num_prompts) or allow more"
        )
    return [f"{title}: {line}" for line in lines]


def _last_s(load: Workload) -> float:
    return max(request.arrival_ns for request in load.requests) / NS_PER_S


@dataclass(frozen=True)
class Sizes:
    """What a run needs of a decoder: pages, tokens per page, tokens of the longest row, of one iteration, rows.

    `run`: pages that follow one another, for a row each, where the attention kernel is quicker over such; else 1.
    """

    pages: int
    page_tokens: int
    longest: int
    tokens: int
    rows: int
    run: int = 1


def sizes_of(run: RunConfig, requests: list[Request], device: LiveDevice) -> Sizes:
    """Pages for all that the run's KV memory holds, or that its requests can fill; of padded batches the rectangle."""
    kv, bounds, engine = kv_memory(run), limits(run), run.settings.engine
    page = device.page_tokens(engine.block_size)
    served = [request for request in requests if not misfit(request, bounds, kv)]
    rows = min(slots_of(run), max(len(served), 1))
    longest = max((r.prompt_tokens + r.output_tokens for r in served), default=1)
    if run.pieces.scheduler_class.holds_slots:
        longest += max((r.output_tokens for r in served), default=0)  # the longest prompt with the longest answer
        pages, tokens = rows * -(-longest // page), rows * longest
    else:
        pool = kv.total if page == engine.block_size else kv.total * engine.block_size // page + rows
        pages, tokens = min(pool, rows * -(-longest // page)), max(bounds.max_num_batched_tokens, longest)
    size, run_pages = Sizes(pages, page, longest, tokens, rows), -(-longest // page)
    in_runs = replace(size, pages=rows * run_pages, run=run_pages)
    fits = device.wants_runs(page) and device.fits(run.pieces.platform.model, in_runs)
    return in_runs if fits else size


def serve(run: RunConfig, requests: list[Request], executor: Executor, clock: WallClock | None = None) -> RunLog:
    """The RunLog of `run` with `executor`, stepped; on the simulation's clock where no other is given."""
    with outside_named(run.pieces):
        return execute(
            requests,
            scheduler=run.pieces.scheduler(),
            executor=executor,
            kv=kv_memory(run),
            limits=limits(run),
            cost_model="live",
            environment=clock,
        )


def _measure(
    run: RunConfig, load: Workload, size: Sizes, device: LiveDevice, options: LiveOptions, out_dir: Path, say: Say
) -> Result:
    """Run it `options.runs` times and write what came out."""
    decoder = device.decoder(title_of(run), run.pieces.platform.model, size, run.settings.seed)
    backend = device.backend(decoder)
    logs, contexts, results = [], [], []
    host_us: list[float] = []
    busy: list[float] = []
    iterations: list[Timed] = []
    say(f"{title_of(run)}: {len(load.requests)} requests that arrive within {_last_s(load):,.1f} s, {options.runs} x")
    for number in range(1, options.runs + 1):
        started = time.perf_counter()
        log, executor, timed = _once(run, load.requests, size, device, decoder)
        check_completed(run, log)
        context = _context(run, load, log, device, options, time.perf_counter() - started)
        logs.append(log)
        host_us.append(median(executor.host_ns) / NS_PER_US)
        busy.append(executor.busy_share)
        iterations += timed
        contexts.append(context)
        results.append(result_fields(log, context, datetime.now().astimezone()))
        say(
            f"{title_of(run)}: run {number} of {options.runs}: {results[-1]['duration']:.2f} s,"
            f" mean E2EL {results[-1]['mean_e2el_ms']:.1f} ms; replayed: identical RunLog"
        )
    chosen = middle(results)
    fields = results[chosen]
    fields["sim"]["warnings"] = [*fields["sim"]["warnings"], *_disturbed(device, busy)]
    fields["sim"] |= {
        "executor": "live",
        "cost_kind": "measured",
        "live": {
            **device.facts(),
            "backend": backend,
            "runs": options.runs,
            "host_us": median(host_us),
            "busy_shares": busy,
            "iteration_errors": iteration_errors(run, iterations),
            "medians": medians(results),
            "spread": spread(results),
        },
    }
    result = write_result(out_dir, logs[chosen], contexts[chosen], _modules(run), fields)
    if run.settings.figures is True:
        from experiments.plots import plot_run

        with naming(out_dir):
            drawn = plot_run(logs[chosen], result, out_dir)
            keep_figures(out_dir, [file for png in drawn for file in (png, png.with_suffix(".svg"))])
    return result


def _once(
    run: RunConfig, requests: list[Request], size: Sizes, device: LiveDevice, decoder: Any
) -> tuple[RunLog, LiveExecutor, list[Timed]]:
    """(the log of one run, what carried it out, its iterations).

    Checked: each request has its tokens, and its times replayed give the identical log.
    """
    from experiments.live_executor import LiveExecutor, WallClock

    clock = WallClock()
    executor = LiveExecutor(
        decoder,
        clock,
        requests,
        seed=run.settings.seed,
        padded=run.pieces.scheduler_class.holds_slots,
        counts_blocks=run.settings.kv.name == "paged",
        run=size.run,
    )
    with device.memory_named(title_of(run)):
        log = serve(run, requests, executor, clock)
    by_id = {request.id: request for request in requests}
    for name, finished in zip(log.ids, log.sequences["finished"].tolist(), strict=True):
        came, wanted = executor.answered(by_id[name]), by_id[name].output_tokens * finished
        if came != wanted:
            raise SimError(f"{title_of(run)}: request {name}: {came} tokens came out of the decoder, not {wanted}")
    replay = Watching(durations_ns(log))
    if serve(run, requests, replay).digest != log.digest:
        raise SimError(f"{title_of(run)}: replayed, the run gives another RunLog: live and simulated engine differ")
    return log, executor, replay.iterations


def _disturbed(device: LiveDevice, busy: list[float]) -> list[str]:
    """A line where other work took the processor from a run; only one thread can tell."""
    if device.kind != "cpu" or device.facts()["threads"] > 1 or min(busy) >= BUSY:
        return []
    shares = ", ".join(f"{share:.0%}" for share in busy)
    return [f"other work took the processor: the decoder had it {shares} of its time"]


def _context(
    run: RunConfig, load: Workload, log: RunLog, device: LiveDevice, options: LiveOptions, wall_s: float
) -> RunContext:
    """What the result says of the run beside its log."""
    context = context_of(run, load)
    how = f"--device {device.kind} --dtype {device.dtype_name} --runs {options.runs}"
    return replace(
        context,
        config_yaml=resolved_text(run, f"Measured by `servesim live` {how}: no two runs take the same times."),
        label=", ".join(filter(None, (run.label, f"live on {device.kind}"))),
        cost_model="live",
        wall_s=wall_s,
        versions={**context.versions, "torch": version("torch")},
        warnings=[*context.warnings, *device.notices(run.pieces.platform.gpu.name)],
        reserved=reserved_of(run, log, load.requests),
    )


def _modules(run: RunConfig) -> dict[str, str]:
    return user_modules((run.pieces.scheduler_class,))


def _hash(run: RunConfig, device: LiveDevice) -> str:
    text = json.dumps([run.hash, device.kind, device.name, device.dtype_name])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _kept(out_dir: Path, run: RunConfig, options: LiveOptions) -> Result | None:
    """The result in a folder, where it is what measuring again would give, but for the times."""
    if outdated(out_dir, figures=run.settings.figures is True) is not None:
        return None
    result = load_result(out_dir)
    return result if result["sim"]["live"]["runs"] == options.runs else None
