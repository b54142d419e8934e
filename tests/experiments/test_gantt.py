"""Bars against the accounting, slots against the rule, and pictures of runs small enough to write down."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from matplotlib.colors import to_rgb
from strategies import IntegerCost, Setup, setups

from experiments.gantt import LOOKS, gantt, gantt_text, write_gantt
from experiments.gantt_bars import (
    DECODE,
    EMPTY,
    HELD,
    PADDING,
    PREEMPTED,
    PREFILL,
    RECOMPUTED,
    STALLED,
    chart,
)
from simulator import BlockPool, Limits, Request, RunLog, Scheduler, run
from simulator.recorder import ADMIT, PREEMPT, RELEASE
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.static import Static
from simulator.waste import slot_time

MS = 1_000_000


def serve(load: str, scheduler: Scheduler, slots: int = 3, memory: Any = None, at_ms: int = 0) -> RunLog:
    """`load`: name, prompt and output tokens of each request, which all arrive at once; iterations of 10 ms."""
    requests = [Request(name, at_ms * MS, int(p), int(o)) for name, p, o in re.findall(r"(\S+) (\d+)/(\d+)", load)]
    memory = memory or BlockPool(1001, 4)
    return run(requests, scheduler=scheduler, cost_model=IntegerCost(10 * MS), kv=memory, limits=Limits(slots))


STEPS = "A 2/5 B 2/3 C 2/8 D 2/4 E 2/2"


@settings(max_examples=100)
@given(setups(most=12))
def test_bars_last_as_long_as_the_accounting_says(setup: Setup) -> None:
    log = setup.run()
    assume(len(log.chunks["tokens"]))
    one = chart(log)
    lasts: Counter[str] = Counter()
    for bar in one.bars:
        assert bar.end_ns > bar.start_ns
        lasts[bar.kind] += bar.end_ns - bar.start_ns
    time = slot_time(log)
    assert one.slots == setup.limits.max_num_seqs
    assert lasts[PREFILL] + lasts[DECODE] == time.useful
    assert [lasts[kind] for kind in (PADDING, HELD, STALLED, RECOMPUTED)] == [
        time.padding, time.held, time.stalled, time.recomputed
    ]  # fmt: skip
    if not setup.asynchronous:
        assert lasts[PREEMPTED] == log.sequences["preempted_ns"].sum()


@settings(max_examples=100)
@given(setups(most=12))
def test_every_bar_has_its_lane_to_itself(setup: Setup) -> None:
    log = setup.run()
    assume(len(log.chunks["tokens"]))
    one = chart(log)
    assert one.bars == sorted(one.bars, key=lambda bar: (bar.lane, bar.start_ns))
    for bar, following in pairwise(one.bars):
        assert following.lane != bar.lane or following.start_ns >= bar.end_ns
    assert all((bar.kind == PREEMPTED) == (bar.lane >= one.slots) for bar in one.bars)
    assert one.lanes == max(one.slots - 1, *(bar.lane for bar in one.bars)) + 1
    assert max(bar.end_ns for bar in one.bars) <= one.makespan_ns


@settings(max_examples=100)
@given(setups(most=12))
def test_a_sequence_takes_the_lowest_slot_that_is_free(setup: Setup) -> None:
    log = setup._replace(asynchronous=False).run()
    assume(len(log.chunks["tokens"]))
    free = list(range(setup.limits.max_num_seqs))
    inside: dict[int, tuple[int, int]] = {}  # sequence: slot, since when
    stays: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for at_ns, kind, seq in zip(*(log.events[c].tolist() for c in ("time_ns", "kind", "sequence")), strict=True):
        if kind == ADMIT:
            inside[seq] = min(free), at_ns
            free.remove(min(free))
        elif kind in (PREEMPT, RELEASE):
            slot, since_ns = inside.pop(seq)
            free.append(slot)
            stays.setdefault((slot, seq), []).append((since_ns, at_ns))
    for bar in chart(log).bars:
        if bar.kind != PREEMPTED:
            assert any(a <= bar.start_ns and bar.end_ns <= b for a, b in stays[bar.lane, bar.sequence])


def test_text_of_the_step_table() -> None:
    """Three slots: B ends in the third step, D joins in the fourth; A ends in the fifth, E joins in the sixth."""
    assert gantt_text(serve(STEPS, Continuous(order="orca")), width=58) == "\n".join((
        "makespan 80 ms x 3 slots: 91.7% useful, 8.3% empty",
        "        0                                          80 ms",
        "slot 1 |[ppppp===========A===========][ppppp==E==]      |",
        "slot 2 |[ppppp=====B=====][ppppp========D========]      |",
        "slot 3 |[ppppp====================C====================]|",
        "p prefill   = decode",
    ))  # fmt: skip


def test_text_of_a_padded_batch_that_holds_its_slots() -> None:
    log = serve("A 2/5 B 4/3", Static(batch_size=3), at_ms=20)
    assert gantt_text(log, width=70) == "\n".join((
        "makespan 70 ms x 3 slots: 35.7% useful, 2.4% padding, 9.5% finished but held, 52.4% empty",
        "        0                                                  70 ms",
        "slot 1 |                [ppp////===============A===============]|",
        "slot 2 |                [ppppppp=======B========...............]|",
        "slot 3 |                                                        |",
        "p prefill   = decode   / padding   . finished, slot still held",
    ))  # fmt: skip


def preempted() -> RunLog:
    """Eight blocks of one token: B loses its four tokens as A needs them."""
    return serve("A 3/5 B 3/4", Continuous(), 2, BlockPool(9, 1))


def test_text_of_a_preemption() -> None:
    assert gantt_text(preempted(), width=60) == "\n".join((
        "makespan 70 ms x 2 slots: 58.6% useful, 5.7% recomputed, 35.7% empty",
        "           0                             70 ms",
        "slot 1    |[pppp=========A=========][rrrp=B==]|",
        "slot 2    |[pppp=B==]                         |",
        "preempted |          [xxxxxxBxxxxxx]          |",
        "p prefill   = decode   r prefill again after a preemption   x preempted, without a slot",
    ))  # fmt: skip


def test_text_is_as_wide_as_asked() -> None:
    for width in (40, 41, 80, 133):
        for log in (serve(STEPS, Continuous()), serve("A 2/500 B 7/13", Static(batch_size=2))):
            lanes = gantt_text(log, width).splitlines()[1:4]
            assert max(map(len, lanes)) <= width
            assert len({len(line) for line in lanes[1:]}) == 1
    assert gantt_text(serve(STEPS, Continuous()), 3) == gantt_text(serve(STEPS, Continuous()), 40)


def test_no_two_kinds_look_alike_without_colour() -> None:
    def grey(colour: str) -> float:
        red, green, blue = to_rgb(colour)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    looks = [(look.hatch, round(grey(look.fill) * 4)) for look in LOOKS.values()]
    assert len(set(looks)) == len(looks)
    assert len({look.char for look in LOOKS.values()}) == len(looks)
    for kind, look in LOOKS.items():
        assert not look.hatch or abs(grey(look.fill) - grey(look.line)) > 0.3, kind


def test_a_figure_has_one_time_axis_and_says_what_it_shows() -> None:
    static, continuous = (serve(STEPS, s) for s in (Static(batch_size=3), Continuous(order="orca")))
    fig = gantt([("static", static), ("continuous", continuous)])
    upper, lower = fig.axes
    assert upper.get_title("left") == (
        "static: makespan 120 ms x 3 slots: 61.1% useful, 27.8% finished but held, 11.1% empty"
    )
    assert lower.get_title("left") == "continuous: makespan 80 ms x 3 slots: 91.7% useful, 8.3% empty"
    assert upper.get_xlim() == lower.get_xlim() == (0, pytest.approx(120, rel=0.01))
    assert lower.get_xlabel() == "time since the start of the run (ms)"
    for axes in fig.axes:
        assert sorted(text.get_text() for text in axes.texts) == list("ABCDE")
        assert [label.get_text() for label in axes.get_yticklabels()] == ["slot 1", "slot 2", "slot 3"]
    keys = [text.get_text() for text in fig.legends[0].get_texts()]
    assert keys == [PREFILL, DECODE, HELD, EMPTY]
    fig.draw_without_rendering()
    legend = fig.legends[0].get_window_extent()
    assert all(not legend.overlaps(axes.get_window_extent()) for axes in fig.axes)


def test_names_lose_a_long_beginning_that_all_share() -> None:
    names = chart(serve("request-08 2/2 request-09 2/2 request-10 2/2", Continuous())).names
    assert names == ["08", "09", "10"]
    assert chart(serve("Req1 2/2 Req2 2/2", Continuous())).names == ["Req1", "Req2"]
    assert chart(serve("request-08 2/2", Continuous())).names == ["request-08"]


def test_files_are_the_same_bytes_for_the_same_runs(tmp_path: Path) -> None:
    logs = [("v1.0", preempted())]
    first = [file.read_bytes() for file in write_gantt(tmp_path / "new" / "runs-v1.0", logs)]
    again = write_gantt(tmp_path / "again", [("v1.0", preempted())])
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["runs-v1.0.png", "runs-v1.0.svg"]
    assert [file.read_bytes() for file in again] == first
    assert first[0].startswith(b"\x89PNG")
    assert b"<svg" in first[1][:1000]


def test_more_slots_than_can_be_drawn_are_cut_to_those_in_use() -> None:
    log = serve(STEPS, Continuous(), slots=256)
    assert chart(log).slots == 5
    assert chart(log, slots=7).slots == 7
    with pytest.raises(ValueError, match="4 slots can't be accounted for: the run held 5"):
        chart(log, slots=4)


def test_what_is_too_large_or_empty_is_refused() -> None:
    many = serve(" ".join(f"r{i} 2/2" for i in range(61)), Continuous())
    with pytest.raises(ValueError, match="61 sequences in 3 slots are too many to draw: at most 60 in 24"):
        gantt_text(many)
    wide = serve(" ".join(f"r{i} 2/2" for i in range(25)), Continuous(), slots=25)
    with pytest.raises(ValueError, match="25 sequences in 25 slots are too many to draw"):
        gantt([("wide", wide)])
    with pytest.raises(ValueError, match="no request was served"):
        gantt([("nothing", serve("A 0/5", Continuous()))])
    with pytest.raises(ValueError, match="no run was given"):
        gantt([])
