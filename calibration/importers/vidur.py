"""Kernel timings of microsoft/vidur (MIT): one decoder layer's operations on one rank, in milliseconds.

CUDA events or a kernel trace around each operation, the median of some repetitions, keys and values and weights the
same in every one. The profiler's columns are `time_stats.OPERATION.median`; `OPERATION.median_ms` is read as well.

    mlp.csv         the layer's linear layers, norms, rope, activation, additions and the embedding by num_tokens, with
                    n_head, n_kv_head, n_embd, n_expanded_embd, vocab_size, num_tensor_parallel_workers
    attention.csv   attn_prefill of one prompt of prefill_chunk_size tokens after kv_cache_size, attn_decode of
                    batch_size rows that have kv_cache_size tokens before their own, and attn_kv_cache_save, with
                    n_embd, n_q_head, n_kv_head, num_tensor_parallel_workers, attention_backend
    all_reduce.csv  all_reduce of `size` bytes over num_workers, with collective, devices_per_node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from calibration.importers.imported import Imported, merged
from calibration.importers.tables import Row, columns, read_table
from calibration.points import Point, linear_shapes
from simulator.errors import ConfigError
from simulator.specs import ModelSpec

US_PER_MS = 1000.0
# Our operation by vidur's name; a linear's is its name in `linears`.
LINEARS = {"attn_pre_proj": "qkv", "attn_post_proj": "o", "mlp_up_proj": "gate_up", "mlp_down_proj": "down"}
OTHERS = {
    "emb": "embedding", "input_layernorm": "norm", "post_attention_layernorm": "norm", "attn_rope": "rope",
    "mlp_act": "activation", "add": "add",
}  # fmt: skip
MLP = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size", "num_tensor_parallel_workers", "num_tokens")
ATTENTION = ("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size", "prefill_chunk_size",
             "kv_cache_size")  # fmt: skip
ALL_REDUCE = ("num_workers", "devices_per_node", "size")


def mlp(path: Path, model: ModelSpec, tp: int) -> Imported:
    """Everything of a layer but attention. Raises ConfigError with a line per fault, as all readers here."""
    names = _columns(path, (*LINEARS, *OTHERS))
    if absent := [op for op in LINEARS if op not in names]:
        raise ConfigError(f"{path}:1: no times of {', '.join(absent)}")
    wanted = {
        "n_head": model.heads, "n_kv_head": model.kv_heads, "n_embd": model.hidden,
        "n_expanded_embd": model.intermediate, "vocab_size": model.vocab, "num_tensor_parallel_workers": tp,
    }  # fmt: skip
    rows = _chosen(path, read_table(path, (*MLP, *names.values()), least=1), wanted)
    shapes = linear_shapes(model, tp)

    def times() -> Iterator[tuple[Point, float]]:
        for row in rows:
            m = int(row["num_tokens"])
            for op, column in names.items():
                n, k = shapes[LINEARS[op]] if op in LINEARS else (0, 0)
                yield Point(OTHERS.get(op, "linear"), m=m, n=n, k=k, mode="eager"), row[column] * US_PER_MS

    note = "vidur's profiler (float16), eager, median; the same weights in every repetition"
    return Imported(merged(times()), notes={"linear": note, "norm": note})


def attention(path: Path, model: ModelSpec, tp: int) -> Imported:
    """Prefill of one prompt, decode rows of one length, and the write of keys and values."""
    names = _columns(path, ("attn_prefill", "attn_decode", "attn_kv_cache_save"))
    rows = read_table(path, ATTENTION, "attention_backend", optional=list(names.values()))
    wanted = {"n_embd": model.hidden, "n_q_head": model.heads, "n_kv_head": model.kv_heads}
    wanted["num_tensor_parallel_workers"] = tp
    rows = _chosen(path, rows, wanted)
    if any(not row["batch_size"] for row in rows):
        raise ConfigError(f"{path}: batch_size = 0: must be at least 1")
    backends = sorted({row["attention_backend"] for row in rows})
    if len(backends) > 1:
        raise ConfigError(f"{path}: several attention_backend, keep the rows of one: {', '.join(backends)}")

    def times() -> Iterator[tuple[Point, float]]:
        for row in rows:
            chunk, kv, batch = int(row["prefill_chunk_size"]), int(row["kv_cache_size"]), int(row["batch_size"])
            points = {
                "attn_prefill": Point("prefill", seqs=batch, chunk=chunk, ctx=kv, mode="eager"),
                "attn_decode": Point("decode", n_dec=batch, kv_dec=kv + 1, mode="eager"),
                "attn_kv_cache_save": Point("kv_write", m=batch * max(chunk, 1), mode="eager"),
            }
            for op, column in names.items():
                if column in row and (op == "attn_kv_cache_save" or (op == "attn_prefill") == bool(chunk)):
                    yield points[op], row[column] * US_PER_MS

    note = f"vidur's profiler, {backends[0]}, eager, median; the same keys and values in every repetition"
    return Imported(merged(times()), notes={"prefill": note, "decode": note})


def all_reduce(path: Path, model: ModelSpec, tp: int) -> Imported:
    """All-reduces over `tp` ranks of one node; no rows for one rank."""
    if tp == 1:
        return Imported(())
    (column,) = _columns(path, ("all_reduce",)).values()
    rows = read_table(path, (*ALL_REDUCE, column), "collective", least=1)
    rows = [row for row in rows if row["collective"] == "all_reduce"]
    rows = _chosen(path, rows, {"num_workers": tp, "devices_per_node": tp})
    times = ((Point("allreduce", bytes=int(r["size"]), ranks=tp, mode="eager"), r[column] * US_PER_MS) for r in rows)
    return Imported(merged(times), notes={"allreduce": "vidur's profiler, eager, median"})


def _columns(path: Path, ops: Sequence[str]) -> dict[str, str]:
    """{operation: the column of its median} of those that the file has."""
    there = columns(path)
    forms = {op: (f"time_stats.{op}.median", f"{op}.median_ms") for op in ops}
    return {op: name for op, names in forms.items() for name in names if name in there}


def _chosen(path: Path, rows: Sequence[Row], wanted: dict[str, int]) -> list[Row]:
    chosen = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not chosen:
        raise ConfigError(f"{path}: no rows with {', '.join(f'{key} {value}' for key, value in wanted.items())}")
    return chosen


# Readers by the columns that tell their tables.
READERS = {MLP: mlp, ATTENTION: attention, (*ALL_REDUCE, "collective"): all_reduce}
