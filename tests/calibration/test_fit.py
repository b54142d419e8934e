"""A fit of the fake device's points finds the fake device: its times, its form, and what to do where points lack."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from calibration.fit import fit_profile
from calibration.fitting.hosts import UNATTRIBUTED
from calibration.harness.backends import fake
from calibration.harness.grid import plan
from calibration.points import FIT, WHOLE, Point, Timed
from calibration.predict import Predictor
from simulator.errors import ConfigError
from simulator.profile import Profile
from simulator.specs import ModelSpec, get_model

LLAMA = get_model("llama-3.1-8b")
METADATA = dict.fromkeys(("device", "engine", "source", "licence"), "a formula")
NOISE = 0.003  # a median of ten samples with the fake device's 1 %


def timed(model: ModelSpec = LLAMA, tp: int = 1, graphs: bool = True) -> list[Timed]:
    draw = random.Random(3)
    points = plan(model, tp=tp, ranks=tp, graphs=graphs)
    times = [fake.true_us(each.point, model, tp) * (1 + NOISE * draw.gauss(0, 1)) for each in points]
    return [Timed(each.point, each.split, median_us=us) for each, us in zip(points, times, strict=True)]


def fitted(rows: Sequence[Timed], model: ModelSpec = LLAMA, tp: int = 1) -> Profile:
    return fit_profile(rows, name="fake", model=model, tensor_parallel_size=tp, gpu="fake", metadata=METADATA)


@pytest.fixture(scope="module")
def rows() -> list[Timed]:
    return timed()


@pytest.fixture(scope="module")
def profile(rows: list[Timed]) -> Profile:
    return fitted(rows)


def errors(profile: Profile, rows: Sequence[Timed], op: str, which: Callable[[Timed], bool]) -> np.ndarray:
    """|predicted / true - 1|, per cent; the truth without noise."""
    at, tp = Predictor(profile).of, profile.metadata["tensor_parallel_size"]
    model = get_model(profile.metadata["model"])
    chosen = [row.point for row in rows if row.point.op == op and which(row)]
    return np.array([abs(100 * (at(point).us / fake.true_us(point, model, tp) - 1)) for point in chosen])


@pytest.mark.parametrize(
    ("op", "median", "high"),
    [("linear", 1.0, 6.0), ("prefill", 0.7, 1.5), ("decode", 0.7, 2.0), ("mixed", 0.7, 3.0), ("layer", 0.8, 2.5),
     ("stack", 0.8, 2.5)],
)  # fmt: skip
def test_held_out_errors(profile: Profile, rows: list[Timed], op: str, median: float, high: float) -> None:
    off = errors(profile, rows, op, lambda row: row.split != FIT)
    assert len(off) >= 5
    assert np.median(off) < median
    assert np.percentile(off, 90) < high


def test_the_forms_are_the_devices(profile: Profile) -> None:
    attention, roofline = profile.attention, profile.attention.roofline
    assert roofline is not None
    width, kv = LLAMA.heads * LLAMA.head_dim, LLAMA.kv_heads * LLAMA.head_dim
    assert roofline.floor_us == pytest.approx(fake.ATTENTION, rel=0.02)
    assert roofline.us_per_pair == pytest.approx(4 * width / fake.PEAK_FLOPS, rel=0.01)
    assert roofline.us_per_token == pytest.approx(2 * fake.BYTES * (width + kv) / fake.BANDWIDTH, rel=0.01)
    assert roofline.us_per_context_token == pytest.approx(2 * fake.BYTES * kv / fake.BANDWIDTH, rel=0.01)
    assert roofline.power == pytest.approx(fake.SMOOTH, rel=0.1)
    assert attention.p is not None
    powers = [p for line in attention.p.us for p in line]
    assert np.median(powers) == pytest.approx(fake.JOIN, abs=0.05)
    assert powers == pytest.approx([fake.JOIN] * len(powers), abs=0.3)
    for alpha in (*attention.skew_decode.values, *attention.skew_mixed.values):
        assert alpha == pytest.approx(fake.SKEW, abs=0.02)


def test_decode_rows_beside_a_chunk_are_told_apart_from_it(profile: Profile) -> None:
    mixed, alone = profile.attention.decode_in_mixed, profile.attention.decode
    assert mixed is not None
    for rows, context in product((16, 64), (256, 1024, 16_384)):
        times = [table.us[table.rows.index(rows)][table.columns.index(context)] for table in (mixed, alone)]
        assert times[0] / times[1] == pytest.approx(fake.IN_MIXED, rel=0.03)


def test_the_hosts_part(profile: Profile) -> None:
    assert profile.base_us == pytest.approx(fake.HOST_BASE, rel=0.25)
    assert profile.per_sequence_us == pytest.approx(fake.HOST_SEQUENCE, rel=0.4)
    assert profile.per_layer_us < 1.0
    assert profile.eager is not None
    launches = fake._LAYER_LAUNCHES * fake.HOST_LAUNCH
    assert profile.eager.per_layer_us == pytest.approx(launches, rel=0.3)
    assert profile.eager.power == pytest.approx(1.0, abs=0.15)  # the fake device's launches don't overlap


def test_launches_that_run_ahead_of_the_device_are_found_too(rows: list[Timed]) -> None:
    """Eager layers and stacks that take the longer of their kernels and 400 us of launches per layer."""
    graph = {row.point: row.median_us for row in rows}

    def longer(row: Timed) -> Timed:
        if row.point.mode != "eager":
            return row
        layers = max(row.point.layers, 1)
        return replace(row, median_us=max(graph[replace(row.point, mode="graph")], 400.0 * layers))

    ahead = fitted([longer(row) for row in rows]).eager
    assert ahead is not None
    assert ahead.per_layer_us == pytest.approx(400, rel=0.1)
    assert ahead.power > 4


def test_held_out_rows_are_not_looked_at(rows: list[Timed], profile: Profile) -> None:
    wrong = [row if row.split == FIT else replace(row, median_us=10 * row.median_us) for row in rows]
    assert fitted(wrong) == profile
    assert profile == Profile.from_json(profile.to_json(), "as its file has it")


def test_tensor_parallelism_brings_its_all_reduces() -> None:
    two = timed(tp=2)
    profile = fitted(two, tp=2)
    assert profile.metadata["all_reduce"] == "included"
    off = errors(profile, two, "allreduce", lambda row: row.split != FIT)
    assert len(off) >= 1
    assert off.max() < 3
    assert {(op.op, op.count) for op in profile.token_ops} >= {("allreduce", 2 * LLAMA.layers)}


def test_the_smallest_model_on_a_device_without_graphs() -> None:
    tiny = get_model("tiny")
    rows = timed(tiny, graphs=False)
    profile = fitted(rows, tiny)
    assert profile.eager is None
    assert np.median(errors(profile, rows, "stack", lambda row: row.split != FIT)) < 5


def without(rows: Sequence[Timed], *ops: str) -> list[Timed]:
    return [row for row in rows if row.point.op not in ops]


def test_what_was_never_timed_comes_from_the_roofline_and_says_so(rows: list[Timed]) -> None:
    def lacks(row: Timed) -> bool:
        return row.point.op in ("norm", "add", "rope", "sampling") or row.point.n == 28672

    profile = fitted([row for row in rows if not lacks(row)])
    assert profile.metadata["fallback"] == "gate_up, norm, rope, final_norm"
    assert profile.metadata["missing"] == "sampling"
    assert {op.op for op in profile.token_ops if op.basis == "fallback"} == {"gate_up", "norm", "rope"}
    at = Predictor(profile).of
    for point in (Point("linear", m=512, n=28672, k=4096), Point("rope", m=512)):
        assert at(point).tag == "fallback"
        assert at(point).us == pytest.approx(fake.true_us(point, LLAMA), rel=0.1)
    with pytest.raises(KeyError):
        at(Point("sampling", m=4))


def test_a_norm_timed_without_its_addition_has_it_inside(rows: list[Timed]) -> None:
    def ops(*absent: str) -> set[str]:
        profile = fitted(without(rows, *absent))
        return {op.op for op in profile.token_ops} & {"norm", "add", "kv_write"}

    assert ops("add", "kv_write") == {"norm"}  # an engine's kernels: its attention writes keys and values
    assert ops("add") == {"norm", "kv_write"}
    assert ops("norm", "add", "kv_write") == {"norm", "kv_write"}
    assert ops("norm") == {"norm", "add", "kv_write"}


def test_a_norm_from_the_roofline_has_the_addition_inside_where_that_was_not_timed(rows: list[Timed]) -> None:
    alone, fused = (Predictor(fitted(without(rows, *ops))).of(Point("norm", m=4096)).us
                    for ops in (("norm",), ("norm", "add")))  # fmt: skip
    floor = Predictor(fitted(without(rows, "norm"))).of(Point("norm", m=1)).us
    assert (fused - floor) / (alone - floor) == pytest.approx(2, rel=0.01)


def test_without_mixed_calls_the_halves_add_up(rows: list[Timed]) -> None:
    attention = fitted(without(rows, "mixed", "layer", "stack")).attention
    assert attention.p is attention.decode_in_mixed is None
    point = Point("mixed", seqs=1, chunk=256, n_dec=16, kv_dec=1024)
    at = Predictor(fitted(without(rows, "mixed"))).of
    chunk, alone = replace(point, op="prefill", n_dec=0, kv_dec=0), replace(point, op="decode", seqs=0, chunk=0)
    assert at(point).us == pytest.approx(at(chunk).us + at(alone).us)


def test_no_host_part_without_whole_steps(rows: list[Timed]) -> None:
    profile = fitted(without(rows, "layer", "stack"))
    assert (profile.base_us, profile.per_sequence_us, profile.eager) == (0, 0, None)


def test_too_few_prefill_calls_for_a_roofline_are_read_by_straight_lines(rows: list[Timed]) -> None:
    few = [row for row in rows if row.point.op != "prefill" or (row.point.seqs == 1 and row.point.chunk in (64, 256)
           and row.point.ctx in (0, 64))]  # fmt: skip
    attention = fitted(few).attention
    assert attention.roofline is None


@pytest.mark.parametrize(
    ("ops", "faults"),
    [
        (("linear",), ["linear: no call was timed"]),
        (("prefill", "decode"), ["prefill: no call was timed", "decode: no call was timed"]),
    ],
)
def test_what_a_fit_can_not_do_without(rows: list[Timed], ops: tuple[str, ...], faults: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        fitted(without(rows, *ops))
    assert caught.value.faults == faults


def test_prompts_alone_and_rows_of_one_length_are_needed(rows: list[Timed]) -> None:
    odd = [row for row in rows if not (row.point.op == "prefill" and row.point.seqs == 1)]
    odd = [row for row in odd if row.point.op != "decode" or row.point.kv_max]
    with pytest.raises(ConfigError) as caught:
        fitted(odd)
    assert caught.value.faults == [
        "prefill: no call of one prompt was timed", "decode: no call of rows of one length was timed",
    ]  # fmt: skip


def test_mixed_calls_that_no_table_can_be_made_of_are_left_out(rows: list[Timed]) -> None:
    uneven = [row for row in rows if row.point.op != "mixed" or row.point.ctx or row.point.kv_max]
    assert any(row.point.op == "mixed" and row.split == FIT for row in uneven)
    assert fitted(uneven).attention.decode_in_mixed is None


def test_linear_layers_of_another_model(rows: list[Timed]) -> None:
    others = [replace(row, point=replace(row.point, k=row.point.k + 8)) if row.point.n else row for row in rows]
    with pytest.raises(ConfigError, match=r"none of the layers of llama-3\.1-8b was timed \(n x k: qkv 6144 x 4096, "):
        fitted(others)
    one = [row for row in rows if row.point.n in (0, 6144)]
    with pytest.raises(ConfigError, match=r"o 4096 x 4096, .* needs 3 shapes, not 1"):
        fitted(one)


def test_what_whole_layers_take_per_token_beyond_their_kernels_is_found(rows: list[Timed]) -> None:
    """Every token of a layer 0.2 us longer than its kernels is an operation of its own; without that there is none."""
    slower = [
        replace(row, median_us=row.median_us + 0.2 * max(row.point.layers, 1) * row.point.tokens)
        if row.point.op in WHOLE
        else row
        for row in rows
    ]
    (found,) = [op for op in fitted(slower).token_ops if op.op == UNATTRIBUTED]
    assert found.us[0] == pytest.approx(0.2, rel=0.05)
    assert found.count == LLAMA.layers
    small = [op.us[0] for op in fitted(rows).token_ops if op.op == UNATTRIBUTED]
    assert sum(small) < 0.005
