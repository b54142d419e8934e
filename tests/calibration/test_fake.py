"""The fake device's formula by hand, its noise, and its clock."""

import statistics

import pytest

from calibration.harness.backends import open_device
from calibration.harness.backends.fake import FakeDevice, true_us
from calibration.points import Point
from simulator.specs import MODELS, ModelSpec

SMALL = ModelSpec("small", 2, 1000, 10, 5, 100, 2000, 8000, 4096)
LLAMA = MODELS["llama-3.1-8b"]


def test_a_linear_is_a_launch_and_a_smooth_roofline():
    # 2 x 1000^3 FLOP at 2e8 per us = 10 us; 2 x 3 x 1000^2 bytes at 2e6 per us = 3 us.
    assert true_us(Point("linear", m=1000, n=1000, k=1000), SMALL) == pytest.approx(2 + (10**4 + 3**4) ** 0.25)


def test_small_operations_are_bytes():
    assert true_us(Point("norm", m=1000), SMALL) == pytest.approx(2 + 1000 * 2 * 1000 * 2 / 2e6)
    assert true_us(Point("activation", m=100), SMALL, tp=2) == pytest.approx(2 + 100 * 3 * 1000 * 2 / 2e6)


def test_decode_is_affine_in_rows_and_pairs():
    # 2 x 2 bytes x 5 x 100 numbers per pair
    one = true_us(Point("decode", n_dec=4, kv_dec=1000), SMALL)
    assert one == pytest.approx(4 + 0.05 * 4 + 4000 * 2000 / 2e6)
    uneven = true_us(Point("decode", n_dec=4, kv_dec=1000, kv_max=2000), SMALL)
    assert uneven - one == pytest.approx(0.05 * 4 * 1000 * 2000 / 2e6)


def test_prefill_is_a_smooth_roofline_over_all_sequences():
    flops = 4 * 1000 * 3 * 100 * (50 + 50.5) / 2e8
    moved = 2 * 2 * (500 * 150 + 1000 * 100) * 3 / 2e6
    expected = 4 + (flops**4 + moved**4) ** 0.25
    assert true_us(Point("prefill", seqs=3, chunk=100, ctx=50), SMALL) == pytest.approx(expected)


def test_mixed_joins_its_halves_by_a_norm():
    prefill = true_us(Point("prefill", seqs=1, chunk=16), SMALL)
    decode = 1.5 * true_us(Point("decode", n_dec=4, kv_dec=1000), SMALL)
    mixed = true_us(Point("mixed", seqs=1, chunk=16, n_dec=4, kv_dec=1000), SMALL)
    assert mixed == pytest.approx((prefill**1.3 + decode**1.3) ** (1 / 1.3))
    assert max(prefill, decode) < mixed < prefill + decode


def test_a_stack_is_its_layers_both_ends_and_the_host():
    shape = {"seqs": 1, "chunk": 64, "n_dec": 4, "kv_dec": 128}
    layer = true_us(Point("layer", **shape), SMALL)
    parts = sum(true_us(Point("linear", m=68, n=g.outputs, k=g.inputs), SMALL) for g in SMALL.gemms())
    small = {"norm": 2, "rope": 1, "kv_write": 1, "activation": 1, "add": 2}
    parts += sum(count * true_us(Point(op, m=68), SMALL) for op, count in small.items())
    parts += true_us(Point("mixed", **shape), SMALL)
    assert layer == pytest.approx(parts)
    ends = true_us(Point("embedding", m=68), SMALL)
    ends += sum(true_us(Point(op, m=5), SMALL) for op in ("norm", "sampling"))
    ends += true_us(Point("linear", m=5, n=8000, k=1000), SMALL)
    stack = true_us(Point("stack", **shape, layers=2), SMALL)
    assert stack == pytest.approx(2 * layer + ends + 40 + 5 * 0.5)
    eager = true_us(Point("stack", **shape, layers=2, mode="eager"), SMALL)
    assert eager - stack == pytest.approx(3 * (4 + 2 * 12))


def test_an_allreduce_is_a_ring():
    assert true_us(Point("allreduce", bytes=3_000_000, ranks=4), SMALL) == pytest.approx(8 + 2 * 0.75 * 10)


def test_blocks_have_noise_of_a_percent_the_same_for_a_seed():
    point = Point("linear", m=64, n=4096, k=4096)

    def blocks(seed):
        device = FakeDevice(seed=seed)
        (call,) = device.kernels(LLAMA, dtype="bfloat16", tp=1, seed=0).build(point).calls
        found = []
        for _ in range(400):
            timer = device.timer()
            timer.start()
            call()
            found.append(timer.stop_us() / true_us(point, LLAMA))
        return found

    assert blocks(1) == blocks(1) != blocks(2)
    assert statistics.mean(blocks(1)) == pytest.approx(1, abs=0.002)
    assert statistics.stdev(blocks(1)) == pytest.approx(0.01, rel=0.15)


def test_its_clock_moves_with_its_calls_alone():
    device = open_device("fake", seed=3)
    (call,) = device.kernels(LLAMA, dtype="bfloat16", tp=1, seed=0).build(Point("norm", m=64)).calls
    device.capture([call, call])()
    assert device.clock_s() * 1e6 == pytest.approx(2 * true_us(Point("norm", m=64), LLAMA))
