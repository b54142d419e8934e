"""A lying plan dies at once, with a PolicyError that names scheduler, limit, value, time and iteration."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from simulator.batch import Batch
from simulator.errors import PolicyError
from simulator.kv import KvMemory
from simulator.plan import IterationPlan, Limits
from simulator.recorder import Recorder
from simulator.request import DECODING, FINISHED, FINISHING, Request, Sequence
from simulator.schedulers.base import Scheduler

# A policy that computes this many times the whole memory without one token coming out makes no progress.
BARREN_FACTOR = 64
# So does one that sets this many timers in a row without planning anything.
MAX_IDLE_PLANS = 10_000


def misfit(request: Request, limits: Limits, kv: KvMemory) -> str:
    """Why `request` can never be served, or "": the reason it is rejected with on arrival."""
    if request.prompt_tokens < 1:
        return "zero_input"
    if request.output_tokens < 1:
        return "zero_output"
    if request.prompt_tokens + request.output_tokens > limits.max_model_len:
        return "exceeds_max_model_len"
    if request.max_tokens is not None and request.output_tokens > request.max_tokens:
        return "exceeds_max_tokens"
    return kv.misfit(request)


class PlanCheck:
    """Holds every plan against the limits. The work is that of the plan's slices, not of the batch."""

    def __init__(self, scheduler: Scheduler, batch: Batch, recorder: Recorder) -> None:
        self._scheduler = scheduler
        self._batch = batch
        self._recorder = recorder
        self._limits = batch.limits
        self._token_limit = scheduler.token_limit(batch.limits)
        self._idle_version, self._idle_plans = -1, 0
        self._barren_limit = BARREN_FACTOR * (batch.kv.total * batch.kv.block_size + batch.limits.max_model_len)

    def plan(self, plan: IterationPlan, now_ns: int) -> None:
        """Everything that can be known before the plan is begun."""
        if type(plan) is not IterationPlan:
            self._fail("plan() must return an IterationPlan", "", repr(plan), now_ns)
        if plan.preempt:
            self._preempt(plan.preempt, now_ns)
        prefill_tokens, admissions = self._prefill(plan, now_ns) if plan.prefill else (0, 0)
        decodes = 0
        if plan.decode is self._batch.decoding:
            decodes = self._batch.decoding.n
            if plan.preempt:
                decodes -= sum(seq.state == DECODING for seq in plan.preempt)
        elif plan.decode:
            self._subset(plan, now_ns)
            decodes = len(plan.decode)
        limit = self._token_limit
        lone = len(plan.prefill) == 1 and self._scheduler.whole_prompts
        if limit is not None and prefill_tokens + decodes > limit and not lone:
            self._fail("tokens of an iteration", limit, prefill_tokens + decodes, now_ns)
        seqs = len(self._batch.running) - len(plan.preempt) + admissions
        if seqs > self._limits.max_num_seqs:
            self._fail("max_num_seqs", self._limits.max_num_seqs, seqs, now_ns)
        wait = plan.wait_until_ns
        if wait is not None and type(wait) is not int:
            self._fail("wait_until_ns must be whole nanoseconds", "", wait, now_ns)
        if wait is not None and wait <= now_ns:
            self._fail("wait_until_ns must be later than now", now_ns, wait, now_ns)

    def begun(self, plan: IterationPlan, now_ns: int) -> None:
        """What shows once the plan's blocks are taken and its tokens counted."""
        kv = self._batch.kv
        if kv.caches:  # what a sequence found in the cache is known only now
            for seq, tokens in plan.prefill:
                if seq.computed > seq.goal:
                    self._fail(f"tokens to prefill of {seq.id!r}", tokens - (seq.computed - seq.goal), tokens, now_ns)
        if kv.free < 0:
            self._fail("KV blocks", kv.total, kv.total - kv.free, now_ns)
        if self._batch.barren_tokens > self._barren_limit:
            self._fail("tokens computed without one coming out", self._barren_limit, self._batch.barren_tokens, now_ns)

    def idle(self, now_ns: int) -> None:
        """Nothing is planned. Timers are fine, but not one after another while nothing joins or leaves."""
        if self._idle_version != self._batch.version:
            self._idle_version, self._idle_plans = self._batch.version, 0
        self._idle_plans += 1
        if self._idle_plans > MAX_IDLE_PLANS:
            self._fail("empty plans in a row", MAX_IDLE_PLANS, self._idle_plans, now_ns)

    def nothing_is_stuck(self, now_ns: int) -> None:
        """The engine is about to stop: whoever is left would wait for ever (invariant 11)."""
        batch = self._batch
        alive = [seq for seq in batch.running if seq.state != FINISHED]
        if not len(batch.waiting) and not alive:
            return
        head = f"; first in the queue: {next(iter(batch.waiting))}" if len(batch.waiting) else ""
        raise PolicyError(
            f"{self._where(now_ns)}: nothing is planned, nothing will arrive and no timer is set, but "
            f"{len(batch.waiting)} wait and {len(alive)} run ({batch.kv.free} of {batch.kv.total} KV blocks free, "
            f"max_num_seqs {self._limits.max_num_seqs}){head}"
        )

    def _prefill(self, plan: IterationPlan, now_ns: int) -> tuple[int, int]:
        """(tokens, admissions) of the plan."""
        slices = plan.prefill
        waiting, prefilling = self._batch.waiting, self._batch.prefilling
        total = admissions = 0
        for seq, tokens in slices:
            if seq not in prefilling or (plan.preempt and seq in plan.preempt):
                admissions += 1
                if seq not in prefilling and not waiting.holds(seq):
                    self._fail("prefill of a sequence that neither waits nor prefills", "", seq, now_ns)
            if type(tokens) is not int or not 1 <= tokens <= seq.goal - seq._computed:
                self._fail(f"tokens to prefill of {seq.id!r}", seq.remaining, tokens, now_ns)
            total += tokens
        if len(slices) > 1 and len({piece[0] for piece in slices}) != len(slices):
            self._fail("slices per sequence", 1, 2, now_ns)
        return total, admissions

    def _subset(self, plan: IterationPlan, now_ns: int) -> None:
        rows: Seq[Sequence] = plan.decode  # type: ignore[assignment]
        if len(set(rows)) != len(rows):
            self._fail("decode rows per sequence", 1, len(rows) - len(set(rows)) + 1, now_ns)
        preempted = set(plan.preempt)
        for seq in rows:
            in_flight = seq.state == FINISHING and self._batch.airborne is not None
            if not (seq.state == DECODING or in_flight) or seq not in self._batch.running or seq in preempted:
                self._fail("decode of a sequence that doesn't decode", "", seq, now_ns)

    def _preempt(self, victims: Seq[Sequence], now_ns: int) -> None:
        if len(set(victims)) != len(victims):
            self._fail("preemptions per sequence", 1, len(victims) - len(set(victims)) + 1, now_ns)
        for seq in victims:
            if seq not in self._batch.running or seq.state == FINISHED:
                self._fail("preemption of a sequence that doesn't run", "", seq, now_ns)

    def _fail(self, rule: str, limit: object, value: object, now_ns: int) -> None:
        bound = f" (limit {limit})" if limit != "" else ""
        raise PolicyError(f"{self._where(now_ns)}: {rule}{bound}: planned {value}")

    def _where(self, now_ns: int) -> str:
        name = self._scheduler.name or type(self._scheduler).__name__
        return f"scheduler {name} at t={now_ns} ns, iteration {self._recorder.num_iterations}"
