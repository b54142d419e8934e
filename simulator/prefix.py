"""The prefix cache of vLLM V1: blocks that keep their content after they are freed, until they are reused.

Rules as read in vLLM 0.19 (`vllm/v1/core/{kv_cache_manager,block_pool}.py`). Only full blocks are findable, by a
chained key: equal keys mean equal content of this block and of all before it. A block becomes findable when it is taken
for scheduled tokens. A look-up covers at most all tokens but the last. Free blocks form one queue: a freed sequence's
blocks join it from its tail on, a hit takes a block out of it, a new block is its head, whose content is then gone.

Blocks that are popped lose their content, so it doesn't matter which sequence gets which. That is why only the blocks
that others may find are tracked one by one: those of prompts. The others are counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from itertools import count

from simulator.decodeset import DecodeSet
from simulator.kv import BlockPool, Outlook
from simulator.request import Sequence

Key = Hashable


class CachedPool(BlockPool):
    """A paged pool with a prefix cache."""

    caches = True

    def __init__(self, num_gpu_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_gpu_blocks, block_size)
        self.keys = PrefixKeys(block_size)
        self._names = count(self.total)
        self._queue: OrderedDict[int, Key | None] = OrderedDict((n, None) for n in range(self.total))  # free blocks
        self._found: dict[Key, dict[int, None]] = {}  # cached blocks by content, the oldest first
        self._users: dict[int, int] = {}  # blocks in use that others may find: by how many
        self._blocks: dict[Sequence, list[int]] = {}  # those blocks per sequence, from its first on

    # ---- look-ups -------------------------------------------------------------------------------------------------

    def held(self, seq: Sequence) -> int:
        """Blocks that would come free if `seq` left: those it shares stay in use."""
        shared = sum(self._users[block] > 1 for block in self._blocks.get(seq, ()))
        return super().held(seq) - shared

    def outlook(self, free: int) -> CacheOutlook:
        """The memory in the middle of a plan that so far leaves `free` blocks."""
        return CacheOutlook(self, self.free - free)

    # ---- changes --------------------------------------------------------------------------------------------------

    def admit(self, seq: Sequence) -> int:
        """`seq` takes the cached blocks that it can use; returns the tokens in them."""
        blocks: list[int] = []
        for place in range((seq.goal - 1) // self.block_size):
            candidates = self._found.get(self.keys.of(seq, place))
            if not candidates:
                break
            block = next(iter(candidates))
            if block in self._queue:
                del self._queue[block]
                self.free -= 1
                self._users[block] = 0
            self._users[block] += 1
            blocks.append(block)
        self._blocks[seq] = blocks
        return len(blocks) * self.block_size

    def take(self, seq: Sequence, tokens: int) -> None:
        """Take what `need` said; blocks that are full once the tokens are computed can be found from now on."""
        blocks = self._blocks[seq]
        new_blocks = self.need(seq, tokens)
        self.take_rows(new_blocks)
        for place in range(len(blocks), (seq._computed + tokens) // self.block_size):
            block = next(self._names)
            self._users[block] = 1
            self._found.setdefault(self.keys.of(seq, place), {})[block] = None
            blocks.append(block)

    def take_rows(self, blocks: int) -> None:
        """Take `blocks` from the head of the queue; what they held is gone."""
        self.free -= blocks
        for _ in range(min(blocks, len(self._queue))):
            self._forget(*self._queue.popitem(last=False))

    def take_run(self, decoding: DecodeSet, steps: int) -> list[int]:
        """The same for the next `steps` iterations of the whole decode set: how many in each."""
        taken = [decoding.new_blocks(s) for s in range(steps)]
        self.take_rows(sum(taken))
        return taken

    def give_back(self, seq: Sequence, in_flight: int = 0) -> None:
        """`seq` leaves: the blocks that nobody else uses join the queue, its last one first.

        The last `in_flight` tokens aren't known yet, so a block that they fill isn't findable.
        """
        tracked = self._blocks.pop(seq, [])
        total = BlockPool.held(self, seq)
        full = max((seq.computed - in_flight) // self.block_size, len(tracked))
        for place in reversed(range(len(tracked), total)):
            block = next(self._names)
            key = self.keys.of(seq, place) if place < full else None
            self._queue[block] = key
            if key is not None:
                self._found.setdefault(key, {})[block] = None
        self.free += total - len(tracked)
        for place in reversed(range(len(tracked))):
            block = tracked[place]
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._queue[block] = self.keys.of(seq, place)
                self.free += 1
        self.keys.forget(seq)

    def _forget(self, block: int, key: Key | None) -> None:
        if key is not None:
            blocks = self._found[key]
            del blocks[block]
            if not blocks:
                del self._found[key]


class PrefixKeys:
    """Content keys of a sequence's blocks: the earlier turn's, the trace's ids of its prompt, or its own.

    The trace's block size and the pool's need not agree: a KV block is known by the chain of ids up to the one that
    covers its last token, and by its place.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._numbers: dict[tuple[int, int], int] = {}  # (chain so far, next id) -> number of the longer chain
        self._chains: dict[Sequence, list[int]] = {}

    def of(self, seq: Sequence, place: int) -> Key:
        """The key of block `place`. Blocks that the trace says nothing about are nobody else's."""
        end = (place + 1) * self._block_size
        while end <= seq._history and seq._earlier is not None:
            seq = seq._earlier
        covers = (end - 1) // seq._hash_tokens
        if seq._history or end > seq.prompt_tokens or covers >= len(seq._hashes):
            return (-1, seq.index, place)
        chain = self._chains.get(seq)
        if chain is None:
            chain = self._chains[seq] = self._chain(seq._hashes)
        return (chain[covers], place)

    def forget(self, seq: Sequence) -> None:
        """`seq` has left; should it come back, its chain is made again."""
        self._chains.pop(seq, None)

    def _chain(self, hashes: tuple[int, ...]) -> list[int]:
        chain: list[int] = []
        number = -1
        for name in hashes:
            number = self._numbers.setdefault((number, name), len(self._numbers))
            chain.append(number)
        return chain


