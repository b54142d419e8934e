"""Who was in which iteration and what they did there, from a RunLog: what waste accounting and pictures build on.

A sequence is in the iterations from the one it is admitted to until the one it is preempted or released before.
Asynchronous scheduling plans an iteration while the one before still runs: where a sequence got its last token in that
one, it is in the planned one too, as nobody else can have its slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.recorder import ADMIT, RELEASE, RunLog
from simulator.tokens import Ints

Bools = NDArray[np.bool_]


class Stays(NamedTuple):
    """One row per admission, in order: `sequence` is in the iterations of [first, until).

    `done`: it is released then, not preempted.
    """

    sequence: Ints
    first: Ints
    until: Ints
    done: Bools


class Work(NamedTuple):
    """Stretches of work, by sequence and then time: a chunk of prefill, or decodes in iterations of [first, until).

    Where no row at all decodes in one of these, this one doesn't either.
    `stay` is the row of the `Stays`, `tokens` how many it computed, `before` and `written` how many the sequence has
    in memory before and after it. Of a chunk, `recomputed` tokens were in memory before a preemption, and `width` is
    the length of its row, fill included; both are 0 for decoding.
    """

    stay: Ints
    first: Ints
    until: Ints
    tokens: Ints
    before: Ints
    written: Ints
    recomputed: Ints
    width: Ints


class Gaps(NamedTuple):
    """Iterations [first, until) in which a row of the `Stays` does nothing; `held`: it has all its tokens by then."""

    stay: Ints
    first: Ints
    until: Ints
    held: Bools


def took_ns(log: RunLog) -> Ints:
    """How long each iteration took."""
    took: Ints = log.iterations["end_ns"] - log.iterations["start_ns"]
    return took


def sums(values: Ints | Bools) -> Ints:
    """[0, v0, v0 + v1, ...]: a difference of two of these sums up a range."""
    return np.concatenate([[0], np.cumsum(values, dtype=np.int64)])


def level(count: int, *changes: tuple[Ints, Ints | int]) -> Ints:
    """Per iteration, of `count`, the sum of all `changes` (at which iteration, by how much) up to it."""
    change = np.zeros(count + 1, dtype=np.int64)
    for at, amount in changes:
        np.add.at(change, at, amount)
    running: Ints = np.cumsum(change[:-1])
    return running


def stays(log: RunLog) -> Stays:
    """Every admission, until the preemption or release that follows it."""
    ev, slots = log.events, log.iterations["slots"]
    order = np.argsort(ev["sequence"], kind="stable")
    at = np.flatnonzero(ev["kind"][order] == ADMIT)
    at = at[np.argsort(order[at])]
    admitted, left = order[at], order[at + 1]
    first, until = ev["iteration"][admitted], ev["iteration"][left]
    done = ev["kind"][left] == RELEASE
    members = level(len(slots), (first, 1), (until, -1))
    gone = np.flatnonzero(done & (until < len(slots)))
    until[gone] += slots[until[gone]] > members[until[gone]]  # the engine's count of that iteration still has it
    return Stays(ev["sequence"][admitted], first, until, done)


def work(log: RunLog, held: Stays) -> Work:
    """Every chunk, and every decode span that had a token; `held` is `stays(log)`."""
    chunks, spans, count = log.chunks, log.spans, len(log.iterations["slots"])
    rank = sums(log.iterations["decode_seqs"] > 0)
    first, until = np.minimum(spans["first"], count), spans["last"] + 1
    steps = rank[np.maximum(first, until)] - rank[first]
    full = steps > 0
    sequence = np.concatenate([chunks["sequence"], spans["sequence"][full]])
    first = np.concatenate([chunks["iteration"], first[full]])
    order = np.lexsort((first, sequence))
    sequence, first = sequence[order], first[order]
    tokens = np.concatenate([chunks["tokens"], steps[full]])[order]
    is_chunk = order < len(chunks["tokens"])
    context = np.zeros_like(tokens)
    context[is_chunk] = chunks["context"][order[is_chunk]]
    written = _written(is_chunk, tokens, context)
    stay = _stay_of(held, sequence, first)
    follows = np.concatenate([[False], stay[1:] == stay[:-1]])[: len(stay)]
    return Work(
        stay=stay,
        first=first,
        until=np.concatenate([chunks["iteration"] + 1, until[full]])[order],
        tokens=tokens,
        before=np.where(follows, np.roll(written, 1), 0),
        written=written,
        recomputed=np.where(is_chunk, np.clip(_most_before(sequence, written) - context, 0, tokens), 0),
        width=np.where(is_chunk, np.maximum(tokens, _padded_len(log)[first]), 0),
    )


def gaps(held: Stays, done: Work) -> Gaps:
    """What is left of each stay: before, between and after its stretches of work."""
    row = np.arange(len(held.first))
    stay = np.concatenate([row, done.stay, row])
    first = np.concatenate([held.first, done.first, held.until])  # a stay's own ends stand beside its work, as points
    until = np.concatenate([held.first, done.until, held.until])
    part = np.repeat([0, 1, 2], [len(row), len(done.stay), len(row)])
    order = np.lexsort((first, part, stay))
    stay, first, until, part = stay[order], first[order], until[order], part[order]
    gap = np.flatnonzero((stay[1:] == stay[:-1]) & (first[1:] > until[:-1]))
    return Gaps(stay[gap], until[gap], first[gap + 1], (part[gap + 1] == 2) & held.done[stay[gap]])


def _written(is_chunk: Bools, tokens: Ints, context: Ints) -> Ints:
    """Tokens in memory after each stretch: a chunk says how many were there, decoding adds to what is before it."""
    chunk = np.maximum.accumulate(np.where(is_chunk, np.arange(len(tokens)), 0))
    total = np.cumsum(tokens)
    written: Ints = (context + tokens)[chunk] + total - total[chunk]
    return written


def _most_before(sequence: Ints, written: Ints) -> Ints:
    """The most tokens that the sequence had in memory before each stretch."""
    stride = int(written.max(initial=0)) + 1
    most = np.maximum.accumulate(sequence * stride + written)
    most = np.concatenate([[-1], most])[: len(most)]
    return np.where(most // stride == sequence, most % stride, 0)


def _stay_of(held: Stays, sequence: Ints, iteration: Ints) -> Ints:
    """The row of the latest admission of each `sequence` up to `iteration`."""
    stride = int(iteration.max(initial=0)) + 1
    keys = held.sequence * stride + held.first
    order = np.argsort(keys, kind="stable")
    row: Ints = order[np.searchsorted(keys[order], sequence * stride + iteration, side="right") - 1]
    return row


def _padded_len(log: RunLog) -> Ints:
    """Tokens per row of each iteration's prefill where it is padded, else 0."""
    longest = np.zeros(len(log.iterations["slots"]), dtype=np.int64)
    np.maximum.at(longest, log.chunks["iteration"], log.chunks["tokens"])
    return np.where(log.iterations["padding_tokens"] > 0, longest, 0)
