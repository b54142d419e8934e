"""`trtllm`: in-flight batching with the two capacity policies of TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Slice
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler, View, decode_with_room
from simulator.schedulers.reserving import fitting, fitting_for_life

CAPACITIES = ("guaranteed_no_evict", "max_utilization")


class TrtLlm(Scheduler):
    """TensorRT-LLM's in-flight batching (version 1, context chunking and block reuse off).

    Decodes and whole prompts share an iteration of at most `max_num_batched_tokens` (its max_num_tokens); a prompt that
    doesn't fit beside them waits, and so does everybody behind it. One that is longer than any iteration is the only
    prompt of its own. `capacity` is its capacity_scheduler_policy:

    `guaranteed_no_evict` (its default) admits a request when memory for prompt + max_tokens is free and promised to
    nobody, so that nothing is ever paused. `max_utilization` admits on what the prompt needs now; when blocks run out,
    the last started is paused: it loses its memory, comes first in the queue and computes all its tokens again. Nobody
    is admitted in an iteration that paused somebody.
    """

    name = "trtllm"
    decode_stable = True
    whole_prompts = True

    def __init__(self, capacity: str = "guaranteed_no_evict") -> None:
        if capacity not in CAPACITIES:
            raise ConfigError(f"scheduler.capacity = {capacity}: must be {' or '.join(CAPACITIES)}")
        self.capacity = capacity

    def plan(self, view: View) -> IterationPlan:
        """Everybody decodes, and whoever fits joins."""
        decode, preempt = decode_with_room(view)
        return IterationPlan([] if preempt else self._prompts(view), decode, preempt)

    def _prompts(self, view: View) -> list[Slice]:
        most = view.limits.max_num_batched_tokens
        tokens_left = most - len(view.decoding)
        prompts: list[Slice] = []
        for seq in self._fitting(view):
            if seq.goal > tokens_left and (prompts or seq.goal <= most):
                break
            tokens_left -= seq.goal
            prompts.append(Slice(seq, seq.goal))
        return prompts

    def _fitting(self, view: View) -> Iterator[Sequence]:
        if self.capacity == "guaranteed_no_evict":
            return fitting_for_life(view)
        return fitting(view, view.kv.whole_need, view.kv.free - view.kv.decode_need(view.decoding))
