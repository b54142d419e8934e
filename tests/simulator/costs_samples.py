"""Cost models and shapes that the cost tests share."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from simulator.costs.base import CostModel
from simulator.costs.constant import Constant
from simulator.costs.linear import Linear
from simulator.costs.roofline import Roofline
from simulator.costs.table import Table
from simulator.plan import BatchShape
from simulator.specs import Platform, get_gpu, get_model

PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("rtx-4090"))
TWO_GPUS = Platform(get_model("llama-3.1-8b"), get_gpu("rtx-pro-6000"), 2)

COEFFICIENTS = {
    "base_ns": 1_000_000,
    "per_token_ns": 700,
    "per_seq_ns": 300,
    "per_context_ns": 9,
    "per_prefill_pair_ns": 2,
    "per_prefill_token_ns": 50,
    "per_decode_seq_ns": 11,
}
FRACTIONS = {key: value / 7 for key, value in COEFFICIENTS.items()}


def profile_document(**attention: Any) -> dict[str, Any]:
    """A small profile whose times rise along every axis; `attention` replaces parts of its attention."""
    rows, columns = [1, 4, 16, 64], [16, 256, 4096]
    decode = [[5.0 + 0.5 * n + 0.003 * n * kv for kv in columns] for n in rows]
    mixed = [[9.0 + 0.8 * n + 0.006 * n * kv for kv in columns] for n in rows]
    chunks, contexts = [16, 128, 1024], [0, 512, 8192]
    prefill = [[8.0 + 0.01 * c + 1e-5 * c * (h + c / 2) for h in contexts] for c in chunks]
    model = PLATFORM.model
    shape = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
    document = {
        "schema_version": 1,
        "name": "made-up",
        "metadata": {
            "gpu": "rtx-4090",
            "device": "none",
            "model": "llama-3.1-8b",
            "dtype": "bfloat16",
            "engine": "a formula",
            "source": "this test",
            "licence": "Apache-2.0",
            "tensor_parallel_size": 1,
            "all_reduce": "absent",
        },
        "shape": {key: getattr(model, key) for key in shape},
        "token_ops": [
            {"op": "gemm", "count": 32, "tokens": [1, 64, 256, 2048], "us": [400.0, 420.0, 700.0, 5000.0]},
            {"op": "norm", "count": 64, "tokens": [1, 100, 2048], "us": [2.0, 3.0, 30.0]},
        ],
        "sequence_ops": [{"op": "lm_head", "count": 1, "sequences": [1, 256], "us": [1000.0, 1500.0]}],
        "attention": {
            "count": 32,
            "prefill": {"chunk_tokens": chunks, "context_tokens": contexts, "us": prefill},
            "decode": {"sequences": rows, "context_tokens": columns, "us": decode},
            "decode_in_mixed": {"sequences": rows, "context_tokens": columns, "us": mixed},
            "join": {"rule": "p_norm", "p": 1.3},
            "skew": {"decode": 0.06, "mixed": 0.1},
        }
        | attention,
        "host": {"base_us": 12.5, "per_sequence_us": 0.25},
    }
    return json.loads(json.dumps(document))


ROOFLINE = {
    "floor_us": 6.0, "us_per_pair": 1e-5, "us_per_token": 0.01, "us_per_context_token": 0.002, "power": 2.0,
}  # fmt: skip


def smooth_document() -> dict[str, Any]:
    """The small profile with all that a fit may add: a roofline, several prompts, fallbacks, a host's eager part."""
    document = profile_document()
    prompts, lengths = [1, 4, 16], [16, 128, 512]
    several = {
        "prompts": prompts,
        "chunk_tokens": lengths,
        "total_tokens": 2048,
        "us": [[8.0 + 0.01 * k * n + 1e-5 * k * n * n / 2 for n in lengths] for k in prompts],
    }
    document["attention"]["prefill"] |= {"roofline": ROOFLINE, "several": several}
    document["attention"]["decode"]["total_tokens"] = 64 * 256
    document["token_ops"][0] |= {"n": 6144, "k": 4096}
    document["token_ops"].append(
        {"op": "rope", "count": 32, "basis": "fallback", "tokens": [1, 2048], "us": [2.0, 9.0]}
    )
    document["host"] |= {"per_layer_us": 0.5, "eager": {"base_us": 30.0, "per_layer_us": 40.0, "power": 1.5}}
    return json.loads(json.dumps(document))


def models(made_up: str) -> dict[str, CostModel]:
    """One of each kind, with and without the options that change their arithmetic; `made_up` is a profile's path."""
    return {
        "constant": Constant(PLATFORM, iteration_us=1234.5),
        "linear": Linear(PLATFORM, **COEFFICIENTS),
        "linear-fractions": Linear(PLATFORM, **FRACTIONS),
        "roofline": Roofline(PLATFORM),
        "roofline-efficiencies": Roofline(
            TWO_GPUS, compute_efficiency=0.61, memory_efficiency=0.77, link_efficiency=0.5, allreduce_latency_us=8
        ),
        "table": Table(PLATFORM, profile=made_up),
    }


def shapes(prefill: bool = True) -> st.SearchStrategy[BatchShape]:
    """Batches an engine could ask about: at least one row, contexts that fit the rows."""
    chunk = st.tuples(st.integers(1, 4096), st.integers(0, 40_000))
    chunks = st.lists(chunk, max_size=5).map(tuple) if prefill else st.just(())
    decode = st.integers(0 if prefill else 1, 600).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(n, max(n, 1) * 20_000), st.integers(0, 20_000))
    )
    return st.builds(_shape, chunks, decode).filter(lambda shape: shape.sampled > 0)


def _shape(prefill: tuple[tuple[int, int], ...], decode: tuple[int, int, int]) -> BatchShape:
    seqs, context, extra = decode
    if not seqs:
        return BatchShape(prefill)
    return BatchShape(prefill, seqs, context, min(-(-context // seqs) + extra, context))
