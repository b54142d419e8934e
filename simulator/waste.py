"""Where slot time and KV memory went, from a RunLog, in integers that add up exactly.

**Slot time** is slots x makespan, in slot-nanoseconds. It is cut into cells, one per slot and iteration, each as long
as the iteration; between iterations all slots idle. Who is in an iteration is defined in `occupancy`. A cell with a
sequence in it is

- useful: the row decodes, or computes prompt tokens for the first time. After a preemption that is what goes beyond
  the most tokens it ever had in memory.
- recomputed: the row prefills tokens that were in memory before a preemption.
- padding: the row is filled up to the longest of a padded prefill.
- held: the row has all its tokens, but its slot isn't free yet.
- stalled: the row has tokens to come and is passed over, as decodes are in an iteration that only prefills.

Held and stalled are waiting for the batch. A padded prefill is a rectangle, rows x longest, so a row's cell is divided
by tokens in the order recomputed, new, fill, each boundary at floor(cell x tokens before it / longest). Without padding
the row's own tokens are its length. Without a sequence a cell is

- vacant: an iteration is under way.
- idle: none is.

**KV memory** is tokens of room x makespan, in token-nanoseconds, over the same iterations; while the engine idles all
of it is free. Tokens count as written from the start of the iteration that computes them until their sequence leaves.

- used: keys and values are written, whether or not their request still needs them.
- not yet used: reserved for tokens that the sequence will compute later. Never used: the rest of its reservation.
- fragmentation: the rest of the last block: of the blocks that a paged pool handed out, or of a reservation.
- free: in no sequence's hands.

The PagedAttention paper (Kwon et al., SOSP'23, section 3.1) divides reserved memory alike; it calls "never used"
internal fragmentation, and has gaps between reservations. Each part is computed from tables of its own, none as what
the others leave: slots and blocks in nobody's hands are the engine's own counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul
from typing import NamedTuple

import numpy as np

from simulator.clock import NS_PER_S
from simulator.kv import Reservation
from simulator.metrics import duration_ns
from simulator.occupancy import Stays, Work, gaps, level, stays, sums, took_ns, work
from simulator.radix_pool import RadixPool
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.tokens import Ints

SLOT_PARTS = ("useful", "padding", "waiting", "recomputed", "empty")
KV_PARTS = ("used", "reserved_unused", "fragmentation", "free")


class SlotTime(NamedTuple):
    """Slot-nanoseconds by what they went to; see the module's notes."""

    useful: int
    padding: int
    held: int
    stalled: int
    recomputed: int
    vacant: int
    idle: int

    @property
    def waiting(self) -> int:
        """For the batch: held and stalled."""
        return self.held + self.stalled

    @property
    def empty(self) -> int:
        """Without a sequence: vacant and idle."""
        return self.vacant + self.idle

    @property
    def total(self) -> int:
        """Slots x makespan."""
        return sum(self)

    @property
    def busy_share(self) -> float:
        """Time with an iteration under way, of the makespan: the coarsest of utilisations."""
        return _share(self.total - self.idle, self.total)

    @property
    def useful_share(self) -> float:
        """Useful time, of all slots over the whole makespan."""
        return _share(self.useful, self.total)

    @property
    def useful_share_of_held(self) -> float:
        """Useful time, of the slots while a sequence is in them."""
        return _share(self.useful, self.total - self.empty)


class KvTime(NamedTuple):
    """Token-nanoseconds of KV memory by what they went to; see the module's notes."""

    used: int
    not_yet_used: int
    never_used: int
    fragmentation: int
    free: int

    @property
    def reserved_unused(self) -> int:
        """Not yet and never used."""
        return self.not_yet_used + self.never_used

    @property
    def total(self) -> int:
        """Room x makespan."""
        return sum(self)


