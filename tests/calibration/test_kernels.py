"""Points as torch calls: the work is the point's own, the data rotates, and what doesn't fit is refused."""

import io
import math
import os
import time
from itertools import pairwise

import pytest
import torch

from calibration.attention import attend
from calibration.harness.allreduce import Reductions, timings
from calibration.harness.backends import OutOfMemory, Unsupported, open_device
from calibration.harness.backends.cpu import CpuDevice
from calibration.harness.grid import SMALL, plan
from calibration.harness.kernels import TorchKernels, _lengths
from calibration.harness.progress import Progress
from calibration.harness.records import Records
from calibration.harness.session import COMPLETE, Session
from calibration.harness.stopping import Watch
from calibration.points import OPS, Point, load_points
from simulator.specs import MODELS

TINY = MODELS["tiny"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def kernels(device):
    return device.kernels(TINY, dtype="float32", tp=1, seed=0)


def test_every_operation_of_a_plan_can_be_called(kernels):
    smallest = {}
    for each in plan(TINY, axes=SMALL, graphs=False):
        smallest.setdefault(each.point.op, each.point)
    assert set(smallest) == set(OPS) - {"allreduce"}
    for point in smallest.values():
        built = kernels.build(point)
        assert built.bytes > 0
        for call in built.calls:
            call()


def test_a_linear_is_of_its_shape_and_turns_over_enough_buffers(kernels, device):
    built = kernels.build(Point("linear", m=8, n=512, k=256))
    assert {tuple(call().shape) for call in built.calls} == {(8, 512)}
    assert built.bytes == 4 * (8 * 256 + 512 * 256)
    assert len(built.calls) * built.bytes >= 16 << 20
    x, weight = built.calls[0].args
    other_x, other_weight = built.calls[1].args
    assert not torch.equal(x, other_x)
    assert not torch.equal(weight, other_weight)
    assert weight.float().std() == pytest.approx(1, abs=0.05)  # random numbers, not zeros
    starts = sorted(call.args[1].data_ptr() for call in built.calls)
    assert min(b - a for a, b in pairwise(starts)) >= 4 * 512 * 256
    tiny = kernels.build(Point("norm", m=1))
    assert len(tiny.calls) == 512, "no more than that, however small they are"


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("embedding", (5, 256)),
        ("norm", (5, 256)),
        ("activation", (5, 704)),
        ("add", (5, 256)),
        ("sampling", (5,)),
    ],
)
def test_small_operations_give_what_the_layer_gives(kernels, op, shape):
    assert tuple(kernels.build(Point(op, m=5)).calls[0]().shape) == shape


def test_keys_and_values_are_written_where_nothing_else_is(kernels):
    built = kernels.build(Point("kv_write", m=20))
    key, value, keys, values = _cells(built.calls[0])
    built.calls[0]()
    written = keys.view(-1, 2, 64)
    found = sum(bool((written == row).all(dim=(1, 2)).any()) for row in key)
    assert found == 20
    assert not torch.equal(keys, values)
    assert value.shape == key.shape == (20, 2, 64)


def _cells(call):
    named = dict(zip(call.__code__.co_freevars, (cell.cell_contents for cell in call.__closure__), strict=True))
    return named["key"], named["value"], named["keys"], named["values"]


@pytest.mark.parametrize(
    ("point", "lengths"),
    [
        (Point("prefill", seqs=2, chunk=8, ctx=3), [(8, 11)] * 2),
        (Point("decode", n_dec=2, kv_dec=7), [(1, 7)] * 2),
        (Point("mixed", seqs=1, chunk=16, n_dec=2, kv_dec=7), [(16, 16), (1, 7), (1, 7)]),
        (Point("decode", n_dec=5, kv_dec=10, kv_max=40), [(1, 40), (1, 3), (1, 3), (1, 2), (1, 2)]),
    ],
)
def test_rows_have_the_lengths_of_their_point(point, lengths):
    assert _lengths(point) == lengths


def test_uneven_rows_have_their_mean_and_their_longest():
    for each in plan(MODELS["llama-3.1-8b"]):
        if each.point.kv_max:
            totals = [total for new, total in _lengths(each.point) if new == 1]
            assert sum(totals) == each.point.n_dec * each.point.kv_dec
            assert max(totals) == totals[0] == each.point.kv_max
            assert min(totals) > 0


