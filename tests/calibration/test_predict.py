"""One call out of a profile: the same numbers as the table cost model's, and where they come from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from calibration.points import Point
from calibration.predict import Predictor, batch_shape
from simulator.costs.table import Table
from simulator.plan import BatchShape
from simulator.profile import Profile, load_profile, shipped_profiles
from simulator.specs import Platform, get_gpu, get_model

STACKS = (
    Point("stack", layers=32, n_dec=1, kv_dec=4096),
    Point("stack", layers=32, n_dec=48, kv_dec=700),
    Point("stack", layers=32, n_dec=64, kv_dec=700, kv_max=1500),
    Point("stack", layers=32, seqs=1, chunk=700, ctx=300),
    Point("stack", layers=32, seqs=3, chunk=200),
    Point("stack", layers=32, seqs=2, chunk=500, ctx=64, n_dec=32, kv_dec=900, kv_max=2000),
)


@pytest.mark.parametrize("name", shipped_profiles())
@pytest.mark.parametrize("point", STACKS, ids=lambda point: point.key)
def test_a_whole_stack_is_an_iteration_of_the_cost_model(name: str, point: Point) -> None:
    profile = load_profile(name)
    ranks = profile.metadata["tensor_parallel_size"]
    model, gpu = get_model(profile.metadata["model"]), get_gpu(profile.metadata["gpu"])
    cost = Table(Platform(model, gpu, ranks), profile=name, **({"link_gbps": 1e6} if ranks > 1 else {}))
    us = Predictor(profile).of(point).us
    assert us == pytest.approx(cost.iteration_ns(batch_shape(point)) / 1e3, rel=1e-4 if ranks > 1 else 1e-6)


def test_a_point_as_a_batch() -> None:
    assert batch_shape(Point("mixed", seqs=2, chunk=8, ctx=3, n_dec=4, kv_dec=10, kv_max=30)) == BatchShape(
        ((8, 3), (8, 3)), 4, 40, 30
    )
    assert batch_shape(Point("prefill", seqs=1, chunk=8)) == BatchShape(((8, 0),))


@pytest.fixture
def predictor(smooth: Profile) -> Predictor:
    return Predictor(smooth)


@pytest.fixture
def smooth() -> Profile:
    sys.path.insert(0, str(Path(__file__).parents[1] / "simulator"))
    from costs_samples import smooth_document

    return Profile.from_json(json.loads(json.dumps(smooth_document())), "made up")


@pytest.mark.parametrize(
    ("point", "tag"),
    [
        (Point("linear", m=256, n=6144, k=4096), "interpolated"),
        (Point("linear", m=4096, n=6144, k=4096), "extrapolated"),
        (Point("rope", m=256), "fallback"),
        (Point("norm", m=256), "interpolated"),
        (Point("prefill", seqs=1, chunk=512, ctx=8192), "interpolated"),
        (Point("prefill", seqs=1, chunk=512, ctx=8193), "extrapolated"),
        (Point("prefill", seqs=4, chunk=128), "interpolated"),
        (Point("prefill", seqs=32, chunk=128), "extrapolated"),
        (Point("decode", n_dec=4, kv_dec=4096), "interpolated"),
        (Point("decode", n_dec=64, kv_dec=4096), "extrapolated"),
        (Point("mixed", seqs=1, chunk=128, n_dec=64, kv_dec=4096), "interpolated"),
        (Point("layer", n_dec=4, kv_dec=256), "interpolated"),  # rope is less than 1 % of it
        (Point("stack", layers=2, n_dec=4, kv_dec=5000), "extrapolated"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.key,
)
def test_tags(predictor: Predictor, point: Point, tag: str) -> None:
    assert predictor.of(point).tag == tag


def test_one_call_of_each_operation(predictor: Predictor) -> None:
    assert predictor.of(Point("linear", m=64, n=6144, k=4096)).us == 420
    assert predictor.of(Point("norm", m=100)).us == 3
    layer = 420 + 2 * 2.64 + (2 + 7 * 63 / 2047)  # gemm, two norms, rope at 64 tokens
    decode = predictor.of(Point("decode", n_dec=64, kv_dec=256)).us
    point = Point("layer", n_dec=64, kv_dec=256)
    assert predictor.of(point).us == pytest.approx(layer + decode + 0.5, rel=1e-3)
    eager = predictor.of(Point("layer", n_dec=64, kv_dec=256, mode="eager")).us
    assert eager == pytest.approx((predictor.of(point).us ** 1.5 + 40**1.5) ** (1 / 1.5))


@pytest.mark.parametrize(
    "point", [Point("linear", m=1, n=5, k=5), Point("add", m=1), Point("allreduce", bytes=1024, ranks=4)],
    ids=lambda point: point.op,
)  # fmt: skip
def test_what_a_profile_does_not_have(predictor: Predictor, point: Point) -> None:
    with pytest.raises(KeyError):
        predictor.of(point)
