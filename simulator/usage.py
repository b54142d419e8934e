"""What the engine did with its time, slots, arithmetic and memory, from a RunLog."""

from __future__ import annotations

from collections import Counter
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.clock import NS_PER_S
from simulator.metrics import duration_ns
from simulator.plan import DECODE, EXTEND, MIXED
from simulator.recorder import ADMIT, PREEMPT, REJECT, RELEASE, RunLog
from simulator.tokens import Ints


class Machine(NamedTuple):
    """The plain numbers that turn token counts into shares of a machine; of the whole model, and per GPU.

    `params` are those every token is multiplied with, `row_params` those (the LM head's) that only a row's last token
    is; `weight_bytes` are read in each iteration; `kv_bytes_per_token` spans all layers; `peak_flops` is per second.
    """

    params: float
    layers: int
    heads: int
    head_dim: int
    kv_bytes_per_token: float
    weight_bytes: float
    peak_flops: float
    bandwidth_bytes_s: float
    gpus: int = 1
    row_params: float = 0.0


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0


def modes(log: RunLog) -> NDArray[np.str_]:
    """The forward mode of every iteration: extend, decode or mixed."""
    prefill, decode = log.iterations["prefill_seqs"] > 0, log.iterations["decode_seqs"] > 0
    return np.where(prefill, np.where(decode, MIXED, EXTEND), DECODE)


def iterations_by_mode(log: RunLog) -> dict[str, dict[str, float | int]]:
    """Per forward mode: how many iterations, their time in seconds, and its share of all busy time."""
    took = log.iterations["end_ns"] - log.iterations["start_ns"]
    mode = modes(log)
    out: dict[str, dict[str, float | int]] = {}
    for name in (EXTEND, DECODE, MIXED):
        mine = mode == name
        out[name] = {
            "count": int(mine.sum()),
            "time_s": int(took[mine].sum()) / NS_PER_S,
            "time_share": _share(took[mine].sum(), took.sum()),
        }
    return out


def utilisation(log: RunLog, machine: Machine | None = None) -> dict[str, float | None]:
    """Shares between 0 and 1, counted in three ways that answer different questions.

    - `busy`: time with an iteration under way, of the whole run.
    - Slots, summed over iterations: `useful_slots` is rows that compute a token of a live request, of the
      slots held (tokens of live rows / rows x steps); the next three split all `max_num_seqs` slots into
      useful ones, waiting ones (held by a finished row of a static batch, or passed over in this iteration)
      and empty ones. `padding` is the share of computed tokens that only fill a rectangle.
    - `model_flops` and `bandwidth`: of the machine's peak over the whole run, idle time included; None
      without a `machine`. FLOPs are 2 per parameter and token (of the LM head: and row) plus 4 x heads x
      head_dim x layers per query-key pair, of live rows only, recomputation included. Bytes are the weights
      once per iteration, the keys and values that were read, and those written once.
    """
    it = log.iterations
    useful = int((it["prefill_seqs"] + it["decode_seqs"]).sum())
    held = int(it["slots"].sum())
    room = len(it["slots"]) * int(log.info["max_num_seqs"])
    padding = int(it["padding_tokens"].sum())
    computed = int((it["prefill_tokens"] + it["decode_seqs"]).sum())
    flops, traffic = (None, None) if machine is None else _machine_shares(log, machine, computed)
    return {
        "busy": _share((it["end_ns"] - it["start_ns"]).sum(), duration_ns(log)),
        "useful_slots": _share(useful, held),
        "useful_slots_of_max": _share(useful, room),
        "waiting_slots_of_max": _share(held - useful, room),
        "empty_slots_of_max": _share(room - held, room),
        "padding": _share(padding, computed + padding),
        "model_flops": flops,
        "bandwidth": traffic,
    }


