"""What comes in (`Request`, frozen) and how it is doing (`Sequence`, changed by the engine alone)."""

from __future__ import annotations

from typing import Any, NamedTuple

# The states of a sequence, as vLLM names them, with its RUNNING split into prefilling and decoding.
WAITING = "waiting"
PREFILLING = "prefilling"
DECODING = "decoding"
FINISHING = "finishing"  # its last token is in flight: seen by policies under asynchronous scheduling only
PREEMPTED = "preempted"
FINISHED = "finished"
REJECTED = "rejected"
_PREFILLS = (WAITING, PREFILLING, PREEMPTED)


class Request(NamedTuple):
    """One request of a trace or of a synthetic load.

    `arrival_ns` counts from the start of the run's clock. `output_tokens` is the true length, which schedulers can't
    see; `max_tokens` is what the client asked for, where known. `prefix_hashes` are the trace's chained ids of prompt
    blocks, one per `prefix_block_tokens` tokens, the last block perhaps partial. A follow-up turn names the turn it
    waits for in `after`: it arrives `delay_ns` after that one has finished, and its own `arrival_ns` is the earliest
    instant it may arrive. The first `history_tokens` of its prompt repeat that turn's prompt and answer, or those of
    the request that it `continues`, which needn't have finished. With `ignore_eos` the client wants all of
    `max_tokens`, and a scheduler may count on it.
    """

    id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    priority: int = 0
    session: str | None = None
    prefix_hashes: tuple[int, ...] = ()
    after: str | None = None
    delay_ns: int = 0
    prefix_block_tokens: int = 16
    history_tokens: int = 0
    continues: str | None = None
    ignore_eos: bool = False


class Sequence:
    """A request inside the engine. Policies read it; only the engine writes it.

    The true output length isn't public here: schedulers decide without knowing the future. Names that begin with an
    underscore belong to the engine and its decode set.
    """

    __slots__ = (
        "_base",
        "_computed",
        "_content",
        "_decoding",
        "_earlier",
        "_finish_step",
        "_hash_tokens",
        "_hashes",
        "_history",
        "_output_tokens",
        "_queue",
        "_span",
        "admission",
        "arrival_ns",
        "blocks",
        "cached_tokens",
        "decode_ns",
        "finish_ns",
        "first_token_ns",
        "goal",
        "id",
        "ignore_eos",
        "index",
        "max_tokens",
        "preempted_ns",
        "preemptions",
        "prefill_ns",
        "priority",
        "prompt_tokens",
        "queued_ns",
        "reason",
        "recomputed_tokens",
        "released_ns",
        "reused_tokens",
        "scheduled_ns",
        "session",
        "since_ns",
        "state",
    )

    def __init__(self, request: Request, index: int) -> None:
        self.index = index  # place among all sequences of the run, in order of arrival
        self.id = request.id
        self.arrival_ns = request.arrival_ns
        self.prompt_tokens = request.prompt_tokens
        self.max_tokens = request.max_tokens
        self.ignore_eos = request.ignore_eos
        self.priority = request.priority  # smaller is served first, as in vLLM
        self.session = request.session
        self.state = WAITING
        self.goal = request.prompt_tokens  # tokens to compute before the next token comes out
        self.blocks = 0  # KV blocks reserved for it; a paged pool derives them from `computed` instead
        self.admission = -1  # running number of its last admission
        self.preemptions = 0
        self.recomputed_tokens = 0  # computed a second time, after a preemption
        self.cached_tokens = 0  # found in the prefix cache when it was first admitted
        self.reused_tokens = 0  # found there when it came back after a preemption
        self.reason = ""  # why it was rejected
        self.scheduled_ns = -1  # first admission
        self.first_token_ns = -1
        self.finish_ns = -1  # the client has the last token
        self.released_ns = -1  # slot and memory are free again
        self.since_ns = request.arrival_ns  # when it entered its present state
        self.queued_ns = self.prefill_ns = self.decode_ns = self.preempted_ns = 0  # time spent in each state so far
        self._output_tokens = request.output_tokens
        self._hashes = request.prefix_hashes
        self._hash_tokens = request.prefix_block_tokens
        self._history = request.history_tokens
        self._earlier: Sequence | None = None  # the turn before it, whose content its prompt begins with
        self._content: Any = None  # see `content.py`
        self._computed = 0
        self._queue: object = None  # the waiting queue it is in
        self._decoding: DecodeClock | None = None
        self._base = 0
        self._finish_step = -1
        self._span = (-1, 0)

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in memory (or will be once the iteration in flight ends)."""
        return self._computed if self._decoding is None else self._base + self._decoding.step

    @property
    def remaining(self) -> int:
        """Tokens to compute before it can decode (again); 0 while it decodes and afterwards."""
        return self.goal - self._computed if self.state in _PREFILLS else 0

    @property
    def emitted(self) -> int:
        """Tokens the client has, or will have once the iteration in flight ends."""
        if self._decoding is not None:
            return self._base + self._decoding.step - self.prompt_tokens + 1
        return self.goal - self.prompt_tokens

    def __repr__(self) -> str:
        return f"Sequence({self.id!r}, {self.state}, computed={self.computed}, emitted={self.emitted})"


class DecodeClock:
    """What a decoding sequence needs of its decode set: how many decode iterations it has made."""

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = 0
