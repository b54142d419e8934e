"""Values that pass between scheduler, engine and cost model: plans are proposals, shapes are all a cost model sees."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from simulator.decodeset import DecodeSet
    from simulator.request import Sequence

EXTEND = "extend"
DECODE = "decode"
MIXED = "mixed"
MODES = (EXTEND, DECODE, MIXED)


class Limits(NamedTuple):
    """The engine's knobs that a scheduler must respect, under vLLM's names. All in tokens or sequences."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_prefill_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    max_model_len: int = 8192


class Slice(NamedTuple):
    """`tokens` more of a sequence's prompt (or of what it must recompute) in this iteration."""

    sequence: Sequence
    tokens: int


class IterationPlan(NamedTuple):
    """What one iteration shall do. Only the engine acts on it, after checking it.

    `decode` is the whole decode set (`view.decoding`), some of its members, or None. `preempt` lists running
    sequences that lose their memory first, in order. An empty plan may say when to ask again: `wait_until_ns`.

    Under asynchronous scheduling `decode` may list sequences whose last token is in flight, as engines do that can't
    know it is the last: such a row computes a token that nobody gets. `memory` is what the KV memory does before all
    else: the `steps` of its trial. `order` is the batch in the engine's order where it isn't that of admission:
    sequences that finish together leave in it. `note` is the policy's own, for its `on_commit`.
    """

    prefill: Seq[Slice] = ()
    decode: DecodeSet | Seq[Sequence] | None = None
    preempt: Seq[Sequence] = ()
    wait_until_ns: int | None = None
    memory: Seq[tuple[str, Any, int]] = ()
    order: Seq[Sequence] = ()
    note: Any = None


class BatchShape(NamedTuple):
    """One iteration as a cost model sees it: sizes, never identities.

    `prefill` holds one (new tokens, tokens before them) pair per chunk. `decode_context` sums, over the decode rows,
    the tokens each row attends to (its own new one included); `decode_max_context` is the longest of them.
    Batches padded to a rectangle arrive here with their padded sizes.
    """

    prefill: Seq[tuple[int, int]] = ()
    decode_seqs: int = 0
    decode_context: int = 0
    decode_max_context: int = 0

    @property
    def mode(self) -> str:
        """EXTEND where all tokens are prefill, DECODE where none is, else MIXED."""
        if not self.prefill:
            return DECODE
        return MIXED if self.decode_seqs else EXTEND

    @property
    def tokens(self) -> int:
        """Tokens that pass through the linear layers."""
        return sum(new for new, _ in self.prefill) + self.decode_seqs

    @property
    def sampled(self) -> int:
        """Rows that reach the LM head: every chunk counts one, as engines sample one row per sequence."""
        return len(self.prefill) + self.decode_seqs

    def later(self, steps: int) -> BatchShape:
        """This shape `steps` decode iterations on: every decode row's context has grown by `steps`."""
        return self._replace(
            decode_context=self.decode_context + steps * self.decode_seqs,
            decode_max_context=self.decode_max_context + steps,
        )
