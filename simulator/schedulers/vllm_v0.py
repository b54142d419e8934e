"""`vllm_v0`: prompts first, whole, with a share of the memory that admission leaves free."""

from __future__ import annotations

from simulator.errors import ConfigError
from simulator.plan import Slice
from simulator.schedulers.base import View
from simulator.schedulers.continuous import Continuous


class VllmV0(Continuous):
    """vLLM V0's default scheduler (0.2 to 0.7, without chunked prefill): `continuous`, prefill first, and a watermark.

    A waiting request is admitted only if `watermark` of all blocks stay free, so that what runs can grow before
    somebody is preempted. Where nothing runs there is nobody to keep it for: a single request may take everything,
    which V0 itself refuses. `policy`: fcfs, priority, sjf. V0's prefix cache, off by default, isn't modelled.
    """

    name = "vllm_v0"
    work_conserving = False
    engine_keys = frozenset({"max_num_seqs", "max_num_batched_tokens", "async_scheduling"})

    def __init__(self, watermark: float = 0.01, policy: str = "fcfs") -> None:
        super().__init__("prefill_first", policy)
        if not 0 <= watermark < 1:
            raise ConfigError(f"scheduler.watermark = {watermark}: must be at least 0 and below 1")
        self.watermark = watermark

    def _admit(self, view: View, free: int, rows: int) -> list[Slice]:
        prompts = super()._admit(view, free - int(self.watermark * view.kv.total), rows)
        if prompts or view.num_running:
            return prompts
        return super()._admit(view, free, rows)[:1]
