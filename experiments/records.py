"""What a run's result files hold: `result.json` field by field as `vllm bench serve` writes it, and CSV tables.

Names, order, units and formulas are vLLM's, so its scripts read ours; everything it doesn't know is in one `sim`
block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.stability import stability
from simulator import __version__
from simulator.clock import NS_PER_MS, NS_PER_S
from simulator.metrics import PERCENTILES, request_table, summary
from simulator.recorder import RunLog
from simulator.tokens import Ints, expand_itls
from simulator.usage import (
    Machine,
    iterations_by_mode,
    kv_usage,
    modes,
    rejections,
    utilisation,
    waiting_at_iterations,
)
from simulator.waste import waste_table

Result = dict[str, Any]


@dataclass(frozen=True)
class RunContext:
    """What a RunLog doesn't know about its run.

    `config_yaml` is the resolved config, word for word. `request_rate` is per second, infinite where all arrive
    at once; `slo` is in milliseconds by ttft, tpot, e2el. `cost_is_bound` says that the cost model gives the
    least possible times. `machine` turns counts into shares of the hardware; `wall_s` is the run's real time.
    `slots` and `reserved` are what `simulator.waste` wants to know of a static batch and of reserved memory.
    `cost_support` is what `simulator.support` says of its times.
    """

    name: str
    config_yaml: str
    config_hash: str
    seed: int
    model_id: str
    request_rate: float
    wall_s: float
    tokenizer_id: str | None = None
    burstiness: float | None = None
    label: str | None = None
    slo: Mapping[str, float] | None = None
    percentiles: Sequence[float] = PERCENTILES
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    cost_model: str = ""
    cost_is_bound: bool = False
    profile: str | None = None
    workload: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    save_detailed: bool = False
    slots: int | None = None
    reserved: Ints | None = None
    cost_support: Mapping[str, Any] | None = None


def result_fields(log: RunLog, context: RunContext, now: datetime) -> Result:
    """The content of `result.json`, in the order of vLLM's file. Holds no NaN."""
    fields: Result = {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "servesim",
        "backend": "servesim",
        "label": context.label,
        "model_id": context.model_id,
        "tokenizer_id": context.tokenizer_id or context.model_id,
        "num_prompts": len(log.ids),
        "request_rate": "inf" if math.isinf(context.request_rate) else context.request_rate,
        "burstiness": "inf" if context.burstiness == math.inf else context.burstiness,
        "max_concurrency": None,
        **summary(log, context.percentiles, context.slo),
    }
    fields.pop("preemptions")  # in the sim block
    fields.update(_per_request(log, context.save_detailed))
    fields["sim"] = _sim_block(log, context, fields["duration"])
    return fields


def _per_request(log: RunLog, detailed: bool) -> dict[str, list[Any]]:
    """vLLM's arrays, seconds, one entry per request; zeros and the reason where it failed."""
    table = request_table(log)
    done = table["finished"]

    def seconds(name: str) -> list[float]:
        column: list[float] = (np.where(done, table[name], 0) / NS_PER_S).tolist()
        return column

    short = {"latencies": seconds("e2el_ns"), "queue_times": seconds("queued_ns")}
    if not detailed:
        return short
    return {
        "input_lens": table["prompt_tokens"].tolist(),
        "output_lens": table["emitted_tokens"].tolist(),
        "start_times": (table["arrival_ns"] / NS_PER_S).tolist(),
        "ttfts": seconds("ttft_ns"),
        "itls": [(gaps / NS_PER_S).tolist() for gaps in expand_itls(log)],
        **short,
        "generated_texts": [""] * len(done),
        "errors": list(log.reasons),
    }


