"""`vllm_v1`: the scheduler of vLLM V1 as of 0.19, step for step."""

from __future__ import annotations

from simulator.errors import ConfigError
from simulator.schedulers.chunked import Chunked


class VllmV1(Chunked):
    """vLLM V1's scheduler, 0.19.0 (`vllm/v1/core/sched/scheduler.py`), held against its own recorded steps.

    `scheduler_reserve_full_isl`: admit a request only if the whole of it fits the free blocks (the default since 0.19;
    earlier V1 looked at the first chunk only). `watermark`: share of the blocks that admission leaves free while
    something runs (0 in 0.19; V0 kept 0.01). `policy`: fcfs or priority. With the engine's `enable_prefix_caching` and
    `async_scheduling` it does what the engine does with the flags of the same names.
    """

    name = "vllm_v1"

    def __init__(self, policy: str = "fcfs", scheduler_reserve_full_isl: bool = True, watermark: float = 0.0) -> None:
        super().__init__(policy)
        if not 0 <= watermark < 1:
            raise ConfigError(f"scheduler.watermark = {watermark}: must be at least 0 and below 1")
        self.scheduler_reserve_full_isl = scheduler_reserve_full_isl
        self.watermark = watermark
        self.work_conserving = watermark == 0
