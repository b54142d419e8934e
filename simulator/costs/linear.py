"""A cost that is a weighted sum of a batch's sizes: what a least-squares fit of whole iterations gives.

With whole-number coefficients every result is an exact integer, which the scale-invariance test and the
queueing formulas rely on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.clock import iteration_ns
from simulator.costs.base import CostModel, check_number, whole_ns
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import Platform

# Coefficients stop where their product with a billion tokens would leave 64 bits.
MAX_BASE_NS = 1e15
MAX_COEFFICIENT_NS = 1e9


class Linear(CostModel):
    """A weighted sum of the batch's sizes, with coefficients in nanoseconds.

    They are at least 0, and ConfigError says which isn't. `per_token_ns` counts every token computed, `per_seq_ns`
    every sequence in the batch. `per_context_ns` counts, over all rows, the tokens held once the iteration is done: new
    + before for a chunk, the context for a decode row. `per_prefill_pair_ns` counts the query-key pairs of the prefill
    attention, new x before + new(new+1)/2. `per_prefill_token_ns` and `per_decode_seq_ns` tell the two kinds of rows
    apart.
    """

    name = "linear"

    def __init__(
        self,
        platform: Platform,
        *,
        base_ns: float = 0,
        per_token_ns: float = 0,
        per_seq_ns: float = 0,
        per_context_ns: float = 0,
        per_prefill_pair_ns: float = 0,
        per_prefill_token_ns: float = 0,
        per_decode_seq_ns: float = 0,
    ) -> None:
        coefficients = {
            "per_token_ns": per_token_ns,
            "per_seq_ns": per_seq_ns,
            "per_context_ns": per_context_ns,
            "per_prefill_pair_ns": per_prefill_pair_ns,
            "per_prefill_token_ns": per_prefill_token_ns,
            "per_decode_seq_ns": per_decode_seq_ns,
        }
        faults: list[str] = []
        check_number(faults, "base_ns", base_ns, 0, MAX_BASE_NS)
        for key, value in coefficients.items():
            check_number(faults, key, value, 0, MAX_COEFFICIENT_NS)
        if not faults and base_ns == 0 and not any(coefficients.values()):
            faults.append("cost_model: linear needs at least one coefficient above 0")
        if faults:
            raise ConfigError(faults)
        self._base = base_ns
        self._per_chunk = per_seq_ns
        self._per_prefill_token = per_token_ns + per_prefill_token_ns
        self._per_pair = per_prefill_pair_ns
        self._per_decode_seq = per_token_ns + per_seq_ns + per_decode_seq_ns
        self._per_context = per_context_ns
        self._exact = all(isinstance(value, int) for value in (base_ns, *coefficients.values()))

    def iteration_ns(self, shape: BatchShape) -> int:
        """The weighted sum, half up where a coefficient isn't whole, at least 1."""
        prefill, decode_seqs, context, _ = shape
        ns = self._base + self._per_decode_seq * decode_seqs
        if prefill:
            tokens = pairs = 0
            for new, before in prefill:
                tokens += new
                pairs += new * before + new * (new + 1) // 2
                context += new + before
            ns += self._per_chunk * len(prefill) + self._per_prefill_token * tokens + self._per_pair * pairs
        ns += self._per_context * context
        if self._exact:
            return int(ns) or 1
        return iteration_ns(ns)

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """The same sum for k decode iterations, contexts growing by one per row each time."""
        contexts = shape.decode_context + shape.decode_seqs * np.arange(k, dtype=np.int64)
        ns = (self._base + self._per_decode_seq * shape.decode_seqs) + self._per_context * contexts
        if self._exact:
            exact: NDArray[np.int64] = np.maximum(ns, 1)
            return exact
        return whole_ns(np.asarray(ns, dtype=np.float64))