def _machine_shares(log: RunLog, machine: Machine, tokens: int) -> tuple[float, float]:
    it = log.iterations
    decode_context = float(it["decode_context"].sum())
    pairs = float(it["prefill_pairs"].sum()) + decode_context
    rows = float((it["prefill_seqs"] + it["decode_seqs"]).sum())
    flops = (
        2.0 * (machine.params * tokens + machine.row_params * rows)
        + 4.0 * machine.layers * machine.heads * machine.head_dim * pairs
    )
    read = decode_context + float(log.chunks["context"].sum())
    moved = len(it["slots"]) * machine.weight_bytes + machine.kv_bytes_per_token * (read + tokens)
    gpu_seconds = machine.gpus * duration_ns(log) / NS_PER_S
    return (
        _share(flops, gpu_seconds * machine.peak_flops),
        _share(moved, gpu_seconds * machine.bandwidth_bytes_s),
    )


def kv_usage(log: RunLog) -> dict[str, float | None]:
    """KV blocks taken, as a share of all: `max`, and `mean` over the whole run (0 while idle).

    `mean_used` is the part of it that holds tokens, `mean_unused` the rest: reserved room not (yet) filled
    and the empty ends of blocks. All None where the run has no limit on blocks.
    """
    total = log.info.get("num_gpu_blocks")
    if not total:
        return dict.fromkeys(("mean", "max", "mean_used", "mean_unused"))
    it = log.iterations
    took = (it["end_ns"] - it["start_ns"]).astype(np.float64)
    room = float(total) * duration_ns(log)
    mean = _share((it["kv_blocks"] * took).sum(), room)
    used = _share((used_tokens(log) * took).sum(), room * log.info["block_size"])
    return {
        "mean": mean,
        "max": _share(it["kv_blocks"].max(initial=0), total),
        "mean_used": used,
        "mean_unused": mean - used,
    }


def used_tokens(log: RunLog) -> Ints:
    """Per iteration: tokens whose keys and values are in memory while it runs, its own new ones included.

    Everything computed so far, less what each sequence had computed since its last admission when it was
    preempted or left.
    """
    it, ev = log.iterations, log.events
    grown = np.cumsum(it["prefill_tokens"] + it["decode_seqs"])
    leaves = (ev["kind"] == PREEMPT) | (ev["kind"] == RELEASE)
    order = np.argsort(ev["sequence"][leaves], kind="stable")
    sequence, when = ev["sequence"][leaves][order], ev["iteration"][leaves][order]
    done = _computed_before(log, sequence, when)
    again = np.flatnonzero(sequence[1:] == sequence[:-1]) + 1
    freed = done.copy()
    freed[again] -= done[again - 1]
    gone = np.zeros(len(grown) + 1, dtype=np.int64)
    np.add.at(gone, np.minimum(when, len(grown)), freed)
    return grown - np.cumsum(gone[:-1])


def _computed_before(log: RunLog, sequence: Ints, iteration: Ints) -> Ints:
    """Tokens that each `sequence` had computed, chunks and decode rows together, before `iteration` began."""
    stride = len(log.iterations["end_ns"]) + 1
    wanted = sequence * stride + iteration

    def before(keys: Ints, amounts: Ints) -> Ints:
        order = np.argsort(keys, kind="stable")
        keys, sums = keys[order], np.concatenate([[0], np.cumsum(amounts[order])])
        total: Ints = sums[np.searchsorted(keys, wanted)] - sums[np.searchsorted(keys, sequence * stride)]
        return total

    chunks, spans = log.chunks, log.spans
    rank = np.concatenate([[0], np.cumsum(log.iterations["decode_seqs"] > 0)])
    steps = rank[np.maximum(spans["last"], spans["after"]) + 1] - rank[spans["first"].clip(max=stride - 1)]
    last = np.maximum(spans["last"], spans["first"] - 1)  # a span never reaches over a preemption
    return before(chunks["sequence"] * stride + chunks["iteration"], chunks["tokens"]) + before(
        spans["sequence"] * stride + last, np.maximum(steps, 0)
    )


