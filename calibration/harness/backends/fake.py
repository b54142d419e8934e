"""A device whose times are a known formula with seeded noise: what a fit must recover. No torch, no waiting.

One rank of a GPU that does PEAK_FLOPS and reads BANDWIDTH bytes per microsecond, with 2-byte numbers:

    linear       LAUNCH + p-norm(FLOPs / PEAK_FLOPS, bytes / BANDWIDTH), exponent SMOOTH: a smooth roofline
    elementwise  LAUNCH + bytes / BANDWIDTH
    prefill      ATTENTION + the same smooth roofline over FLOPs and bytes of all sequences of the call
    decode       ATTENTION + ROW n + bytes of n kv keys and values / BANDWIDTH; uneven: + SKEW (t(longest) - t(mean))
    mixed        p-norm(prefill, IN_MIXED x decode), exponent JOIN
    layer        the sum of LAYER_CALLS, the linears and the attention
    stack        embedding + layers + final norm, LM head and sampling of rows + HOST_BASE + HOST_SEQUENCE x rows
    eager        HOST_LAUNCH per launched kernel on top (whole layers and stacks)
    allreduce    LINK_START + 2 (r - 1) / r x bytes / LINK_BANDWIDTH: a ring
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from calibration.harness.backends import Built, Call, Reading, skip_status
from calibration.points import ELEMENTWISE, Point
from simulator.specs import ModelSpec

PEAK_FLOPS, BANDWIDTH = 2.0e8, 2.0e6  # per microsecond: 200 TFLOP/s, 2 TB/s
LAUNCH, ATTENTION = 2.0, 4.0
SMOOTH, JOIN = 4.0, 1.3
ROW = 0.05  # microseconds per decode row
SKEW, IN_MIXED = 0.05, 1.5
HOST_BASE, HOST_SEQUENCE, HOST_LAUNCH = 40.0, 0.5, 3.0
LINK_START, LINK_BANDWIDTH = 8.0, 3.0e5
NOISE = 0.01
BYTES = 2
MEMORY_BYTES, L2_BYTES = 80 << 30, 50 << 20

# Calls per layer, beside its four linears and its attention.
LAYER_CALLS = {"norm": 2, "rope": 1, "kv_write": 1, "activation": 1, "add": 2}
_LAYER_LAUNCHES = sum(LAYER_CALLS.values()) + 5
_STACK_LAUNCHES = 4  # embedding, final norm, LM head, sampling


def true_us(point: Point, model: ModelSpec, tp: int = 1) -> float:
    """Microseconds of one call, without noise; see the module for the formulas."""
    if point.op == "linear":
        return _linear(point.m, point.n, point.k)
    if point.op in ELEMENTWISE:
        return LAUNCH + point.m * _bytes_per_row(point.op, model, tp) / BANDWIDTH
    if point.op == "allreduce":
        return LINK_START + 2 * (point.ranks - 1) / point.ranks * point.bytes / LINK_BANDWIDTH
    if point.op == "layer":
        eager = HOST_LAUNCH * _LAYER_LAUNCHES if point.mode == "eager" else 0.0
        return _layer(point, model, tp) + eager
    if point.op == "stack":
        return _stack(point, model, tp)
    return _attention(point, model, tp)


def _linear(m: int, n: int, k: int) -> float:
    return LAUNCH + _roofline(2.0 * m * n * k, BYTES * (n * k + m * (n + k)))


def _roofline(flops: float, moved: float) -> float:
    return _norm(flops / PEAK_FLOPS, moved / BANDWIDTH, SMOOTH)


def _norm(a: float, b: float, p: float) -> float:
    return float((a**p + b**p) ** (1 / p))


def _bytes_per_row(op: str, model: ModelSpec, tp: int) -> int:
    queries, kv = model.heads // tp * model.head_dim, model.kv_heads_per_rank(tp) * model.head_dim
    numbers = {
        "embedding": 2 * model.hidden,
        "norm": 2 * model.hidden,
        "rope": 2 * (queries + kv),
        "activation": (3 if model.gated_mlp else 2) * model.intermediate // tp,
        "add": 3 * model.hidden,
        "kv_write": 4 * kv,
        "sampling": -(-model.vocab // tp),
    }
    return BYTES * numbers[op]


def _attention(point: Point, model: ModelSpec, tp: int) -> float:
    if not point.n_dec:
        return _prefill(point, model, tp)
    decode = _decode(point, model, tp)
    return _norm(_prefill(point, model, tp), IN_MIXED * decode, JOIN) if point.chunk else decode


def _prefill(point: Point, model: ModelSpec, tp: int) -> float:
    width, kv = model.heads // tp * model.head_dim, model.kv_heads_per_rank(tp) * model.head_dim
    pairs = point.chunk * (point.ctx + (point.chunk + 1) / 2)
    moved = BYTES * 2 * (kv * (point.ctx + point.chunk) + width * point.chunk)
    return ATTENTION + _roofline(4.0 * width * point.seqs * pairs, moved * point.seqs)


def _decode(point: Point, model: ModelSpec, tp: int) -> float:
    pair = 2 * BYTES * model.kv_heads_per_rank(tp) * model.head_dim / BANDWIDTH
    uneven = SKEW * pair * point.n_dec * (point.longest - point.kv_dec)
    return ATTENTION + ROW * point.n_dec + pair * point.n_dec * point.kv_dec + uneven


def _layer(point: Point, model: ModelSpec, tp: int) -> float:
    tokens = point.tokens
    linears = sum(_linear(tokens, gemm.outputs, gemm.inputs) for gemm in model.gemms(tp))
    rest = sum(count * true_us(Point(op, m=tokens), model, tp) for op, count in LAYER_CALLS.items())
    return linears + rest + _attention(point, model, tp)


def _stack(point: Point, model: ModelSpec, tp: int) -> float:
    rows = point.seqs + point.n_dec
    ends = true_us(Point("embedding", m=point.tokens), model, tp)
    ends += sum(true_us(Point(op, m=rows), model, tp) for op in ("norm", "sampling"))
    ends += _linear(rows, -(-model.vocab // tp), model.hidden)
    launches = _STACK_LAUNCHES + point.layers * _LAYER_LAUNCHES if point.mode == "eager" else 0
    host = HOST_BASE + HOST_SEQUENCE * rows + HOST_LAUNCH * launches
    return point.layers * _layer(point, model, tp) + ends + host


class FakeDevice:
    """Calls move a clock of its own forward by their true time; a block's time is that times (1 + noise)."""

    kind = "fake"
    graphs = True
    asynchronous = False
    flush_bytes = 2 * L2_BYTES
    sustained_s = 0.01
    sampled_s = 2.0

    def __init__(self, *, seed: int = 0) -> None:
        self.now_us = 0.0
        self.random = random.Random(seed)

    def info(self) -> dict[str, Any]:
        """As a real device's."""
        return {"name": "fake", "memory_bytes": MEMORY_BYTES, "l2_bytes": L2_BYTES}

    def clock_s(self) -> float:
        """Seconds of its own clock."""
        return self.now_us / 1e6

    def free_bytes(self) -> int:
        """Always all of it."""
        return MEMORY_BYTES

    def ranks(self, tp: int) -> int:
        """As many as asked for."""
        return tp if tp > 1 else 0

    def sync(self) -> None:
        """Nothing is ever pending."""

    def timer(self) -> FakeTimer:
        """A stopwatch on the device's clock."""
        return FakeTimer(self)

    def capture(self, calls: Sequence[Call]) -> Call:
        """The calls one after the other."""

        def replay() -> None:
            for call in calls:
                call()

        return replay

    def reading(self) -> Reading | None:
        """A steady clock."""
        return Reading(sm_mhz=1500.0)

    def warnings(self) -> list[str]:
        """None."""
        return []

    def kernels(self, model: ModelSpec, *, dtype: str, tp: int, seed: int) -> FakeKernels:
        """The formula for one rank of `model`, the same for every type."""
        return FakeKernels(self, model, tp)

    def skipped(self, error: Exception) -> str:
        """It never fails by itself."""
        return skip_status(error)

    def release(self) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """Nothing watches it."""


class FakeTimer:
    """Time between start and stop, with noise."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._started = 0.0

    def start(self) -> None:
        """Begin a block."""
        self._started = self._device.now_us

    def stop_us(self) -> float:
        """The block's true time, times 1 + NOISE x a draw from the normal distribution."""
        elapsed = self._device.now_us - self._started
        return elapsed * max(1.0 + NOISE * self._device.random.gauss(0.0, 1.0), 0.5)


class FakeKernels:
    """Points as steps of the clock."""

    engine = "the formula of the fake device"

    def __init__(self, device: FakeDevice, model: ModelSpec, tp: int) -> None:
        self._device, self._model, self._tp = device, model, tp

    def build(self, point: Point) -> Built:
        """One call: it has no cache to be cold or hot."""
        step = true_us(point, self._model, self._tp)

        def call() -> None:
            self._device.now_us += step

        return Built((call,), self._device.flush_bytes)
