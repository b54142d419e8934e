"""The plan: what is in it for a model, what a fit never sees, and that it stays the same."""

from collections import Counter
from dataclasses import replace

import pytest

from calibration.harness.grid import FULL, SMALL, axes_for, plan, plan_hash
from calibration.points import ELEMENTWISE, FIT, HOLDOUT, OFF_GRID, OPS, held_out
from simulator.specs import MODELS

LLAMA = MODELS["llama-3.1-8b"]


def test_the_linears_are_the_models_own():
    shapes = {(each.point.n, each.point.k) for each in plan(LLAMA) if each.point.op == "linear"}
    assert shapes == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    halves = {(each.point.n, each.point.k) for each in plan(LLAMA, tp=2) if each.point.op == "linear"}
    assert halves == {(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168), (64128, 4096)}


def test_every_operation_is_in_it_and_no_point_twice():
    planned = plan(LLAMA, tp=2, ranks=2)
    assert {each.point.op for each in planned} == set(OPS)
    assert len({each.point.key for each in planned}) == len(planned)
    assert 250 <= len(planned) <= 500
    reduced = [each.point for each in planned if each.point.op == "allreduce"]
    assert reduced[0].bytes == 256
    assert reduced[-1].bytes == 256 << 20
    assert {point.ranks for point in reduced} == {2}


def test_whole_steps_are_at_twenty_compositions_in_a_graph_and_launched_one_by_one():
    planned = [each.point for each in plan(LLAMA) if each.point.op in ("layer", "stack")]
    assert Counter((point.op, point.mode) for point in planned) == {
        (op, mode): 20 for op in ("layer", "stack") for mode in ("graph", "eager")
    }
    kinds = Counter((bool(point.chunk), bool(point.n_dec)) for point in planned)
    assert min(kinds[kind] for kind in ((True, False), (False, True), (True, True))) >= 20
    assert {point.layers for point in planned if point.op == "stack"} == {4}
    without = plan(MODELS["tiny"], axes=SMALL, graphs=False)
    assert {each.point.mode for each in without} == {"plain"}
    assert {each.point.layers for each in without if each.point.op == "stack"} == {2}


def test_a_fit_never_sees_a_fifth_but_sees_all_corners():
    planned = plan(LLAMA)
    splits = Counter(each.split for each in planned)
    assert 0.1 < splits[HOLDOUT] / len(planned) < 0.25
    assert all(held_out(each.point) for each in planned if each.split == HOLDOUT)
    by_point = {each.point: each.split for each in planned}
    ends = [point for point in by_point if point.op in ("linear", *ELEMENTWISE) and point.m in (1, 8192)]
    corners = [
        point for point in by_point
        if (point.op == "decode" and not point.kv_max and point.n_dec in (1, 256) and point.kv_dec in (16, 16384))
        or (point.op == "prefill" and point.seqs == 1 and point.chunk in (16, 8192) and point.ctx in (0, 16384))
    ]  # fmt: skip
    assert len(corners) == 8
    assert len(ends) == 2 * (5 + 7)
    assert {by_point[point] for point in (*ends, *corners)} == {FIT}
    assert any(held_out(point) for point in (*ends, *corners)), "else nothing was exempt"


def test_edges_of_a_large_grid_are_never_held_out():
    decode = [each for each in plan(LLAMA) if each.point.op == "decode" and not each.point.kv_max]
    held = {(each.point.n_dec, each.point.kv_dec) for each in decode if each.split == HOLDOUT}
    assert held
    assert not {n for n, _ in held} & {1, 256}
    assert not {kv for _, kv in held} & {16, 16384}


