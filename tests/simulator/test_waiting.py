"""WaitingQueue against a list that is sorted every time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simulator.request import Request, Sequence
from simulator.waiting import WaitingQueue


def sequence(index: int, priority: int = 0) -> Sequence:
    return Sequence(Request(str(index), index, 1, 1, priority=priority), index)


def by_priority(seq: Sequence) -> tuple[int, ...]:
    return (seq.priority, seq.arrival_ns)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 3)),
        st.tuples(st.just("return"), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 99)),
    )
)


@given(operations, st.booleans())
def test_against_a_sorted_list(steps: list[tuple[str, int]], keyed: bool) -> None:
    """Whoever left may come back, to the very front without a key, to the place of its key with one."""
    queue = WaitingQueue(by_priority if keyed else None)
    waiting: list[Sequence] = []
    gone: list[Sequence] = []
    count = 0
    for what, number in steps:
        if what == "return" and gone:
            seq = gone.pop()
            queue._arrive(seq, front=True)
            waiting.insert(0, seq)
        elif what == "arrive":
            seq = sequence(count, number)
            count += 1
            queue._arrive(seq)
            waiting.append(seq)
        elif what == "leave" and waiting:
            seq = waiting.pop(number % len(waiting))
            queue._leave(seq)
            gone.append(seq)
        if keyed:
            waiting.sort(key=lambda seq: (by_priority(seq), seq.index))
        assert list(queue) == waiting
        assert len(queue) == len(waiting)
        assert all(queue.holds(seq) for seq in waiting)
        assert not any(queue.holds(seq) for seq in gone)


def test_a_walk_may_stop_early_and_start_again() -> None:
    queue = WaitingQueue(by_priority)
    for index, priority in enumerate([2, 0, 1, 0]):
        queue._arrive(sequence(index, priority))
    walk = iter(queue)
    assert [next(walk).index, next(walk).index] == [1, 3]
    assert [seq.index for seq in queue] == [1, 3, 2, 0]


def test_two_queues_dont_mix() -> None:
    one, two, seq = WaitingQueue(), WaitingQueue(), sequence(0)
    one._arrive(seq)
    assert one.holds(seq)
    assert not two.holds(seq)
    assert list(two) == list(WaitingQueue(by_priority)) == []


def test_one_that_left_from_the_middle_may_come_back() -> None:
    queue, sequences = WaitingQueue(by_priority), [sequence(i, priority) for i, priority in enumerate([0, 1, 2])]
    for seq in sequences:
        queue._arrive(seq)
    queue._leave(sequences[1])
    assert (list(queue), len(queue)) == ([sequences[0], sequences[2]], 2)
    queue._arrive(sequences[1], front=True)
    assert (list(queue), len(queue)) == (sequences, 3)
