from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from costs_samples import PLATFORM, TWO_GPUS, profile_document

from simulator.costs.table import Table
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import Platform, get_gpu, get_model

# Rows of the table that the shipped RTX 4090 profile was imported from (see the README beside them).
MEASURED = Path(__file__).parents[1] / "data" / "kernels" / "rtx4090_llama-3.1-8b"


def rows(name: str) -> list[dict[str, str]]:
    with (MEASURED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def by_key(name: str, axis: str) -> dict[tuple[str, int], float]:
    return {(row["layer"], int(row[axis])): float(row["time_us"]) for row in rows(name)}


def calls() -> dict[tuple[int, ...], float]:
    keys = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    return {tuple(int(row[key]) for key in keys): float(row["time_us"]) for row in rows("attention.csv")}


def attention_ns(model: Table, shape: BatchShape) -> float:
    return model._attention.with_prefill(shape)[1]


def rest_us(tokens: int, sequences: int) -> float:
    """All but attention, by hand: 32 layers with two norms each, embedding, last norm, LM head and sampler."""
    dense, sampled = by_key("dense.csv", "tokens"), by_key("per_sequence.csv", "sequences")
    per_layer = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj", "layernorm", "layernorm")
    once = ("embedding", "final_layernorm")
    return (
        32 * sum(dense[op, tokens] for op in per_layer)
        + sum(dense[op, tokens] for op in once)
        + sum(sampled[op, sequences] for op in ("lm_head", "sampler"))
    )


@pytest.mark.parametrize(("seqs", "context"), [(1, 64), (1, 16384), (64, 1024)])
def test_decode_equals_the_source_at_its_points(seqs: int, context: int) -> None:
    attention = calls().get((0, 0, seqs, context))
    ns = Table(PLATFORM).iteration_ns(BatchShape((), seqs, seqs * context, context))
    if attention is None:  # 64 rows lie between measured ones in the subset: bounded by them
        low, high = (calls()[0, 0, n, context] for n in (16, 128))
        assert rest_us(64, 64) + 32 * low < ns / 1e3 < rest_us(64, 64) + 32 * high
    else:
        assert ns / 1e3 == pytest.approx(rest_us(seqs, seqs) + 32 * attention, abs=1e-3)


@pytest.mark.parametrize(("chunk", "before"), [(256, 0), (256, 16384), (2048, 1024)])
def test_prefill_equals_the_source_at_its_points(chunk: int, before: int) -> None:
    ns = Table(PLATFORM).iteration_ns(BatchShape(((chunk, before),)))
    assert ns / 1e3 == pytest.approx(rest_us(chunk, 1) + 32 * calls()[chunk, before, 0, 0], abs=1e-3)


def test_mixed_calls_against_the_source() -> None:
    """What the p-norm makes of all mixed calls of the subset, as time of a whole iteration."""
    model = Table(PLATFORM)
    errors = []
    for (chunk, before, seqs, context), us in calls().items():
        if chunk and seqs:
            tables = model.iteration_ns(BatchShape(((chunk, before),), seqs, seqs * context, context)) / 1e3
            attention = attention_ns(model, BatchShape(((chunk, before),), seqs, seqs * context, context)) / 1e3
            errors.append(abs(tables / (tables - attention + 32 * us) - 1))
    assert len(errors) == 81
    assert np.median(errors) < 0.02
    assert np.percentile(errors, 90) < 0.1


def test_several_chunks_cost_no_more_than_one_of_all_their_tokens_nor_than_one_by_one() -> None:
    model = Table(PLATFORM)
    for chunks in (((256, 0),) * 8, ((100, 300), (200, 600)), ((16, 0), (16, 0)), ((1000, 16000), (24, 0))):
        tokens = sum(new for new, _ in chunks)
        history = sum(new * before for new, before in chunks) // tokens
        together = attention_ns(model, BatchShape(chunks))
        as_one = attention_ns(model, BatchShape(((tokens, history),)))
        one_by_one = sum(attention_ns(model, BatchShape((chunk,))) for chunk in chunks)
        assert together == pytest.approx(min(as_one, one_by_one), rel=1e-3)
    short, long = BatchShape(((256, 0),) * 8), BatchShape(((2048, 0),))
    assert attention_ns(model, short) < 0.8 * attention_ns(model, long)  # each attends to its own prompt only


def made_up(folder: Path, platform: Platform = PLATFORM, **attention: object) -> Table:
    path = folder / "p.json"
    path.write_text(json.dumps(profile_document(**attention)))
    return Table(platform, profile=str(path))


def test_sums_by_hand(tmp_path: Path) -> None:
    model = made_up(tmp_path, skew={"decode": 0.5, "mixed": 0.5})
    seqs, mean, longest = 4, 256, 4096
    at = {kv: 5.0 + 0.5 * seqs + 0.003 * seqs * kv for kv in (mean, longest)}
    attention = 32 * (at[mean] + 0.5 * (at[longest] - at[mean]))
    gemm, norm = 32 * (400 + 3 / 63 * 20), 64 * (2 + 3 / 99)
    lm_head, host = 1000 + 3 / 255 * 500, 12.5 + 0.25 * 4
    shape = BatchShape((), seqs, seqs * mean, longest)
    assert model.iteration_ns(shape) == pytest.approx((attention + gemm + norm + lm_head + host) * 1e3, abs=1)


def test_join_rules(tmp_path: Path) -> None:
    shape = BatchShape(((128, 512),), 16, 16 * 256, 256)
    prefill = 32 * (8 + 1.28 + 1e-5 * 128 * (512 + 64))
    alone, mixed = 32 * (5 + 8 + 0.003 * 16 * 256), 32 * (9 + 12.8 + 0.006 * 16 * 256)
    none = {"decode": 0, "mixed": 0}
    added = made_up(tmp_path, decode_in_mixed=None, join={"rule": "sum"}, skew=none)
    assert attention_ns(added, shape) / 1e3 == pytest.approx(prefill + alone)
    normed = made_up(tmp_path, join={"rule": "p_norm", "p": 1.5}, skew=none)
    assert attention_ns(normed, shape) / 1e3 == pytest.approx((prefill**1.5 + mixed**1.5) ** (1 / 1.5))


def test_exponent_and_alpha_by_rows(tmp_path: Path) -> None:
    """Between the cells of a table the values run straight; beyond its ends they hold."""
    powers = {"chunk_tokens": [64, 256], "sequences": [8, 32], "p": [[2.0, 1.5], [1.2, 0.8]]}
    alphas = {"sequences": [8, 32], "alpha": [0.4, 0.1]}
    tables = made_up(tmp_path, join={"rule": "p_norm", "p": powers}, skew={"decode": alphas, "mixed": alphas})
    for chunk, seqs, p, alpha in ((64, 8, 2.0, 0.4), (160, 20, 1.375, 0.25), (9999, 600, 0.8, 0.1), (1, 1, 2.0, 0.4)):
        constants = made_up(
            tmp_path, join={"rule": "p_norm", "p": p}, skew={"decode": round(alpha, 3), "mixed": round(alpha, 3)}
        )
        for prefill in ((), ((chunk, 512),)):
            shape = BatchShape(prefill, seqs, seqs * 300, 900)
            assert tables.iteration_ns(shape) == pytest.approx(constants.iteration_ns(shape), abs=2)


def test_padded_decode_batches(tmp_path: Path) -> None:
    plain, padded = Table(PLATFORM), Table(PLATFORM, pad_decode=True)
    for seqs, size in ((1, 1), (3, 4), (5, 8), (9, 16), (250, 256), (257, 272), (512, 512), (513, 513)):
        shape = BatchShape((), seqs, seqs * 300, 300)
        linears = plain._tokens.at(size) - plain._tokens.at(seqs)
        assert padded.iteration_ns(shape) - plain.iteration_ns(shape) == pytest.approx(linears, abs=1)
    mixed = BatchShape(((50, 0),), 5, 500, 100)
    assert padded.iteration_ns(mixed) == plain.iteration_ns(mixed)


def test_uneven_contexts_cost_more(tmp_path: Path) -> None:
    for skew in ({"decode": 0.1, "mixed": 0}, {"decode": 0, "mixed": 0.1}):
        model = made_up(tmp_path, skew=skew)
        prefill = ((128, 0),) if skew["mixed"] else ()
        even, uneven = (BatchShape(prefill, 8, 8 * 500, longest) for longest in (500, 3000))
        assert model.iteration_ns(uneven) > model.iteration_ns(even)


def test_all_reduces_are_added_where_the_profile_has_none() -> None:
    shape = BatchShape(((1024, 0),))
    plain, slow = Table(TWO_GPUS), Table(TWO_GPUS, allreduce_latency_us=10, link_efficiency=0.5)
    ring = 64 * 1024 * 4096 * 2 / 64  # 2(p-1)/p = 1; 64 GB/s
    assert slow.iteration_ns(shape) - plain.iteration_ns(shape) == pytest.approx(64 * 10_000 + ring, abs=2)


def test_all_reduces_in_the_profile_are_not_added_again(tmp_path: Path) -> None:
    document = profile_document()
    document["metadata"] |= {"tensor_parallel_size": 2, "all_reduce": "included"}
    path = tmp_path / "p.json"
    two = Platform(PLATFORM.model, PLATFORM.gpu, 2)
    times = []
    for all_reduce in ("included", "absent"):
        document["metadata"]["all_reduce"] = all_reduce
        path.write_text(json.dumps(document))
        times.append(Table(two, profile=str(path)).iteration_ns(BatchShape(((1024, 0),))))
    assert times[1] - times[0] == pytest.approx(64 * 1024 * 4096 * 2 / 32, abs=2)


def test_tensor_parallelism_shrinks_the_kernels() -> None:
    one = Platform(TWO_GPUS.model, TWO_GPUS.gpu, 1)
    two = Platform(TWO_GPUS.model, replace(TWO_GPUS.gpu, nvlink_gbps=1e9), 2)
    for shape in (BatchShape((), 64, 64 * 1000, 1000), BatchShape(((2048, 0),))):
        assert 0.45 < Table(two).iteration_ns(shape) / Table(one).iteration_ns(shape) < 0.65


def test_in_range_tells_extrapolation() -> None:
    model = Table(PLATFORM)
    assert model.in_range(BatchShape(((512, 100),), 64, 64 * 500, 900))
    assert model.in_range(BatchShape((), 256, 256 * 500, 900))
    assert not model.in_range(BatchShape((), 257, 257 * 500, 900))  # more rows than measured
    assert not model.in_range(BatchShape((), 2, 2 * 17_000, 17_000))
    assert not model.in_range(BatchShape(((4096, 0),)))
    assert not model.in_range(BatchShape(((512, 20_000),)))
    assert not model.in_range(BatchShape(((512, 0),), 200, 200 * 500, 900))  # decode in mixed calls stops at 128
    skewed = Table(Platform(TWO_GPUS.model, TWO_GPUS.gpu))
    assert not skewed.in_range(BatchShape((), 64, 64 * 500, 20_000))


def test_measured_times_hardly_ever_fall_as_work_grows() -> None:
    model = Table(PLATFORM)
    by_tokens = np.array([model.iteration_ns(BatchShape(((n, 0),))) for n in range(1, 3000, 7)])
    by_context = np.array([model.iteration_ns(BatchShape((), 64, 64 * n, n)) for n in range(16, 20_000, 37)])
    by_rows = np.array([model.iteration_ns(BatchShape((), n, n * 700, 700)) for n in range(1, 400)])
    for times in (by_tokens, by_context, by_rows):
        assert (times >= 0.9 * np.maximum.accumulate(times)).all()  # the repeat spread of single measurements
        assert times[-1] > 1.2 * times[0]


def test_auto_takes_the_fitting_profile() -> None:
    assert Table(PLATFORM).profile.name == "rtx4090_llama-3.1-8b"
    assert Table(TWO_GPUS).profile.name == "rtxpro6000_llama-3.1-8b_tp2"
    same_shape = Platform(get_model("llama-3-8b"), get_gpu("rtx-4090"))
    assert Table(same_shape).profile.name == "rtx4090_llama-3.1-8b"
    with pytest.raises(ConfigError, match="none is shipped for llama-2-7b on 1 x h100"):
        Table(Platform(get_model("llama-2-7b"), get_gpu("h100")))


def test_refuses_a_profile_of_something_else() -> None:
    platform = Platform(get_model("llama-2-7b"), get_gpu("h100"), 2)
    with pytest.raises(ConfigError) as caught:
        Table(platform, profile="rtx4090_llama-3.1-8b")
    keys = [fault.split(": ")[2] for fault in caught.value.faults]
    assert keys == ["gpu", "tensor_parallel_size", "kv_heads", "intermediate", "vocab"]


@pytest.mark.parametrize("options", [{"profile": 3}, {"link_efficiency": 0}, {"allreduce_latency_us": -1}])
def test_refuses_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"^cost_model\.{next(iter(options))}: "):
        Table(PLATFORM, **options)
