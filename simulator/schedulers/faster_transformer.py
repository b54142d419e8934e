"""`faster_transformer`: request-level batching with memory for the longest sequence in every row."""

from __future__ import annotations

from simulator.plan import Slice
from simulator.schedulers.base import View
from simulator.schedulers.dynamic import Dynamic


class FasterTransformer(Dynamic):
    """NVIDIA FasterTransformer 5 behind Triton's dynamic batcher: static, padded, max_model_len x batch of KV memory.

    Prompts are padded to the longest, all rows run until the last one is done, and only then the next batch starts: at
    most `batch_size` requests, of which the oldest is delayed at most `max_queue_delay_ms` while the batch isn't full.
    Each row has memory for max_model_len tokens, so a batch has no more rows than the memory has room for. `respond_at`
    and `policy` as for `static`.
    """

    name = "faster_transformer"

    def _batch(self, view: View, size: int) -> list[Slice]:
        row_blocks = -(-view.limits.max_model_len // view.kv.block_size)
        return super()._batch(view, min(size, max(1, view.kv.total // row_blocks)))