def test_attention_is_over_pages_of_its_own_in_every_turn(kernels):
    built = kernels.build(Point("mixed", seqs=1, chunk=16, n_dec=3, kv_dec=40))
    assert len(built.calls) > 1
    assert {call.func for call in built.calls} == {attend}
    pages = [{page for row in call.args[3].rows for page in row.blocks} for call in built.calls]
    assert {len(mine) for mine in pages} == {1 + 3 * 3}
    assert len(set().union(*pages)) == sum(map(len, pages))
    assert {tuple(call().shape) for call in built.calls} == {(19, 4, 64)}
    assert any(list(row.blocks) != sorted(row.blocks) for call in built.calls for row in call.args[3].rows)
    assert built.bytes == 4 * (19 * 4 * 64 + 2 * 10 * 16 * 2 * 64)


def test_where_rows_are_read_in_runs_every_turn_has_runs_of_its_own(kernels, monkeypatch):
    monkeypatch.setattr(kernels, "_in_runs", True)
    built = kernels.build(Point("mixed", seqs=1, chunk=16, n_dec=3, kv_dec=40))
    rows = [row for call in built.calls for row in call.args[3].rows]
    assert {type(row.blocks) for row in rows} == {range}
    assert {call.args[3].gathered for call in built.calls} == {None}
    assert [len(row.blocks) for row in rows[:4]] == [1, 3, 3, 3]
    pages = [page for row in rows for page in row.blocks]
    assert sorted(pages) == list(range(10 * len(built.calls)))
    assert pages != sorted(pages)
    layer = kernels.build(Point("layer", n_dec=2, kv_dec=20))
    assert {type(row.blocks) for row in layer.calls[0].args[2].rows} == {range}


def test_a_layer_and_a_stack_run_the_decoder_at_the_points_composition(kernels):
    shape = {"seqs": 2, "chunk": 8, "n_dec": 3, "kv_dec": 20}
    layer = kernels.build(Point("layer", **shape))
    assert {tuple(call().shape) for call in layer.calls} == {(19, 256)}
    assert {call.args[0] for call in layer.calls} == {0, 1}, "layers take turns, and so do their weights"
    stack = kernels.build(Point("stack", **shape, layers=2))
    (call,) = stack.calls
    tokens = call()
    assert tokens.shape == (5,)
    assert int(tokens.max()) < TINY.vocab
    assert stack.bytes > 2 * 4 * sum(gemm.outputs * gemm.inputs for gemm in TINY.gemms())


def test_a_rank_has_its_share():
    device = open_device("cpu")
    half = TorchKernels(device, CPU, TINY, "bfloat16", tp=2, seed=0)
    assert (half.heads, half.kv_heads, half.vocab) == (2, 1, 1024)
    assert half.build(Point("decode", n_dec=2, kv_dec=20)).calls[0]().shape == (2, 2, 64)
    assert half.build(Point("layer", n_dec=2, kv_dec=20)).calls[0]().shape == (2, 256)
    assert half.build(Point("activation", m=3)).calls[0]().shape == (3, 352)
    assert half.build(Point("linear", m=3, n=8, k=8)).calls[0]().dtype == torch.bfloat16
    assert "PyTorch" in half.engine
    assert "sdpa" in half.engine
    device.close()


class Recording(CpuDevice):
    """The processor, with graphs that repeat the calls they recorded."""

    graphs = True
    asynchronous = True
    sustained_s = 0.001
    sampled_s = 0.02

    def capture(self, calls):
        recorded = list(calls)
        return lambda: [call() for call in recorded]


def test_a_session_runs_the_decoder_in_a_graph_and_launched_one_by_one(tmp_path):
    device = Recording()
    kernels = TorchKernels(device, CPU, TINY, "float32", tp=1, seed=0, rotated_bytes=1 << 20)
    planned = [each for each in plan(TINY, axes=SMALL) if each.point.tokens <= 64 and each.point.m <= 8][::5]
    records = Records(tmp_path, dtype="float32", run=1)
    session = Session(
        device, kernels, planned, records, seed=0, watch=Watch(device.clock_s), progress=Progress(0, io.StringIO())
    )
    assert session.run() == COMPLETE
    records.close()
    device.close()
    rows = load_points(tmp_path / "points.csv")
    assert {row.point for row in rows} == {each.point for each in planned}
    assert all(row.timed for row in rows)
    assert {(row.point.op, row.point.mode) for row in rows} >= {
        ("layer", "eager"),
        ("stack", "graph"),
        ("mixed", "graph"),
    }


class Small:
    """A device with `free` bytes, of which letting go of buffers gives `regained` back."""

    flush_bytes = 1 << 20

    def __init__(self, free, regained=0):
        self.free, self.regained = free, regained

    def free_bytes(self):
        return self.free

    def release(self):
        self.free += self.regained


def test_what_does_not_fit_is_refused_before_it_is_tried():
    kernels = TorchKernels(Small(64 << 20), CPU, TINY, "float32", tp=1, seed=0)
    with pytest.raises(OutOfMemory, match=r"needs 0\.5 GiB, and 0\.1 are free"):
        kernels.build(Point("decode", n_dec=64, kv_dec=4096))
    assert kernels.build(Point("decode", n_dec=2, kv_dec=16)).calls


