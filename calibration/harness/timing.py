"""How one point is timed: warm-up, blocks of at least a millisecond, and when there are enough of them.

A sample is a block of work between two marks of the device's timer, divided by the calls in it. Sampling stops once
the median is known to 1 % with 95 % confidence, after 100 samples, or once the time that the device allows is over (2
seconds on a GPU). No sample is ever deleted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from calibration.harness.backends import Built, Call, CaptureFailed, Device, Reading
from calibration.harness.stats import half_width, median
from calibration.points import WHOLE, Point

MIN_SAMPLES, MAX_SAMPLES = 10, 100
LEAST_SAMPLES = 3  # of a point so slow that its time is over before MIN_SAMPLES
HALF_WIDTH = 0.01
BLOCK_US, LEAST_BLOCK_US = 1000.0, 50.0  # work in a block, and what a timer still resolves
MAX_REPEATS = 1 << 20
WARM_REPLAYS = 3
GRAPH_US, MAX_IN_GRAPH = 2000.0, 1024  # work in a graph, as some microseconds pass between two, and calls in one
BACK_TO_BACK_S = 0.005  # between two waits for the device while it warms
COMPUTE_TOKENS = 256  # from here on a linear layer or a chunk is bound by arithmetic, and clocks sink under load
SLOW_CLOCK = 0.9
POWER_CAP = "sw_power_cap"


class Sample(NamedTuple):
    """Microseconds per call over a block of `calls`, and the clocks during it."""

    us: float
    calls: int
    reading: Reading | None


class Labels(NamedTuple):
    """How a point was timed. `mode` is what was done, where the point's own couldn't be; `reason` says why."""

    mode: str
    l2: str
    clock_mode: str
    reason: str = ""


OnSample = Callable[[Labels, Sample], None]


class Measurement(NamedTuple):
    """The samples of a point; `converged` where the median is known to HALF_WIDTH."""

    labels: Labels
    samples: list[Sample]
    converged: bool

    @property
    def us(self) -> list[float]:
        """Microseconds per call of every sample."""
        return [sample.us for sample in self.samples]


def measure(device: Device, point: Point, built: Built, on_sample: OnSample) -> Measurement:
    """Time the calls of a point; `on_sample` gets each sample as it is taken.

    A graph that can't be captured is timed launch by launch, and labelled so. Raises what the calls raise.
    """
    if built.timed:
        return _taken(device, point, built, on_sample)
    for call in built.calls:  # kernels are chosen, compiled and loaded at the first call
        call()
    device.sync()
    run, calls, mode, reason = _prepared(device, point, built)
    for _ in range(WARM_REPLAYS):
        run()
    device.sync()
    sustained = device.sustained_s > 0 and compute_bound(point)
    if sustained:
        _run_for(device, run, device.sustained_s)
    cold = built.bytes * len(built.calls) >= device.flush_bytes
    labels = Labels(mode, "cold" if cold else "hot", "sustained" if sustained else "burst", reason)
    samples, converged = _samples(device, run, calls, lambda sample: on_sample(labels, sample))
    return Measurement(labels, samples, converged)


def compute_bound(point: Point) -> bool:
    """Whether arithmetic bounds it, not memory: then it is timed at the clocks of a busy device."""
    if point.op in WHOLE:
        return point.tokens >= COMPUTE_TOKENS
    return (point.m if point.op == "linear" else point.seqs * point.chunk) >= COMPUTE_TOKENS


def throttling(measurement: Measurement, usual_mhz: float) -> str:
    """Why the samples don't stand for the device's usual speed; empty where they do.

    That is a throttle reason of the driver, or a clock below 90 % of the run's median (`usual_mhz`, 0: unknown). The
    power cap and the clocks under it are what a sustained point is for, so there they don't count.
    """
    readings = [sample.reading for sample in measurement.samples if sample.reading]
    sustained = measurement.labels.clock_mode == "sustained"
    reasons = {reason for reading in readings for reason in reading.throttled.split("+") if reason}
    if reasons := reasons - ({POWER_CAP} if sustained else set()):
        return f"throttled: {'+'.join(sorted(reasons))}"
    slowest = min((reading.sm_mhz for reading in readings if reading.sm_mhz), default=math.inf)
    if slowest < SLOW_CLOCK * usual_mhz and not sustained:
        return f"SM clock {slowest:.0f} MHz, where {usual_mhz:.0f} is usual"
    return ""


def usual_clock(readings: list[float]) -> float:
    """The median of the SM clocks so far in MHz; 0 until there are enough to tell."""
    return median(readings) if len(readings) >= 2 * MIN_SAMPLES else 0.0


def _taken(device: Device, point: Point, built: Built, on_sample: OnSample) -> Measurement:
    """Samples of other processes, on data that stays where it is."""
    labels = Labels(point.mode, "hot", "burst")
    samples = [Sample(us, calls, device.reading()) for us, calls in built.timed]
    for sample in samples:
        on_sample(labels, sample)
    return Measurement(labels, samples, half_width([sample.us for sample in samples]) <= HALF_WIDTH)


def _prepared(device: Device, point: Point, built: Built) -> tuple[Call, int, str, str]:
    """(rounds over all calls, the calls in them, how they run, why not otherwise)."""

    def launch() -> None:
        for call in built.calls:
            call()

    if point.mode != "graph":
        return launch, len(built.calls), point.mode, ""
    calls = [*built.calls] * _turns(device, point, launch, len(built.calls))
    try:
        return device.capture(calls), len(calls), point.mode, ""
    except CaptureFailed as error:
        return launch, len(built.calls), "eager", f"graph capture failed: {error}"


def _turns(device: Device, point: Point, launch: Call, calls: int) -> int:
    """How many rounds a graph takes, so that it holds GRAPH_US of work. A whole step is a graph of its own."""
    if not device.asynchronous or point.op == "stack":
        return 1
    wanted = math.ceil(GRAPH_US / max(_block_us(device, launch, 1), 1.0))
    return max(min(wanted, MAX_IN_GRAPH // calls), 1)


def _run_for(device: Device, run: Call, seconds: float) -> None:
    end = device.clock_s() + seconds
    rounds = 1
    while (begun := device.clock_s()) < end:
        for _ in range(rounds):
            run()
        device.sync()
        if device.clock_s() < begun + BACK_TO_BACK_S:
            rounds *= 2


def _samples(device: Device, run: Call, calls: int, on_sample: Callable[[Sample], None]) -> tuple[list[Sample], bool]:
    repeats = _repeats(device, run)
    samples: list[Sample] = []
    begun = device.clock_s()
    end = begun + device.sampled_s
    while True:
        us = _block_us(device, run, repeats)
        if us < LEAST_BLOCK_US and repeats < MAX_REPEATS:  # finer than the timer tells; only if the first was slow
            repeats *= 2
            continue
        reading = device.reading()
        fresh = reading if reading and reading.at_s >= begun else None  # else it is of the point before
        samples.append(Sample(us / repeats / calls, repeats * calls, fresh))
        on_sample(samples[-1])
        if len(samples) >= MIN_SAMPLES and half_width([sample.us for sample in samples]) <= HALF_WIDTH:
            return samples, True
        late = device.clock_s() >= end and len(samples) >= LEAST_SAMPLES
        if late or len(samples) >= MAX_SAMPLES:
            return samples, False


def _repeats(device: Device, run: Call) -> int:
    """How many rounds a block needs to hold BLOCK_US of work."""
    repeats = 1
    while (us := _block_us(device, run, repeats)) < BLOCK_US and repeats < MAX_REPEATS:
        repeats = max(2 * repeats, math.ceil(repeats * BLOCK_US / max(us, LEAST_BLOCK_US)))
    return repeats


def _block_us(device: Device, run: Call, repeats: int) -> float:
    timer = device.timer()
    if device.asynchronous:  # the device is busy when the block begins, so that the first launch isn't waited for
        run()
    timer.start()
    for _ in range(repeats):
        run()
    return timer.stop_us()