def queue_series(log: RunLog) -> dict[str, Ints]:
    """Step functions of time: from `time_ns` on there are so many `waiting` and `running` (holding a slot).

    Preempted requests wait. `kv_time_ns` and `kv_blocks` are the same for blocks taken, 0 while idle.
    """
    arrivals, ev = log.sequences["arrival_ns"], log.events
    waits, runs = _queue_changes(log)
    none = np.zeros(len(arrivals), dtype=np.int64)
    time = np.concatenate([arrivals, ev["time_ns"]])
    order = np.argsort(time, kind="stable")
    time = time[order]
    waiting = np.cumsum(np.concatenate([none + 1, waits])[order])
    running = np.cumsum(np.concatenate([none, runs])[order])
    last = np.flatnonzero(np.diff(time, append=-1))  # of all that happens at one instant
    kv_time, kv_blocks = _kv_series(log)
    return {
        "time_ns": time[last],
        "waiting": waiting[last],
        "running": running[last],
        "kv_time_ns": kv_time,
        "kv_blocks": kv_blocks,
    }


def _queue_changes(log: RunLog) -> tuple[Ints, Ints]:
    """By how much each event changes the numbers of waiting and of running requests."""
    kind = log.events["kind"]
    waits = np.select([(kind == ADMIT) | (kind == REJECT), kind == PREEMPT], [-1, 1], 0)
    runs = np.select([kind == ADMIT, (kind == PREEMPT) | (kind == RELEASE)], [1, -1], 0)
    if (kind == PREEMPT).any():
        # A request preempted while its last token was in flight (asynchronous scheduling) leaves the queue.
        order = np.argsort(log.events["sequence"], kind="stable")
        left = order[1:][(kind[order[1:]] == RELEASE) & (kind[order[:-1]] == PREEMPT)]
        waits[left], runs[left] = -1, 0
    return waits, runs


def _kv_series(log: RunLog) -> tuple[Ints, Ints]:
    start, end, blocks = (log.iterations[name] for name in ("start_ns", "end_ns", "kv_blocks"))
    idle = np.flatnonzero(np.append(start[1:], np.iinfo(np.int64).max) > end) if len(end) else np.empty(0, int)
    time = np.insert(start, idle + 1, end[idle])
    return time, np.insert(blocks, idle + 1, 0)


def waiting_at_iterations(log: RunLog) -> Ints:
    """Requests waiting as each iteration starts: what the gauge `num_requests_waiting` would show."""
    count = len(log.iterations["start_ns"])
    moved = np.zeros(count + 1, dtype=np.int64)
    np.add.at(moved, np.minimum(log.events["iteration"], count), _queue_changes(log)[0])
    arrived = np.searchsorted(np.sort(log.sequences["arrival_ns"]), log.iterations["start_ns"], side="right")
    return arrived + np.cumsum(moved[:-1])


def little(log: RunLog) -> tuple[int, int]:
    """Little's law on a closed horizon: (time integral of requests in the system, sum of their stays).

    Both in request-nanoseconds, as Python integers; equal on every run in which all requests are done. Divide
    both by the span to read "time average = rate x mean stay".
    """
    s = log.sequences
    done = s["finished"] == 1
    time = np.concatenate([s["arrival_ns"][done], s["finish_ns"][done]])
    step = np.repeat([1, -1], int(done.sum()))
    order = np.argsort(time, kind="stable")
    inside = np.cumsum(step[order])
    area = sum(map(mul, inside[:-1].tolist(), np.diff(time[order]).tolist()))
    return area, sum((s["finish_ns"] - s["arrival_ns"])[done].tolist())


def rejections(log: RunLog) -> dict[str, int]:
    """How many requests were rejected, per reason, in order of their names."""
    return dict(sorted(Counter(filter(None, log.reasons)).items()))