def slot_time(log: RunLog, slots: int | None = None) -> SlotTime:
    """What the time of `slots` slots went to: max_num_seqs by default; of a static batch its size is meant.

    Raises ValueError where the run held more slots than that.
    """
    slots = int(log.info["max_num_seqs"]) if slots is None else slots
    most = int(log.iterations["slots"].max(initial=0))
    if most > slots:
        raise ValueError(f"{slots} slots can't be accounted for: the run held {most} at once")
    took, decodes = took_ns(log), log.iterations["decode_seqs"] > 0
    clock, passing = sums(took), sums(np.where(decodes, 0, took))  # passing: iterations in which nobody decodes
    held = stays(log)
    done = work(log, held)
    rest = gaps(held, done)
    rest_ns = clock[rest.until] - clock[rest.first]
    old, new, fill = chunk_parts_ns(took, done)
    decoding = done.width == 0
    first, until = done.first[decoding], done.until[decoding]
    passed_ns = passing[until] - passing[first]
    return SlotTime(
        useful=_sum(clock[until] - clock[first] - passed_ns) + _sum(new),
        padding=_sum(fill),
        held=_sum(rest_ns[rest.held]),
        stalled=_sum(rest_ns[~rest.held]) + _sum(passed_ns),
        recomputed=_sum(old),
        vacant=_dot(slots - log.iterations["slots"], took),
        idle=slots * (duration_ns(log) - int(clock[-1])),
    )


def chunk_parts_ns(took: Ints, done: Work) -> tuple[Ints, Ints, Ints]:
    """The cell of every chunk (0 for decoding) in three: tokens recomputed, new ones, fill. In that order in time."""
    width = np.maximum(done.width, 1)
    cell = np.where(done.width > 0, took[done.first], 0)
    old = _part(cell, done.recomputed, width)
    new = _part(cell, done.tokens, width) - old
    return old, new, -_part(-cell, width - done.tokens, width)


def kv_time(log: RunLog, reserved: Ints | None = None) -> KvTime | None:
    """What the KV memory went to; None where it has no limit or a prefix cache was hit, as its blocks may be shared.

    None for a radix pool too: its requests share what two of them computed. A run with memory reserved whole needs
    `reserved`: tokens per request, as from `reserved_tokens`. Raises ValueError where they are missing or don't give
    the blocks that were taken.
    """
    blocks, size = log.info.get("num_gpu_blocks"), int(log.info["block_size"])
    took, taken = took_ns(log), log.iterations["kv_blocks"]
    held = stays(log)
    done = work(log, held)
    if not blocks or log.info["kv"] == RadixPool.name or (done.written - done.tokens > done.before).any():
        return None
    last = np.flatnonzero(np.diff(done.stay, append=-1))
    final = np.zeros_like(held.first)
    final[done.stay[last]] = done.written[last]  # in memory as the stay ends
    used = _dot(_tokens_in_memory(log, held, done, final), took)
    idle_ns = duration_ns(log) - int(took.sum())
    free = size * (_dot(int(blocks) - taken, took) + int(blocks) * idle_ns)
    if log.info["kv"] != Reservation.name:
        handed_out = _dot(_blocks_handed_out(log, held, done, final, size), took)
        return KvTime(used, 0, 0, size * handed_out - used, free)
    room = _reserved_room(reserved, held, taken, size)
    clock = sums(took)
    stay_ns = clock[held.until] - clock[held.first]
    return KvTime(
        used=used,
        not_yet_used=_dot(final, stay_ns) - used,
        never_used=_dot(room - final, stay_ns),
        fragmentation=_dot(-room % size, stay_ns),
        free=free,
    )


def reserved_tokens(log: RunLog, requests: Iterable[Request], kv: Reservation) -> Ints:
    """Tokens that `kv` reserves for each request of `log`, in its order, before they are rounded up to blocks."""
    wanted = {}
    for request in requests:
        output = request.output_tokens if request.max_tokens is None else request.max_tokens
        if kv.rule == "pow2":
            output = 1 << (output - 1).bit_length()
        tokens = kv.max_model_len if kv.rule == "max" else request.prompt_tokens + output
        wanted[request.id] = min(tokens, kv.max_model_len)
    return np.array([wanted[name] for name in log.ids], dtype=np.int64)


def waste_table(log: RunLog, slots: int | None = None, reserved: Ints | None = None) -> dict[str, float]:
    """Shares of slot time that add up to 1, then of KV memory likewise (left out where it can't be told), for tables.

    `slots` and `makespan_s` come first; `busy` and `useful_of_held` are two more ways to count utilisation. Shares of
    the machine's arithmetic and bandwidth are in `usage.utilisation`.
    """
    time = slot_time(log, slots)
    table = {
        "slots": float(log.info["max_num_seqs"] if slots is None else slots),
        "makespan_s": duration_ns(log) / NS_PER_S,
        **{f"slots_{name}": _share(getattr(time, name), time.total) for name in SLOT_PARTS},
        "busy": time.busy_share,
        "useful_of_held": time.useful_share_of_held,
    }
    if log.info["kv"] == Reservation.name and reserved is None:
        return table
    kv = kv_time(log, reserved)
    if kv is not None:
        table |= {f"kv_{name}": _share(getattr(kv, name), kv.total) for name in KV_PARTS}
    return table


