"""Where the measured points of a cost model end: axes, their ends, and what was looked up beyond them.

Sizes come as NumPy columns, one entry per iteration, so that a whole run is judged at once; one call is a column of
one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.plan import BatchShape

Column = NDArray[np.float64]
Mask = NDArray[np.bool_]

INTERPOLATED, EXTRAPOLATED, FALLBACK = ("interpolated", "extrapolated", "fallback")
# Operations that were never timed, but that a roofline says are less than this share of an iteration, don't count.
FALLBACK_SHARE = 0.01


class Span(NamedTuple):
    """An axis and the least and the largest value on it that was timed."""

    axis: str
    low: float
    high: float


class Lookup(NamedTuple):
    """Values looked up on a span, where `applies`."""

    span: Span
    values: Column
    applies: Mask

    @property
    def outside(self) -> Mask:
        """Which of them lie beyond the span's ends."""
        return self.applies & ((self.values < self.span.low) | (self.values > self.span.high))


class Work(NamedTuple):
    """Sizes of iterations. Contexts are means per token (prefill) and per row (decode), 0 where there is none."""

    prefill_seqs: Column
    prefill_tokens: Column
    prefill_context: Column
    decode_seqs: Column
    decode_context: Column
    decode_longest: Column

    @classmethod
    def of(cls, shape: BatchShape) -> Work:
        """One iteration."""
        chunks, seqs, context, longest = shape
        tokens = sum(new for new, _ in chunks)
        before = sum(new * past for new, past in chunks) / max(tokens, 1)
        sizes = (len(chunks), tokens, before, seqs, context / max(seqs, 1), longest)
        return cls(*(np.array([size], dtype=np.float64) for size in sizes))

    @property
    def tokens(self) -> Column:
        """All tokens of an iteration."""
        return self.prefill_tokens + self.decode_seqs

    @property
    def sampled(self) -> Column:
        """Rows that reach the LM head."""
        return self.prefill_seqs + self.decode_seqs

    @property
    def chunk_mean(self) -> Column:
        """Mean length of the chunks."""
        return self.prefill_tokens / np.maximum(self.prefill_seqs, 1)

    @property
    def has_prefill(self) -> Mask:
        """Whether there is a chunk in it."""
        return np.greater(self.prefill_seqs, 0)

    @property
    def mixed(self) -> Mask:
        """Whether it has chunks and decode rows."""
        return self.has_prefill & (self.decode_seqs > 0)

    @property
    def decode_only(self) -> Mask:
        """Whether it has decode rows only."""
        return ~self.has_prefill & (self.decode_seqs > 0)
