"""`servesim config from-run`: the config that replays a measured run, and the trace it needs beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from experiments.engine_facts import Facts, engine_facts, gpu_of, kv_blocks, model_of
from experiments.measured import (
    META,
    REQUESTS,
    WORKLOAD,
    Fields,
    load_meta,
    load_requests,
    read_jsonl,
    shown,
)
from simulator.clock import NS_PER_MS
from simulator.costs.table import mismatches
from simulator.errors import ConfigError, raise_faults
from simulator.profile import Profile, load_profile
from simulator.specs import Platform

HEADER = "# Written by `servesim config from-run`"
# What an all-reduce takes before its first byte: vLLM's own kernel in a CUDA graph, smallest messages, on 2 and 4 H200
# with NVLink (4.7 on 8). ai-dynamo/aiconfigurator, systems/data/h200_sxm/comm/vllm/0.24.0.
ALLREDUCE_LATENCY_US = 4.4
LINK_KEYS = "link_gbps, allreduce_latency_us and allreduce, or collectives"
ENGINE_KEYS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "max_model_len",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "enable_prefix_caching",
    "async_scheduling",
)


def write_config(
    folder: Path, profile_name: str, out: Path, *, model: str | None = None, gpu: str | None = None
) -> tuple[Path, list[str]]:
    """Write `out` and, beside it, its trace. Returns the trace's path and notices about what had to be assumed.

    Arrivals are `queued_ts` less the smallest one, lengths those of the requests, block ids those of the workload.
    `model` and `gpu` replace what the metadata says. A file that this function didn't write is never replaced. Raises
    ConfigError with everything that is wrong.
    """
    facts = engine_facts(load_meta(folder), folder / META)
    rows = load_requests(folder)
    ids, block_tokens = _block_ids(folder, rows, facts.values["block_size"])
    profile = load_profile(profile_name)
    spec = model_of(facts, model)
    device = gpu_of(facts, gpu, profile.metadata["gpu"])
    if facts.faults:
        raise ConfigError(facts.faults)
    degree = facts.values.get("tensor_parallel_size", 1)
    platform = Platform(spec, device, degree)
    if faults := mismatches(profile, platform):
        raise ConfigError([f"--profile {profile_name}: {fault}" for fault in faults])
    facts.values["num_gpu_blocks_override"] = kv_blocks(facts, spec, device)
    if facts.faults:
        raise ConfigError(facts.faults)
    if _reduces(facts, profile):
        link = f"a ring at {device.link_gbps:g} GB/s, {ALLREDUCE_LATENCY_US:g} us per call as on H200"
        facts.notices.append(f"all-reduces of {degree} GPUs: {link}; state yours in cost_model: {LINK_KEYS}")
    trace = out.with_name(f"{out.stem}.trace.jsonl")
    names = {
        "model": _named(model, spec.name, out),
        "gpu": _named(gpu, device.name, out),
        "profile": _named(profile_name, profile_name, out),
    }
    text = _yaml(folder, facts, profile, names, trace.name, block_tokens)
    if out.exists() and not _text(out).startswith(HEADER):
        raise ConfigError(f"{out}: exists already, and isn't of this command; name another file with --out")
    _write(trace, "".join(_trace_lines(rows, ids)))
    _write(out, text)
    return trace, facts.notices


def _reduces(facts: Facts, profile: Profile) -> bool:
    """Whether there are all-reduces that the profile's times leave out."""
    several = int(facts.values.get("tensor_parallel_size", 1)) > 1
    return several and bool(profile.metadata["all_reduce"] == "absent")


def _named(given: str | None, name: str, out: Path) -> str:
    """`name`, or the file that was given, as seen from the config's folder, where its paths are looked for first."""
    if given is None or not Path(given).is_file():
        return name
    return os.path.relpath(given, out.resolve().parent)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from None


