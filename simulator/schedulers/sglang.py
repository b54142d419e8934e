"""`sglang`: SGLang's scheduler as of 0.5.23, step for step."""

from __future__ import annotations

from typing import Literal, NamedTuple

from simulator.errors import ConfigError
from simulator.plan import IterationPlan, Limits
from simulator.request import DECODING, FINISHED, FINISHING, PREFILLING, Sequence
from simulator.schedulers.base import Scheduler, View
from simulator.schedulers.sglang_admission import Admission

RETRACT_DECODE_STEPS = 20  # tokens per remaining request that a retraction evicts for
RATIO_INIT, RATIO_FLOOR, RATIO_DECAY_STEPS = 0.7, 0.14, 600  # of new_token_ratio; the floor is a share of the start


class Note(NamedTuple):
    """What one plan leaves to the next."""

    running: list[Sequence]  # the decode batch, in its order
    joining: list[Sequence]  # join it when the next step is planned, if they are through by then
    rows: list[Sequence]  # get a token
    retracted: list[Sequence]  # of those preempted, whom memory ran out for; the others made way for a priority
    full: bool  # nobody is tried before somebody leaves
    ratio: float | None  # the new one, where it was raised or reset
    decays: bool  # it falls with every iteration
    queue: list[Sequence]  # as the last sort left it; with lpm or priorities only
    passes: int  # of fcfs over the queue
    entered: list[Sequence]  # are new in the queue; with priorities only
    seen: dict[Sequence, tuple[int, int]]  # length and prefix at their last match, likewise


class Sglang(Scheduler):
    """SGLang's scheduler, 0.5.23 (`sglang/srt/managers/{scheduler,schedule_policy,schedule_batch}.py`).

    Held against its own recorded steps: its plain loop, and with the engine's `async_scheduling` its overlap loop.
    Prefill goes first; whoever is through joins the running batch, which decodes when nobody can be admitted. A request
    is admitted if what it computes and may still produce fits what is left after `new_token_ratio` x what the running
    ones may still produce. The ratio falls with every decode; where a decode lacks memory, those with the fewest tokens
    are retracted and it rises.

    Options have SGLang's names; -1 for `chunked_prefill_size` is no chunking. Other knobs are the engine's:
    `max_running_requests` is max_num_seqs, `context_length` max_model_len, `mem_fraction_static` much the same as
    gpu_memory_utilization, `disable_radix_cache` memory without a cache, `disable_overlap_schedule` no
    async_scheduling.
    """

    name = "sglang"
    decode_stable = True
    has_memory = True
    whole_prompts = True
    requeues_last = True
    drops_in_flight = True
    engine_keys = frozenset({"max_num_seqs", "enable_prefix_caching", "async_scheduling"})

    def __init__(
        self,
        chunked_prefill_size: int = 8192,
        max_prefill_tokens: int = 16384,
        schedule_policy: Literal["fcfs", "lpm"] = "fcfs",
        schedule_conservativeness: float = 1.0,
        enable_mixed_chunk: bool = False,
        enable_priority_scheduling: bool = False,
        schedule_low_priority_values_first: bool = False,
        priority_scheduling_preemption_threshold: int = 10,
    ) -> None:
        faults = []
        if chunked_prefill_size != -1 and chunked_prefill_size < 1:
            faults.append(f"scheduler.chunked_prefill_size = {chunked_prefill_size}: must be at least 1, or -1 for off")
        if max_prefill_tokens < 1:
            faults.append(f"scheduler.max_prefill_tokens = {max_prefill_tokens}: must be at least 1")
        if schedule_policy not in ("fcfs", "lpm"):
            faults.append(f"scheduler.schedule_policy = {schedule_policy}: must be fcfs or lpm")
        if not schedule_conservativeness > 0:
            faults.append(f"scheduler.schedule_conservativeness = {schedule_conservativeness}: must be above 0")
        if priority_scheduling_preemption_threshold < 0:
            value = priority_scheduling_preemption_threshold
            faults.append(f"scheduler.priority_scheduling_preemption_threshold = {value}: must be at least 0")
        if faults:
            raise ConfigError(faults)
        self.chunked_prefill_size = None if chunked_prefill_size == -1 else chunked_prefill_size
        self.max_prefill_tokens = max_prefill_tokens
        self.policy = schedule_policy
        self.mixes = enable_mixed_chunk and self.chunked_prefill_size is not None
        self.by_priority = enable_priority_scheduling
        self.least_first = 1 if schedule_low_priority_values_first else -1  # sign of a priority, to sort by
        self.preemption_threshold = priority_scheduling_preemption_threshold
        self.start_ratio = min(1.0, RATIO_INIT * schedule_conservativeness)
        self.floor_ratio = self.start_ratio * RATIO_FLOOR
        self.decay = (self.start_ratio - self.floor_ratio) / RATIO_DECAY_STEPS
        self.ratio = self.start_ratio
        self.note = Note([], [], [], [], False, None, False, [], 0, [], {})
        self.entries: dict[Sequence, int] = {}  # number of each one's last entry into the queue
        self.seen: dict[Sequence, tuple[int, int]] = {}
        self._entered = 0

    def token_limit(self, limits: Limits) -> int | None:
        """None: the budgets are options of its own, not limits of the engine."""
        return None

    def plan(self, view: View) -> IterationPlan:
        """Prefill whom there is room for; if nobody, decode."""
        with view.kv.trial() as memory:
            return _Planning(self, view, memory).plan()

    def on_commit(self, view: View, plan: IterationPlan, iterations: int) -> None:
        """What the plan noted is what the next one starts from; the ratio falls once per decode iteration."""
        note: Note = plan.note
        if note.ratio is not None:
            self.ratio = note.ratio
        for _ in range(iterations if note.decays else 0):
            if self.ratio == self.floor_ratio:
                break
            self.ratio = max(self.ratio - self.decay, self.floor_ratio)
        for seq in note.entered:
            self.entries[seq] = self._entered
            self._entered += 1
        self.seen |= note.seen
        self.note = note if iterations else note._replace(joining=[], rows=[])


