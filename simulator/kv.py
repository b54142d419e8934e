"""KV-cache memory, in blocks: paged on demand, or reserved whole on admission.

Both answer the same questions of a policy (`need`, `whole_need`, `room`, `decode_need`, `held`, `free`) and take and
give back for the engine. A sequence is servable at all when `misfit` returns "".
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Literal

from simulator.decodeset import DecodeSet
from simulator.errors import ConfigError
from simulator.request import Request, Sequence
from simulator.trial import Trial

EXCEEDS_KV_CAPACITY = "exceeds_kv_capacity"


class BlockPool:
    """vLLM V1's paged pool: blocks are taken as tokens are computed, block 0 is the null block and never usable.

    `num_gpu_blocks` counts the null block, as vLLM does, so one fewer is usable (`num_gpu_blocks_override=50` leaves
    49). Raises ConfigError where nothing is usable.
    """

    name = "paged"
    oracle = False
    caches = False
    publishes = False

    def __init__(self, num_gpu_blocks: int, block_size: int = 16) -> None:
        _check(num_gpu_blocks - 1, block_size)
        self.block_size = block_size
        self.total = num_gpu_blocks - 1
        self.free = self.total

    def misfit(self, request: Request) -> str:
        """Why `request` can never be served, or "". Its last token's KV is never written."""
        tokens = request.prompt_tokens + request.output_tokens - 1
        return EXCEEDS_KV_CAPACITY if -(-tokens // self.block_size) > self.total else ""

    def held(self, seq: Sequence) -> int:
        """Blocks that `seq` holds."""
        return -(-seq.computed // self.block_size)

    def need(self, seq: Sequence, tokens: int) -> int:
        """Blocks to take before `seq`, which isn't in the decode set, computes `tokens` more."""
        return -(-(seq._computed + tokens) // self.block_size) - -(-seq._computed // self.block_size)

    def whole_need(self, seq: Sequence) -> int:
        """Blocks to take before all that `seq` has to compute now is computed."""
        return self.need(seq, seq.goal - seq._computed)

    def room(self, seq: Sequence, tokens: int) -> int:
        """Blocks that `seq` takes up once it has `tokens` in memory."""
        return -(-tokens // self.block_size)

    def decode_need(self, decoding: DecodeSet) -> int:
        """Blocks to take before the whole decode set gets its next token."""
        return decoding.new_blocks()

    def decode_steps(self, decoding: DecodeSet, most: int) -> int:
        """How many of the next `most` iterations of the whole decode set the free blocks last for."""
        n = len(decoding)
        if n * (most // self.block_size + 1) <= self.free:
            return most
        cycles, free = divmod(self.free, n)  # every member takes one block per block_size iterations
        steps = cycles * self.block_size
        while steps < most and decoding.new_blocks(steps) <= free:
            free -= decoding.new_blocks(steps)
            steps += 1
        return min(steps, most)

    def row_need(self, seq: Sequence) -> int:
        """Blocks to take before `seq`, a member of the decode set, gets its next token."""
        return int(seq.computed % self.block_size == 0)

    def outlook(self, free: int) -> Outlook:
        """The memory in the middle of a plan that so far leaves `free` blocks."""
        return Outlook(self, free)

    def trial(self) -> Trial:
        """The memory while a plan is made that tries out what it does."""
        return Trial(self)

    def admit(self, seq: Sequence) -> int:
        """Tokens of `seq` that are in memory already, now that it is admitted: none without a prefix cache."""
        return 0

    def take(self, seq: Sequence, tokens: int) -> None:
        """Take what `need` said."""
        self.free -= self.need(seq, tokens)

    def take_rows(self, blocks: int) -> None:
        """Take `blocks` for decode rows."""
        self.free -= blocks

    def take_run(self, decoding: DecodeSet, steps: int) -> list[int]:
        """Take blocks for the next `steps` iterations of the whole decode set: how many in each."""
        taken = [decoding.new_blocks(s) for s in range(steps)]
        self.free -= sum(taken)
        return taken

    def follow(self, steps: Seq[tuple[str, Any, int]]) -> None:
        """Do what a trial of this memory noted: nothing, as its trials note nothing."""

    def publish(self, seq: Sequence, tokens: int) -> None:
        """The first `tokens` of `seq` are computed. Asked of a memory that `publishes`."""

    def give_back(self, seq: Sequence, in_flight: int = 0) -> None:
        """Everything that `seq` holds is free again. Its last `in_flight` tokens haven't come out yet."""
        self.free += self.held(seq)


class Reservation:
    """Contiguous memory reserved for a sequence's whole life when it is admitted; nothing grows, nothing is preempted.

    `rule`: `max` reserves the longest sequence the model takes, `exact` what the client asked for (prompt +
    max_tokens), `pow2` the prompt and the next power of two of max_tokens; the three Orca variants of the
    PagedAttention paper (Kwon et al., SOSP'23, section 6.1). Where a request states no max_tokens, `exact` and `pow2`
    use its true length, which no server knows: `oracle` turns True and the result says so.
    Memory is counted in blocks of `block_size` tokens, rounded up; gaps between reservations are not modelled.
    """

    name = "reserve"
    caches = False
    publishes = False

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int = 16,
        rule: Literal["max", "pow2", "exact"] = "max",
        max_model_len: int = 8192,
    ) -> None:
        _check(num_gpu_blocks, block_size)
        if rule not in ("max", "pow2", "exact"):
            raise ConfigError(f"kv.rule = {rule}: must be max, pow2 or exact")
        self.block_size = block_size
        self.rule = rule
        self.max_model_len = max_model_len
        self.total = num_gpu_blocks
        self.free = self.total
        self.oracle = False

    def _reserved(self, prompt_tokens: int, output_tokens: int, max_tokens: int | None) -> int:
        tokens = self.max_model_len
        if self.rule != "max":
            self.oracle = self.oracle or max_tokens is None
            output = output_tokens if max_tokens is None else max_tokens
            if self.rule == "pow2":
                output = 1 << (output - 1).bit_length()
            tokens = min(prompt_tokens + output, self.max_model_len)
        return -(-tokens // self.block_size)

    def misfit(self, request: Request) -> str:
        """Why `request` can never be served, or ""."""
        blocks = self._reserved(request.prompt_tokens, request.output_tokens, request.max_tokens)
        return EXCEEDS_KV_CAPACITY if blocks > self.total else ""

    def held(self, seq: Sequence) -> int:
        """Blocks that `seq` holds."""
        return seq.blocks

    def need(self, seq: Sequence, tokens: int) -> int:
        """The whole reservation at first, nothing afterwards."""
        return 0 if seq.blocks else self._reserved(seq.prompt_tokens, seq._output_tokens, seq.max_tokens)

    def whole_need(self, seq: Sequence) -> int:
        """The same: a reservation is whole."""
        return self.need(seq, 0)

    def room(self, seq: Sequence, tokens: int) -> int:
        """The whole reservation, however many tokens."""
        return self._reserved(seq.prompt_tokens, seq._output_tokens, seq.max_tokens)

    def decode_need(self, decoding: DecodeSet) -> int:
        """Nothing: the tokens to come are paid for."""
        return 0

    def decode_steps(self, decoding: DecodeSet, most: int) -> int:
        """All of them."""
        return most

    def row_need(self, seq: Sequence) -> int:
        """Nothing, likewise."""
        return 0

    def outlook(self, free: int) -> Outlook:
        """The memory in the middle of a plan that so far leaves `free` blocks."""
        return Outlook(self, free)

    def trial(self) -> Trial:
        """The memory while a plan is made that tries out what it does."""
        return Trial(self)

    def admit(self, seq: Sequence) -> int:
        """None of its tokens are in memory already."""
        return 0

    def take(self, seq: Sequence, tokens: int) -> None:
        """Take what `need` said."""
        blocks = self.need(seq, tokens)
        seq.blocks += blocks
        self.free -= blocks

    def take_run(self, decoding: DecodeSet, steps: int) -> list[int]:
        """None in each of them."""
        return [0] * steps

    def take_rows(self, blocks: int) -> None:
        """Nothing: decode rows are paid for."""

    def follow(self, steps: Seq[tuple[str, Any, int]]) -> None:
        """Nothing, as its trials note nothing."""

    def publish(self, seq: Sequence, tokens: int) -> None:
        """Nothing: nobody shares a reservation."""

    def give_back(self, seq: Sequence, in_flight: int = 0) -> None:
        """Everything that `seq` holds is free again."""
        self.free += seq.blocks
        seq.blocks = 0


KvMemory = BlockPool | Reservation


class Outlook:
    """What a plan may count on for its admissions: the memory as it will be by then. Pure: nothing is taken.

    `simulator.prefix.CacheOutlook` is the same with a prefix cache.
    """

    def __init__(self, kv: KvMemory, free: int) -> None:
        self._kv = kv
        self.free = free

    def cached(self, seq: Sequence) -> int:
        """Tokens that `seq` would find if it were admitted now."""
        return 0

    def need(self, seq: Sequence, tokens: int) -> int:
        """Blocks that `seq` takes when it is admitted and computes `tokens` beyond what it finds."""
        return self._kv.need(seq, tokens)

    def take(self, seq: Sequence, tokens: int) -> None:
        """Count on its admission with `tokens` beyond what it finds."""
        self.free -= self._kv.need(seq, tokens)

    def spend(self, blocks: int) -> None:
        """Count on `blocks` being taken for sequences that are in already."""
        self.free -= blocks

    def register(self, seq: Sequence, computed: int) -> None:
        """Count on the first `computed` tokens of `seq` being findable: by nobody, without a cache."""


def _check(usable: int, block_size: int) -> None:
    if block_size < 1:
        raise ConfigError(f"engine.block_size = {block_size}: must be at least 1 token")
    if usable < 1:
        raise ConfigError(f"no KV block is usable ({usable} after the null block)")