def test_each_chunk_has_each_number_of_rows_beside_it_twice_with_every_context():
    calls = list(FULL.beside.calls())
    assert set(Counter((chunk, rows) for chunk, _, rows, _ in calls).values()) == {2}
    assert len({(chunk, rows) for chunk, _, rows, _ in calls}) == 25
    assert len(set(calls)) == len(calls) == 50
    for size in (0, 2):  # chunks and rows
        for context, values in ((1, FULL.beside.contexts), (3, FULL.beside.kv)):
            beside = {(call[size], call[context]) for call in calls}
            assert len(beside) == len({call[size] for call in calls}) * len(values)
    mixed = {(p.chunk, p.ctx, p.n_dec, p.kv_dec) for p in (each.point for each in plan(LLAMA)) if p.op == "mixed"}
    assert mixed >= set(calls)


def test_points_between_the_lines_are_off_grid():
    off = [each.point for each in plan(LLAMA) if each.split == OFF_GRID]
    assert {point.m for point in off if point.op == "linear"} == {257, 513, 700}
    assert 3000 in {point.kv_dec for point in off if point.op == "decode"}
    assert 384 in {point.chunk for point in off if point.op == "prefill"}
    assert any(point.op == "mixed" for point in off)


@pytest.mark.parametrize("name", ["llama-2-7b", "opt-13b", "tiny"])
def test_nothing_is_longer_than_the_model_takes(name):
    model = MODELS[name]
    planned = plan(model)
    assert max(max(each.point.ctx + each.point.chunk, each.point.longest) for each in planned) <= model.max_model_len
    assert any(each.point.op == "rope" for each in planned) == (model.learned_positions == 0)


def test_uneven_rows_have_a_longest_of_four_means():
    uneven = [each.point for each in plan(LLAMA) if each.point.kv_max]
    assert {point.op for point in uneven} == {"decode", "mixed"}
    assert all(point.kv_max == 4 * point.kv_dec and point.n_dec > 4 for point in uneven)


def test_coarse_points_span_every_operation():
    planned = plan(LLAMA, tp=2, ranks=2)
    coarse = [each for each in planned if each.coarse]
    assert {each.point.op for each in coarse} == {each.point.op for each in planned}
    assert len(coarse) < len(planned) / 2
    for op, axis in (("linear", "m"), ("prefill", "chunk"), ("decode", "kv_dec"), ("mixed", "n_dec")):
        every, some = (
            {getattr(each.point, axis) for each in group if each.point.op == op and each.split != OFF_GRID}
            for group in (planned, coarse)
        )
        assert (min(every), max(every)) == (min(some), max(some))


def test_the_hash_tells_plans_apart():
    planned = plan(LLAMA)
    assert plan_hash(planned, dtype="bfloat16") == plan_hash(plan(LLAMA), dtype="bfloat16")
    others = [plan_hash(planned, dtype="float16"), plan_hash(planned[1:], dtype="bfloat16"), plan_hash(planned)]
    others.append(plan_hash([replace(planned[0], split=OFF_GRID), *planned[1:]], dtype="bfloat16"))
    assert len({plan_hash(planned, dtype="bfloat16"), *others}) == 5


def test_a_processor_has_a_smaller_grid_of_the_same_operations():
    small = plan(MODELS["tiny"], axes=axes_for("cpu"), graphs=False)
    full = plan(MODELS["tiny"], axes=axes_for("cuda"))
    assert axes_for("cuda") is axes_for("fake") is FULL
    assert {each.point.op for each in small} == {each.point.op for each in full}
    assert 150 <= len(small) < len(full)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_points_between_the_lines_lie_inside_the_grid(device):
    """What tests interpolation must not test extrapolation."""
    planned = plan(LLAMA, axes=axes_for(device))
    for op in ("linear", "prefill", "decode", "mixed"):
        grid = [each.point for each in planned if each.point.op == op and each.split != OFF_GRID]
        for point in (each.point for each in planned if each.point.op == op and each.split == OFF_GRID):
            for axis in ("m", "chunk", "ctx", "n_dec", "kv_dec"):
                sizes = [getattr(other, axis) for other in grid]
                assert min(sizes) <= getattr(point, axis) <= max(sizes), (point, axis)
