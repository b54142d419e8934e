"""A scheduler is one pure question: what should the next iteration do?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from simulator.decodeset import DecodeSet
from simulator.errors import ConfigError
from simulator.kv import KvMemory
from simulator.plan import IterationPlan, Limits
from simulator.request import DECODING, Sequence
from simulator.waiting import Key, WaitingQueue


class View(Protocol):
    """What a scheduler may look at: read-only to a policy, and true at the instant of planning."""

    now_ns: int

    @property
    def limits(self) -> Limits:
        """The engine's limits."""

    @property
    def kv(self) -> KvMemory:
        """The memory: `free` and `total` blocks, and what a step would need."""

    @property
    def waiting(self) -> WaitingQueue:
        """Who waits, in the order of the scheduler's queue policy."""

    @property
    def prefilling(self) -> Collection[Sequence]:
        """Admitted, with a prompt that isn't computed yet; in order of admission."""

    @property
    def decoding(self) -> DecodeSet:
        """The running sequences that decode, as one object."""

    @property
    def running(self) -> Collection[Sequence]:
        """Every sequence that holds a slot, in order of admission, as vLLM walks it. Walking it costs O(n)."""

    @property
    def num_running(self) -> int:
        """How many hold a slot."""

    @property
    def draining(self) -> bool:
        """Whether nothing more will arrive unless something running finishes."""

    @property
    def in_flight(self) -> bool:
        """Whether an iteration is under way whose tokens aren't out yet: asynchronous scheduling looks ahead."""


class Scheduler:
    """Base of every policy: options are the constructor's keyword arguments, `plan` is the policy.

    The class attributes say what the engine may rely on:

    `decode_stable`  While membership, waiting queue and arrivals don't change and the memory suffices, the plan after
                     "decode everybody" is "decode everybody" again, so the engine may skip over such iterations.
    `has_memory`     Its plans depend on what it planned before, which it counts in `on_commit`; if it is
                     `decode_stable`, that holds for as many iterations as `decode_horizon` says.
    `whole_prompts`  Prompts aren't split: a single prompt may exceed the token limit when it is the only one.
    `holds_slots`    Request-level batching: a finished row keeps slot and memory until its whole batch is done, and
                     the batch is padded to a rectangle.
    `work_conserving` It never leaves the engine idle while a waiting sequence fits.
    `requeues_last`  A preempted sequence joins the end of a queue without a key, not its front.
    `drops_in_flight` A sequence that is preempted with a token in flight never gets it and computes it again; else it
                     gets it all the same.
    `engine_keys`    The engine limits that this policy obeys.
    `oracle`         It uses true output lengths, which no server knows; results are flagged.
    """

    name = ""
    decode_stable = False
    has_memory = False
    whole_prompts = False
    holds_slots = False
    work_conserving = False
    requeues_last = False
    drops_in_flight = False
    engine_keys = frozenset({"max_num_seqs", "max_num_batched_tokens", "async_scheduling"})
    oracle = False
    respond_at = "token"

    def plan(self, view: View) -> IterationPlan:
        """The next iteration, decided from `view` alone. Must not change anything; the engine checks the plan."""
        raise NotImplementedError

    def on_commit(self, view: View, plan: IterationPlan, iterations: int) -> None:
        """`plan` is carried out, `iterations` times in a row; `view` is what it makes of the engine.

        Where nothing of a plan is computed it is told only if the plan has a `note`: 0 times.

        Asked of a scheduler that `has_memory`, before it plans again, and the only place where it may change itself. It
        keeps integer counters, so that one call with k iterations equals k calls with one.
        """

    def decode_horizon(self, view: View) -> int | None:
        """How many iterations that decode everybody, from now on, its memory leaves as they are; None for any number.

        At least 1. After as many its plan may be another though nothing else has changed. Asked of a scheduler that
        `has_memory` and is `decode_stable`.
        """
        return None

    def queue_key(self) -> Key | None:
        """How the waiting queue is ordered; None is first come, first served."""
        return None

    def token_limit(self, limits: Limits) -> int | None:
        """Most tokens that an iteration of this policy may compute; None for no limit."""
        return limits.max_num_batched_tokens


def _by_priority(seq: Sequence) -> tuple[int, ...]:
    return (seq.priority, seq.arrival_ns)


def _by_length(seq: Sequence) -> tuple[int, ...]:
    return (seq._output_tokens, seq.arrival_ns)


QUEUE_POLICIES: dict[str, Key | None] = {"fcfs": None, "priority": _by_priority, "sjf": _by_length}


class QueuedScheduler(Scheduler):
    """With the option `policy`: fcfs, priority (smaller first) or sjf (by true output length, an oracle)."""

    def __init__(self, policy: str = "fcfs") -> None:
        if policy not in QUEUE_POLICIES:
            raise ConfigError(f"scheduler.policy = {policy}: must be one of {', '.join(QUEUE_POLICIES)}")
        self.policy = policy
        self.oracle = policy == "sjf"

    def queue_key(self) -> Key | None:
        """As the option says."""
        return QUEUE_POLICIES[self.policy]


def decode_with_room(view: View) -> tuple[DecodeSet | list[Sequence], list[Sequence]]:
    """(who decodes, who is preempted) when everybody who decodes should get a token.

    Where memory doesn't suffice, the latest admitted lose theirs, as in vLLM, until it does for the rest: the fewest
    that make room. The work is that of the preempted ones plus one walk over the batch; none when memory suffices.
    """
    kv = view.kv
    missing = kv.decode_need(view.decoding) - kv.free
    if missing <= 0:
        return view.decoding, []
    rows = [seq for seq in view.running if seq.state == DECODING]
    victims: list[Sequence] = []
    while missing > 0:
        victim = rows.pop()
        missing -= kv.held(victim) + kv.row_need(victim)
        victims.append(victim)
    return rows, victims
