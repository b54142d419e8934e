"""What claims are measured with: functions of the runs of a plan. The table of their names is in `experiments.claims`.

The first argument is always `runs`; `run`, `over` and `chain` name runs by label, "" being an only run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from experiments.build import workload
from experiments.decomposition import factors, longest_over_mean
from experiments.gantt_bars import HELD, chart
from experiments.rates import knee, rate_lines, rate_of
from experiments.replay import Runs
from experiments.results import finite
from experiments.tables import compact
from simulator.clock import NS_PER_MS, NS_PER_S
from simulator.metrics import duration_ns
from simulator.occupancy import stays, work
from simulator.recorder import RunLog
from simulator.suggest import did_you_mean
from simulator.tokens import expand_itls
from simulator.waste import kv_time, slot_time


class Measured(NamedTuple):
    """What came out: for programs (a number, or several) and in words."""

    value: Any
    text: str


def metric(runs: Runs, of: str, run: str = "", unit: str = "") -> Measured:
    """A number of `result.json` by its path, `sim.utilisation.busy`; with the unit % a share of 1."""
    value = _number(runs, run, of)
    return Measured(value, _percent(value) if unit == "%" else f"{compact(value)} {unit}".strip())


def ratio(runs: Runs, of: str, run: str, over: str) -> Measured:
    """How many times larger such a number is in one run than in another."""
    before, after = _number(runs, over, of), _number(runs, run, of)
    return Measured(after / before, f"{after / before:.2f}x ({compact(before)} -> {compact(after)})")


def slots(runs: Runs, part: str = "useful", run: str = "") -> Measured:
    """The share of slot time that is useful, padding, held, stalled, waiting, recomputed, vacant, idle or empty."""
    time = slot_time(runs.log(run), runs.slots(run))
    value = _part(time, part) / time.total
    return Measured(value, _percent(value))


def kv(runs: Runs, part: str = "used", run: str = "", of: str = "taken") -> Measured:
    """The share of KV memory that is used, not_yet_used, never_used, reserved_unused or fragmentation.

    Of the memory `taken`, or of `all` of it.
    """
    time = kv_time(runs.log(run), runs.reserved(run))
    if time is None or of not in ("taken", "all"):
        raise LookupError("the run has no limit on its memory" if time is None else f"of {of}: must be taken or all")
    value = _part(time, part) / (time.total - time.free if of == "taken" else time.total)
    return Measured(value, _percent(value))


def works(runs: Runs, request: str, run: str = "") -> Measured:
    """How long a request computes in its slot, milliseconds."""
    log = runs.log(run)
    mine = [bar for bar in chart(log).bars if bar.sequence == _row(log, request) and bar.kind != HELD]
    return _time(sum(bar.end_ns - bar.start_ns for bar in mine))


def held(runs: Runs, request: str, run: str = "") -> Measured:
    """How long a request keeps its slot after its last token, milliseconds."""
    log = runs.log(run)
    mine = [bar for bar in chart(log).bars if bar.sequence == _row(log, request) and bar.kind == HELD]
    return _time(sum(bar.end_ns - bar.start_ns for bar in mine))


def makespan(runs: Runs, run: str = "") -> Measured:
    """How long the run takes, milliseconds."""
    return _time(duration_ns(runs.log(run)))


def finished(runs: Runs, by_ms: float, run: str = "") -> Measured:
    """How many requests have their last token by then."""
    s = runs.log(run).sequences
    value = int(((s["finished"] == 1) & (s["finish_ns"] <= by_ms * NS_PER_MS)).sum())
    return Measured(value, f"{value} by {by_ms:g} ms")


def step(runs: Runs, request: str, event: str, run: str = "") -> Measured:
    """The iteration, counted from 1, in which a request `joins` or `ends`."""
    log = runs.log(run)
    row, everybody = _row(log, request), stays(log)
    if event not in ("joins", "ends"):
        raise LookupError(f"event {event}: must be joins or ends")
    if event == "joins":
        value = int(everybody.first[everybody.sequence == row].min()) + 1
    else:
        done = work(log, everybody)
        value = int(done.until[everybody.sequence[done.stay] == row].max())
    return Measured(value, f"step {value}")


def affine_cost(runs: Runs, seconds: dict[str, float], run: str = "") -> Measured:
    """The cost a + b x prompt + c x output that gives three requests these times; value: (a, b, c) in milliseconds."""
    s = runs.log(run).sequences
    rows = [_row(runs.log(run), name) for name in seconds]
    if len(rows) != 3:
        raise LookupError("three times determine such a cost, no fewer and no more")
    lengths = np.array([[1, s["prompt_tokens"][row], s["output_tokens"][row]] for row in rows], dtype=np.float64)
    fixed, prompt, output = (float(x) * 1000 for x in np.linalg.solve(lengths, list(seconds.values())))
    terms = "".join(
        f" {'-' if x < 0 else '+'} {abs(x):.4g} ms x {of}" for x, of in ((prompt, "prompt"), (output, "output"))
    )
    text = f"{fixed:.4g} ms{terms}"
    return Measured((fixed, prompt, output), text)


def useful_if(runs: Runs, seconds: dict[str, float]) -> Measured:
    """The useful share of the slots of one static batch whose requests take these times."""
    value = sum(seconds.values()) / (len(seconds) * max(seconds.values()))
    return Measured(value, _percent(value))


def running(runs: Runs, run: str = "") -> Measured:
    """How many requests are in the batch, averaged over the time in which there is one."""
    it = runs.log(run).iterations
    took = it["end_ns"] - it["start_ns"]
    value = float((it["slots"] * took).sum() / took.sum())
    return Measured(value, f"{compact(value)} requests")


def longest_gap(runs: Runs, run: str = "", request: str | None = None) -> Measured:
    """The longest time between two tokens, of one request or of any, milliseconds."""
    log = runs.log(run)
    gaps = expand_itls(log)
    mine = gaps if request is None else [gaps[_row(log, request)]]
    return _time(max(int(gap.max(initial=0)) for gap in mine))


def first_token(runs: Runs, request: str, run: str = "") -> Measured:
    """Time to a request's first token, milliseconds."""
    log = runs.log(run)
    row = _row(log, request)
    return _time(int(log.sequences["first_token_ns"][row] - log.sequences["arrival_ns"][row]))


