"""Who waits, runs, decodes: the state of one replica and the only code that changes sequences.

A plan is acted on in two halves. `begin` when it starts: preempt, admit, take blocks, count tokens. `settle` when it
ends: tokens come out, finished sequences leave. Under asynchronous scheduling the next plan begins in between.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from simulator.decodeset import DecodeSet
from simulator.flight import Flight, Rectangle, apart, drop_token, with_riders
from simulator.kv import KvMemory
from simulator.plan import BatchShape, IterationPlan, Limits, Slice
from simulator.recorder import ADMIT, PREEMPT, REJECT, RELEASE, Recorder
from simulator.request import DECODING, FINISHED, FINISHING, PREEMPTED, PREFILLING, REJECTED, WAITING, Sequence
from simulator.schedulers.base import Scheduler
from simulator.waiting import WaitingQueue


class Batch:
    """The sequences of one replica, by state.

    `version` changes when one joins the queue or leaves its slot, and when blocks come free. `airborne` is what runs.
    """

    def __init__(self, scheduler: Scheduler, kv: KvMemory, limits: Limits, recorder: Recorder) -> None:
        self.kv = kv
        self.limits = limits
        self.recorder = recorder
        self.waiting = WaitingQueue(scheduler.queue_key())
        self.running: dict[Sequence, None] = {}  # whoever holds a slot, in order of admission
        self.prefilling: dict[Sequence, None] = {}
        self.decoding = DecodeSet(kv.block_size)
        self.held: list[Sequence] = []  # finished, but their batch goes on
        self.version = 0
        self.barren_tokens = 0  # computed since a token last came out
        self._holds = scheduler.holds_slots
        self._requeues_last, self._drops = scheduler.requeues_last, scheduler.drops_in_flight
        self.airborne: Flight | None = None
        self._answers_late = scheduler.respond_at == "batch_end"
        self._admissions = 0
        self._last_decode = -1  # latest iteration with decode rows
        self._unsettled = -2  # last iteration of what runs now, if anything does
        self._rectangle = Rectangle()  # that a padded batch fills

    def arrive(self, seq: Sequence) -> None:
        """`seq` joins the waiting queue."""
        self.version += 1
        self.waiting._arrive(seq)

    def reject(self, seq: Sequence, reason: str) -> None:
        """`seq` can never be served."""
        seq.state, seq.reason = REJECTED, reason
        self.recorder.events.extend((seq.arrival_ns, REJECT, seq.index, -1))

    # ---- an iteration begins --------------------------------------------------------------------------------------

    def begin(self, plan: IterationPlan, now_ns: int) -> Flight:
        """Act on a checked plan. The plan's tokens count as computed from here on; `kv.free` may end up negative."""
        if plan.memory:
            self.kv.follow(plan.memory)
        for victim in plan.preempt:
            self._preempt(victim, now_ns)
        flight = Flight(self.recorder.num_iterations, self.version)
        flight.order = plan.order
        rows = plan.decode
        riders: Seq[Sequence] = ()
        if rows is not self.decoding and rows and self.airborne:
            rows, riders = apart(rows)
        live, context, longest = self._decode(rows, flight)
        chunks, tokens, pairs = self._prefill(plan.prefill, flight, now_ns)
        shape = BatchShape(chunks, live, context, longest)
        if riders:
            shape = with_riders(shape, riders, self.kv)
        slots, padding = len(self.running), 0
        if self._holds and (live or chunks):
            shape, padding = self._rectangle.pad(shape, slots, tokens)
        flight.shape = shape
        flight.row = (len(chunks), tokens, pairs, padding, live, context, slots, self.kv.total - self.kv.free)
        flight.repeatable = plan.decode is self.decoding and not chunks and not plan.preempt and not flight.finishing
        if flight.completes:
            self._complete(flight)
        self.barren_tokens = 0 if live or flight.completes else self.barren_tokens + tokens
        if live:
            self._last_decode = flight.iteration
        return flight

    def _decode(self, rows: DecodeSet | Seq[Sequence] | None, flight: Flight) -> tuple[int, int, int]:
        """Everybody in `rows` gets a token: (how many, their contexts summed, the longest)."""
        decoding = self.decoding
        if rows is decoding and (n := decoding.n):
            context, longest = decoding.context + n, decoding.max_context + 1
            self.kv.take_rows(self.kv.decode_need(decoding))
        elif rows:
            n, context, longest = self._select(rows, flight.iteration)
        else:
            return 0, 0, 0
        flight.finishing = self._advance(1, flight.iteration)
        return n, context, longest

    def _select(self, rows: DecodeSet | Seq[Sequence], iteration: int) -> tuple[int, int, int]:
        """Only `rows` decode: everybody else sits this one out."""
        chosen = dict.fromkeys(rows)  # type: ignore[arg-type]
        contexts = [seq.computed + 1 for seq in chosen]
        self.kv.take_rows(sum(self.kv.row_need(seq) for seq in chosen))
        for seq in self.running:
            if seq.state == DECODING and seq not in chosen:
                self._sit_out(seq, iteration)
        return len(contexts), sum(contexts), max(contexts)

    def _sit_out(self, seq: Sequence, iteration: int) -> None:
        self.decoding.hold(seq)
        after, first = seq._span
        if self._last_decode >= first:  # it has had tokens in this span, the last of them then
            self._end_span(seq, iteration - 1)
            after = self._last_decode
        seq._span = (after, iteration + 1)

    def _advance(self, steps: int, iteration: int) -> list[Sequence]:
        """The decode set gets `steps` tokens each, the last in `iteration`: who has all of theirs now."""
        finishing = self.decoding.advance(steps)
        for seq in finishing:
            self._end_span(seq, iteration)
            seq.state = FINISHING
            seq.goal = seq.prompt_tokens + seq._output_tokens
        return finishing

    def _end_span(self, seq: Sequence, last: int) -> None:
        self.recorder.spans.extend((seq.index, *seq._span, last))

    def _prefill(self, slices: Seq[Slice], flight: Flight, now_ns: int) -> tuple[list[tuple[int, int]], int, int]:
        """Admit and compute: (chunks as a cost model sees them, tokens, query-key pairs)."""
        if not slices:
            return [], 0, 0
        chunks: list[tuple[int, int]] = []
        completes: dict[Sequence, int] = {}
        record = self.recorder.chunks.extend
        take = self.kv.take
        total = pairs = 0
        for seq, tokens in slices:
            if seq.state != PREFILLING:
                self._admit(seq, now_ns)
            before = seq._computed
            take(seq, tokens)
            seq._computed = before + tokens
            if before + tokens == seq.goal:
                completes[seq] = seq.goal
            chunks.append((tokens, before))
            total += tokens
            pairs += tokens * before + tokens * (tokens + 1) // 2
            record((flight.iteration, seq.index, tokens, before))
        flight.completes = completes
        return chunks, total, pairs

    def _complete(self, flight: Flight) -> None:
        """Prompts that are through decode from the next iteration on, unless one token was all they wanted."""
        for seq in flight.completes:
            del self.prefilling[seq]
            left = seq.prompt_tokens + seq._output_tokens - seq.goal - 1
            if left:
                seq.state = DECODING
                seq._span = (flight.iteration, flight.iteration + 1)
                self.decoding.add(seq, left)
            else:
                seq.state = FINISHING
                seq.goal += 1
                flight.finishing.append(seq)
        if len(flight.finishing) > 1:
            flight.finishing.sort(key=lambda seq: seq.admission)  # engines free in the order of the running list

    def _admit(self, seq: Sequence, now_ns: int) -> None:
        self.waiting._leave(seq)
        found = self.kv.admit(seq)
        seq._computed = found
        if seq.state == WAITING:
            seq.scheduled_ns = now_ns
            seq.cached_tokens = found
            seq.queued_ns += now_ns - seq.since_ns
        else:
            seq.reused_tokens += found
            seq.recomputed_tokens -= found
            seq.preempted_ns += now_ns - seq.since_ns
        seq.since_ns = now_ns
        seq.state = PREFILLING
        seq.admission = self._admissions
        self._admissions += 1
        self.running[seq] = None
        self.prefilling[seq] = None
        self.recorder.events.extend((now_ns, ADMIT, seq.index, self.recorder.num_iterations))

    def _preempt(self, seq: Sequence, now_ns: int) -> None:
        """`seq` loses slot and memory: it will have to compute its prompt and its own tokens again."""
        self.kv.give_back(seq, in_flight=int(seq.state != PREFILLING and self._unsettled >= 0))
        if self._drops and self.airborne:
            drop_token(seq, self.airborne, self._unsettled, self.decoding, self.recorder)
        if seq.state == PREFILLING or seq._span[0] == self._unsettled:  # its token isn't out yet
            seq.prefill_ns += now_ns - seq.since_ns
        else:
            seq.decode_ns += now_ns - seq.since_ns
        if seq.state == PREFILLING:
            del self.prefilling[seq]
        elif seq.state == DECODING:
            seq.goal = seq.prompt_tokens + seq.emitted
            self.decoding.remove(seq)
            self._end_span(seq, self.recorder.num_iterations - 1)
        seq.since_ns = now_ns
        seq.recomputed_tokens += seq._computed
        seq._computed = 0
        seq.preemptions += 1
        seq.state = PREEMPTED
        del self.running[seq]
        self.waiting._arrive(seq, front=not self._requeues_last)
        self.recorder.events.extend((now_ns, PREEMPT, seq.index, self.recorder.num_iterations))

    def steps_left(self) -> int:
        """Decode iterations that can follow a repeatable one before a sequence finishes or blocks run out."""
        return self.kv.decode_steps(self.decoding, self.decoding.steps_to_finish())

    def run(self, flight: Flight, start_ns: int, ends_ns: Seq[int]) -> None:
        """`flight` takes from `start_ns` to the last of `ends_ns`, repeated once for each of them."""
        self.airborne = flight
        flight.ends_ns = ends_ns
        steps = len(ends_ns) - 1
        self._unsettled = flight.iteration + steps
        if not steps:
            self.recorder.iteration(start_ns, ends_ns[0], flight.row)
            return
        self.recorder.window(start_ns, ends_ns, flight.row, self.kv.take_run(self.decoding, steps))
        last = flight.iteration + steps
        flight.finishing = self._advance(steps, last)
        self._last_decode = last
        self._rectangle.length += steps

    def settle(self, flight: Flight, now_ns: int) -> list[Sequence]:
        """Tokens come out; finished sequences leave, or wait for their batch. Returns those that were answered."""
        self._unsettled = -2
        self.airborne = None
        for seq in flight.completes:
            if seq.first_token_ns < 0:
                seq.first_token_ns = now_ns
            if seq.state == PREEMPTED:  # after it was planned, with this token in flight
                seq.preempted_ns += now_ns - seq.since_ns
            else:
                seq.prefill_ns += now_ns - seq.since_ns
            seq.since_ns = now_ns
        done = flight.finishing
        for seq in done:
            self._finish(seq, now_ns)
        if not self._holds:
            if self.kv.publishes:
                self._hand_over(flight, now_ns)
            else:
                for seq in done:
                    self._release(seq, now_ns)
            return done
        self.held += done
        late = self.end_batch(now_ns)
        return late if self._answers_late else done

    def _hand_over(self, flight: Flight, now_ns: int) -> None:
        """Row by row, a prompt that is through goes into the cache, or a finished sequence with all it has."""
        for seq in flight.leavers():
            if seq.state == FINISHED:
                self._release(seq, now_ns)
            elif seq in self.running:
                free = self.kv.free
                self.kv.publish(seq, flight.completes[seq])
                self.version += self.kv.free != free  # duplicates are gone: what was planned before began with less

    def end_batch(self, now_ns: int) -> list[Sequence]:
        """Request-level batching: once nobody is alive all slots are free. Returns who is answered only now."""
        if len(self.running) > len(self.held):
            return []
        batch, self.held = self.held, []
        for seq in batch:
            if self._answers_late:
                seq.decode_ns += now_ns - seq.since_ns
                seq.first_token_ns = seq.finish_ns = now_ns
            self._release(seq, now_ns)
        return batch if self._answers_late else []

    def _finish(self, seq: Sequence, now_ns: int) -> None:
        if seq.state == PREEMPTED:  # its last token was in flight
            seq.preempted_ns += now_ns - seq.since_ns
            self.waiting._leave(seq)
        else:
            seq.decode_ns += now_ns - seq.since_ns
        seq.since_ns = seq.finish_ns = now_ns
        seq.state = FINISHED

    def _release(self, seq: Sequence, now_ns: int) -> None:
        if seq in self.running:
            del self.running[seq]
            self.kv.give_back(seq)
        seq.released_ns = now_ns
        self.version += 1
        self.recorder.events.extend((now_ns, RELEASE, seq.index, self.recorder.num_iterations))
