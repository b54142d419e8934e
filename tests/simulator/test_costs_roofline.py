from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from costs_samples import PLATFORM, TWO_GPUS

from simulator.costs.roofline import Roofline
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import GIB, Platform, get_gpu, get_model

H100 = Platform(get_model("llama-3.1-8b"), get_gpu("h100"))


def decode(n: int, context: int) -> BatchShape:
    return BatchShape((), n, n * context, context)


def test_one_decode_row_reads_the_weights_once() -> None:
    model, gpu = H100.model, H100.gpu
    read = model.weight_bytes() - model.vocab * model.hidden * 2 - 65 * model.hidden * 2  # no embeddings, no norms
    ns = Roofline(H100).iteration_ns(decode(1, 1))
    assert ns == pytest.approx(read / gpu.memory_gbps, rel=1e-3)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    model, gpu = H100.model, H100.gpu
    tokens = 8192
    flops = model.linear_flops_per_token * tokens + model.attention_flops_per_pair * tokens * (tokens + 1) / 2
    lm_head = model.vocab * model.hidden * 2 / gpu.memory_gbps
    ns = Roofline(H100).iteration_ns(BatchShape(((tokens, 0),)))
    assert ns == pytest.approx(flops / (gpu.bf16_tflops * 1e3) + lm_head, rel=1e-3)


def test_decode_reads_the_contexts() -> None:
    model = Roofline(H100)
    grown = model.iteration_ns(decode(64, 4000)) - model.iteration_ns(decode(64, 1000))
    assert grown == pytest.approx(64 * 3000 * H100.model.kv_bytes_per_token() / H100.gpu.memory_gbps, rel=1e-4)


def test_decode_is_sub_linear_in_the_batch() -> None:
    times = [Roofline(H100).iteration_ns(decode(n, 500)) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    per_row = [ns / 2**i for i, ns in enumerate(times)]
    assert per_row == sorted(per_row, reverse=True)
    assert times[5] < 1.5 * times[0]  # 32 rows cost far less than 32 iterations


def test_prefill_is_super_linear_in_the_prompt() -> None:
    model = Roofline(H100)
    times = [model.iteration_ns(BatchShape(((2**i * 1024, 0),))) for i in range(8)]
    ratios = [b / a for a, b in itertools.pairwise(times)]
    assert ratios[-1] > 2.5
    assert ratios[2:] == sorted(ratios[2:])


def test_a_chunk_costs_more_the_later_it_comes() -> None:
    model = Roofline(H100)
    times = [model.iteration_ns(BatchShape(((512, before),))) for before in (0, 512, 2048, 8192, 32768)]
    assert times == sorted(times)
    assert len(set(times)) == 5


def test_chunks_sum_up_in_one_call() -> None:
    model = Roofline(H100)
    apart = model.iteration_ns(BatchShape(((4096, 0),)))
    together = model.iteration_ns(BatchShape(((2048, 0), (2048, 0))))
    pairs = 4096 * 4097 / 2 - 2 * 2048 * 2049 / 2
    saved = H100.model.attention_flops_per_pair * pairs / (H100.gpu.bf16_tflops * 1e3)
    lm_head_row = (H100.model.vocab + H100.model.hidden) * 2 / H100.gpu.memory_gbps
    assert apart - together == pytest.approx(saved - lm_head_row, abs=2)


def test_two_gpus_halve_the_work_and_add_all_reduces() -> None:
    one = Platform(TWO_GPUS.model, TWO_GPUS.gpu, 1)
    fast_link = Platform(TWO_GPUS.model, replace(TWO_GPUS.gpu, nvlink_gbps=1e9), 2)
    shape = BatchShape(((2048, 0),))
    halved, whole = (Roofline(platform).iteration_ns(shape) for platform in (fast_link, one))
    assert halved == pytest.approx(whole / 2, rel=0.01)
    added = Roofline(TWO_GPUS).iteration_ns(shape) - halved
    assert added == pytest.approx(2 * 32 * 2048 * 4096 * 2 / 64, rel=1e-4)  # 2(p-1)/p = 1; 64 GB/s


def test_latency_counts_twice_per_layer() -> None:
    slow, plain = Roofline(TWO_GPUS, allreduce_latency_us=10), Roofline(TWO_GPUS)
    assert not slow.is_bound
    assert slow.iteration_ns(decode(1, 1)) - plain.iteration_ns(decode(1, 1)) == pytest.approx(64 * 10_000, abs=1)


def test_efficiencies_divide_the_peaks() -> None:
    shape = decode(1, 1)  # all of it is memory traffic
    ratio = Roofline(H100, memory_efficiency=0.5).iteration_ns(shape) / Roofline(H100).iteration_ns(shape)
    assert ratio == pytest.approx(2.0, rel=1e-6)
    prompt = BatchShape(((16384, 0),))
    slow = Roofline(H100, compute_efficiency=0.5).iteration_ns(prompt) / Roofline(H100).iteration_ns(prompt)
    assert slow == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("key", ["compute_efficiency", "memory_efficiency", "link_efficiency"])
@pytest.mark.parametrize("value", [0, -0.1, 1.01, "1", True, float("nan")])
def test_refuses_efficiencies_out_of_range(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^cost_model\.{key}: "):
        Roofline(PLATFORM, **{key: value})


def test_is_below_what_was_measured() -> None:
    # RTX 4090, Llama-3.1-8B, vLLM 0.19 kernels (LLMServingSim): 1 token through all layers, and the LM head.
    layers = 32 * (126.766 + 247.292 + 38.1313 + 54.898) + 1096.93
    bound = Roofline(PLATFORM).iteration_ns(decode(1, 1)) / 1e3
    assert 0.85 * layers < bound < layers


def test_ranks_hold_a_share_of_memory() -> None:
    assert TWO_GPUS.model.weight_bytes(2) < 0.51 * TWO_GPUS.model.weight_bytes()
    assert TWO_GPUS.gpu.memory_bytes > TWO_GPUS.model.weight_bytes(2) > 7 * GIB
