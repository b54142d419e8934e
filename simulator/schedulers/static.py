"""`static`: wait for a full batch, run it until its longest request ends, then the next one."""

from __future__ import annotations

from simulator.schedulers.request_level import RequestLevel


class Static(RequestLevel):
    """Static batching. `batch_size` requests make a batch.

    `batch_timeout_ms`: a batch that doesn't fill starts once its oldest request has waited that long; None waits until
    it is full or nothing more can arrive. `respond_at`: `batch_end` (the client gets its text when the batch ends) or
    `token` (streaming from a batch that still holds its slots). `policy`: fcfs, priority, sjf.
    """

    name = "static"

    def __init__(
        self,
        batch_size: int = 16,
        batch_timeout_ms: float | None = None,
        respond_at: str = "batch_end",
        policy: str = "fcfs",
    ) -> None:
        super().__init__(batch_size, batch_timeout_ms, "batch_timeout_ms", respond_at, policy)
