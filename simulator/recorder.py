"""What a run leaves behind: append-only integer columns while it runs, a `RunLog` of NumPy tables after it.

Five tables, all int64. How the engine cut its work into windows is no part of them, so a fast-forwarded run and a
stepped one give the same bytes and the same digest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.request import FINISHED, REJECTED, Sequence

Table = dict[str, NDArray[np.int64]]

# One row per iteration. prefill_pairs: query-key pairs of the prefill attention, sum of new * before + new(new+1)/2.
# padding_tokens: tokens computed only to fill a rectangle (padded prompts, rows that are done but held).
# slots: sequences holding a slot, live or done. kv_blocks: blocks taken while the iteration runs.
ITERATIONS = (
    "start_ns", "end_ns", "prefill_seqs", "prefill_tokens", "prefill_pairs", "padding_tokens",
    "decode_seqs", "decode_context", "slots", "kv_blocks",
)  # fmt: skip
# One row per chunk of prefill work: `context` tokens were in memory before it.
CHUNKS = ("iteration", "sequence", "tokens", "context")
# One row per stretch in which a sequence decodes without a break: its token before the stretch came out of iteration
# `after`; then it emits one token in every iteration of [first, last] that has decode rows.
SPANS = ("sequence", "after", "first", "last")
# One row per change that isn't a token. `iteration`: how many iterations had been started by then (-1: rejected).
EVENTS = ("time_ns", "kind", "sequence", "iteration")
ADMIT, PREEMPT, RELEASE, REJECT = range(4)
EVENT_KINDS = ("admit", "preempt", "release", "reject")

SEQUENCES = (
    "arrival_ns", "prompt_tokens", "output_tokens", "emitted_tokens", "finished", "scheduled_ns", "first_token_ns",
    "finish_ns", "released_ns", "preemptions", "recomputed_tokens", "cached_tokens", "reused_tokens", "queued_ns",
    "prefill_ns", "decode_ns", "preempted_ns",
)  # fmt: skip


@dataclass(frozen=True)
class RunLog:
    """Everything a run decided and when. Times are nanoseconds from the start of the run's clock.

    `sequences` has one row per request in order of arrival (SEQUENCES; -1 where something never happened), `ids` and
    `reasons` (empty unless rejected) beside it. `iterations`, `chunks`, `spans` and `events` are as described in this
    module. `info` carries what the run was: scheduler, limits, blocks, flags.
    """

    iterations: Table
    chunks: Table
    spans: Table
    events: Table
    sequences: Table
    ids: list[str]
    reasons: list[str]
    info: dict[str, Any]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every table, hexadecimal: equal digests mean equal runs."""
        sha = hashlib.sha256()
        for table in (self.iterations, self.chunks, self.spans, self.events, self.sequences):
            for name, column in table.items():
                sha.update(name.encode())
                sha.update(column.astype("<i8").tobytes())
        sha.update("\n".join([*self.ids, *self.reasons]).encode())
        return sha.hexdigest()

    @property
    def end_ns(self) -> int:
        """When the last iteration ended; 0 for a run without iterations."""
        ends = self.iterations["end_ns"]
        return int(ends[-1]) if len(ends) else 0


class Recorder:
    """Collects the rows of a run. One call per iteration, chunk, span and event; nothing is kept twice."""

    def __init__(self) -> None:
        self.iterations = array("q")
        self.chunks = array("q")
        self.spans = array("q")
        self.events = array("q")
        self.num_iterations = 0

    def iteration(self, start_ns: int, end_ns: int, row: tuple[int, ...]) -> None:
        """One iteration; `row` holds its columns from prefill_seqs on."""
        self.num_iterations += 1
        self.iterations.extend((start_ns, end_ns, *row))

    def window(self, start_ns: int, ends_ns: Seq[int], row: tuple[int, ...], new_blocks: list[int]) -> None:
        """k decode iterations that end at `ends_ns`; `row` as for the first, `new_blocks` taken by the k - 1 others."""
        self.num_iterations += len(ends_ns)
        *fixed, n, context, slots, blocks = row
        extend = self.iterations.extend
        for end_ns, more in zip(ends_ns, [0, *new_blocks], strict=True):
            blocks += more
            extend((start_ns, end_ns, *fixed, n, context, slots, blocks))
            start_ns = end_ns
            context += n

    def drop_row(self, context: int) -> None:
        """A decode row of the latest iteration, which attended to `context` tokens, computed nothing that counts."""
        latest = len(self.iterations) - len(ITERATIONS)
        self.iterations[latest + ITERATIONS.index("decode_seqs")] -= 1
        self.iterations[latest + ITERATIONS.index("decode_context")] -= context

    def shorten_span(self, sequence: int) -> None:
        """The latest span of `sequence` ends one iteration earlier."""
        place = next(i for i in range(len(self.spans) - len(SPANS), -1, -len(SPANS)) if self.spans[i] == sequence)
        self.spans[place + SPANS.index("last")] -= 1

    def log(self, sequences: list[Sequence], info: dict[str, Any]) -> RunLog:
        """The RunLog of everything recorded; `sequences` in order of arrival."""
        return RunLog(
            iterations=_table(self.iterations, ITERATIONS),
            chunks=_table(self.chunks, CHUNKS),
            spans=_table(self.spans, SPANS, sort_by="sequence"),
            events=_table(self.events, EVENTS),
            sequences=_sequences(sequences),
            ids=[s.id for s in sequences],
            reasons=[s.reason for s in sequences],
            info=info,
        )


def _table(rows: array[int], names: tuple[str, ...], sort_by: str | None = None) -> Table:
    flat = np.frombuffer(rows, dtype=np.int64).reshape(-1, len(names)) if rows else np.empty((0, len(names)), np.int64)
    if sort_by is not None:
        flat = flat[np.argsort(flat[:, names.index(sort_by)], kind="stable")]
    return {name: flat[:, i].copy() for i, name in enumerate(names)}


def _sequences(sequences: list[Sequence]) -> Table:
    values: dict[str, Iterable[int]] = {
        "output_tokens": map(attrgetter("_output_tokens"), sequences),
        "emitted_tokens": (s.emitted if s.state != REJECTED else 0 for s in sequences),
        "finished": (s.state == FINISHED for s in sequences),
    }
    return {
        name: np.fromiter(
            values[name] if name in values else map(attrgetter(name), sequences), np.int64, count=len(sequences)
        )
        for name in SEQUENCES
    }
