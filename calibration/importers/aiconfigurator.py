"""Kernel timings of ai-dynamo/aiconfigurator (Apache-2.0), its tables as CSV in microseconds.

A CUDA graph of several calls is replayed and timed with one pair of events; a mean, without a spread. Linear layers
rotate six copies of their weights; attention reads the same keys and values again and again, so a set of them that fits
in the L2 cache is timed hot. Tables are told apart by their columns:

    gemm                  m,n,k,latency_us                               y[m, n] = x[m, k] W[n, k]^T
    gemm, repeated        n,k,m,RUN_us,RUN_us,...                        the same call in several collections
    context attention     batch_size,q_len,num_heads,num_kv_heads,head_dim,kernel,latency_us
    generation attention  batch_size,kv_len,...                          kv_len tokens with the row's own
    collectives           op_name,kind,num_gpus,message_size,elem_bytes,latency_us     sizes in elements
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from calibration.importers.imported import Imported, merged
from calibration.importers.tables import Row, columns, read_table
from calibration.points import Point, linear_shapes
from simulator.costs.collectives import measured
from simulator.errors import ConfigError
from simulator.specs import ModelSpec

HEADS = ("num_heads", "num_kv_heads", "head_dim")


def gemm(path: Path, model: ModelSpec, tp: int) -> Imported:
    """All shapes of the table, whatever the model. Raises ConfigError with a line per fault, as all readers here."""
    rows = read_table(path, ("m", "n", "k", "latency_us"), least=1)
    times = ((Point("linear", m=int(r["m"]), n=int(r["n"]), k=int(r["k"])), r["latency_us"]) for r in rows)
    return Imported(merged(times, l2="cold"), notes={"linear": "CUDA graph over 6 rotating weights, mean of 6 replays"})


def gemm_repeats(path: Path, model: ModelSpec, tp: int) -> Imported:
    """No rows, but the median difference of one collection's time from the median of all, over the model's calls."""
    runs = [name for name in columns(path) if name.endswith("_us")]
    own = set(linear_shapes(model, tp).values())
    rows = [row for row in read_table(path, ("n", "k", "m", *runs), least=1) if (row["n"], row["k"]) in own]
    if not rows:
        return Imported(())
    times = np.array([[row[run] for run in runs] for row in rows])
    off = np.abs(times / np.median(times, axis=1, keepdims=True) - 1.0)
    note = f"{len(runs)} collections of {len(rows)} calls of linear layers: median difference from their median"
    return Imported((), {"linear": 100 * float(np.median(off))}, {"repeats": note})


def context_attention(path: Path, model: ModelSpec, tp: int) -> Imported:
    """Prefill of several prompts without history, one call of one layer."""
    return _attention(
        path, model, tp, "q_len", lambda r: Point("prefill", seqs=int(r["batch_size"]), chunk=int(r["q_len"]))
    )


def generation_attention(path: Path, model: ModelSpec, tp: int) -> Imported:
    """Decode rows of one length, one call of one layer."""
    return _attention(
        path, model, tp, "kv_len", lambda r: Point("decode", n_dec=int(r["batch_size"]), kv_dec=int(r["kv_len"]))
    )


def collectives(path: Path, model: ModelSpec, tp: int) -> Imported:
    """All-reduces over `tp` ranks, the fastest implementation at each size; no rows for one rank."""
    if tp == 1:
        return Imported(())
    try:
        found = measured(path, tp)
    except ConfigError as error:
        raise ConfigError([fault.removeprefix("cost_model.collectives: ") for fault in error.faults]) from None
    times = ((Point("allreduce", bytes=round(size), ranks=tp), us) for size, us in found.items())
    return Imported(merged(times), notes={"allreduce": "the fastest of the implementations timed, by size"})


def _attention(path: Path, model: ModelSpec, tp: int, length: str, point: Callable[[Row], Point]) -> Imported:
    numbers = ("batch_size", length, *HEADS, "latency_us")
    rows = read_table(path, numbers, text="kernel", least=1)
    wanted = (model.heads // tp, model.kv_heads_per_rank(tp), model.head_dim)
    chosen = [row for row in rows if tuple(int(row[key]) for key in HEADS) == wanted]
    if not chosen:
        raise ConfigError(f"{path}: no rows with {', '.join(f'{k} {v}' for k, v in zip(HEADS, wanted, strict=True))}")
    made = merged((point(row), row["latency_us"]) for row in chosen)
    return Imported(made, notes={made[0].point.op: _kernels(chosen)})


def _kernels(rows: Sequence[Row]) -> str:
    names = sorted({row["kernel"] for row in rows})
    return f"{', '.join(names)}, CUDA graph, the same keys and values in every replay (L2 hot where they fit)"


# Readers by the columns that tell their tables.
READERS = {
    ("batch_size", "q_len", *HEADS, "kernel", "latency_us"): context_attention,
    ("batch_size", "kv_len", *HEADS, "kernel", "latency_us"): generation_attention,
    ("op_name", "kind", "num_gpus", "message_size", "elem_bytes", "latency_us"): collectives,
    ("m", "n", "k", "latency_us"): gemm,
    ("n", "k", "m"): gemm_repeats,
}
