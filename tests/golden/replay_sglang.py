"""Replays recorded steps of SGLang's scheduler through `sglang`, every field of every step; see `replay.py`.

The form of the files is in sglang-0.5.23/README.md. What a step shows at planning, its slots allocated, is read off the
engine's own batch and pool right after it began the step; `unfinished` and `aborted` are empty in every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.batch import Batch
from simulator.costs.linear import Linear
from simulator.flight import Flight
from simulator.plan import IterationPlan
from simulator.radix_pool import RadixPool
from simulator.schedulers.sglang import Sglang
from simulator.schedulers.sglang_admission import most_new_tokens
from simulator.specs import Platform, get_gpu, get_model

FIELDS = (
    "start_ns", "end_ns", "tokens", "retracted", "mode", "admitted", "preempted", "finished", "new_token_ratio",
    "available", "evictable", "waiting",
)  # fmt: skip
RESULTS = {
    "first_token_ns": "first_token_ns", "finish_ns": "finish_ns", "cached_tokens": "cached_tokens",
    "retractions": "preemptions",
}  # fmt: skip
OPTIONS = (
    "chunked_prefill_size", "max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "enable_mixed_chunk",
    "enable_priority_scheduling", "schedule_low_priority_values_first", "priority_scheduling_preemption_threshold",
)  # fmt: skip
CONFIG = (*OPTIONS, "max_total_num_tokens", "max_running_requests", "context_len", "disable_radix_cache", "overlap")


def recorded_here(recorded: dict[str, Any]) -> bool:
    """Whether a recording is one of SGLang: all the keys of its config say so."""
    config = recorded["config"]
    return isinstance(config, dict) and config.keys() >= set(CONFIG)


def difference(recorded: dict[str, Any], *, fast_forward: bool = True) -> str | None:
    """The first difference between a recording and `sglang`, or None.

    With `fast_forward` the run is made a second time, skipping, and must have the same log.
    """
    scheduler = _scheduler(recorded)
    with _watching(scheduler) as seen:
        log = _run(recorded, scheduler, fast_forward=False)
    found = _steps_differ(log, seen, recorded["steps"]) or _results_differ(log, recorded)
    if not found and fast_forward and run_of(recorded, fast_forward=True).digest != log.digest:
        return "fast-forward gives another log"
    return found


def run_of(recorded: dict[str, Any], *, fast_forward: bool) -> RunLog:
    """The recording's workload, served by `sglang`."""
    return _run(recorded, _scheduler(recorded), fast_forward=fast_forward)


def _scheduler(recorded: dict[str, Any]) -> Sglang:
    return Sglang(**{name: recorded["config"][name] for name in OPTIONS})


def _run(recorded: dict[str, Any], scheduler: Sglang, *, fast_forward: bool) -> RunLog:
    config, cost = recorded["config"], recorded["cost_ns"]
    slots = config["max_total_num_tokens"]
    return run(
        _requests(recorded),
        scheduler=scheduler,
        cost_model=Linear(
            Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb")),
            base_ns=cost["base"],
            per_token_ns=cost["per_token"],
            per_context_ns=cost["per_context"],
        ),
        kv=BlockPool(slots + 1, 1) if config["disable_radix_cache"] else RadixPool(slots),
        limits=Limits(max_num_seqs=config["max_running_requests"], max_model_len=config["context_len"]),
        async_scheduling=config["overlap"],
        fast_forward=fast_forward,
    )


def _requests(recorded: dict[str, Any]) -> list[Request]:
    """Requests as recorded; one cut short by the engine's clipping produces no more than that."""
    tokens = {r["id"]: r["prompt_tokens"] + r["output_tokens"] for r in recorded["requests"]}
    clipped = _clipped(recorded)
    return [
        Request(
            str(r["id"]),
            r["arrival_ns"],
            r["prompt_tokens"],
            min(r["output_tokens"], clipped[r["id"]]),
            max_tokens=r["max_new_tokens"],
            priority=r.get("priority", 0),
            prefix_hashes=tuple(r.get("hash_ids", ())),
            ignore_eos=r.get("ignore_eos", False),
            continues=str(r["follows"]) if "follows" in r else None,
            history_tokens=min(r["prompt_tokens"], tokens[r["follows"]]) if "follows" in r else 0,
        )
        for r in recorded["requests"]
    ]


def _clipped(recorded: dict[str, Any]) -> dict[int, int]:
    config = recorded["config"]
    return {
        r["id"]: most_new_tokens(
            r["max_new_tokens"], r["prompt_tokens"], config["max_total_num_tokens"], config["context_len"]
        )
        for r in recorded["requests"]
    }


@contextmanager
def _watching(scheduler: Sglang) -> Iterator[list[dict[str, Any]]]:
    """A row per step that the engine begins, of what shows then."""
    seen: list[dict[str, Any]] = []
    out: dict[str, list[int]] = {"retracted": [], "preempted": []}
    begin = Batch.begin

    def begun(self: Batch, plan: IterationPlan, now_ns: int) -> Flight:
        tokens = dict(plan.prefill)
        admitted = [int(seq.id) for seq in tokens if self.waiting.holds(seq)]
        flight = begin(self, plan, now_ns)
        for seq in plan.preempt:
            out["retracted" if seq in plan.note.retracted else "preempted"].append(int(seq.id))
        if flight.shape.tokens:
            evictable = getattr(self.kv, "evictable", 0)
            seen.append(
                {
                    "tokens": [[int(seq.id), tokens.get(seq, 1)] for seq in plan.order],
                    "mode": flight.shape.mode.upper(),
                    "admitted": admitted,
                    **{name: sorted(ids) for name, ids in out.items()},
                    "new_token_ratio": round(scheduler.ratio, 9),
                    "available": self.kv.free - evictable,
                    "evictable": evictable,
                    "waiting": len(self.waiting),
                }
            )
            for ids in out.values():
                ids.clear()
        return flight

    with patch.object(Batch, "begin", begun):
        yield seen


def _steps_differ(log: RunLog, seen: list[dict[str, Any]], recorded: list[list[Any]]) -> str | None:
    ended: dict[int, set[int]] = {}
    for name, end_ns in zip(log.ids, log.sequences["finish_ns"].tolist(), strict=True):
        ended.setdefault(end_ns, set()).add(int(name))
    times = zip(log.iterations["start_ns"].tolist(), log.iterations["end_ns"].tolist(), strict=True)
    for i, (step, (start_ns, end_ns), wanted) in enumerate(zip(seen, times, recorded, strict=False)):
        last = ended.get(end_ns, set())
        finished = [name for name, _ in step["tokens"] if name in last]
        mine = step | {"start_ns": start_ns, "end_ns": end_ns, "finished": finished}
        for what, value in zip(FIELDS, wanted, strict=True):
            if mine[what] != value:
                return f"step {i}, {what}: {mine[what]}, recorded {value}"
    if len(seen) != len(recorded):
        return f"{len(seen)} steps, recorded {len(recorded)}"
    return None


def _results_differ(log: RunLog, recorded: dict[str, Any]) -> str | None:
    clipped = _clipped(recorded)
    place = {int(name): i for i, name in enumerate(log.ids)}
    for result in recorded["results"]:
        for what, column in RESULTS.items():
            got, wanted = int(log.sequences[column][place[result["id"]]]), result[what]
            if got != wanted:
                return f"request {result['id']}, {what}: {got}, recorded {wanted}"
        if clipped[result["id"]] != result["max_new_tokens"]:
            return (
                f"request {result['id']}, max_new_tokens: {clipped[result['id']]}, recorded {result['max_new_tokens']}"
            )
    return None
