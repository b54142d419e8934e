"""DecodeSet against a list of (context, tokens left) that is walked every time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.decodeset import DecodeSet
from simulator.request import Request, Sequence


class Row:
    def __init__(self, seq: Sequence, context: int, left: int) -> None:
        self.seq, self.context, self.left = seq, context, left


class DecodeSetMachine(RuleBasedStateMachine):
    @initialize(block_size=st.sampled_from([1, 3, 16]))
    def start(self, block_size: int) -> None:
        self.block_size = block_size
        self.set = DecodeSet(block_size)
        self.rows: list[Row] = []
        self.joined = 0

    @rule(context=st.integers(1, 100), left=st.integers(1, 30))
    def add(self, context: int, left: int) -> None:
        seq = Sequence(Request(str(self.joined), 0, context, left + 1), self.joined)
        seq._computed, seq.admission = context, self.joined
        self.joined += 1
        self.set.add(seq, left)
        self.rows.append(Row(seq, context, left))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove_and_perhaps_return(self, data: st.DataObject) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        self.set.remove(row.seq)
        assert row.seq.computed == row.context
        if data.draw(st.booleans()):  # back with an old admission number
            self.set.add(row.seq, row.left)
            self.rows.append(row)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def iterate(self, data: st.DataObject) -> None:
        """One iteration without some, or several of everybody."""
        held = data.draw(st.sets(st.integers(0, len(self.rows) - 1), max_size=len(self.rows) - 1))
        for place in held:
            self.set.hold(self.rows[place].seq)
        steps = 1 if held else data.draw(st.integers(1, min(row.left for row in self.rows)))
        done = self.set.advance(steps)
        for place, row in enumerate(self.rows):
            if place not in held:
                row.context += steps
                row.left -= steps
        finished = [row.seq for row in self.rows if not row.left]
        assert done == sorted(finished, key=lambda seq: seq.admission)
        self.rows = [row for row in self.rows if row.left]

    @invariant()
    def agrees_with_the_list(self) -> None:
        if not hasattr(self, "set"):
            return
        contexts = [row.context for row in self.rows]
        assert len(self.set) == len(contexts)
        assert self.set.context == sum(contexts)
        assert self.set.max_context == max(contexts, default=0)
        assert [row.seq.computed for row in self.rows] == contexts
        for steps in (0, 1, self.block_size + 1):
            assert self.set.new_blocks(steps) == sum((c + steps) % self.block_size == 0 for c in contexts)
        if self.rows:
            assert self.set.steps_to_finish() == min(row.left for row in self.rows)


TestDecodeSet = DecodeSetMachine.TestCase
TestDecodeSet.settings = settings(max_examples=60, stateful_step_count=30)


def test_sequences_that_finish_together_come_in_order_of_admission() -> None:
    decoding = DecodeSet(16)
    sequences = [Sequence(Request(str(i), 0, 5, 9), i) for i in range(4)]
    for seq, admission in zip(sequences, (2, 0, 3, 1), strict=True):
        seq.admission = admission
        decoding.add(seq, 2)
    assert decoding.advance() == []
    assert [seq.admission for seq in decoding.advance()] == [0, 1, 2, 3]
    assert len(decoding) == 0


def test_entries_of_sequences_long_gone_are_dropped() -> None:
    """Held again and again, a set of one keeps the memory of a few."""
    decoding = DecodeSet(4)
    seq = Sequence(Request("a", 0, 1, 1_000), 0)
    decoding.add(seq, 999)
    for _ in range(300):
        decoding.hold(seq)
        decoding.step += 1
    assert decoding.max_context == seq.computed == 0
    assert len(decoding._longest) <= 4 + 64 + 1
