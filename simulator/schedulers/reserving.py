"""Admission by what a request may come to need, for engines that set memory aside up front.

Such an engine never has to preempt. It doesn't know how long an answer gets, so it keeps room for prompt + max_tokens,
which no request exceeds, or for the longest sequence that the model takes where a client states no max_tokens. Nobody
waits for more room than the whole memory: these engines lower the longest sequence they accept to that at start-up.

On a paged pool this is the policies' own accounting; where the memory itself reserves, both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.plan import Limits
from simulator.request import Sequence
from simulator.schedulers.base import View


def most_tokens(seq: Sequence, limits: Limits, unwritten: int = 0) -> int:
    """Tokens of `seq` to keep room for, the last `unwritten` of which never reach the memory."""
    stated = limits.max_model_len
    if seq.max_tokens is not None:
        stated = min(stated, seq.prompt_tokens + seq.max_tokens)
    return stated - unwritten


def fitting(view: View, need: Callable[[Sequence], int], free: int) -> Iterator[Sequence]:
    """Who waits, in order, while slots last and the blocks that each is said to `need` fit into `free`."""
    slots = view.limits.max_num_seqs - view.num_running
    for seq in view.waiting:
        free -= need(seq)
        if slots <= 0 or free < 0:
            return
        slots -= 1
        yield seq


def fitting_for_life(view: View, unwritten: int = 0) -> Iterator[Sequence]:
    """Who waits, in order, while slots last and all that each may come to need isn't promised to somebody who runs.

    `unwritten` as for `most_tokens`. Walks over the running sequences, but only where somebody could be admitted.
    """
    kv, limits = view.kv, view.limits

    def room(seq: Sequence) -> int:
        return min(kv.room(seq, most_tokens(seq, limits, unwritten)), kv.total)

    if len(view.waiting) and view.num_running < limits.max_num_seqs:
        yield from fitting(view, room, kv.total - sum(map(room, view.running)))
