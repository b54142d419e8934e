"""One replica as a SimPy process: the whole life of an iteration.

Ask the scheduler, check its plan and begin it, find out how long it takes (k iterations at once where they would be
identical), wait, settle. What each of these does to sequences is in `batch.py`.

With asynchronous scheduling the engine looks one iteration ahead: iteration n+1 is planned and begun when n starts,
before n has settled. So arrivals are seen one iteration later, and what a finished sequence held comes free one
planning later (vLLM's AsyncScheduler).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Seq

import simpy
from simpy.events import EventPriority

from simulator.batch import Batch
from simulator.checks import PlanCheck, misfit
from simulator.fastforward import Executor, Foreseeing, decode_ends
from simulator.flight import Flight
from simulator.plan import IterationPlan
from simulator.recorder import Recorder
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler

NEVER = float("inf")
ARRIVAL, FOLLOW_UP, LAST = 1, 2, 3  # at one instant SimPy's smaller priorities go first, the engine last


class Tick(simpy.Event):
    """An event at an absolute instant, in integer nanoseconds."""

    def __init__(self, env: simpy.Environment, at_ns: int, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, EventPriority(priority), at_ns - env.now)


class EngineView:
    """The scheduler's window on the engine; see `schedulers.base.View`."""

    def __init__(self, env: simpy.Environment, batch: Batch) -> None:
        self._env = env
        self._batch = batch
        self._running = batch.running
        self.now_ns = 0
        self.limits = batch.limits
        self.kv = batch.kv
        self.waiting = batch.waiting
        self.prefilling = batch.prefilling.keys()
        self.decoding = batch.decoding
        self.running = batch.running.keys()  # dict views: live, ordered, read-only

    @property
    def num_running(self) -> int:
        """How many sequences hold a slot."""
        return len(self._running)

    @property
    def draining(self) -> bool:
        """Whether nothing more will arrive unless something running finishes."""
        return self._env.peek() == NEVER

    @property
    def in_flight(self) -> bool:
        """Whether an iteration is under way whose tokens aren't out yet."""
        return self._batch.airborne is not None


class Engine:
    """One replica. `run` is its process; `submit` hands it a request, now.

    `on_answer(sequence, now_ns)` is called when a client has its last token, or learns of its rejection.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: Scheduler,
        executor: Executor,
        batch: Batch,
        recorder: Recorder,
        *,
        fast_forward: bool,
        async_scheduling: bool,
        on_answer: Callable[[Sequence, int], None],
    ) -> None:
        self.env = env
        self.batch = batch
        self.recorder = recorder
        self.now_ns = 0
        self.blind_until_ns = 0  # it won't look at its queue before
        self._scheduler = scheduler
        self._executor = executor
        self._view = EngineView(env, batch)
        self._check = PlanCheck(scheduler, batch, recorder)
        skips = fast_forward and scheduler.decode_stable
        self._foresees = executor if skips and isinstance(executor, Foreseeing) else None
        self._has_memory = scheduler.has_memory
        self._publishes = batch.kv.publishes
        self._begun = IterationPlan()  # latest; launched before another one begins
        self._async = async_scheduling
        self._on_answer = on_answer

    def submit(self, seq: Sequence, request: Request) -> None:
        """`seq` arrives. One that can never be served is rejected at once, and what comes behind it goes on."""
        reason = misfit(request, self.batch.limits, self.batch.kv)
        if reason:
            self.batch.reject(seq, reason)
            self._on_answer(seq, seq.arrival_ns)
        else:
            self.batch.arrive(seq)

    def run(self) -> Generator[simpy.Event, None, None]:
        """The process; ends when nothing waits, nothing runs and nothing can arrive any more."""
        env = self.env
        ahead: Flight | None = None
        while True:
            flight, wake_ns = (ahead, NEVER) if ahead else self._next()
            if flight is None:
                self._check.idle(self.now_ns)
                wake_ns = min(wake_ns, env.peek())
                if wake_ns == NEVER:
                    return self._check.nothing_is_stuck(self.now_ns)
                yield from self._until(int(wake_ns))
                continue
            ends_ns = self._launch(flight)
            if self._async:
                yield from self._until(ends_ns[-2] if len(ends_ns) > 1 else self.now_ns)
                ahead, _ = self._next(ahead=True)
            if ends_ns[-1] >= env.peek():
                yield from self._until(ends_ns[-1])
            self.now_ns = ends_ns[-1]
            self._answer(self.batch.settle(flight, self.now_ns))

    def _until(self, at_ns: int) -> Generator[simpy.Event, None, None]:
        """Go on at `at_ns`, after everything else that happens by then; at once where nothing can."""
        if at_ns >= self.env.peek():
            self.blind_until_ns = at_ns
            yield Tick(self.env, at_ns, LAST)
        self.now_ns = at_ns

    def _next(self, ahead: bool = False) -> tuple[Flight | None, float]:
        """The next iteration, begun; or None, and when to ask again."""
        if self._publishes:
            for seq in self.batch.prefilling:  # chunks can be found from here on
                self.batch.kv.publish(seq, seq._computed)
        while True:
            self._view.now_ns = self.now_ns
            plan = self._scheduler.plan(self._view)
            self._check.plan(plan, self.now_ns)
            if plan.prefill or plan.decode or plan.preempt or plan.memory:
                self._executor.prepare(plan, self.batch, self.now_ns)
                flight = self.batch.begin(plan, self.now_ns)
                self._check.begun(plan, self.now_ns)
                if flight.shape.prefill or flight.shape.decode_seqs:
                    self._begun = plan
                    return flight, NEVER
                self._answer(self.batch.end_batch(self.now_ns))
            if plan.note is not None:
                self._scheduler.on_commit(self._view, plan, 0)
            if plan.preempt and not ahead:
                continue  # it only preempted; ask again with what that freed
            return None, NEVER if plan.wait_until_ns is None else plan.wait_until_ns

    def _answer(self, sequences: list[Sequence]) -> None:
        for seq in sequences:
            self._on_answer(seq, self.now_ns)

    def _launch(self, flight: Flight) -> Seq[int]:
        """When it ends; or, where the next plans would be the same, when each of them ends."""
        start_ns = self.now_ns
        most = 1
        foresees = self._foresees
        if foresees is not None and flight.repeatable and flight.version == self.batch.version:
            most += self.batch.steps_left()
            if self._has_memory and (horizon := self._scheduler.decode_horizon(self._view)) is not None:
                most = min(most, horizon)
        ends_ns: Seq[int]
        if foresees is not None and most > 1:
            ends_ns = decode_ends(foresees, flight.shape, start_ns, most, self.env.peek(), int(self._async))
        else:
            ends_ns = (start_ns + self._executor.iteration_ns(flight.shape),)
        self.batch.run(flight, start_ns, ends_ns)
        if self._has_memory:
            self._scheduler.on_commit(self._view, self._begun, len(ends_ns))
        return ends_ns