def gains(runs: Runs, chain: list[str], parts: list[str], of: str = "output_throughput") -> Measured:
    """The factor of each part between runs that follow each other in `chain`, and their product, which comes last."""
    if len(parts) != len(chain) - 1:
        raise LookupError(f"{len(chain)} runs have {len(chain) - 1} steps between them, and {len(parts)} are named")
    steps = factors([_number(runs, run, of) for run in chain])
    whole = float(np.prod(steps))
    text = " x ".join(f"{part} {factor:.2f}" for part, factor in zip(parts, steps, strict=True))
    return Measured([*steps, whole], f"{text} = {whole:.2f}")


def bound(runs: Runs, batch: int, run: str = "") -> Measured:
    """E[longest of a batch] / E[length] of the run's own output lengths."""
    lengths = [request.output_tokens for request in workload(runs.config(run).settings).requests]
    value = longest_over_mean(lengths, batch)
    return Measured(value, f"at most {value:.2f}x")


def stable_rate(runs: Runs, line: str) -> Measured:
    """The highest request rate, of those run, up to which a scheduler keeps up; the value is None where there is none.

    `line` is what the labels of its runs share, as in the figures.
    """
    lines = rate_lines([runs.result(label) for label in runs.labels])
    if line not in lines:
        raise LookupError(f"no runs of {line!r} here{did_you_mean(line, lines)}")
    kept = knee(lines[line])
    beyond = [rate for rate in map(rate_of, lines[line]) if rate is not None and rate > (kept or 0)]
    text = "none" if kept is None else f"{kept:g}/s"
    return Measured(kept, f"{text}, not {min(beyond):g}/s" if beyond else f"{text}, the highest run")


def stable_ratio(runs: Runs, line: str, other: str) -> Measured:
    """How many times the rate that another scheduler keeps up with."""
    a, b = (stable_rate(runs, name).value for name in (line, other))
    if not a or not b:
        raise LookupError(f"{line if not a else other} keeps up with none of the rates")
    return Measured(a / b, f"{a / b:.2g}x ({b:g} -> {a:g} requests/s)")


def _number(runs: Runs, run: str, name: str) -> float:
    value: Any = runs.result(run)
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    number = finite(value)
    if number is None:
        raise LookupError(f"the result of {run or 'the run'} has no number {name}")
    return float(number)


def _row(log: RunLog, request: str) -> int:
    if request not in log.ids:
        raise LookupError(f"no request {request!r} in this run")
    return log.ids.index(request)


def _part(time: Any, part: str) -> int:
    value = getattr(time, part, None)
    if not isinstance(value, int):
        raise LookupError(f"no part {part!r} of the time")
    return value


def _time(ns: int) -> Measured:
    large = ns >= NS_PER_S
    text = f"{ns / NS_PER_S:.4g} s" if large else f"{ns / NS_PER_MS:.4g} ms"
    return Measured(ns / NS_PER_MS, text)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