def test_buffers_are_let_go_of_before_a_point_is_refused():
    kernels = TorchKernels(Small(64 << 20, regained=1 << 30), CPU, TINY, "float32", tp=1, seed=0)
    first = kernels.build(Point("linear", m=8, n=256, k=256))
    assert kernels.build(Point("decode", n_dec=64, kv_dec=1024)).calls
    assert math.isfinite(float(first.calls[0]().sum())), "what was built before still works"


def test_the_processor_says_why_a_point_was_skipped(device):
    assert device.skipped(OutOfMemory("no")) == "skipped_oom"
    assert device.skipped(Unsupported("no")) == "skipped_unsupported"
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    assert device.skipped(raised.value) == "skipped_oom"
    with pytest.raises(NotImplementedError) as raised:
        torch.linalg.qr(torch.ones(2, 2, dtype=torch.float16))
    assert device.skipped(raised.value) == "skipped_unsupported"
    with pytest.raises(RuntimeError) as raised:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert device.skipped(raised.value) == "", "a defect of ours"


def test_the_processor_gives_its_threads_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    device = open_device("cpu")
    assert device.info()["threads"] == torch.get_num_threads() >= 1
    device.close()
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "threads", "timer"), [(2, 1, "thread_time_ns"), (4, 3, "perf_counter_ns")])
def test_a_core_is_left_to_others_and_one_thread_is_timed_by_what_it_had(monkeypatch, cores, threads, timer):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    before = torch.get_num_threads()
    device = open_device("cpu")
    assert (device.info()["threads"], device.info()["timer"]) == (threads, timer)
    stopwatch = device.timer()
    stopwatch.start()
    time.sleep(0.02)
    assert (stopwatch.stop_us() < 20_000) == (timer == "thread_time_ns")
    device.close()
    assert torch.get_num_threads() == before


def test_an_allreduce_is_timed_by_a_process_per_rank():
    found = timings([256, 65536], 2, "float32", backend="gloo")
    assert set(found) == {256, 65536}
    assert all(us > 0 and calls >= 1 for blocks in found.values() for us, calls in blocks)


def test_ranks_that_hang_or_fail_are_a_reason_to_skip():
    with pytest.raises(Unsupported, match=r"over 2 ranks took longer than 0\.1 s"):
        timings([256], 2, "float32", backend="gloo", limit_s=0.1)
    with pytest.raises(Unsupported, match=r"all-reduce over 1 ranks: .*nothing"):
        timings([256], 1, "nothing", backend="gloo")


def test_all_sizes_are_timed_at_once_and_a_failure_is_not_tried_again(monkeypatch):
    asked = []

    def timed(sizes, ranks, dtype):
        asked.append(ranks)
        return {size: [(float(size), 1)] for size in sizes}

    monkeypatch.setattr("calibration.harness.allreduce.timings", timed)
    reductions = Reductions("bfloat16")
    for size in (256, 1024):
        assert reductions.built(Point("allreduce", bytes=size, ranks=2)).timed == [(size, 1)]
    assert asked == [2]
    reductions.built(Point("allreduce", bytes=256, ranks=2))
    assert asked == [2, 2], "a repeat is timed anew"

    def fail(sizes, ranks, dtype):
        asked.append(ranks)
        raise Unsupported("no link")

    monkeypatch.setattr("calibration.harness.allreduce.timings", fail)
    broken = Reductions("bfloat16")
    for _ in range(2):
        with pytest.raises(Unsupported, match="no link"):
            broken.built(Point("allreduce", bytes=256, ranks=2))
    assert asked == [2, 2, 2]


def test_buffers_that_grow_are_let_go_of_first(device, monkeypatch):
    kernels = TorchKernels(device, CPU, TINY, "float32", tp=1, seed=0)
    for point in (Point("decode", n_dec=2, kv_dec=16), Point("layer", n_dec=2, kv_dec=16)):
        kernels.build(point)
    held, reserve = [], kernels._reserve

    def note(size, **options):
        tensors = kernels._numbers, kernels._keys, kernels._decoder.layers[0].keys
        held.append([tensor.untyped_storage().nbytes() for tensor in tensors])
        reserve(size, **options)

    monkeypatch.setattr(kernels, "_reserve", note)
    for point in (Point("linear", m=64, n=4096, k=2048), Point("decode", n_dec=64, kv_dec=4096)):
        kernels.build(point)
    kernels.build(Point("layer", n_dec=64, kv_dec=1024))
    assert [min(sizes) for sizes in zip(*held, strict=True)] == [0, 0, 0]