def waste_text(log: RunLog, slots: int | None = None, reserved: Ints | None = None) -> str:
    """The same in lines to print."""
    table = waste_table(log, slots, reserved)
    lines = [f"slots x makespan: {table['slots']:.0f} x {table['makespan_s']:.6g} s"]
    for prefix, title in (("slots_", "slot time"), ("kv_", "KV memory")):
        shares = {key.removeprefix(prefix): share for key, share in table.items() if key.startswith(prefix)}
        parts = [f"{name.replace('_', '-')} {share:.1%}" for name, share in shares.items()]
        if parts:
            lines.append(f"{title}: {', '.join(parts)}")
    return "\n".join(lines)


def _tokens_in_memory(log: RunLog, held: Stays, done: Work, final: Ints) -> Ints:
    """Per iteration, its own included: tokens written in all stays."""
    chunk = done.width > 0
    prefilled = (done.first[chunk], (done.written - done.before)[chunk])
    count = len(log.iterations["slots"])
    return level(count, prefilled, (held.until, -final)) + np.cumsum(log.iterations["decode_seqs"])


def _blocks_handed_out(log: RunLog, held: Stays, done: Work, final: Ints, size: int) -> Ints:
    """Per iteration: blocks that a paged pool gives for the tokens in memory, each sequence's last one begun."""
    chunk, given_back = done.width > 0, -final // size  # floor of the negative: minus the blocks, rounded up
    prefilled = (done.first[chunk], (-(-done.written // size) - -(-done.before // size))[chunk])
    decodes = np.flatnonzero(log.iterations["decode_seqs"])
    grown = (decodes, _blocks_begun(log, done, len(decodes), size))
    return level(len(log.iterations["slots"]), prefilled, grown, (held.until, given_back))


def _blocks_begun(log: RunLog, done: Work, count: int, size: int) -> Ints:
    """Per decode iteration, of `count`: decode rows whose token is the first of a block.

    A row begins one in every `size`-th decode iteration, so +1 at its first and -1 after its last, summed with a
    stride of `size`, gives them all without a list of tokens.
    """
    rank = sums(log.iterations["decode_seqs"] > 0)
    decoding = done.width == 0
    begin, end = rank[done.first[decoding]], rank[done.until[decoding]]
    first = begin + -done.before[decoding] % size
    some = first < end
    first, end = first[some], end[some]
    change = np.zeros((count // size + 2, size), dtype=np.int64)
    np.add.at(change.reshape(-1), first, 1)
    np.add.at(change.reshape(-1), first + -(-(end - first) // size) * size, -1)
    begun: Ints = np.cumsum(change, axis=0).reshape(-1)[:count]
    return begun


def _reserved_room(reserved: Ints | None, held: Stays, taken: Ints, size: int) -> Ints:
    """Tokens reserved in each stay. Raises ValueError where they are unknown or not those of the run."""
    if reserved is None:
        raise ValueError("memory reserved whole can't be accounted for without the tokens reserved per request")
    room: Ints = np.asarray(reserved, dtype=np.int64)[held.sequence]
    blocks = -(-room // size)
    if not np.array_equal(level(len(taken), (held.first, blocks), (held.until, -blocks)), taken):
        raise ValueError("the tokens reserved per request don't give the blocks that the run took")
    return room


def _part(whole: Ints, part: Ints, of: Ints) -> Ints:
    """floor(whole x part / of), without the product, which may not fit 64 bits."""
    times, rest = np.divmod(whole, of)
    floor: Ints = times * part + rest * part // of
    return floor


def _sum(values: Ints) -> int:
    return sum(values.tolist())


def _dot(a: Ints, b: Ints) -> int:
    """The sum of products in Python's integers: tokens x nanoseconds outgrow 64 bits."""
    return sum(map(mul, a.tolist(), b.tolist()))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
