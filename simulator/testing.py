"""Contract checks for schedulers and cost models, built in or from anywhere else; standard library `random` only.

    from simulator.testing import check_scheduler

    def test_my_scheduler():
        check_scheduler(MyScheduler)

A broken contract raises AssertionError, or the engine's own PolicyError where a plan breaks a limit. Either carries a
note with the number of the example and its whole workload; the same seed gives the same examples everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any, cast

import numpy as np

from simulator.checks import misfit
from simulator.costs.base import CostModel
from simulator.decodeset import DecodeSet
from simulator.kv import KvMemory
from simulator.plan import DECODE, BatchShape, IterationPlan
from simulator.random_cases import Case, random_case, random_shape
from simulator.recorder import RunLog
from simulator.request import DECODING, PREFILLING, Sequence
from simulator.schedulers.base import Scheduler, View

MAX_IDLE_PLANS = 1_000  # in a row; more than any timer needs with the few arrivals of an example
RUN_LENGTHS = (0, 1, 2, 25, 200)


def check_scheduler(factory: Callable[[], Scheduler], *, examples: int = 50, seed: int = 0) -> None:
    """Run fresh schedulers from `factory` over random workloads, limits and memories.

    Holds that every request finishes or is rejected with nothing lost on the way; that `plan` changes nothing and
    answers the same question with the same plan; that runs repeat, and are the same with and without fast-forward;
    that true output lengths don't show before they are reached, unless it declares `oracle`; and that it is never
    idle with work that fits, if it claims `work_conserving`. Limits are the engine's to check: PolicyError.
    """
    for example in range(examples):
        rng = random.Random(f"{seed}/{example}")
        case = random_case(rng, caches="enable_prefix_caching" in factory().engine_keys)
        with _noted(f"example {example} of seed {seed}: {case}"):
            _check_case(factory, case, rng)


def check_cost_model(factory: Callable[[], CostModel], *, examples: int = 200, seed: int = 0) -> None:
    """Ask fresh cost models from `factory` about random shapes.

    Holds that an iteration takes an `int` of at least 1 ns; that the same shape has the same answer, also from a
    second instance and after other questions; and that `decode_run_ns` is int64[k] and equals k single calls.
    """
    model, other = factory(), factory()
    for example in range(examples):
        shape = random_shape(random.Random(f"{seed}/{example}"))
        with _noted(f"example {example} of seed {seed}: {shape}"):
            ns = model.iteration_ns(shape)
            _hold(type(ns) is int and ns >= 1, f"iteration_ns must be an int of at least 1, got {ns!r}")
            same = {ns, model.iteration_ns(shape), other.iteration_ns(shape)}
            _hold(len(same) == 1, f"iteration_ns isn't a function of the shape: {sorted(same)} ns")
            if shape.mode == DECODE:
                _check_decode_run(model, shape)


class _Watched:
    """Stands between engine and scheduler: looks at every question and answer, changes neither."""

    def __init__(self, scheduler: Scheduler, target: str = "") -> None:
        self.name = scheduler.name or type(scheduler).__name__
        self.decisions: list[tuple[object, ...]] = []
        self.emitted: list[int] = []  # by the request `target`, before each decision
        self._scheduler = scheduler
        self._target_id = target
        self._target: Sequence | None = None
        self._idle = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def plan(self, view: View) -> IterationPlan:
        before = _state(view)
        plan = self._scheduler.plan(view)
        _hold(isinstance(plan, IterationPlan), f"plan() must return an IterationPlan, got {plan!r}")
        decision = _decision(plan)
        again = _decision(self._scheduler.plan(view))
        changed = [name for name, value in _state(view).items() if value != before[name]]
        _hold(not changed, f"plan() isn't pure: at t={view.now_ns} ns it changed {', '.join(changed)}")
        _hold(decision == again, f"plan() isn't pure: asked twice at t={view.now_ns} ns: {decision}, then {again}")
        self._check_idleness(view, plan)
        self._look_at_target(view)
        self.decisions.append((view.now_ns, *decision))
        return plan

    def _check_idleness(self, view: View, plan: IterationPlan) -> None:
        if plan.prefill or plan.decode or plan.preempt:
            self._idle = 0
            return
        self._idle += 1
        _hold(self._idle <= MAX_IDLE_PLANS, f"{self._idle} empty plans in a row, {len(view.waiting)} wait")
        if self._scheduler.work_conserving:
            able = [seq.id for seq in view.running if seq.state in (PREFILLING, DECODING)] or _next_in(view, self)
            _hold(not able, f"claims work_conserving, but is idle at t={view.now_ns} ns while {able[:1]} could run")

    def _look_at_target(self, view: View) -> None:
        if self._target is None:
            everybody = (*view.waiting, *view.running)
            self._target = next((seq for seq in everybody if seq.id == self._target_id), None)
        self.emitted.append(self._target.emitted if self._target else 0)


def _next_in(view: View, scheduler: Any) -> list[str]:
    """The head of the queue, if it fits. A request-level batch that runs keeps everybody out."""
    if not len(view.waiting) or (scheduler.holds_slots and view.num_running):
        return []
    head = next(iter(view.waiting))
    fits = view.num_running < view.limits.max_num_seqs and view.kv.whole_need(head) <= view.kv.free
    return [head.id] if fits else []


def _state(view: View) -> dict[str, object]:
    def rows(sequences: Any) -> list[tuple[object, ...]]:
        return [(s, s.state, s.computed, s.goal, s.blocks, s.priority, s.admission) for s in sequences]

    return {
        "now_ns": view.now_ns,
        "waiting": rows(view.waiting),
        "prefilling": list(view.prefilling),
        "running": rows(view.running),
        "decoding": (len(view.decoding), view.decoding.context, view.decoding.max_context),
        "free blocks": view.kv.free,
    }


def _decision(plan: IterationPlan) -> tuple[object, ...]:
    """The plan in a form that can be compared between runs."""
    rows: Any = "everybody" if isinstance(plan.decode, DecodeSet) else [seq.id for seq in plan.decode or ()]
    prefill = [(seq.id, tokens) for seq, tokens in plan.prefill]
    return prefill, rows, [seq.id for seq in plan.preempt], plan.wait_until_ns


def _check_case(factory: Callable[[], Scheduler], case: Case, rng: random.Random) -> None:
    watched, kv = _Watched(factory()), case.memory()
    log = case.run(cast(Scheduler, watched), kv)
    _check_outcome(log, kv)
    repeated = case.run(factory(), case.memory())
    _hold(repeated.digest == log.digest, f"two runs differ: {_difference(log, repeated)}")
    skipped = case.run(factory(), case.memory(), fast_forward=True)
    rule = "claims decode_stable, but fast-forward isn't stepping" if watched.decode_stable else "two runs differ"
    _hold(skipped.digest == log.digest, f"{rule}: {_difference(log, skipped)}")
    if not (watched.oracle or kv.oracle):
        _check_no_oracle(factory, case, rng)


def _check_outcome(log: RunLog, kv: KvMemory) -> None:
    s = log.sequences
    done = s["finished"] == 1
    for name, finished, reason in zip(log.ids, done, log.reasons, strict=True):
        _hold(finished != bool(reason), f"request {name!r} neither finished nor was rejected")
    _hold((s["emitted_tokens"] == s["output_tokens"])[done].all(), "a finished request lacks tokens")
    spent = s["queued_ns"] + s["prefill_ns"] + s["decode_ns"] + s["preempted_ns"]
    _hold((spent == s["finish_ns"] - s["arrival_ns"])[done].all(), "time in states isn't end-to-end latency")
    _hold(kv.free == kv.total, f"{kv.total - kv.free} KV blocks are never given back")


def _check_no_oracle(factory: Callable[[], Scheduler], case: Case, rng: random.Random) -> None:
    """Another true length of one request may change no decision before the shorter one has been emitted."""
    place = rng.randrange(len(case.requests))
    request = case.requests[place]
    other = request._replace(output_tokens=rng.randint(1, 2 * request.output_tokens + 2))
    if any(misfit(r, case.limits, case.memory()) for r in (request, other)):
        return
    shorter = min(request.output_tokens, other.output_tokens)
    known = []
    for variant in (request, other):
        watched = _Watched(factory(), target=request.id)
        requests = [*case.requests[:place], variant, *case.requests[place + 1 :]]
        replace(case, requests=requests).run(cast(Scheduler, watched), case.memory())
        early = sum(emitted < shorter for emitted in watched.emitted)
        known.append(watched.decisions[:early])
    for one, two in zip_longest(*known):
        lengths = f"{request.output_tokens} or {other.output_tokens}"
        _hold(one == two, f"an undeclared oracle: plans with {request.id!r} of {lengths} tokens: {one} or {two}")


def _difference(one: RunLog, two: RunLog) -> str:
    """The first column and row in which two logs differ."""
    for table in ("iterations", "chunks", "spans", "events", "sequences"):
        for name, column in getattr(one, table).items():
            a, b = column.tolist(), getattr(two, table)[name].tolist()
            if a != b:
                row = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                return f"{table}.{name}[{row}] is {a[row : row + 1]} or {b[row : row + 1]}"
    return "only in ids or reasons"


def _check_decode_run(model: CostModel, shape: BatchShape) -> None:
    for k in RUN_LENGTHS:
        times = model.decode_run_ns(shape, k)
        right = isinstance(times, np.ndarray) and times.dtype == np.int64 and times.shape == (k,)
        _hold(right, f"decode_run_ns(shape, {k}) must be int64[{k}], got {times!r}")
        for step, ns in enumerate(times.tolist()):
            single = model.iteration_ns(shape.later(step))
            _hold(ns == single, f"decode_run_ns(shape, {k})[{step}] is {ns}, a single call gives {single}")


def _hold(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


@contextmanager
def _noted(text: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise
