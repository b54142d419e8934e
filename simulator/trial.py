"""The memory while a plan is made: what the plan would do to it is tried out, and then taken back.

For policies whose admissions and decodes depend on each other's memory within one plan. `Outlook` (in `kv.py`) answers
the same for those that only ask whether one more fits.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Self

from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.kv import KvMemory


class Trial:
    """A memory that is counted in blocks, with or without a prefix cache. `tokens` is what it has room for.

    `steps` is what the memory shall do before anything else of the plan, in order (`IterationPlan.memory`): nothing
    here. Tokens promised to admissions still count as room until the plan is done.
    """

    steps: Seq[tuple[str, Sequence | int, int]] = ()

    def __init__(self, kv: KvMemory) -> None:
        self._kv = kv
        self._memory = kv.outlook(kv.free)
        self._left = False  # somebody has, in this plan
        self._counted_on = False  # cached blocks, by somebody promised room
        self.tokens = kv.free * kv.block_size

    def __enter__(self) -> Self:
        """The trial begins."""
        return self

    def __exit__(self, *_: object) -> None:
        """It is over: the memory is as it was."""

    def look(self, seq: Sequence, tokens: int) -> int:
        """How many of the first `tokens` of `seq` are cached. Looking may count as use."""
        return min(self._memory.cached(seq), tokens)

    def hold(self, seq: Sequence) -> int:
        """What `seq` finds there can't be evicted any more; returns how many tokens."""
        return self._memory.cached(seq)

    def let_go(self, seq: Sequence) -> None:
        """It can again: `seq` isn't admitted."""

    def promise(self, seq: Sequence, tokens: int) -> bool:
        """Room for `tokens` beyond what `seq` holds; False, and no room, where the memory is short of it."""
        if self._memory.need(seq, tokens) > self._memory.free or (self._left and self._kv.caches):
            return False  # with a cache, what the ones that left leave behind is known only once they have
        self._counted_on = self._counted_on or self._memory.cached(seq) > 0
        self._memory.take(seq, tokens)
        return True

    def grow(self, seq: Sequence, tokens: int) -> int:
        """Room for at most `tokens` more of `seq`, which is in memory already; returns for how many."""
        size = self._kv.block_size
        if self._kv.need(seq, tokens) > self._memory.free:
            tokens = self._memory.free * size + -seq.computed % size
        self._memory.spend(self._kv.need(seq, tokens))
        self._memory.register(seq, seq.computed + tokens)
        return tokens

    def decode(self, rows: Collection[Sequence]) -> bool:
        """Whether there is room for the next token of each of `rows`, beside what is promised."""
        if self._counted_on:
            return False  # the rows' blocks might be those
        return sum(self._kv.row_need(seq) for seq in rows) <= self._memory.free

    def make_room(self, tokens: int) -> bool:
        """Evict cached tokens until `tokens` are free; whether they are now."""
        return tokens <= self._memory.free * self._kv.block_size

    def leave(self, seq: Sequence) -> None:
        """`seq` is preempted."""
        self._left = True
        blocks = self._kv.held(seq)
        self._memory.free += blocks
        self.tokens += blocks * self._kv.block_size
