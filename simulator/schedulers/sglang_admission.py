"""SGLang's admission: who leaves the queue for a prefill, in one pass over it (its SchedulePolicy and PrefillAdder)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from simulator.content import pieces_of
from simulator.plan import Slice
from simulator.radix import RadixTree
from simulator.request import Sequence
from simulator.schedulers.base import View
from simulator.trial import Trial

if TYPE_CHECKING:
    from simulator.schedulers.sglang import Sglang

CLIP_MAX_NEW_TOKENS = 4096  # admission looks at no more of what a request may still produce
LPM_MAX_WAITING = 128  # with more of them lpm doesn't sort
TOUCHED_PREFIXES, TOUCH_EVERY = 128, 32  # fcfs refreshes so many prefixes, once in so many passes
IN_QUEUE_CACHED, IN_QUEUE_SHARED = 32, 32  # at most so many tokens cached, at least so many shared within the queue
PREEMPT_DECODE_STEPS = 20  # tokens per remaining request that a preemption evicts for
OK, NO_TOKEN, OTHER = "go on", "out of memory", "out of another budget"


def most_new_tokens(asked: int | None, prompt_tokens: int, capacity: int, context: int) -> int:
    """What a client `asked` for, clipped to a memory of `capacity` tokens and to the context length (rule 22)."""
    room = min(capacity, context) - prompt_tokens - 2
    return room if asked is None else min(asked, room)


class Admission:
    """One pass. What it decides is in `admitted`, `cut` (the one whose prompt isn't through), `victims` and `full`."""

    def __init__(self, scheduler: Sglang, view: View, memory: Trial) -> None:
        self.scheduler, self.view, self.memory = scheduler, view, memory
        last = scheduler.note
        self.running: list[Sequence] = []
        self.full, self.passes, self.queue = last.full, last.passes, last.queue
        self.chunk = next(iter(view.prefilling), None)
        self.pending = set(last.rows) if view.in_flight else set()
        self.ratio: float | None = None
        self.admitted: list[Slice] = []
        self.cut: Sequence | None = None
        self.victims: list[Sequence] = []
        self.entered: list[Sequence] = []
        self.seen: dict[Sequence, tuple[int, int]] = {}
        self._capacity = view.kv.total * view.kv.block_size
        self._rows = view.num_running
        self._ending: list[tuple[float, int]] | None = None

    # ---- requests, as the scheduler sees them ----------------------------------------------------------------------

    def out(self, seq: Sequence) -> int:
        """Tokens that `seq` is known to have produced: one in flight isn't."""
        return seq.emitted - (seq in self.pending)

    def most(self, seq: Sequence) -> int:
        """How many it may produce."""
        return most_new_tokens(seq.max_tokens, seq.prompt_tokens, self._capacity, self.view.limits.max_model_len)

    def left(self, seq: Sequence) -> int:
        """How many it may still produce, as far as admission looks."""
        return min(self.most(seq) - self.out(seq), CLIP_MAX_NEW_TOKENS)

    def share(self, seq: Sequence) -> float:
        """What is set aside for `seq` while it runs (rule 8)."""
        return self.left(seq) * self._weight(seq)

    def _weight(self, seq: Sequence) -> float:
        return 1 if seq.ignore_eos else self.scheduler.ratio

    def see(self, seq: Sequence, length: int | None = None, prefix: int | None = None) -> None:
        """Note what a preemption will take for the length and the prefix of `seq` (rule 16)."""
        if self.scheduler.by_priority:
            before = self._last_seen(seq)
            self.seen[seq] = (before[0] if length is None else length, before[1] if prefix is None else prefix)

    def _last_seen(self, seq: Sequence) -> tuple[int, int]:
        return self.seen.get(seq) or self.scheduler.seen.get(seq, (0, 0))

    def leave(self, seq: Sequence, room_tokens: int) -> None:
        """`seq` loses its memory, and the cache is evicted until `room_tokens` are free."""
        self.memory.leave(seq)
        self.memory.make_room(room_tokens)
        self.see(seq, prefix=0)

    # ---- the pass --------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """The pass, unless it is skipped (rules 3 and 4)."""
        preempts, waiting = self.scheduler.by_priority, len(self.view.waiting)
        if preempts:
            self.full = False
        if self.chunk is None:
            if self.full or not waiting:
                return
            if self._allocatable() <= 0 and not preempts:
                self.full = True
                return
        queue = self._ordered() if waiting else ()
        self._budgets()
        if self.chunk is None or self._continue(self.chunk):
            self._walk(queue)
        if self.queue and self.admitted:
            taken = {seq for seq, _ in self.admitted}
            self.queue = [seq for seq in self.queue if seq not in taken]

    def _walk(self, queue: Iterable[Sequence]) -> None:
        for seq in queue:
            if self._tokens_spent() and not self._memory_spent():
                return
            if len(self.admitted) >= self._allocatable():
                self.full = True
            if self.full and not (self.scheduler.by_priority and self._preempt_for(seq)):
                return
            result = self._try_all(seq) if seq.ignore_eos and not self.view.kv.caches else self._try(seq)
            if result == NO_TOKEN and (self.running or self.admitted):
                self.full = True
            if result != OK:
                return

    def _allocatable(self) -> int:
        """How many may be admitted, the chunk that goes on included (rule 4)."""
        slots = self.view.limits.max_num_seqs
        held = sum(seq is self.chunk for seq, _ in self.admitted)
        return min(slots - len(self.running), slots - self._rows + held)

    # ---- the queue's order -----------------------------------------------------------------------------------------

    def _ordered(self) -> Iterable[Sequence]:
        """The waiting ones in the order of the policy (rules 5 to 7)."""
        scheduler, waiting, caches = self.scheduler, self.view.waiting, self.view.kv.caches
        lpm = scheduler.policy == "lpm" and caches
        queue: Iterable[Sequence] = waiting
        if lpm or scheduler.by_priority:
            new = list(islice(waiting, len(self.queue), None))  # whoever came since the last pass came behind the rest
            queue = self.queue = [*self.queue, *new]
            if scheduler.by_priority:
                self.entered = new
            if lpm and len(queue) <= LPM_MAX_WAITING:
                self._sort_by_prefix(queue)
                return queue
            if not lpm:
                queue.sort(key=lambda seq: scheduler.least_first * seq.priority)
        if caches:
            self.passes += 1
            if self.passes % TOUCH_EVERY == 1:
                for seq in reversed(list(islice(queue, TOUCHED_PREFIXES))):
                    self.memory.look(seq, seq.goal)
        return queue

    def _sort_by_prefix(self, queue: list[Sequence]) -> None:
        """Longest cached prefix first; who should wait for another one's prefix goes to the end (rule 6)."""
        among = RadixTree()
        key: dict[Sequence, tuple[bool, int]] = {}
        for seq in queue:
            found = self.memory.look(seq, seq.goal)
            cached = min(found, seq.goal - 1)
            key[seq] = (False, -cached)
            self.see(seq, prefix=cached)
            if found <= IN_QUEUE_CACHED:
                if among.walk(pieces_of(seq), seq.goal)[1] >= IN_QUEUE_SHARED:
                    key[seq] = (True, 0)
                else:
                    among.insert(pieces_of(seq), seq.goal)
        queue.sort(key=key.__getitem__)

    # ---- budgets ---------------------------------------------------------------------------------------------------

    def _budgets(self) -> None:
        """Those of the pass (rules 8 and 14)."""
        mixed = len(self.running) if self.scheduler.mixes else 0
        self._prefill_left = self.scheduler.max_prefill_tokens - mixed
        size = self.scheduler.chunked_prefill_size
        self._chunk_left = None if size is None else size - mixed
        self._offset = sum(map(self.share, self.running)) + mixed
        self._current_offset = mixed

    def _remaining(self) -> float:
        return self.memory.tokens - self._offset

    def _current(self) -> int:
        return self.memory.tokens - self._current_offset

    def _memory_spent(self) -> bool:
        return self._remaining() <= 0 or self._current() <= 0

    def _tokens_spent(self) -> bool:
        return self._prefill_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0)

    def _reserve(self, seq: Sequence, tokens: int, cut: bool) -> None:
        """`seq` is in, with `tokens` (rule 10)."""
        self.admitted.append(Slice(seq, tokens))
        self._offset += tokens + 1 + (0 if cut else min(self.most(seq), CLIP_MAX_NEW_TOKENS))
        self._current_offset += tokens + 1
        self._prefill_left -= tokens
        if self._chunk_left is not None:
            self._chunk_left -= tokens
        if cut:
            self.cut = seq

    # ---- one candidate ---------------------------------------------------------------------------------------------

    def _continue(self, seq: Sequence) -> bool:
        """The next chunk goes first, whatever the memory (rule 13); False where not one token of it can.

        SGLang gives up at once where the memory lacks the tokens; here the chunk is as long as it can be.
        """
        assert self._chunk_left is not None, "whole prompts don't go on"
        self.see(seq, seq.prompt_tokens + self.out(seq), seq.computed)
        most = min(self._chunk_left, int(self._remaining()))
        most = min(seq.remaining, most if most > 0 else self._chunk_left)
        tokens = self.memory.grow(seq, most) if most > 0 else 0
        if tokens > 0:
            self._reserve(seq, tokens, cut=tokens < seq.remaining)
        return tokens > 0

    def _try(self, seq: Sequence) -> str:
        """Rules 9 and 12."""
        found = self.memory.hold(seq)
        self.see(seq, seq.goal, found)
        tokens = seq.goal - found
        if tokens + self.left(seq) + 1 >= self._remaining():
            result = NO_TOKEN
        elif self._chunk_left is None and tokens >= self._prefill_left and self.admitted:
            result = OTHER
        else:
            result = self._take(seq, tokens)
        if not (self.admitted and self.admitted[-1].sequence is seq):
            self.memory.let_go(seq)
        return result

    def _take(self, seq: Sequence, tokens: int) -> str:
        """`seq` is admitted, if what is left of the chunk budget is enough to cut it to; how the pass goes on after."""
        cut = self._chunk_left is not None and tokens > self._chunk_left
        if cut:
            assert self._chunk_left is not None
            tokens = self._chunk_left
            if tokens <= 0 or self.cut is not None:
                return OTHER
        if not self.memory.promise(seq, tokens):
            return NO_TOKEN
        self._reserve(seq, tokens, cut)
        if self._memory_spent():
            return NO_TOKEN
        return OTHER if self._tokens_spent() else OK

    def _try_all(self, seq: Sequence) -> str:
        """With ignore_eos and no cache: whether it fits beside all others until each of them ends (rule 15)."""
        self.see(seq, seq.goal, 0)
        if seq.goal + 1 > min(self._remaining(), self._current()):
            return NO_TOKEN
        if self._ending is None:
            others = [*self.running, *(other for other, _ in self.admitted)]
            self._ending = sorted(filter(None, map(self._end, [seq, *others])), key=lambda end: end[0])
        elif end := self._end(seq):
            place = next((i for i, (left, _) in enumerate(self._ending) if left >= end[0]), len(self._ending) - 1)
            self._ending.insert(max(place, 0), end)
        memory = self._current() - seq.goal - 1
        for ended, (left, length) in enumerate(self._ending):
            alive = len(self._ending) - ended
            if memory - left * alive <= alive:
                return NO_TOKEN
            memory += length
        return self._take(seq, seq.goal)

    def _end(self, seq: Sequence) -> tuple[float, int] | None:
        """(tokens until `seq` is thought to end, its length now); None if it should have ended."""
        left = self.most(seq) * self._weight(seq) - self.out(seq)
        return (left, seq.prompt_tokens + self.out(seq)) if left > 0 else None

    def _preempt_for(self, seq: Sequence) -> bool:
        """Whether those of less priority make room for `seq`; they leave, newest first (rule 16)."""
        sign, threshold = self.scheduler.least_first, self.scheduler.preemption_threshold
        length, prefix = self._last_seen(seq)
        missing = length - prefix + min(self.most(seq), CLIP_MAX_NEW_TOKENS) - self._remaining()
        chosen: list[Sequence] = []
        by_rank = sorted(self.running, key=lambda other: (-sign * other.priority, -self.scheduler.entries[other]))
        for other in by_rank:
            if (other.priority - seq.priority) * sign <= threshold:
                break
            chosen.append(other)
            missing -= self.share(other)
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        left = len(self.running)
        for other in self.running:
            if other in chosen:
                left -= 1
                self._rows -= 1
                self._offset -= self.share(other)
                self.leave(other, left * PREEMPT_DECODE_STEPS)
        self.running = [other for other in self.running if other not in chosen]
        self.victims += chosen
        return True
