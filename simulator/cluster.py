"""A whole run: an environment, the arrivals, one replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from simulator.batch import Batch
from simulator.costs.base import CostModel
from simulator.engine import ARRIVAL, FOLLOW_UP, Engine, Tick
from simulator.errors import ConfigError
from simulator.fastforward import Executor, SimulatedExecutor
from simulator.kv import KvMemory
from simulator.plan import Limits
from simulator.recorder import Recorder, RunLog
from simulator.request import REJECTED, Request, Sequence
from simulator.schedulers.base import Scheduler

PROGRESS_EVERY = 256  # answers


class Cluster:
    """Feeds requests to a replica when they arrive, follow-up turns once the turn before them was answered."""

    def __init__(
        self,
        requests: Iterable[Request],
        on_progress: Callable[[int, int], None] | None = None,
        env: simpy.Environment | None = None,
    ) -> None:
        self.env = env or simpy.Environment(initial_time=0)  # integer nanoseconds
        self.requests = sorted(requests, key=lambda r: r.arrival_ns)
        self.sequences = [Sequence(request, i) for i, request in enumerate(self.requests)]
        self.engine: Engine
        self._continue()
        self._followers = self._chains()
        self._answered = 0
        self._news: list[tuple[Sequence, int]] = []
        self._on_progress = on_progress

    def _continue(self) -> None:
        """Who repeats another's content without waiting for it."""
        named = {request.id: seq for seq, request in zip(self.sequences, self.requests, strict=True)}
        for seq, request in zip(self.sequences, self.requests, strict=True):
            if request.continues is not None:
                seq._earlier = named.get(request.continues)

    def _chains(self) -> dict[str, list[Sequence]]:
        """Per request that others wait for: those others. Raises ConfigError where a chain has no beginning."""
        if len({seq.id for seq in self.sequences}) != len(self.sequences):
            twice = [name for name, times in Counter(seq.id for seq in self.sequences).items() if times > 1]
            raise ConfigError([f"request id {name!r} is given more than once" for name in twice])
        followers: dict[str, list[Sequence]] = {}
        for seq, request in zip(self.sequences, self.requests, strict=True):
            if request.after is not None:
                followers.setdefault(request.after, []).append(seq)
        if not followers:
            return followers
        reached = [request.id for request in self.requests if request.after is None]
        named = {seq.id: seq for seq in self.sequences}
        for name in reached:  # grows while it is walked
            for seq in followers.get(name, ()):
                seq._earlier = named[name]
                reached.append(seq.id)
        lost = {seq.id for seq in self.sequences} - set(reached)
        if lost:
            raise ConfigError([f"request {name!r} follows a turn that never comes" for name in sorted(lost)])
        return followers

    def arrivals(self) -> Generator[simpy.Event, None, None]:
        """The process that submits every request that has a time of its own.

        Requests that arrive while the engine is busy are handed over together, up to the next event: it can't look
        before it is done.
        """
        engine = self.engine
        for seq, request in zip(self.sequences, self.requests, strict=True):
            if request.after is None:
                if request.arrival_ns > min(engine.blind_until_ns, self.env.peek()):
                    yield Tick(self.env, request.arrival_ns, ARRIVAL)
                engine.submit(seq, request)

    def answered(self, seq: Sequence, now_ns: int) -> None:
        """A client has its answer: turns that waited for it arrive after their delay."""
        self._news.append((seq, now_ns))
        if len(self._news) > 1:
            return  # an answer to an answer: the loop below gets to it
        for answered, at_ns in self._news:
            self._answered += 1
            for follower in self._followers.get(answered.id, ()):
                self._follow(follower, answered, at_ns)
        self._news.clear()
        if self._on_progress is not None and self._answered % PROGRESS_EVERY == 0:
            self._on_progress(now_ns, self._answered)

    def _follow(self, seq: Sequence, earlier: Sequence, now_ns: int) -> None:
        request = self.requests[seq.index]
        if earlier.state == REJECTED:
            seq.arrival_ns = now_ns
            self.engine.batch.reject(seq, "earlier_turn_rejected")
            self.answered(seq, now_ns)
            return
        at_ns = seq.arrival_ns = seq.since_ns = max(now_ns + request.delay_ns, request.arrival_ns)
        if at_ns == now_ns:
            self.engine.submit(seq, request)
        else:
            event = Tick(self.env, at_ns, FOLLOW_UP)
            event.callbacks.append(lambda _: self.engine.submit(seq, request))


def run(
    requests: Iterable[Request],
    *,
    scheduler: Scheduler,
    cost_model: CostModel,
    kv: KvMemory,
    limits: Limits | None = None,
    host_overhead_ns: int = 0,
    fast_forward: bool = True,
    async_scheduling: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> RunLog:
    """Simulate one replica serving `requests` and return everything that happened.

    `host_overhead_ns` is added to every iteration; with `async_scheduling` it is hidden behind the iteration before,
    which lasts at least that long. `fast_forward=False` steps through every iteration and gives the identical RunLog.
    `on_progress(now_ns, answered)` is called now and then. `kv` must be fresh. Raises PolicyError where the scheduler
    or the cost model breaks its contract, ConfigError for turns that follow nothing.
    """
    return execute(
        requests,
        scheduler=scheduler,
        executor=SimulatedExecutor(cost_model, host_overhead_ns, hidden=async_scheduling),
        kv=kv,
        limits=limits,
        cost_model=cost_model.name,
        fast_forward=fast_forward,
        async_scheduling=async_scheduling,
        on_progress=on_progress,
    )


def execute(
    requests: Iterable[Request],
    *,
    scheduler: Scheduler,
    executor: Executor,
    kv: KvMemory,
    limits: Limits | None = None,
    cost_model: str = "",
    fast_forward: bool = False,
    async_scheduling: bool = False,
    environment: simpy.Environment | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> RunLog:
    """`run`, with whatever carries out the iterations, on any clock.

    `environment` counts nanoseconds from 0; one that waits until they have passed makes requests arrive in real time.
    `cost_model` names what gives the times. Raises what `run` and the executor raise.
    """
    limits = limits or Limits()
    cluster = Cluster(requests, on_progress, environment)
    recorder = Recorder()
    engine = cluster.engine = Engine(
        cluster.env,
        scheduler,
        executor,
        Batch(scheduler, kv, limits, recorder),
        recorder,
        fast_forward=fast_forward,
        async_scheduling=async_scheduling,
        on_answer=cluster.answered,
    )
    cluster.env.process(cluster.arrivals())
    cluster.env.process(engine.run())
    cluster.env.run()
    return recorder.log(cluster.sequences, _info(scheduler, cost_model, kv, limits, fast_forward, async_scheduling))


def _info(
    scheduler: Scheduler,
    cost_model: str,
    kv: KvMemory,
    limits: Limits,
    fast_forward: bool,
    asynchronous: bool,
) -> dict[str, Any]:
    return {
        "scheduler": scheduler.name or type(scheduler).__name__,
        "policy": getattr(scheduler, "policy", "fcfs"),
        "respond_at": scheduler.respond_at,
        "oracle": scheduler.oracle or kv.oracle,
        "cost_model": cost_model,
        "kv": kv.name,
        "num_gpu_blocks": kv.total,
        "block_size": kv.block_size,
        **limits._asdict(),
        "fast_forward": fast_forward and scheduler.decode_stable,
        "async_scheduling": asynchronous,
    }