def _sim_block(log: RunLog, context: RunContext, duration_s: float) -> dict[str, Any]:
    info = log.info
    return {
        "version": __version__,
        "config_hash": context.config_hash,
        "seed": context.seed,
        "digest": log.digest,
        "scheduler": info["scheduler"],
        "scheduler_options": dict(context.scheduler_options),
        "policy": info.get("policy"),
        "respond_at": info["respond_at"],
        "oracle": info["oracle"],
        "cost_model": context.cost_model,
        "cost_kind": "bound" if context.cost_is_bound else "estimate",
        "profile": context.profile,
        "cost_support": context.cost_support,
        "workload": dict(context.workload),
        "iterations": len(log.iterations["start_ns"]),
        "iterations_by_mode": iterations_by_mode(log),
        "preemptions": int(log.sequences["preemptions"].sum()),
        "recomputed_tokens": int(log.sequences["recomputed_tokens"].sum()),
        "prefix_cache": _prefix_cache(log),
        "rejected": rejections(log),
        "utilisation": utilisation(log, context.machine),
        "kv_usage": kv_usage(log),
        "waste": waste_table(log, context.slots, context.reserved),
        **stability(log)._asdict(),
        "wall_s": context.wall_s,
        "speedup": duration_s / context.wall_s if context.wall_s > 0 else None,
        "fast_forward": info["fast_forward"],
        "warnings": list(context.warnings),
    }


def _prefix_cache(log: RunLog) -> dict[str, Any]:
    """Prompt tokens found in the cache at first admission, and those found again after a preemption, apart."""
    s = log.sequences
    prompts = int(s["prompt_tokens"][s["scheduled_ns"] >= 0].sum())
    cached = int(s["cached_tokens"].sum())
    return {
        "hit_rate": cached / prompts if prompts else 0.0,
        "cached_tokens": cached,
        "reused_after_preemption_tokens": int(s["reused_tokens"].sum()),
    }


def requests_csv(log: RunLog) -> str:
    """One line per request in order of arrival; times in ns from the run's start, cells empty where undefined."""
    table, s = request_table(log), log.sequences
    done = table["finished"]
    one_token = s["emitted_tokens"] <= 1
    columns: dict[str, Iterable[Any]] = {
        "id": map(_quoted, log.ids),
        "arrival_ns": s["arrival_ns"].tolist(),
        "prompt_tokens": s["prompt_tokens"].tolist(),
        "output_tokens": s["output_tokens"].tolist(),
        "status": np.where(done, "finished", "rejected").tolist(),
        "reason": map(_quoted, log.reasons),
    }
    for name in ("scheduled_ns", "first_token_ns", "finish_ns", "released_ns"):
        columns[name] = _cells(s[name], s[name] < 0)
    for name in ("ttft", "tpot", "e2el"):
        ms = table[f"{name}_ns"] / NS_PER_MS
        columns[f"{name}_ms"] = _cells(ms, ~done | one_token if name == "tpot" else ~done)
    for name in (
        "queued_ns",
        "prefill_ns",
        "decode_ns",
        "preempted_ns",
        "preemptions",
        "recomputed_tokens",
        "cached_tokens",
    ):
        columns[name] = s[name].tolist()
    return _csv(columns)


def iterations_csv(log: RunLog) -> str:
    """One line per iteration; the gauges have vLLM's names, `kv_cache_usage_perc` is a share from 0 to 1."""
    it, blocks = log.iterations, log.info.get("num_gpu_blocks")
    names = ("start_ns", "end_ns", "prefill_seqs", "prefill_tokens", "padding_tokens", "decode_seqs",
             "decode_context", "kv_blocks")  # fmt: skip
    columns: dict[str, Iterable[Any]] = {name: it[name].tolist() for name in names}
    columns["mode"] = modes(log).tolist()
    columns["num_requests_running"] = it["slots"].tolist()
    columns["num_requests_waiting"] = waiting_at_iterations(log).tolist()
    if blocks:
        columns["kv_cache_usage_perc"] = np.round(it["kv_blocks"] / blocks, 6).tolist()
    return _csv(columns)


def _cells(values: NDArray[Any], empty: NDArray[np.bool_]) -> list[Any]:
    cells: list[Any] = values.tolist()
    for row in np.flatnonzero(empty).tolist():
        cells[row] = ""
    return cells


def _quoted(text: str) -> str:
    if any(mark in text for mark in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _csv(columns: dict[str, Iterable[Any]]) -> str:
    line = ",".join(["{}"] * len(columns)).format  # three times as fast as a general writer
    return "\n".join([",".join(columns), *map(line, *columns.values())]) + "\n"
