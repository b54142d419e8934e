"""What the agreement with the measured RTX 4090 server depends on: one thing changed at a time, against the same run.

    python tests/bench/rtx4090_sensitivity.py

prints a table in Markdown (docs/accuracy.md holds its output): errors in per cent of the measured run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.build import kv_memory, limits, workload
from experiments.config import load
from experiments.latencies import per_request
from experiments.results import load_result
from simulator.cluster import run as simulate
from simulator.metrics import request_table
from simulator.profile import Profile, load_profile

CONFIG, MEASURED, PROFILE = "rtx4090_vllm", "rtx4090_llama-3.1-8b_vllm-0.19.0", "rtx4090_llama-3.1-8b"
Document = dict[str, Any]


def slower(document: Document) -> None:
    """A millisecond more per iteration, on the device: asynchronous scheduling would hide it on the host."""
    document["host"]["base_us"] += 1000.0


def without_attention(document: Document) -> None:
    """Attention in a nanosecond."""
    for part in ("prefill", "decode", "decode_in_mixed"):
        table = document["attention"][part]
        table["us"] = [[0.001 / document["attention"]["count"]] * len(row) for row in table["us"]]
    document["attention"]["join"] = {"rule": "sum"}


def uneven(document: Document) -> None:
    """The term for uneven decode lengths as another GPU's table has it: this one's authors fitted none."""
    other = load_profile("rtxpro6000_llama-3.1-8b_tp1").to_json()
    document["attention"]["skew"] = other["attention"]["skew"]


def one_exponent(document: Document) -> None:
    """One exponent for all mixed calls: the best for this table on average."""
    document["attention"]["join"] = {"rule": "p_norm", "p": 1.06}


VARIANTS: list[tuple[str, list[str], Callable[[Document], None] | None]] = [
    ("as shipped", [], None),
    ("KV blocks -5 % (2459)", ["engine.num_gpu_blocks_override=2459"], None),
    ("KV blocks as planned here (2529)", ["engine.num_gpu_blocks_override=2529"], None),
    ("KV blocks -2 (2586)", ["engine.num_gpu_blocks_override=2586"], None),
    ("KV blocks +2 (2590)", ["engine.num_gpu_blocks_override=2590"], None),
    ("KV blocks +5 % (2717)", ["engine.num_gpu_blocks_override=2717"], None),
    ("prefix cache off", ["engine.enable_prefix_caching=false"], None),
    ("asynchronous scheduling off", ["engine.async_scheduling=false"], None),
    ("first chunk alone must fit", ["scheduler.scheduler_reserve_full_isl=false"], None),
    ("+1 ms per iteration", [], slower),
    ("no attention", [], without_attention),
    ("uneven lengths as on another GPU", [], uneven),
    ("one exponent for mixed calls", [], one_exponent),
    ("decode padded to CUDA-graph sizes", ["cost_model.pad_decode=true"], None),
]


def errors(overrides: list[str], change: Callable[[Document], None] | None) -> list[float]:
    """makespan, mean and p99 of TTFT, TPOT, E2EL, MAPE of E2EL, all in per cent, and preemptions."""
    with tempfile.TemporaryDirectory() as folder:
        words = list(overrides)
        if change is not None:
            document = load_profile(PROFILE).to_json()
            change(document)
            path = Path(folder) / "changed.json"
            Profile.from_json(document, "changed").save(path)
            words.append(f"cost_model.profile={path}")
        (run,) = load(CONFIG, words).runs
        log = simulate(
            workload(run.settings).requests,
            scheduler=run.pieces.scheduler(),
            cost_model=run.pieces.cost_model(),
            kv=kv_memory(run),
            limits=limits(run),
            async_scheduling=run.settings.engine.async_scheduling,
        )
    table, measured = request_table(log), load_result(MEASURED)
    theirs = per_request(measured)
    found = [log.sequences["finish_ns"].max() / 1e9 / measured["duration"] - 1]
    for name in ("ttft", "tpot", "e2el"):
        ours, real = table[f"{name}_ns"] / 1e6, theirs[name]
        ours, real = ours[~np.isnan(ours)], real[~np.isnan(real)]
        found += [ours.mean() / real.mean() - 1, np.percentile(ours, 99) / np.percentile(real, 99) - 1]
    found.append(np.abs(table["e2el_ns"] / 1e6 / theirs["e2el"] - 1).mean())
    return [100 * float(error) for error in found] + [float(log.sequences["preemptions"].sum())]


def main() -> None:
    """Print the table."""
    print(
        "| changed | makespan | TTFT mean | p99 | TPOT mean | p99 | E2EL mean | p99 | E2EL per request | preemptions |"
    )
    print("|---|" + "---:|" * 9)
    for name, overrides, change in VARIANTS:
        *found, mape, preemptions = errors(overrides, change)
        cells = [*(f"{error:+.2f}" for error in found), f"{mape:.2f}", f"{preemptions:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
