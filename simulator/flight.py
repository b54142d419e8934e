"""An iteration between its beginning and its end, and what a preemption in between does to it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from simulator.decodeset import DecodeSet
from simulator.kv import KvMemory
from simulator.plan import BatchShape
from simulator.recorder import Recorder
from simulator.request import DECODING, FINISHING, Sequence

_NO_SHAPE = BatchShape()
_NOBODY: dict[Sequence, int] = {}


class Flight:
    """An iteration that has begun, or k identical ones in a row: what comes out when it ends."""

    __slots__ = ("completes", "ends_ns", "finishing", "iteration", "order", "repeatable", "row", "shape", "version")

    def __init__(self, iteration: int, version: int) -> None:
        self.iteration = iteration  # its number, or that of the first
        self.version = version  # of the state it was planned from
        self.shape = _NO_SHAPE
        self.row: tuple[int, ...] = ()  # the recorder's columns from prefill_seqs on
        self.completes = _NOBODY  # prefill done, of so many tokens: the next one comes out
        self.finishing: list[Sequence] = []  # their last token comes out
        self.order: Seq[Sequence] = ()  # the batch, where it isn't in order of admission
        self.repeatable = False  # the next plan would be the same, but for events
        self.ends_ns: Seq[int] = ()

    def leavers(self) -> list[Sequence]:
        """Whose prompt is through and whose last token it is, row by row."""
        rows = dict.fromkeys((*self.completes, *self.finishing))
        place = {seq: i for i, seq in enumerate(self.order)}
        return sorted(rows, key=place.__getitem__) if place else list(rows)


class Rectangle:
    """What request-level batching computes: every row as long as the longest, `length` tokens of each so far."""

    def __init__(self) -> None:
        self.length = 0

    def pad(self, shape: BatchShape, rows: int, tokens: int) -> tuple[BatchShape, int]:
        """(the rectangle that is computed for `shape`, tokens in it that nobody needs)."""
        if shape.prefill:
            length = self.length = max(new for new, _ in shape.prefill)
            return BatchShape(((length, 0),) * rows), rows * length - tokens
        length = self.length = self.length + 1
        return BatchShape((), rows, rows * length, length), rows - shape.decode_seqs


def apart(rows: DecodeSet | Seq[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(rows that get a token, rows whose last token is in flight) of some that shall decode."""
    live: list[Sequence] = []
    riders: list[Sequence] = []
    for seq in rows:  # type: ignore[union-attr]
        (live if seq.state == DECODING else riders).append(seq)
    return live, riders


def with_riders(shape: BatchShape, riders: Seq[Sequence], kv: KvMemory) -> BatchShape:
    """`shape` with rows whose last token is in flight: each computes one more, and takes its memory, for nobody."""
    kv.take_rows(sum(kv.row_need(seq) for seq in riders))
    for seq in riders:
        seq._computed += 1
    contexts = [seq._computed for seq in riders]
    return shape._replace(
        decode_seqs=shape.decode_seqs + len(riders),
        decode_context=shape.decode_context + sum(contexts),
        decode_max_context=max(shape.decode_max_context, *contexts),
    )


def drop_token(seq: Sequence, flight: Flight, iteration: int, decoding: DecodeSet, recorder: Recorder) -> None:
    """`seq` is preempted; the token it has in `flight`, if any, never comes out.

    `iteration` is the last of the flight's. The log doesn't count that row's token; its time counts as stalled.
    Afterwards `seq` is FINISHING, out of the decode set, with the goal it had before that token.
    """
    if seq in flight.completes:
        del flight.completes[seq]
        if seq.state == FINISHING:
            flight.finishing.remove(seq)
            seq.goal -= 1
        else:
            decoding.remove(seq)
            seq.state = FINISHING
        seq._span = (iteration, iteration + 1)
    elif seq in flight.finishing:
        flight.finishing.remove(seq)
        seq.goal -= 1
        recorder.drop_row(seq._computed)
        recorder.shorten_span(seq.index)
        seq._computed -= 1
    elif seq.state == DECODING and seq._span[1] <= iteration and flight.shape.decode_seqs:
        decoding.remove(seq)
        recorder.drop_row(seq._computed)
        recorder.spans.extend((seq.index, *seq._span, iteration - 1))
        seq.goal = seq._computed
        seq._computed -= 1
        seq.state = FINISHING
