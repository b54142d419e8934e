"""Request-level batching, common to `static` and `dynamic`: a batch is formed, runs whole, and only then the next.

Prompts are padded to the longest of the batch, finished rows keep slot and memory until the last one is done
(FasterTransformer; the classic servers that Orca, OSDI'22, section 2 describes).
"""

from __future__ import annotations

from simulator.clock import ns_from_ms
from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import QueuedScheduler, View, decode_with_room


class RequestLevel(QueuedScheduler):
    """Runs one batch at a time. `max_wait_ns`: how long the oldest may wait for a batch to fill; None is for ever."""

    decode_stable = True
    whole_prompts = True
    holds_slots = True
    engine_keys = frozenset({"max_num_seqs", "max_num_prefill_tokens"})

    def __init__(self, batch_size: int, max_wait_ms: float | None, wait_key: str, respond_at: str, policy: str) -> None:
        super().__init__(policy)
        faults = []
        if batch_size < 1:
            faults.append(f"scheduler.batch_size = {batch_size}: must be at least 1")
        if max_wait_ms is not None and max_wait_ms < 0:
            faults.append(f"scheduler.{wait_key} = {max_wait_ms}: must not be negative")
        if respond_at not in ("batch_end", "token"):
            faults.append(f"scheduler.respond_at = {respond_at}: must be batch_end or token")
        if faults:
            raise ConfigError(faults)
        self.batch_size = batch_size
        self.max_wait_ns = None if max_wait_ms is None else ns_from_ms(max_wait_ms)
        self.respond_at = respond_at

    def token_limit(self, limits: Limits) -> int | None:
        """Only an explicit max_num_prefill_tokens bounds a batch, counted with its padding."""
        return limits.max_num_prefill_tokens

    def plan(self, view: View) -> IterationPlan:
        """Go on with the batch that runs; else start the next one once it is full or has waited long enough."""
        if view.num_running:
            decode, preempt = decode_with_room(view)
            return IterationPlan(decode=decode, preempt=preempt)
        if not len(view.waiting):
            return IterationPlan()
        size = min(self.batch_size, view.limits.max_num_seqs)
        if len(view.waiting) < size and not view.draining:
            wait_until_ns = self._patience_ends(view)
            if wait_until_ns is None or wait_until_ns > view.now_ns:
                return IterationPlan(wait_until_ns=wait_until_ns)
        return IterationPlan(prefill=self._batch(view, size))

    def _patience_ends(self, view: View) -> int | None:
        if self.max_wait_ns is None:
            return None
        return min(seq.arrival_ns for seq in view.waiting) + self.max_wait_ns  # fewer than batch_size wait

    def _batch(self, view: View, size: int) -> list[Slice]:
        budget = view.limits.max_num_prefill_tokens
        free = view.kv.free
        longest = 0
        batch: list[Slice] = []
        for seq in view.waiting:
            longest = max(longest, seq.goal)
            free -= view.kv.whole_need(seq)
            over_budget = budget is not None and longest * (len(batch) + 1) > budget
            if len(batch) == size or free < 0 or (batch and over_budget):
                break
            batch.append(Slice(seq, seq.goal))
        return batch