def _block_ids(folder: Path, rows: list[Fields], block_size: int) -> tuple[list[list[int]] | None, int]:
    """(block ids by place in the file, tokens per id) of `workload.jsonl`; None where there are none."""
    path = folder / WORKLOAD
    if not path.exists():
        return None, block_size
    faults: list[str] = []
    asked = read_jsonl(path, faults)
    if not faults and len(asked) != len(rows):
        faults.append(f"{path}: holds {len(asked)} requests, {REQUESTS} {len(rows)}")
    raise_faults(path, faults)
    by_place = sorted(rows, key=lambda row: int(row["row"]))
    for (line, one), row in zip(asked, by_place, strict=True):
        for name, measured in (("input_length", "input_toks"), ("output_length", "output_toks")):
            if one.get(name, row[measured]) != row[measured]:
                faults.append(f"{path}:{line}: {name} = {shown(one, name)}: the request had {row[measured]}")
        ids = one.get("hash_ids")
        if ids is not None and not (isinstance(ids, list) and all(type(i) is int for i in ids)):
            faults.append(f"{path}:{line}: hash_ids: must be a list of whole numbers")
    raise_faults(path, faults)
    if any(one.get("hash_ids") is None for _, one in asked):
        return None, block_size
    ids = [one["hash_ids"] for _, one in asked]
    return ids, _tokens_per_id(path, ids, [row["input_toks"] for row in by_place], block_size)


def _tokens_per_id(path: Path, ids: list[list[int]], prompts: list[int], block_size: int) -> int:
    """The block size that fits every request, the engine's own where it does."""
    sizes = [block_size, *(1 << k for k in range(14))]
    for size in sizes:
        if all(-(-prompt // size) == len(own) for prompt, own in zip(prompts, ids, strict=True)):
            return size
    raise ConfigError(f"{path}: hash_ids: no block size fits the number of ids of every prompt")


def _trace_lines(rows: list[Fields], ids: list[list[int]] | None) -> list[str]:
    start = min(row["queued_ts"] for row in rows)
    lines = []
    for row in rows:
        arrival_ns = round((row["queued_ts"] - start) * 1e9)
        record: dict[str, Any] = {
            "timestamp": arrival_ns / NS_PER_MS,
            "input_length": row["input_toks"],
            "output_length": row["output_toks"],
        }
        if ids is not None:
            record["hash_ids"] = ids[row["row"]]
        lines.append(json.dumps(record, separators=(",", ":")) + "\n")
    return lines


def _yaml(folder: Path, facts: Facts, profile: Profile, names: dict[str, str], trace: str, block_tokens: int) -> str:
    """The config as text, with who gave each value behind it."""
    lines = [
        f"{HEADER} from {folder.resolve().name}, a run of {facts.engine}.",
        *(f"# {notice}" for notice in facts.notices),
        "",
        f"model: {json.dumps(names['model'])}",
        f"gpu: {json.dumps(names['gpu'])}",
        f"trace: {{path: {json.dumps(trace)}, format: mooncake, block_size: {block_tokens}}}",
        "engine:",
    ]
    for key in ENGINE_KEYS:
        if key in facts.values:
            value = facts.values[key]
            lines.append(f"  {key}: {json.dumps(value)}  # {facts.sources[key]}")
    policy, full = facts.values["policy"], facts.values["scheduler_reserve_full_isl"]
    options = "" if policy == "fcfs" else f", policy: {policy}"
    options += "" if full else ", scheduler_reserve_full_isl: false"
    lines.append(f"scheduler: {{name: vllm_v1{options}}}")
    link = f", allreduce_latency_us: {ALLREDUCE_LATENCY_US:g}" if _reduces(facts, profile) else ""
    cost = f"name: table, profile: {json.dumps(names['profile'])}{link}"
    lines.append(f"cost_model: {{{cost}}}  # {profile.metadata['engine']}")
    return "\n".join(lines) + "\n"


def default_out(folder: Path) -> Path:
    """Where the config goes if nobody says: the folder's name, in the working directory."""
    return Path(f"{folder.resolve().name}.yaml")
