"""`continuous`: after every iteration finished requests leave and waiting ones join; prompts stay whole."""

from __future__ import annotations

from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import QueuedScheduler, View, decode_with_room


class Continuous(QueuedScheduler):
    """Iteration-level scheduling with whole prompts, in one of two orders.

    `prefill_first` (vLLM V0, SGLang): an iteration prefills what can be admitted, or, where nothing can, decodes.
    `orca` (Orca, OSDI'22): whole prompts join the decodes in one iteration, selective batching.

    Waiting requests are admitted in order while slots, memory for the whole prompt and the token budget suffice; the
    first that doesn't fit stops the scan. A prompt longer than the budget goes alone. An iteration that preempts
    admits nobody, so that what was just freed isn't taken away again.
    """

    name = "continuous"
    decode_stable = True
    whole_prompts = True
    work_conserving = True
    engine_keys = frozenset(
        {
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_prefill_tokens",
            "enable_prefix_caching",
            "async_scheduling",
        }
    )

    def __init__(self, order: str = "prefill_first", policy: str = "fcfs") -> None:
        super().__init__(policy)
        if order not in ("prefill_first", "orca"):
            raise ConfigError(f"scheduler.order = {order}: must be prefill_first or orca")
        self.order = order

    def token_limit(self, limits: Limits) -> int | None:
        """A prefill iteration has its own limit where one is set, as SGLang's max_prefill_tokens."""
        if self.order == "prefill_first" and limits.max_num_prefill_tokens is not None:
            return max(limits.max_num_prefill_tokens, limits.max_num_seqs)
        return limits.max_num_batched_tokens

    def plan(self, view: View) -> IterationPlan:
        """One iteration, in the order chosen."""
        if self.order == "prefill_first":
            prompts = self._admit(view, view.kv.free, rows=0)
            if prompts:
                return IterationPlan(prefill=prompts)
            decode, preempt = decode_with_room(view)
            return IterationPlan(decode=decode, preempt=preempt)
        decode, preempt = decode_with_room(view)
        if preempt:
            return IterationPlan(decode=decode, preempt=preempt)
        free = view.kv.free - view.kv.decode_need(view.decoding)
        return IterationPlan(prefill=self._admit(view, free, rows=len(view.decoding)), decode=decode)

    def _admit(self, view: View, free: int, rows: int) -> list[Slice]:
        limits = view.limits
        if self.order == "prefill_first":
            budget = limits.max_num_prefill_tokens or limits.max_num_batched_tokens
        else:
            budget = limits.max_num_batched_tokens - rows
            if limits.max_num_prefill_tokens is not None:
                budget = min(budget, limits.max_num_prefill_tokens)
        slots = limits.max_num_seqs - view.num_running
        prompts: list[Slice] = []
        if not len(view.waiting) or slots <= 0:
            return prompts
        memory = view.kv.outlook(free)
        for seq in view.waiting:
            tokens = seq.goal - memory.cached(seq)
            if memory.need(seq, tokens) > memory.free or (prompts and tokens > budget):
                break
            memory.take(seq, tokens)
            budget -= tokens
            prompts.append(Slice(seq, tokens))
            if len(prompts) == slots:
                break
        return prompts
