"""Carries out an engine's iterations on a real decoder, in real time.

Plans and memory are the simulator's; here lie the tokens and the physical pages behind them. Prompts are random,
answers are what the decoder samples, as many as the request says. Of a padded batch the whole rectangle is computed:
every row as long as the longest, padding in front.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np
import simpy
import torch
from simpy.core import SimTime

from calibration.decoder import Decoder, Row, Rows
from simulator.batch import Batch
from simulator.clock import NS_PER_S
from simulator.engine import NEVER
from simulator.plan import BatchShape, IterationPlan
from simulator.request import DECODING, PREFILLING, Request, Sequence

PADDING = 0  # a token's id
Run = SequenceOf[int]
WARM_UPS, WARM_CONTEXT = 3, 512


class WallClock(simpy.Environment):
    """Integer nanoseconds of this machine's clock, from the call of `run`: no event happens before its time."""

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self._zero_ns = 0

    def run(self, until: SimTime | simpy.Event | None = None) -> object:
        """As SimPy's, from now on."""
        self._zero_ns = time.perf_counter_ns()
        return super().run(until)

    def elapsed_ns(self) -> int:
        """The time now."""
        return time.perf_counter_ns() - self._zero_ns

    def step(self) -> None:
        """The next event, once it is time."""
        due_ns = self.peek()  # infinite where there is none
        while 0 < (ahead_ns := due_ns - self.elapsed_ns()) < NEVER:
            time.sleep(ahead_ns / NS_PER_S)
        super().step()


class _Work(NamedTuple):
    """`new` tokens of a sequence after `context` in memory."""

    sequence: Sequence
    new: int
    context: int


class Pages:
    """Which of `count` pages each sequence has: any, or, where `run` is above 1, those of a run of its own in order."""

    def __init__(self, count: int, run: int = 1) -> None:
        self._run = run
        self._free = list(range(0, count - run + 1, run))
        self._held: dict[Sequence, Run] = {}

    def holders(self) -> list[Sequence]:
        """The sequences that have pages."""
        return list(self._held)

    def in_use(self) -> int:
        """How many pages they have."""
        return sum(map(len, self._held.values()))

    def of(self, seq: Sequence, count: int) -> Run:
        """The pages of `seq`, at least `count`."""
        held = self._held.get(seq, ())
        if len(held) < count:
            assert self._run == 1 or count <= self._run, f"{count} pages, where a run has {self._run}"
            if self._run > 1:
                first = held[0] if held else self._free.pop()
                held = range(first, first + count)
            else:
                held = [*held, *(self._free.pop() for _ in range(count - len(held)))]
            self._held[seq] = held
        return held

    def let_go(self, seq: Sequence) -> None:
        """`seq` has none from now on."""
        held = self._held.pop(seq, ())
        self._free += held[:1] if self._run > 1 else held


