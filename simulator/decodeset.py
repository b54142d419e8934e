"""The sequences that decode, as one object with running totals.

Planning, costing and committing a decode iteration of the whole set is O(1): contexts are stored relative to the
set's step counter, so advancing the counter lengthens all of them at once. A sequence costs O(log n) when it joins,
leaves or is left out of an iteration, and nothing in between.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from simulator.request import DecodeClock, Sequence


class DecodeSet(DecodeClock):
    """All decoding sequences. Policies read `len()`, `context`, `max_context`; the engine changes it."""

    __slots__ = ("_base_sum", "_block_size", "_finishes", "_longest", "_phases", "n")

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.n = 0  # members
        self._base_sum = 0  # sum of (tokens computed - step); each member's base stays as it is while the set advances
        self._block_size = block_size
        self._phases = [0] * block_size  # members by base modulo the block size
        self._finishes: list[tuple[int, int, Sequence]] = []  # (step of its last token, admission, sequence), lazy
        self._longest: list[tuple[int, int, Sequence]] = []  # (-base, admission, sequence), lazy

    def __len__(self) -> int:
        return self.n

    @property
    def context(self) -> int:
        """Tokens in memory, summed over the members."""
        return self._base_sum + self.n * self.step

    @property
    def max_context(self) -> int:
        """Tokens in memory of the longest member; 0 when empty."""
        heap = self._longest
        while heap:
            base, _, seq = heap[0]
            if seq._decoding is self and seq._base == -base:
                return self.step - base
            heappop(heap)
        return 0

    def new_blocks(self, steps: int = 0) -> int:
        """Members whose next token starts a new KV block, `steps` iterations of the whole set from now."""
        return self._phases[-(self.step + steps) % self._block_size]

    def steps_to_finish(self) -> int:
        """Decode iterations of the whole set until its next member has all its tokens. The set must not be empty."""
        heap = self._finishes
        while True:
            step, _, seq = heap[0]
            if seq._decoding is self and seq._finish_step == step:
                return step - self.step
            heappop(heap)

    def add(self, seq: Sequence, tokens_left: int) -> None:
        """`seq` joins: it will get `tokens_left` (at least 1) more tokens by decoding."""
        base = seq._computed - self.step
        seq._decoding = self
        seq._base = base
        seq._finish_step = self.step + tokens_left
        self.n += 1
        self._base_sum += base
        self._phases[base % self._block_size] += 1
        self._push(seq)

    def remove(self, seq: Sequence) -> None:
        """`seq` leaves with the tokens it has."""
        base = seq._base
        seq._computed = base + self.step
        seq._decoding = None
        self.n -= 1
        self._base_sum -= base
        self._phases[base % self._block_size] -= 1

    def hold(self, seq: Sequence) -> None:
        """`seq` sits out the next iteration: its context stays while the counter advances."""
        self._phases[seq._base % self._block_size] -= 1
        seq._base -= 1
        seq._finish_step += 1
        self._base_sum -= 1
        self._phases[seq._base % self._block_size] += 1
        self._push(seq)

    def advance(self, steps: int = 1) -> list[Sequence]:
        """Every member gets `steps` tokens; returns those that have all of theirs now, removed, in admission order.

        `steps` must not pass the next finish.
        """
        self.step += steps
        step = self.step
        heap = self._finishes
        done: list[Sequence] = []
        while heap and heap[0][0] <= step:
            finish_step, _, seq = heappop(heap)
            if seq._decoding is self and seq._finish_step == finish_step:
                self.remove(seq)
                done.append(seq)
        return done

    def _push(self, seq: Sequence) -> None:
        heappush(self._finishes, (seq._finish_step, seq.admission, seq))
        heappush(self._longest, (-seq._base, seq.admission, seq))
        if len(self._longest) > 4 * self.n + 64:  # entries of sequences long gone: drop them, amortised O(1)
            self._longest = [e for e in self._longest if e[2]._decoding is self and e[2]._base == -e[0]]
            heapify(self._longest)
