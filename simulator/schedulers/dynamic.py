"""`dynamic`: whenever the server is free, take what waits, up to a batch; request-level like `static`."""

from __future__ import annotations

from simulator.schedulers.request_level import RequestLevel


class Dynamic(RequestLevel):
    """Dynamic batching as in NVIDIA Triton: at most `batch_size` requests, delayed at most `max_queue_delay_ms`.

    With the default delay of 0 whatever waits when the server gets free makes the next batch. `respond_at` and
    `policy` as for `static`.
    """

    name = "dynamic"
    work_conserving = True

    def __init__(
        self,
        batch_size: int = 16,
        max_queue_delay_ms: float = 0,
        respond_at: str = "batch_end",
        policy: str = "fcfs",
    ) -> None:
        super().__init__(batch_size, max_queue_delay_ms, "max_queue_delay_ms", respond_at, policy)
        self.work_conserving = max_queue_delay_ms == 0