class CacheOutlook(Outlook):
    """What a plan may count on: the pool after `spent` blocks were popped, and after its own further steps."""

    def __init__(self, pool: CachedPool, spent: int) -> None:
        super().__init__(pool, pool.free)
        self._pool = pool
        self._heads = iter(pool._queue)
        self._gone: set[int] = set()  # popped in this plan
        self._touched: set[int] = set()  # taken out of the queue by hits of this plan
        self._new: set[Key] = set()  # findable by then
        self._pop(spent)

    def cached(self, seq: Sequence) -> int:
        """Tokens that `seq` would find if it were admitted now."""
        return len(self._hits(seq)) * self._pool.block_size

    def _hits(self, seq: Sequence) -> list[int | None]:
        """Per block found: its number, or None for one that this plan will have made."""
        pool = self._pool
        hits: list[int | None] = []
        for place in range((seq.goal - 1) // pool.block_size):
            key = pool.keys.of(seq, place)
            block = next((b for b in pool._found.get(key, ()) if b not in self._gone), None)
            if block is None and key not in self._new:
                break
            hits.append(block)
        return hits

    def need(self, seq: Sequence, tokens: int) -> int:
        """Blocks that leave the queue when `seq` is admitted and computes `tokens` beyond what it finds."""
        hits = self._hits(seq)
        size = self._pool.block_size
        waking = sum(block in self._pool._queue and block not in self._touched for block in hits if block is not None)
        return -(-(len(hits) * size + tokens) // size) - len(hits) + waking

    def take(self, seq: Sequence, tokens: int) -> None:
        """Count on its admission with `tokens` beyond what it finds."""
        pool = self._pool
        hits = self._hits(seq)
        for block in hits:
            if block is not None and block in pool._queue and block not in self._touched:
                self._touched.add(block)
                self.free -= 1
        computed = len(hits) * pool.block_size + tokens
        self._pop(-(-computed // pool.block_size) - len(hits))
        self.register(seq, computed)

    def spend(self, blocks: int) -> None:
        """Count on `blocks` being taken for sequences that are in already."""
        self._pop(blocks)

    def register(self, seq: Sequence, computed: int) -> None:
        """Count on the full blocks of the first `computed` tokens of `seq` being findable."""
        self._new.update(self._pool.keys.of(seq, place) for place in range(computed // self._pool.block_size))

    def _pop(self, blocks: int) -> None:
        self.free -= blocks
        while blocks > 0 and (block := next(self._heads, None)) is not None:
            if block not in self._touched:
                self._gone.add(block)
                blocks -= 1
