"""`chunked`: prompts cut into chunks under one token budget, beside the decodes (vLLM V1, Sarathi-Serve)."""

from __future__ import annotations

from simulator.plan import IterationPlan, Limits, Slice
from simulator.request import DECODING, PREFILLING, Sequence
from simulator.schedulers.base import QueuedScheduler, View


class Chunked(QueuedScheduler):
    """vLLM V1's loop (`vllm/v1/core/sched/scheduler.py`, 0.19): running first, then waiting, one budget of tokens.

    A running request gets min(what it still has to compute, long_prefill_token_threshold if set, what is left of
    max_num_batched_tokens); a decode is a request that has to compute one. Where memory lacks, the tail of the running
    list is preempted (with `policy: priority` the one with the largest (priority, arrival)) and nobody is admitted in
    that step. A waiting request is admitted while slots and budget last and the whole of it fits the free blocks
    (`scheduler_reserve_full_isl`); the first that doesn't fit stops the scan. `max_num_prefill_tokens`, where set,
    bounds the prefill part of the budget.
    """

    name = "chunked"
    scheduler_reserve_full_isl = True
    watermark = 0.0
    decode_stable = True
    work_conserving = True
    engine_keys = frozenset(
        {
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_prefill_tokens",
            "long_prefill_token_threshold",
            "enable_prefix_caching",
            "async_scheduling",
        }
    )

    def plan(self, view: View) -> IterationPlan:
        """One step of the loop; the walk over the running list is skipped where budget and memory suffice for all."""
        limits, kv, decoding = view.limits, view.kv, view.decoding
        tokens_left = limits.max_num_batched_tokens - decoding.n
        prefill_left = limits.max_num_prefill_tokens or tokens_left
        free = kv.free - kv.decode_need(decoding)
        slices: list[Slice] = []
        for seq in view.prefilling:
            tokens = min(_chunk(seq.remaining, limits), tokens_left, prefill_left)
            if tokens > 0:  # only the one admitted last can be short, so nobody behind it goes without
                tokens_left -= tokens
                prefill_left -= tokens
                free -= kv.need(seq, tokens)
                slices.append(Slice(seq, tokens))
        if free < 0 or tokens_left < 0:
            return self._walk(view)
        slices += self._admit(view, slices, min(tokens_left, prefill_left), free)
        return IterationPlan(slices, decoding)

    def _walk(self, view: View) -> IterationPlan:
        """The running list in order, each taking its tokens and blocks, by preempting others where it must."""
        kv, limits = view.kv, view.limits
        tokens_left = limits.max_num_batched_tokens
        prefill_left = limits.max_num_prefill_tokens or tokens_left
        free = kv.free
        rows = list(view.running)
        taken: dict[Sequence, tuple[int, int]] = {}  # planned so far: tokens, blocks
        victims: list[Sequence] = []
        place = 0
        while place < len(rows) and tokens_left > 0:
            seq = rows[place]
            place += 1
            decodes = seq.state == DECODING
            tokens = 1 if decodes else min(_chunk(seq.remaining, limits), tokens_left, prefill_left)
            if tokens == 0:
                continue
            blocks = kv.row_need(seq) if decodes else kv.need(seq, tokens)
            while blocks > free and seq not in victims:
                victim = self._victim(rows)
                rows.remove(victim)
                victims.append(victim)
                free += kv.held(victim)
                if victim in taken:  # planned already in this step: its tokens and new blocks come back
                    spent, new_blocks = taken.pop(victim)
                    place -= 1
                    tokens_left += spent
                    prefill_left += spent if victim.state == PREFILLING else 0
                    free += new_blocks
            if seq in victims:
                break
            taken[seq] = (tokens, blocks)
            tokens_left -= tokens
            prefill_left -= 0 if decodes else tokens
            free -= blocks
        slices = [Slice(seq, tokens) for seq, (tokens, _) in taken.items() if seq.state == PREFILLING]
        return IterationPlan(slices, [seq for seq in taken if seq.state == DECODING], victims)

    def _victim(self, rows: list[Sequence]) -> Sequence:
        if self.policy == "priority":
            return max(rows, key=lambda seq: (seq.priority, seq.arrival_ns))
        return rows[-1]

    def _admit(self, view: View, running: list[Slice], tokens_left: int, free: int) -> list[Slice]:
        """Waiting sequences in order, while slots, budget and blocks for the whole of each last."""
        slots = view.limits.max_num_seqs - view.num_running
        slices: list[Slice] = []
        if slots <= 0 or tokens_left <= 0 or not len(view.waiting):
            return slices
        memory = view.kv.outlook(free)
        kept_free = int(self.watermark * view.kv.total) if view.num_running else 0
        longest = view.limits.long_prefill_token_threshold or tokens_left
        for seq, tokens in running:
            memory.register(seq, seq.computed + tokens)
        for seq in view.waiting:
            remaining = seq.goal - memory.cached(seq)
            tokens = min(remaining, longest, tokens_left)
            if memory.need(seq, remaining if self.scheduler_reserve_full_isl else tokens) > memory.free - kept_free:
                break
            memory.take(seq, tokens)
            tokens_left -= tokens
            slices.append(Slice(seq, tokens))
            if len(slices) == slots or not tokens_left:
                break
        return slices


def _chunk(remaining: int, limits: Limits) -> int:
    """What a sequence with `remaining` tokens to compute would take next, budget aside."""
    threshold = limits.long_prefill_token_threshold
    return min(remaining, threshold) if threshold else remaining
