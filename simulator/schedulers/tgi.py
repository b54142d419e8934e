"""`tgi`: prefill interrupts decode when enough requests wait, or after long enough, as in TGI's router."""

from __future__ import annotations

from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.schedulers.base import Scheduler, View
from simulator.schedulers.reserving import fitting_for_life, most_tokens


class Tgi(Scheduler):
    """Text Generation Inference 3 (`backends/v3/src/{queue,backend}.rs`), prefill chunking and prefix cache off.

    An iteration prefills or decodes. While something runs, a new batch is prefilled only if it has at least
    floor(`waiting_served_ratio` x running) requests (0.3; formerly 1.2), or any number once
    `max_waiting_tokens` decode iterations have gone by since the last prefill; at least one decode lies between two
    prefills. Requests join the new batch in order of arrival while their prompts together have at most
    `max_batch_prefill_tokens` (rounded up to a whole block), prompts + max_tokens of it and of all that run at most
    `max_batch_total_tokens` (None: what the memory holds), and blocks for all their tokens but the last, which is never
    written, are free and promised to nobody. The first that doesn't fit stops the scan. One that exceeds a budget by
    itself, which TGI refuses, joins nobody; nothing is preempted.
    """

    name = "tgi"
    decode_stable = True
    has_memory = True
    whole_prompts = True
    engine_keys = frozenset({"max_num_seqs", "async_scheduling"})

    def __init__(
        self,
        waiting_served_ratio: float = 0.3,
        max_waiting_tokens: int = 20,
        max_batch_prefill_tokens: int = 4096,
        max_batch_total_tokens: int | None = None,
    ) -> None:
        lowest = {
            "waiting_served_ratio": (waiting_served_ratio, 0),
            "max_waiting_tokens": (max_waiting_tokens, 0),
            "max_batch_prefill_tokens": (max_batch_prefill_tokens, 1),
            "max_batch_total_tokens": (1 if max_batch_total_tokens is None else max_batch_total_tokens, 1),
        }
        faults = [
            f"scheduler.{key} = {value}: must be at least {least}"
            for key, (value, least) in lowest.items()
            if value < least
        ]
        if faults:
            raise ConfigError(faults)
        self.waiting_served_ratio = waiting_served_ratio
        self.max_waiting_tokens = max_waiting_tokens
        self.max_batch_prefill_tokens = max_batch_prefill_tokens
        self.max_batch_total_tokens = max_batch_total_tokens
        self._decodes = 0  # iterations since the last prefill

    def token_limit(self, limits: Limits) -> int | None:
        """None: the budgets are options of its own, not limits of the engine."""
        return None

    def plan(self, view: View) -> IterationPlan:
        """The new batch, if there shall be one; else everybody decodes."""
        prompts = self._new_batch(view)
        return IterationPlan(prompts) if prompts else IterationPlan(decode=view.decoding)

    def on_commit(self, view: View, plan: IterationPlan, iterations: int) -> None:
        """Count the decode iterations since the last prefill."""
        self._decodes = 0 if plan.prefill else self._decodes + iterations

    def decode_horizon(self, view: View) -> int | None:
        """Until max_waiting_tokens is reached; one, where decode goes on only because a prefill went before."""
        if not len(view.waiting):
            return None
        if not self._decodes:
            return 1
        left = self.max_waiting_tokens - self._decodes
        return left if left > 0 else None

    def _new_batch(self, view: View) -> list[Slice]:
        if not view.num_running:
            least = 1
        elif not self._decodes:
            return []
        elif self._decodes >= self.max_waiting_tokens:
            least = 1
        else:
            least = int(self.waiting_served_ratio * view.num_running)
        batch = self._fitting(view) if len(view.waiting) >= least else []
        return batch if len(batch) >= least else []

    def _fitting(self, view: View) -> list[Slice]:
        kv, limits = view.kv, view.limits
        total = self.max_batch_total_tokens or kv.total * kv.block_size
        total_left = total - sum(min(most_tokens(seq, limits), total) for seq in view.running)
        prefill_left = -(-self.max_batch_prefill_tokens // kv.block_size) * kv.block_size
        batch: list[Slice] = []
        for seq in fitting_for_life(view, unwritten=1):
            total_left -= min(most_tokens(seq, limits), total)
            prefill_left -= seq.goal
            if total_left < 0 or (batch and prefill_left < 0):
                break
            batch.append(Slice(seq, seq.goal))
        return batch
