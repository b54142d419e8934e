"""The waiting queue: arrival order with preempted sequences in front, or the order of a key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from simulator.request import Sequence

Key = Callable[[Sequence], tuple[int, ...]]


class WaitingQueue:
    """Sequences that wait, iterated in the order in which they should be served.

    Without a key: first come, first served; a preempted sequence goes to the very front (vLLM's fcfs), or to the end
    where the scheduler `requeues_last` (SGLang's). With a key: smallest first, ties in order of arrival; a preempted
    sequence is put where its key says (vLLM's priority).
    Iterating over the first m costs O(m log m) with a key, O(m) without, however long the queue.
    """

    __slots__ = ("_fifo", "_gone", "_heap", "_key")

    def __init__(self, key: Key | None = None) -> None:
        self._key = key
        self._fifo: deque[Sequence] = deque()
        self._heap: list[tuple[tuple[int, ...], int, Sequence]] = []
        self._gone: set[int] = set()  # indices of heap entries whose sequence has left

    def __len__(self) -> int:
        return len(self._fifo) if self._key is None else len(self._heap) - len(self._gone)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._fifo) if self._key is None else self._in_order()

    def holds(self, seq: Sequence) -> bool:
        """Whether `seq` waits here."""
        return seq._queue is self

    def _in_order(self) -> Iterator[Sequence]:
        heap = self._heap
        frontier = [(heap[0][:2], 0)] if heap else []
        while frontier:
            _, place = heappop(frontier)
            seq = heap[place][2]
            if seq.index not in self._gone:
                yield seq
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child][:2], child))

    def _arrive(self, seq: Sequence, *, front: bool = False) -> None:
        seq._queue = self
        if self._key is None:
            if front:
                self._fifo.appendleft(seq)
            else:
                self._fifo.append(seq)
        else:
            if seq.index in self._gone:
                self._drop_gone()
            heappush(self._heap, (self._key(seq), seq.index, seq))

    def _leave(self, seq: Sequence) -> None:
        seq._queue = None
        if self._key is not None:
            self._gone.add(seq.index)
            while self._heap and self._heap[0][1] in self._gone:
                self._gone.discard(heappop(self._heap)[1])
        elif self._fifo[0] is seq:
            self._fifo.popleft()
        else:
            self._fifo.remove(seq)

    def _drop_gone(self) -> None:
        self._heap = [entry for entry in self._heap if entry[1] not in self._gone]
        heapify(self._heap)
        self._gone.clear()
