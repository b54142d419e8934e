"""The least time that a model's arithmetic and memory traffic allow on a GPU.

Each group of operations takes max(FLOPs / peak, bytes / bandwidth), and groups follow one another (Williams,
Waterman, Patterson: Roofline, CACM 2009). Norms, activations and launches are left out, and so is the host:
with efficiencies of 1 the result is a lower bound on the time, 44-91 % below measurements in decode
(hahnyuan/LLM-Viewer issue 4).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.clock import iteration_ns
from simulator.costs.base import CostModel, check_number, whole_ns
from simulator.costs.collectives import Link, allreduce_curve
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import Platform

MOST_KNOWN = 1 << 16  # batch sizes whose times are kept


class Roofline(CostModel):
    """The least time for the model's arithmetic and memory traffic: a bound until efficiencies are set.

    Linear layers go by the tokens of the whole iteration, attention by its pairs and contexts, the LM head by rows. The
    efficiencies, above 0 and at most 1, say which share of the peak FLOP/s, of the memory bandwidth and of the link
    between GPUs is reached. All-reduces come from `collectives`, a measured table's file, or from a link of `link_gbps`
    (default: the GPU's) with `allreduce_latency_us` per call and the algorithm `allreduce` (ring, tree, one_shot).
    `is_bound` holds while the efficiencies are 1 and all-reduces are those of the GPU's own link without latency.
    Raises ConfigError for values out of range.
    """

    name = "roofline"

    def __init__(
        self,
        platform: Platform,
        *,
        compute_efficiency: float = 1.0,
        memory_efficiency: float = 1.0,
        link_gbps: float | None = None,
        link_efficiency: float = 1.0,
        allreduce_latency_us: float = 0.0,
        allreduce: str = "ring",
        collectives: str | None = None,
    ) -> None:
        link = Link(link_gbps, link_efficiency, allreduce_latency_us, allreduce, collectives)
        faults = link.faults()
        if not platform.gpu.memory_gbps:
            faults.append(f"cost_model: roofline has no figures for {platform.gpu.name}; take a profile of it: table")
        check_number(faults, "compute_efficiency", compute_efficiency, 0, 1, above=True)
        check_number(faults, "memory_efficiency", memory_efficiency, 0, 1, above=True)
        if faults:
            raise ConfigError(faults)
        self.is_bound = compute_efficiency == memory_efficiency == 1 and link == Link()
        gpu, model, ranks = platform.gpu, platform.model, platform.tensor_parallel_size
        flops_per_ns = gpu.bf16_tflops * 1e3 * compute_efficiency
        bytes_per_ns = gpu.memory_gbps * memory_efficiency  # GB/s is bytes per nanosecond
        width = model.dtype_bytes

        def group(outputs: int, inputs: int, times: int) -> tuple[float, float, float]:
            """(compute per row, weights once, activations per row) of `times` linear layers, in ns."""
            weights = times * outputs * inputs
            activations = times * (outputs + inputs)
            return (
                2 * weights / flops_per_ns,
                weights * width / bytes_per_ns,
                activations * width / bytes_per_ns,
            )

        self._gemms = tuple(group(g.outputs, g.inputs, model.layers) for g in model.gemms(ranks))
        self._known: dict[tuple[int, int], float] = {}
        self._lm_head = group(-(-model.vocab // ranks), model.hidden, 1)
        self._allreduce = allreduce_curve(platform, link)
        self._pair = model.attention_flops_per_pair / ranks / flops_per_ns
        self._kv = model.kv_bytes_per_token(ranks, width) / bytes_per_ns
        # A query row in and an output row out, in every layer.
        self._query = 2 * model.layers * (model.heads // ranks) * model.head_dim * width / bytes_per_ns

    def _linear_ns(self, tokens: int, rows: int) -> float:
        """Linear layers and all-reduces; batches of the same size come again and again, so their times are kept."""
        known = self._known.get((tokens, rows))
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[tokens, rows] = self._computed_linear_ns(tokens, rows)
        return known

    def _computed_linear_ns(self, tokens: int, rows: int) -> float:
        ns = self._allreduce.at(tokens)
        for compute, weights, activations in self._gemms:
            bound, traffic = compute * tokens, weights + activations * tokens
            ns += bound if bound > traffic else traffic
        compute, weights, activations = self._lm_head
        bound, traffic = compute * rows, weights + activations * rows
        return ns + (bound if bound > traffic else traffic)

    def iteration_ns(self, shape: BatchShape) -> int:
        """Sum of the groups' times. A mixed batch reads the weights once and makes two attention calls."""
        prefill, decode_seqs, context, _ = shape
        if not prefill:
            ns = self._linear_ns(decode_seqs, decode_seqs)
        else:
            tokens = pairs = held = 0
            for new, before in prefill:
                tokens += new
                pairs += new * before + new * (new + 1) // 2
                held += new + before
            ns = self._linear_ns(tokens + decode_seqs, len(prefill) + decode_seqs)
            bound, traffic = self._pair * pairs, self._kv * held + self._query * tokens
            ns += bound if bound > traffic else traffic
        bound, traffic = self._pair * context, self._kv * context + self._query * decode_seqs
        return iteration_ns(ns + (bound if bound > traffic else traffic))

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """k decode iterations: only the attention's contexts change."""
        seqs = shape.decode_seqs
        contexts = shape.decode_context + seqs * np.arange(k, dtype=np.int64)
        attention = np.maximum(self._pair * contexts, self._kv * contexts + self._query * seqs)
        return whole_ns(self._linear_ns(seqs, seqs) + attention)
