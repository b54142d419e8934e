"""A RunLog as a time line for chrome://tracing or ui.perfetto.dev (Trace Event Format, microseconds).

Three groups: the engine's iterations, one lane per request with its states, and counters. Long runs are cut
to the first requests and the iterations until the last of those is done, since a viewer can't hold millions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from simulator.clock import NS_PER_US
from simulator.recorder import ADMIT, PREEMPT, RunLog
from simulator.request import DECODING, PREEMPTED, PREFILLING, WAITING
from simulator.usage import modes, queue_series

ENGINE, REQUESTS = 1, 2
HELD = "done, slot held"

Event = dict[str, Any]
State = tuple[str, int, int]  # name, from and to in nanoseconds


def chrome_trace(log: RunLog, max_requests: int = 200) -> dict[str, Any]:
    """The trace as a JSON-ready dict, of the `max_requests` that arrived first."""
    count = min(max_requests, len(log.ids))
    until_ns = int(log.sequences["released_ns"][:count].max(initial=0))
    events = [_name("process_name", ENGINE, 0, "engine"), _name("process_name", REQUESTS, 0, "requests")]
    events += _iterations(log, until_ns)
    events += _counters(log, until_ns)
    for row, states in enumerate(request_states(log, count)):
        events.append(_name("thread_name", REQUESTS, row, log.ids[row]))
        events += [_slice(name, REQUESTS, row, start, end) for name, start, end in states]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def request_states(log: RunLog, count: int) -> Iterator[list[State]]:
    """For each of the first `count` requests its states in order, without gaps; none unless completed.

    A slot held after the last token (in a batch that goes on) is a state of its own.
    """
    ev, s = log.events, log.sequences
    moves: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    mine = (ev["sequence"] < count) & ((ev["kind"] == ADMIT) | (ev["kind"] == PREEMPT))
    columns = (ev[name][mine].tolist() for name in ("sequence", "kind", "time_ns"))
    for row, kind, at_ns in zip(*columns, strict=True):
        moves[row].append((kind, at_ns))
    bounds = np.searchsorted(log.spans["sequence"], np.arange(count + 1)).tolist()
    came_out = log.iterations["end_ns"][log.spans["after"]].tolist()
    for row in range(count):
        if not s["finished"][row]:
            yield []
            continue
        finish_ns, released_ns = int(s["finish_ns"][row]), int(s["released_ns"][row])
        states = _lived(int(s["arrival_ns"][row]), moves[row], came_out[slice(*bounds[row : row + 2])], finish_ns)
        yield [state for state in (*states, (HELD, finish_ns, released_ns)) if state[2] > state[1]]


def _lived(arrival_ns: int, moves: list[tuple[int, int]], came_out: list[int], finish_ns: int) -> Iterator[State]:
    """States between admissions and preemptions; a prefill ends with the first token after it."""
    name, since_ns = WAITING, arrival_ns
    for (kind, at_ns), (_, until_ns) in pairwise([*moves, (PREEMPT, finish_ns)]):
        yield name, since_ns, at_ns
        name, since_ns = PREEMPTED, at_ns
        if kind == ADMIT:
            done_ns = min((t for t in came_out if at_ns < t < until_ns), default=until_ns)
            yield PREFILLING, at_ns, done_ns
            name, since_ns = DECODING, done_ns
    yield name, since_ns, finish_ns


def _iterations(log: RunLog, until_ns: int) -> Iterator[Event]:
    it = log.iterations
    keep = int(np.searchsorted(it["start_ns"], until_ns))
    columns = ("start_ns", "end_ns", "prefill_tokens", "decode_seqs", "slots", "kv_blocks")
    values = (it[name][:keep].tolist() for name in columns)
    for mode, start, end, *numbers in zip(modes(log)[:keep].tolist(), *values, strict=True):
        yield _slice(mode, ENGINE, 0, start, end) | {"args": dict(zip(columns[2:], numbers, strict=True))}


def _counters(log: RunLog, until_ns: int) -> Iterator[Event]:
    series = queue_series(log)
    for clock, names in (("time_ns", ("running", "waiting")), ("kv_time_ns", ("kv_blocks",))):
        keep = int(np.searchsorted(series[clock], until_ns, side="right"))
        for at, *values in zip(*(series[name][:keep].tolist() for name in (clock, *names)), strict=True):
            yield {
                "name": "requests" if len(names) > 1 else names[0],
                "ph": "C",
                "pid": ENGINE,
                "ts": at / NS_PER_US,
                "args": dict(zip(names, values, strict=True)),
            }


def _slice(name: str, process: int, lane: int, start_ns: int, end_ns: int) -> Event:
    return {
        "name": name,
        "ph": "X",
        "pid": process,
        "tid": lane,
        "ts": start_ns / NS_PER_US,
        "dur": (end_ns - start_ns) / NS_PER_US,
    }


def _name(kind: str, process: int, lane: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
