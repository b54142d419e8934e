"""Replays recorded steps of vLLM's or SGLang's scheduler and finds the first difference, to the nanosecond.

    python tests/golden/replay.py FILE...

prints `FILE: ok` or what differs first. Exit status 1 where a file differs, else 2 where one can't be replayed, with
the reason, else 0. The form of the files is in vllm-0.19.0/README.md and sglang-0.5.23/README.md; what a file was
recorded of shows in its config. Those of SGLang are compared in `replay_sglang.py`.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import replay_sglang
from steps import steps_of

from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.costs.linear import Linear
from simulator.prefix import CachedPool
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.specs import Platform, get_gpu, get_model

KEYS = ("config", "cost_ns", "requests", "steps", "results")
# What a recording may have that the engine doesn't model yet: key, the only value that can be replayed, in words.
MODELLED = (("enable_chunked_prefill", True, "chunked prefill is off"),)


class NotReplayable(Exception):
    """This file is no recording that the engine can follow; the message says why."""


def replay(file: str | Path, *, fast_forward: bool = True) -> str | None:
    """The first difference between the recording in `file` and `vllm_v1` or `sglang` under its limits, or None.

    Of vLLM, compared are every step's start, end, tokens per request in order, preemptions, then every request's first
    token, finish, preemptions and tokens found in the prefix cache. Raises NotReplayable.
    """
    recorded = _read(Path(file))
    try:
        if len(recorded["results"]) != len(recorded["requests"]):
            return f"{len(recorded['requests'])} requests, {len(recorded['results'])} recorded results"
        if replay_sglang.recorded_here(recorded):
            return replay_sglang.difference(recorded, fast_forward=fast_forward)
        log = _run(recorded, fast_forward)
        return _steps_differ(log, recorded["steps"], recorded["results"]) or _results_differ(log, recorded["results"])
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise NotReplayable(f"a request, step or result has another form: {type(error).__name__}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (OSError, EOFError, ValueError) as error:
        raise NotReplayable(f"can't be read as JSON: {error}") from None
    missing = [key for key in KEYS if not isinstance(data, dict) or key not in data]
    if missing:
        raise NotReplayable(f"not a step trace: no {', '.join(missing)}")
    if replay_sglang.recorded_here(data):
        return data
    config = data["config"]
    unknown = [key for key, _, _ in MODELLED if key not in config]
    if unknown:
        raise NotReplayable(f"not a step trace of vLLM: config has no {', '.join(unknown)}")
    reasons = [words for key, value, words in MODELLED if config[key] is not value]
    if reasons:
        raise NotReplayable(f"not modelled yet: {', '.join(reasons)}")
    return data


def _run(recorded: dict[str, Any], fast_forward: bool) -> RunLog:
    config, cost = recorded["config"], recorded["cost_ns"]
    pool = CachedPool if config["enable_prefix_caching"] else BlockPool
    return run(
        [
            Request(
                str(r["id"]),
                r["arrival_ns"],
                r["prompt_tokens"],
                r["output_tokens"],
                priority=r.get("priority", 0),
                prefix_hashes=tuple(r.get("hash_ids", ())),
                prefix_block_tokens=16,
            )
            for r in recorded["requests"]
        ],
        scheduler=VllmV1(config["policy"], config["scheduler_reserve_full_isl"]),
        cost_model=Linear(
            Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb")),
            base_ns=cost["base"],
            per_token_ns=cost["per_token"],
            per_context_ns=cost["per_context"],
        ),
        kv=pool(config["num_gpu_blocks"], config["block_size"]),
        limits=Limits(
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            max_model_len=config["max_model_len"],
        ),
        async_scheduling=config["async_scheduling"],
        fast_forward=fast_forward,
    )


def _unlisted(recorded: list[Any], results: list[dict[str, Any]]) -> Counter[str]:
    """Preemptions that the results count but no step lists: a planning that launched nothing made no step."""
    counted = Counter({str(r["id"]): r["preemptions"] for r in results})
    counted.subtract(str(name) for *_, preempted in recorded for name in preempted)
    return counted


def _steps_differ(log: RunLog, recorded: list[Any], results: list[dict[str, Any]]) -> str | None:
    steps = steps_of(log)
    unlisted = _unlisted(recorded, results)
    for i, (mine, (start_ns, end_ns, rows, preempted)) in enumerate(zip(steps, recorded, strict=False)):
        victims = [str(name) for name in preempted]
        shown = []
        for name in mine.preempted:
            if name not in victims and unlisted[name] > 0:
                unlisted[name] -= 1
            else:
                shown.append(name)
        pairs = {
            "start_ns": (mine.start_ns, start_ns),
            "preempted": (sorted(shown), sorted(victims)),  # the engine keeps a set
            "tokens": (mine.rows, [(str(name), tokens) for name, tokens in rows]),
            "end_ns": (mine.end_ns, end_ns),
        }
        for what, (got, wanted) in pairs.items():
            if got != wanted:
                return f"step {i}, {what}: {got}, recorded {wanted}"
    if len(steps) != len(recorded):
        return f"{len(steps)} steps, recorded {len(recorded)}"
    return None


def _results_differ(log: RunLog, recorded: list[dict[str, Any]]) -> str | None:
    place = {name: i for i, name in enumerate(log.ids)}
    if len(place) != len(recorded):
        return f"{len(place)} requests, {len(recorded)} recorded results"
    for result in recorded:
        name = str(result["id"])
        for what in ("first_token_ns", "finish_ns", "preemptions", "cached_tokens"):
            got, wanted = int(log.sequences[what][place[name]]), result[what]
            if got != wanted:
                return f"request {name}, {what}: {got}, recorded {wanted}"
    return None


def main(files: list[str]) -> int:
    """Replay `files`, one line each; returns the exit status."""
    if not files:
        print("usage: replay.py FILE...", file=sys.stderr)
        return 2
    status = 0
    for file in files:
        try:
            difference = replay(file)
        except NotReplayable as reason:
            print(f"{file}: {reason}")
            status = status or 2
            continue
        if difference:
            status = 1
        print(f"{file}: {difference or 'ok'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
