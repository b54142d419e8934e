"""What there is to draw of a small run: bars in slots, from a RunLog.

The bars are the cells of `simulator.waste`: all bars of a kind together last as long as the accounting says. A slot is
the lowest one that is free when its sequence is admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from simulator.metrics import duration_ns
from simulator.occupancy import Gaps, Work, gaps, stays, took_ns, work
from simulator.recorder import RunLog
from simulator.waste import chunk_parts_ns, slot_time

MAX_SLOTS = 24
MAX_SEQUENCES = 60

# The kinds of bars, in the words of a legend.
PREFILL = "prefill"
DECODE = "decode"
RECOMPUTED = "prefill again after a preemption"
PADDING = "padding"
HELD = "finished, slot still held"
STALLED = "running, not scheduled"
PREEMPTED = "preempted, without a slot"
EMPTY = "empty slot"


class Bar(NamedTuple):
    """A stretch of one kind in a lane: a slot, or, below the slots, a place for those who lost theirs."""

    lane: int
    sequence: int
    kind: str
    start_ns: int
    end_ns: int


class Chart(NamedTuple):
    """The bars of a run in order of lane and time, its slots, all lanes, the makespan, a name per sequence, a note."""

    bars: list[Bar]
    slots: int
    lanes: int
    makespan_ns: int
    names: list[str]
    note: str


def chart(log: RunLog, slots: int | None = None) -> Chart:
    """The bars of `log` in `slots` slots: default max_num_seqs, or the most held at once where that can't be drawn.

    Raises ValueError for a run that is too large to draw, or where nothing was served.
    """
    most = int(log.iterations["slots"].max(initial=0))
    if slots is None:
        slots = int(log.info["max_num_seqs"])
        slots = slots if slots <= MAX_SLOTS else most
    if slots > MAX_SLOTS or len(log.ids) > MAX_SEQUENCES:
        raise ValueError(
            f"{len(log.ids)} sequences in {slots} slots are too many to draw: at most {MAX_SEQUENCES} in {MAX_SLOTS}"
        )
    if not most:
        raise ValueError("there is nothing to draw: no request was served")
    bars = [*_slot_bars(log), *_lost_slots(log, slots)]
    bars.sort(key=lambda bar: (bar.lane, bar.start_ns))
    return Chart(
        bars=bars,
        slots=slots,
        lanes=max(slots, bars[-1].lane + 1),
        makespan_ns=duration_ns(log),
        names=_short(log.ids),
        note=_note(log, slots),
    )


def unit_of(makespan_ns: int) -> tuple[int, str]:
    """What to divide nanoseconds by so that the makespan reads well, and the unit's name."""
    for size, name in ((10**9, "s"), (10**6, "ms"), (10**3, "µs")):
        if makespan_ns >= 2 * size:
            return size, name
    return 1, "ns"


def _note(log: RunLog, slots: int) -> str:
    """Makespan, and the parts of slot time that aren't 0."""
    time = slot_time(log, slots)
    size, unit = unit_of(duration_ns(log))
    parts = {
        "useful": time.useful,
        "padding": time.padding,
        "finished but held": time.held,
        "not scheduled": time.stalled,
        "recomputed": time.recomputed,
        "empty": time.empty,
    }
    shares = ", ".join(f"{part / time.total:.1%} {name}" for name, part in parts.items() if part or name == "useful")
    return f"makespan {duration_ns(log) / size:.4g} {unit} x {slots} slot{'s' * (slots > 1)}: {shares}"


def _short(ids: list[str]) -> list[str]:
    """`ids` without a long beginning that all of them share."""
    first, last = min(ids), max(ids)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    shared = len(first[:same].rstrip("0123456789"))
    return [name[shared:] for name in ids] if shared > 3 else ids


def _slot_bars(log: RunLog) -> Iterator[Bar]:
    held = stays(log)
    done = work(log, held)
    lanes = _lowest_free(zip(held.first.tolist(), held.until.tolist(), strict=True))
    sequences = held.sequence.tolist()
    for stay, kind, start_ns, end_ns in (*_chunks(log, done), *_decodes(log, done), *_rests(log, gaps(held, done))):
        yield Bar(lanes[stay], sequences[stay], kind, start_ns, end_ns)


Piece = tuple[int, str, int, int]  # row of the stays, kind, from and to in nanoseconds


def _chunks(log: RunLog, done: Work) -> Iterator[Piece]:
    parts = (part.tolist() for part in chunk_parts_ns(took_ns(log), done))
    begins = log.iterations["start_ns"][done.first].tolist()
    for stay, at_ns, *lengths in zip(done.stay.tolist(), begins, *parts, strict=True):
        for kind, length_ns in zip((RECOMPUTED, PREFILL, PADDING), lengths, strict=True):
            if length_ns:
                yield stay, kind, at_ns, at_ns + length_ns
            at_ns += length_ns


def _decodes(log: RunLog, done: Work) -> Iterator[Piece]:
    kinds = [DECODE if rows else STALLED for rows in log.iterations["decode_seqs"].tolist()]
    decoding = done.width == 0
    columns = (column[decoding].tolist() for column in (done.stay, done.first, done.until))
    for stay, first, until in zip(*columns, strict=True):
        for kind, start_ns, end_ns in _runs(log, kinds, first, until):
            yield stay, kind, start_ns, end_ns


def _rests(log: RunLog, rest: Gaps) -> Iterator[Piece]:
    for stay, first, until, held in zip(*(column.tolist() for column in rest), strict=True):
        kinds = [HELD if held else STALLED] * until
        for kind, start_ns, end_ns in _runs(log, kinds, first, until):
            yield stay, kind, start_ns, end_ns


def _runs(log: RunLog, kinds: list[str], first: int, until: int) -> Iterator[tuple[str, int, int]]:
    """Iterations [first, until) with those of one kind that follow each other without a pause joined."""
    starts, ends = log.iterations["start_ns"].tolist(), log.iterations["end_ns"].tolist()
    begin = first
    for i in range(first, until):
        if i + 1 == until or kinds[i + 1] != kinds[i] or starts[i + 1] != ends[i]:
            yield kinds[i], starts[begin], ends[i]
            begin = i + 1


def _lost_slots(log: RunLog, slots: int) -> Iterator[Bar]:
    """From each preemption to the next admission, or to the finish where the last token was in flight."""
    held = stays(log)
    absences = []
    rows = sorted(zip(*(column.tolist() for column in held), strict=True))
    for (sequence, _, until, done), (following, again, *_) in pairwise([*rows, (-1, 0, 0, True)]):
        if not done:
            back = log.iterations["start_ns"][again] if following == sequence else log.sequences["finish_ns"][sequence]
            absences.append((int(log.iterations["end_ns"][until - 1]), int(back), sequence))
    absences = sorted(absence for absence in absences if absence[1] > absence[0])
    lanes = _lowest_free((start_ns, end_ns) for start_ns, end_ns, _ in absences)
    for (start_ns, end_ns, sequence), lane in zip(absences, lanes, strict=True):
        yield Bar(slots + lane, sequence, PREEMPTED, start_ns, end_ns)


def _lowest_free(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """The lowest place that is free for each [from, until), in order of their beginnings."""
    free_at: list[int] = []
    places = []
    for first, until in intervals:
        place = next((i for i, free in enumerate(free_at) if free <= first), len(free_at))
        free_at[place : place + 1] = [until]
        places.append(place)
    return places
