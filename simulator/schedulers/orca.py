"""`orca`: iteration-level scheduling with memory reserved for each request's whole life, as in Orca (OSDI'22)."""

from __future__ import annotations

from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import Scheduler, View
from simulator.schedulers.reserving import fitting_for_life


class Orca(Scheduler):
    """Orca (Yu et al., OSDI'22, algorithm 1): selective batching, and slots reserved for input + max_tokens.

    First come, first served, at most `max_num_seqs` requests (the paper's max_bs) in an iteration; whole prompts run
    beside decodes. A request is admitted when memory for all that it may come to need is free and promised to nobody,
    so nobody is ever preempted. `continuous` with `order: orca` is the same over memory taken block by block.
    """

    name = "orca"
    decode_stable = True
    whole_prompts = True
    engine_keys = frozenset({"max_num_seqs", "async_scheduling"})

    def token_limit(self, limits: Limits) -> int | None:
        """None: the number of requests is all that bounds an iteration."""
        return None

    def plan(self, view: View) -> IterationPlan:
        """Everybody decodes, and whoever fits joins."""
        return IterationPlan([Slice(seq, seq.goal) for seq in fitting_for_life(view)], view.decoding)
