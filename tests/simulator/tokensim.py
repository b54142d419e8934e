"""A tiny engine that lists every token, for tests of what is derived from a RunLog without listing them.

It makes random but legal decisions (chunks, subsets of the decode rows, preemptions, idle gaps) and writes
both the RunLog and, independently of it, the time of each token of each request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.recorder import (
    ADMIT,
    CHUNKS,
    EVENTS,
    ITERATIONS,
    PREEMPT,
    REJECT,
    RELEASE,
    SEQUENCES,
    SPANS,
    RunLog,
    Table,
)

BLOCK = 4


@dataclass
class Row:
    """One request and everything that happened to it."""

    arrival: int
    prompt: int
    output: int
    state: str = "waiting"
    times: list[int] = field(default_factory=list)
    computed: int = 0
    since: int = 0
    spent: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("waiting", "prefill", "decode", "preempted"), 0)
    )
    scheduled: int = -1
    preemptions: int = 0
    recomputed: int = 0
    span: tuple[int, int] | None = None  # (after, first) of the open span
    latest: int = -1  # iteration of the latest token

    @property
    def goal(self) -> int:
        return self.prompt + len(self.times)

    def enter(self, state: str, now: int) -> None:
        self.spent[self.state] += now - self.since
        self.state, self.since = state, now


class TokenSim:
    """Runs `requests` (arrival_ns, prompt, output) to the end; output 0 marks one to reject on arrival."""

    def __init__(self, requests: list[tuple[int, int, int]], seed: int, churn: float = 0.2) -> None:
        self.rng = random.Random(seed)
        self.churn = churn
        self.rows = [Row(*r, since=r[0]) for r in sorted(requests)]
        self.rejected = [row.output == 0 for row in self.rows]
        self.tables: dict[tuple[str, ...], list[tuple[int, ...]]] = {
            ITERATIONS: [],
            CHUNKS: [],
            SPANS: [],
            EVENTS: [],
        }
        self.used_tokens: list[int] = []
        self.now = 0
        self.done = 0

    def run(self) -> RunLog:
        while self.done < len(self.rows):
            self._arrive()
            if self.done == len(self.rows):
                break
            live = [i for i, r in enumerate(self.rows) if r.state in ("prefill", "decode")]
            for i in live:
                if self.rng.random() < self.churn / 4:
                    self._preempt(i)
            for i, r in enumerate(self.rows):
                if r.state in ("waiting", "preempted") and r.arrival <= self.now and self.rng.random() < 0.7:
                    self._admit(i)
            chunks = [i for i, r in enumerate(self.rows) if r.state == "prefill" and self.rng.random() < 0.8]
            decodes = [i for i, r in enumerate(self.rows) if r.state == "decode"]
            if self.rng.random() < self.churn:
                decodes = [i for i in decodes if self.rng.random() < 0.6]
            if self.rng.random() < self.churn:
                decodes = []
            if chunks or decodes:
                self._iterate(chunks, decodes)
            else:
                self.now += self.rng.randrange(1, 50)
        return self._log()

    def _event(self, kind: int, i: int) -> None:
        self.tables[EVENTS].append((self.now, kind, i, len(self.tables[ITERATIONS])))

    def _arrive(self) -> None:
        for i, r in enumerate(self.rows):
            if self.rejected[i] and r.state == "waiting" and r.arrival <= self.now:
                r.state = "rejected"
                self._event(REJECT, i)
                self.done += 1

    def _admit(self, i: int) -> None:
        row = self.rows[i]
        row.scheduled = self.now if row.scheduled < 0 else row.scheduled
        row.enter("prefill", self.now)
        self._event(ADMIT, i)

    def _preempt(self, i: int) -> None:
        row = self.rows[i]
        self._close(i, len(self.tables[ITERATIONS]) - 1)
        row.enter("preempted", self.now)
        row.recomputed += row.computed
        row.computed = 0
        row.preemptions += 1
        self._event(PREEMPT, i)

    def _close(self, i: int, last: int) -> None:
        span = self.rows[i].span
        if span is not None:
            self.tables[SPANS].append((i, *span, last))
            self.rows[i].span = None

    def _iterate(self, chunks: list[int], decodes: list[int]) -> None:
        index = len(self.tables[ITERATIONS])
        start, end = self.now, self.now + self.rng.randrange(1, 100)
        tokens = pairs = context = 0
        for i in chunks:
            row = self.rows[i]
            new = self.rng.randrange(1, row.goal - row.computed + 1)
            self.tables[CHUNKS].append((index, i, new, row.computed))
            tokens, pairs = tokens + new, pairs + new * row.computed + new * (new + 1) // 2
            row.computed += new
        for i in decodes:
            self.rows[i].computed += 1
            context += self.rows[i].computed
        for i, row in enumerate(self.rows):
            if row.state == "decode" and i not in decodes and decodes and row.span is not None:
                self._close(i, index - 1)
                row.span = (row.latest, index + 1)
        held = [r for r in self.rows if r.state in ("prefill", "decode")]
        blocks = sum(-(-r.computed // BLOCK) for r in held)
        self.used_tokens.append(sum(r.computed for r in held))
        self.tables[ITERATIONS].append(
            (start, end, len(chunks), tokens, pairs, 0, len(decodes), context, len(held), blocks)
        )
        self.now = end
        for i in [*chunks, *decodes]:
            self._emit(i, index)

    def _emit(self, i: int, index: int) -> None:
        row = self.rows[i]
        if row.computed < row.goal:
            return
        row.times.append(self.now)
        row.latest = index
        if len(row.times) == row.output:
            self._close(i, index)
            row.enter("finished", self.now)
            self._event(RELEASE, i)
            self.done += 1
        elif row.state == "prefill":
            row.enter("decode", self.now)
            row.span = (index, index + 1)

    def _log(self) -> RunLog:
        def table(names: tuple[str, ...], rows: list[tuple[int, ...]]) -> Table:
            flat = np.array(rows, dtype=np.int64).reshape(-1, len(names))
            return {name: flat[:, k].copy() for k, name in enumerate(names)}

        def sequence(r: Row) -> tuple[int, ...]:
            ended = r.state == "finished"
            finish = r.times[-1] if ended else -1
            return (
                r.arrival, r.prompt, r.output, len(r.times), int(ended), r.scheduled,
                r.times[0] if r.times else -1, finish, finish, r.preemptions, r.recomputed, 0, 0, *r.spent.values(),
            )  # fmt: skip

        info: dict[str, Any] = {
            "scheduler": "random",
            "scheduler_options": {"churn": self.churn},
            "policy": "fcfs",
            "respond_at": "token",
            "oracle": False,
            "max_num_seqs": len(self.rows),
            "num_gpu_blocks": 1000,
            "block_size": BLOCK,
            "fast_forward": False,
        }
        spans = sorted(self.tables[SPANS], key=lambda row: row[0])
        return RunLog(
            iterations=table(ITERATIONS, self.tables[ITERATIONS]),
            chunks=table(CHUNKS, self.tables[CHUNKS]),
            spans=table(SPANS, spans),
            events=table(EVENTS, self.tables[EVENTS]),
            sequences=table(SEQUENCES, [sequence(r) for r in self.rows]),
            ids=[f"r{i}" for i in range(len(self.rows))],
            reasons=["exceeds_kv_capacity" if r.state == "rejected" else "" for r in self.rows],
            info=info,
        )