class LiveExecutor:
    """Runs each iteration on `decoder` and takes as long as that takes, host time since the last one included.

    `padded` batches fill a rectangle (a scheduler that holds slots). `counts_blocks`: the memory is paged, so its
    blocks in use must be the pages in use here, where pages have the same size. `run`: see Pages.
    """

    def __init__(
        self, decoder: Decoder, clock: WallClock, requests: Iterable[Request], *, seed: int, padded: bool,
        counts_blocks: bool, run: int = 1,
    ) -> None:  # fmt: skip
        self._decoder = decoder
        self._clock = clock
        self._padded = padded
        self._counts_blocks = counts_blocks and not padded
        draw = np.random.default_rng(seed)
        # Prompt and answer so far, by request.
        self._tokens: dict[str, list[int]] = {
            one.id: draw.integers(decoder.vocab, size=one.prompt_tokens).tolist() for one in requests
        }
        self._pages = Pages(decoder.num_blocks, run)
        self._work: list[_Work] = []
        self._start_ns = 0
        self._running: dict[Sequence, None] = {}
        self.host_ns: list[int] = []  # what each iteration took beside the decoder
        self._ran_ns = self._took_ns = 0

    def tokens(self, request: Request) -> list[int]:
        """The prompt of `request` and what has come out for it."""
        return self._tokens[request.id]

    def answered(self, request: Request) -> int:
        """How many tokens have come out for `request`."""
        return len(self._tokens[request.id]) - request.prompt_tokens

    @property
    def busy_share(self) -> float:
        """The share of the decoder's time that this thread had a processor."""
        return self._ran_ns / max(self._took_ns, 1)

    def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
        """Note who computes what, and free the pages of whoever left."""
        self._start_ns = now_ns
        self._running = batch.running
        for seq in self._pages.holders():
            if seq not in batch.running:
                self._pages.let_go(seq)
        self._check_pages(batch)
        victims = set(plan.preempt)
        for seq in victims:
            self._pages.let_go(seq)
        rows = batch.running if plan.decode is batch.decoding else plan.decode or ()
        self._work = [
            _Work(seq, tokens, seq.computed if seq.state == PREFILLING and seq not in victims else 0)
            for seq, tokens in plan.prefill
        ]
        self._work += [
            _Work(seq, 1, seq.computed)
            for seq in rows  # type: ignore[union-attr]
            if seq.state == DECODING and seq not in victims
        ]

    def iteration_ns(self, shape: BatchShape) -> int:
        """Run the iteration that was prepared; nanoseconds since it was due to start, at least 1."""
        rows, ids = self._rectangle(shape) if self._padded else self._lines()
        device = self._decoder.device
        built = Rows.build(device, self._decoder.block_size, list(rows.values()))
        token_ids = torch.tensor(ids, device=device)
        launched_ns, ran_ns = self._clock.elapsed_ns(), time.thread_time_ns()
        sampled = self._decoder.stack(token_ids, built).tolist()  # waits for the device
        decoded_ns = self._clock.elapsed_ns() - launched_ns
        self._ran_ns, self._took_ns = self._ran_ns + time.thread_time_ns() - ran_ns, self._took_ns + decoded_ns
        came = dict(zip(rows, sampled, strict=True))
        for seq, new, context in self._work:
            tokens = self._tokens[seq.id]
            if context + new == len(tokens):  # all it has is in memory: the next one comes out
                tokens.append(came[seq])
        computed = sum(row.new_tokens for row in rows.values())
        assert computed == shape.tokens, f"computed {computed} tokens of {shape}"
        took_ns = max(1, self._clock.elapsed_ns() - self._start_ns)
        self.host_ns.append(took_ns - decoded_ns)
        return took_ns

    def _lines(self) -> tuple[dict[Sequence, Row], list[int]]:
        """(each sequence's row, the tokens of all of them)."""
        rows, ids = {}, []
        for seq, new, context in self._work:
            rows[seq] = Row(new, context, self._room(seq, context + new))
            ids += self._tokens[seq.id][context : context + new]
        return rows, ids

    def _rectangle(self, shape: BatchShape) -> tuple[dict[Sequence, Row], list[int]]:
        """The same where every running sequence has a row as long as the longest."""
        new = shape.prefill[0][0] if shape.prefill else 1
        length = new if shape.prefill else shape.decode_max_context
        rows, ids = {}, []
        for seq in self._running:
            rows[seq] = Row(new, length - new, self._room(seq, length))
            tokens = self._tokens[seq.id][-new:]
            ids += [PADDING] * (new - len(tokens)) + tokens
        return rows, ids

    def _room(self, seq: Sequence, tokens: int) -> Run:
        """The pages of `seq`, enough for `tokens`."""
        return self._pages.of(seq, -(-tokens // self._decoder.block_size))

    def _check_pages(self, batch: Batch) -> None:
        kv, pages = batch.kv, self._pages.in_use()
        if self._counts_blocks and kv.block_size == self._decoder.block_size:
            assert kv.total - kv.free == pages, f"{kv.total - kv.free} blocks in use, but {pages} pages"


@torch.inference_mode()
def warm_up(decoder: Decoder, prompt_tokens: int, sequences: int) -> None:
    """Run what a first call of each kind sets up: a prompt, decode rows, both in one call. All in the same pages.

    Then both at every power of two below: matrix products of other sizes are other kernels, loaded at their first call.
    """
    blocks = range(decoder.num_blocks)
    prompt_tokens = min(prompt_tokens, len(blocks) * decoder.block_size)
    chunk, decode = Row(prompt_tokens, 0, blocks), Row(1, min(prompt_tokens, WARM_CONTEXT) - 1, blocks)
    calls = [[chunk], [decode] * sequences, [chunk, *[decode] * sequences]] * WARM_UPS
    calls += [[chunk._replace(new_tokens=2**i)] for i in range(prompt_tokens.bit_length())]
    calls += [[decode] * 2**i for i in range(sequences.bit_length())]
    for rows in calls:
        built = Rows.build(decoder.device, decoder.block_size, rows)
        decoder.stack(torch.zeros_like(built.positions), built).tolist()
