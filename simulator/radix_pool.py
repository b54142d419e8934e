"""KV memory as SGLang keeps it: single slots, and a radix tree of what requests have left behind or share.

Rules as read in SGLang 0.5.23 (`sglang/srt/mem_cache/{common,unified_radix_cache}.py`). A request locks the prefix it
finds and has slots of its own beyond it. What it has computed goes into the tree when its prompt is through, after
every chunk of it, and when it is finished; slots that duplicate cached ones are freed then. After an insert longer than
the prompt a node ends where the prompt does, so that the answer can be evicted without it. A request that is preempted
leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from simulator.content import pieces_of
from simulator.decodeset import DecodeSet
from simulator.kv import BlockPool, Outlook
from simulator.radix import Node, RadixTree
from simulator.request import FINISHED, Sequence
from simulator.trial import Trial

Step = tuple[str, Sequence | int, int]  # what to do, with whom or for how much, how many tokens


class RadixPool(BlockPool):
    """A pool of `num_gpu_blocks` x `block_size` slots of one token, all usable, with a radix cache.

    `free` counts slots that are empty or hold cached tokens that nobody locks; `evictable` the latter alone.
    """

    name = "radix"
    caches = True
    publishes = True

    def __init__(self, num_gpu_blocks: int, block_size: int = 1) -> None:
        super().__init__(num_gpu_blocks * block_size + 1, block_size=1)
        self.tree = RadixTree()
        self._held: dict[Sequence, tuple[Node, int]] = {}  # the locked prefix: its node, tokens in it
        self._left: dict[Sequence, None] = {}  # gave everything back before the engine asked them to

    @property
    def evictable(self) -> int:
        """Cached tokens that nobody locks."""
        return self.tree.evictable

    # ---- look-ups -------------------------------------------------------------------------------------------------

    def held(self, seq: Sequence) -> int:
        """Slots that would come free if `seq` left: those it shares stay in use."""
        if seq not in self._held:
            return 0
        node, cached = self._held[seq]
        alone = seq.computed - cached
        while node.parent is not None and node.users == 1:
            alone += node.length
            node = node.parent
        return alone

    def outlook(self, free: int) -> RadixOutlook:
        """The memory in the middle of a plan that so far leaves `free` slots."""
        return RadixOutlook(self, free)

    def trial(self) -> RadixTrial:
        """The memory while a plan is made that tries out what it does."""
        return RadixTrial(self)

    # ---- changes that a plan may ask for, one by one --------------------------------------------------------------

    def follow(self, steps: Seq[Step]) -> None:
        """Do what a trial did."""
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    def look(self, seq: Sequence, tokens: int) -> int:
        """How many of the first `tokens` of `seq` are cached; they count as just used."""
        return self.tree.walk(pieces_of(seq), tokens)[1]

    def hold(self, seq: Sequence, tokens: int) -> int:
        """`seq` locks what it finds of its first `tokens`; returns how many that are."""
        node, found = self.tree.walk(pieces_of(seq), tokens)
        self._lock(node)
        self.tree.put(self._held, seq, (node, found))
        return found

    def let_go(self, seq: Sequence, _: int = 0) -> None:
        """`seq` unlocks its prefix."""
        node, _ = self._held[seq]
        self.tree.drop(self._held, seq)
        self._unlock(node)

    def make_room(self, tokens: int, _: int = 0) -> bool:
        """Evict until `tokens` slots are empty; False where they can't be."""
        self.tree.evict(tokens - (self.free - self.evictable))
        return self.free - self.evictable >= tokens

    def leave(self, seq: Sequence, _: int = 0) -> None:
        """`seq` is preempted: its own slots are empty again, its prefix is unlocked."""
        self._set_free(self.free + seq.computed - self._held[seq][1])
        self.let_go(seq)
        self.tree.put(self._left, seq, None)

    # ---- changes by the engine ------------------------------------------------------------------------------------

    def admit(self, seq: Sequence) -> int:
        """`seq` locks what it finds of all its tokens but the last, if it hasn't yet; returns the tokens."""
        return self._held[seq][1] if seq in self._held else self.hold(seq, seq.goal - 1)

    def take(self, seq: Sequence, tokens: int) -> None:
        """Take a slot per token."""
        self.take_rows(tokens)

    def take_rows(self, blocks: int) -> None:
        """Take empty slots, after evicting what is missing."""
        self.make_room(blocks)
        self._set_free(self.free - blocks)

    def take_run(self, decoding: DecodeSet, steps: int) -> list[int]:
        """The same for the next `steps` iterations of the whole decode set: how many in each."""
        taken = [len(decoding)] * steps
        self.take_rows(sum(taken))
        return taken

    def publish(self, seq: Sequence, tokens: int) -> None:
        """The first `tokens` of `seq` are computed: others find them from now on, and it locks them."""
        old, cached = self._held[seq]
        if tokens > cached:
            node = self._insert(seq, tokens, cached)
            self._lock(node)
            self._unlock(old)
            self._held[seq] = (node, tokens)

    def give_back(self, seq: Sequence, in_flight: int = 0) -> None:
        """`seq` leaves: finished, with all it has computed cached, or preempted, with nothing."""
        if seq in self._left:
            del self._left[seq]
        elif seq.state == FINISHED:
            self._insert(seq, seq.computed, self._held[seq][1])
            self.let_go(seq)
        else:
            self.leave(seq)
            del self._left[seq]

    def _insert(self, seq: Sequence, tokens: int, cached: int) -> Node:
        node, _ = self.tree.insert(pieces_of(seq), tokens)
        self._set_free(self.free + tokens - cached)  # evictable now, or duplicates and empty
        if tokens > seq.prompt_tokens:
            self.tree.walk(pieces_of(seq), seq.prompt_tokens)
        return node

    def _lock(self, node: Node) -> None:
        before = self.evictable
        self.tree.lock(node)
        self._set_free(self.free + self.evictable - before)

    def _unlock(self, node: Node) -> None:
        before = self.evictable
        self.tree.unlock(node)
        self._set_free(self.free + self.evictable - before)

    def _set_free(self, slots: int) -> None:
        self.tree.set(self, "free", slots)