class _Planning(Admission):
    """One call of `plan`."""

    def __init__(self, *of: object) -> None:
        super().__init__(*of)  # type: ignore[arg-type]
        self.decays = False
        self.retracted: list[Sequence] = []
        self._merge(self.scheduler.note)

    def plan(self) -> IterationPlan:
        """Admission comes first; a decode step is planned only if it yields nothing (rule 1)."""
        self.admit()
        if self.admitted:
            return self._prefill()
        return self._decode()

    def _merge(self, last: Note) -> None:
        """The last prefill joins the running batch, finished requests leave it (rules 2 and 3)."""
        running = [seq for seq in last.running if seq.state != FINISHED]
        joining = [seq for seq in last.joining if seq.state not in (PREFILLING, FINISHED)]
        if len(running) < len(last.running) or len(joining) < len(last.joining) or not running:
            self.full = False
        self.running = running + joining

    def _prefill(self) -> IterationPlan:
        """The admitted prefill; in mixed mode the running ones ride along if there is room for all (rule 14)."""
        rows = [seq for seq, _ in self.admitted]
        if self.scheduler.mixes and self.running:
            self._let_finishing_leave()
            if self.running and self.memory.decode(self.running):
                riding, self.running = self.running, []
                for seq in riding:
                    self.see(seq, length=seq.prompt_tokens + seq.emitted)
                return self._planned([*rows, *riding], riding, [*rows, *riding])
        return self._planned(rows, [], rows)

    def _decode(self) -> IterationPlan:
        """Everybody who runs gets a token (rules 17 to 21 and 25)."""
        left = self._let_finishing_leave()
        if not self.running:
            self.full = False
            if not (self.view.in_flight or self.view.num_running or len(self.view.waiting)):
                self.ratio = self.scheduler.start_ratio
            return self._planned([], [], [])
        if self.memory.decode(self.running):
            self.decays = True
        elif left:
            self.full = False
            return self._planned([], [], [])
        else:
            self._retract()
        return self._planned(self.running, self.running, [])

    def _let_finishing_leave(self) -> int:
        """Who will end by length with the token in flight leaves the batch; how many (rule 25)."""
        if not self.pending:
            return 0
        stay = [seq for seq in self.running if seq.state != FINISHING or seq.emitted < self.most(seq)]
        left = len(self.running) - len(stay)
        if left:
            self.running, self.full = stay, False
        return left

    def _retract(self) -> None:
        """The fewest tokens go first, then the longest prompt, until the others can decode (rules 18 and 19)."""
        keep = sorted(self.running, key=lambda seq: (self.out(seq), -seq.prompt_tokens), reverse=True)
        fits = False
        while not fits and len(keep) > (self.chunk is None):
            seq = keep.pop()
            self.leave(seq, len(keep) * RETRACT_DECODE_STEPS)
            self.retracted.append(seq)
            fits = self.memory.decode(keep)
        self.victims += self.retracted
        self.running, self.full = keep, False
        produced = sum(map(self.out, keep)) + RETRACT_DECODE_STEPS * len(keep)
        self.ratio = min(1.0, produced / (sum(map(self.most, keep)) + 1))

    def _planned(self, rows: list[Sequence], decode: list[Sequence], joining: list[Sequence]) -> IterationPlan:
        everybody = self.view.decoding
        tried_again = len(self.view.waiting) and (self.scheduler.by_priority or not self.full)
        # only a plan that will be the same again may name the whole decode set, which lets the engine repeat it
        alike = len(decode) == len(everybody) - sum(seq.state == DECODING for seq in self.victims)
        plain = alike and not tried_again and all(seq.state == DECODING for seq in decode)
        getting = [seq for seq in rows if seq is not self.cut]
        note = Note(
            self.running, joining, getting, self.retracted, self.full, self.ratio, self.decays, self.queue, self.passes,
            self.entered, self.seen,
        )  # fmt: skip
        return IterationPlan(
            self.admitted,
            everybody if plain and decode else decode,
            self.victims,
            memory=self.memory.steps,
            order=rows,
            note=note,
        )