class RadixTrial(Trial):
    """The pool itself, with every change taken back at the end."""

    def __init__(self, pool: RadixPool) -> None:
        self._pool = pool
        self._promised = 0
        self._steps: list[Step] = []
        self.steps = self._steps

    def __enter__(self) -> RadixTrial:
        """From here on the pool shows what the plan would do."""
        self._pool.tree.begin_trial()
        return self

    def __exit__(self, *_: object) -> None:
        """The pool is as it was; `steps` would do it again."""
        self._pool.tree.end_trial()

    @property
    def tokens(self) -> int:  # type: ignore[override]
        """Slots that are empty or can be emptied, those promised included."""
        return self._pool.free

    def look(self, seq: Sequence, tokens: int) -> int:
        """How many of the first `tokens` of `seq` are cached; they count as just used."""
        self._steps.append(("look", seq, tokens))
        return self._pool.look(seq, tokens)

    def hold(self, seq: Sequence) -> int:
        """`seq` locks what it finds of all its tokens but the last."""
        self._steps.append(("hold", seq, seq.goal - 1))
        return self._pool.hold(seq, seq.goal - 1)

    def let_go(self, seq: Sequence) -> None:
        """It isn't admitted."""
        self._steps.append(("let_go", seq, 0))
        self._pool.let_go(seq)

    def promise(self, seq: Sequence, tokens: int) -> bool:
        """Slots are taken all at once when the plan is done."""
        self._promised += tokens
        return self._promised <= self._pool.free

    def grow(self, seq: Sequence, tokens: int) -> int:
        """The same: one slot per token."""
        tokens = min(tokens, self._pool.free - self._promised)
        self._promised += tokens
        return tokens

    def decode(self, rows: Collection[Sequence]) -> bool:
        """Evicts for one slot per row, beside what is promised."""
        return self.make_room(self._promised + len(rows))

    def make_room(self, tokens: int) -> bool:
        """Evict until so many slots are empty."""
        self._steps.append(("make_room", tokens, 0))
        return self._pool.make_room(tokens)

    def leave(self, seq: Sequence) -> None:
        """`seq` is preempted."""
        self._steps.append(("leave", seq, 0))
        self._pool.leave(seq)


class RadixOutlook(Outlook):
    """What a plan may count on that asks only whether one more fits: each answer is tried out and taken back."""

    def __init__(self, pool: RadixPool, free: int) -> None:
        super().__init__(pool, free)
        self._pool = pool
        self._spent = pool.free - free
        self._admitted: list[tuple[Sequence, int]] = []

    def cached(self, seq: Sequence) -> int:
        """Tokens that `seq` would find if it were admitted now."""
        return self._try(seq)[0]

    def need(self, seq: Sequence, tokens: int) -> int:
        """Slots that are no longer free once `seq` is admitted and computes `tokens` beyond what it finds."""
        return self._try(seq)[1] + tokens

    def take(self, seq: Sequence, tokens: int) -> None:
        """Count on its admission with `tokens` beyond what it finds."""
        self.free -= self.need(seq, tokens)
        self._admitted.append((seq, tokens))

    def _try(self, seq: Sequence) -> tuple[int, int]:
        """(tokens that `seq` finds, how many of them were free) after what the plan did so far."""
        pool = self._pool
        pool.tree.begin_trial()
        pool.take_rows(self._spent)
        for other, tokens in self._admitted:
            pool.hold(other, other.goal - 1)
            pool.take_rows(tokens)
        before = pool.free
        found = pool.hold(seq, seq.goal - 1)
        locked = before - pool.free
        pool.tree.end_trial()
        return found, locked
