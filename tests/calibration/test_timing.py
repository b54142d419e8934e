"""Statistics of samples, when sampling stops, and what throttling is, on a device that plays a script."""

import math
import random
import statistics

import pytest

from calibration.harness.backends import Built, CaptureFailed, Reading
from calibration.harness.backends.fake import FakeDevice
from calibration.harness.stats import half_width, mad, median, quantile
from calibration.harness.timing import Labels, Measurement, Sample, compute_bound, measure, throttling, usual_clock
from calibration.points import Point

LINEAR = Point("linear", m=64, n=512, k=256)


def test_quantiles_are_those_of_straight_lines_between_neighbours():
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [quantile(values, share) for share in (0, 0.1, 0.5, 0.9, 1)] == pytest.approx([1, 1.4, 4, 12.8, 16])
    assert median([3, 1, 2, 10]) == 2.5
    assert mad([1, 2, 3, 4, 100]) == 1


def test_the_interval_of_the_median_is_between_order_statistics():
    ten = [100.0 + i for i in range(10)]
    # P(Bin(10, 1/2) < 2) = 11/1024 <= 2.5 % < P(< 3) = 56/1024: from the second to the ninth.
    assert half_width(ten) == pytest.approx((108 - 101) / 2 / 104.5)
    assert half_width(ten[:5]) == math.inf  # 2 x 1/32 > 5 %: five values can't tell
    assert half_width(ten[:6]) == pytest.approx((105 - 100) / 2 / 102.5)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(1)
    inside = 0
    for _ in range(1000):
        values = sorted(draw.expovariate(1.0) for _ in range(30))
        wide, middle = half_width(values) * statistics.median(values), math.log(2)
        # For n = 30 the 10th smallest and largest; the interval isn't symmetric, so look at its ends.
        low, high = values[9], values[-10]
        assert (high - low) / 2 == pytest.approx(wide)
        inside += low <= middle <= high
    assert 930 <= inside <= 985  # 95.7 % exactly


class Scripted(FakeDevice):
    """Blocks take what `noise` says, as a share of their true time."""

    def __init__(self, noise, step_us=100.0):
        super().__init__()
        self.noise, self.step_us, self.blocks = iter(noise), step_us, []

    def timer(self):
        return ScriptedTimer(self)

    def call(self):
        self.now_us += self.step_us


class ScriptedTimer:
    def __init__(self, device):
        self.device = device

    def start(self):
        self.begun = self.device.now_us

    def stop_us(self):
        true = self.device.now_us - self.begun
        self.device.blocks.append(true)
        return true * (next(self.device.noise) if true >= 1000 else 1.0)


def _endless(*values):
    while True:
        yield from values


def _measured(device, point=LINEAR, copies=1, size=0):
    seen = []
    built = Built([device.call] * copies, size)
    return measure(device, point, built, lambda labels, sample: seen.append((labels, sample))), seen


def test_a_steady_device_is_sampled_ten_times_in_blocks_of_a_millisecond():
    device = Scripted(_endless(1.0))
    found, seen = _measured(device)
    assert found.us == [100.0] * 10
    assert found.converged
    assert [sample for _, sample in seen] == found.samples
    assert device.blocks[-1] == 1000.0
    assert found.samples[0].calls == 10


def test_a_noisy_one_until_the_median_is_known_to_a_percent():
    draw = random.Random(2)
    found, _ = _measured(Scripted(1 + draw.gauss(0, 0.02) for _ in range(1000)))
    assert found.converged
    assert 10 < len(found.samples) < 100
    assert half_width(found.us) <= 0.01 < half_width(found.us[:-1])


def test_a_hopeless_one_a_hundred_times_and_no_sample_is_dropped():
    found, seen = _measured(Scripted(_endless(1.0, 9.0)))
    assert not found.converged
    assert len(found.samples) == len(seen) == 100
    assert max(found.us) == 900.0


def test_a_slow_one_no_longer_than_it_is_allowed():
    found, _ = _measured(Scripted(_endless(1.0, 1.5), step_us=400_000.0))
    assert len(found.samples) == 5  # 2 seconds
    found, _ = _measured(Scripted(_endless(1.0, 1.5), step_us=2_000_000.0))
    assert len(found.samples) == 3
    assert not found.converged


def test_blocks_are_whole_rounds_over_all_copies():
    device = Scripted(_endless(1.0), step_us=300.0)
    found, _ = _measured(device, copies=5, size=1)
    assert found.samples[0].calls == 5
    assert device.blocks[-1] == 1500.0
    assert found.labels.l2 == "hot"
    assert _measured(device, copies=5, size=device.flush_bytes // 5)[0].labels.l2 == "cold"


def test_compute_bound_points_run_for_a_while_before_they_are_timed():
    assert compute_bound(Point("linear", m=256))
    assert compute_bound(Point("mixed", seqs=2, chunk=128, n_dec=4))
    assert not compute_bound(Point("decode", n_dec=512, kv_dec=4096))
    assert not compute_bound(Point("norm", m=8192))
    assert compute_bound(Point("stack", n_dec=512, kv_dec=4096, layers=4)), "its linears are"
    device = Scripted(_endless(1.0))
    device.sustained_s = 0.3
    found, _ = _measured(device, Point("linear", m=512, n=8, k=8))
    assert found.labels.clock_mode == "sustained"
    assert device.clock_s() >= 0.3
    device.sustained_s = 0.0
    assert _measured(device, Point("linear", m=512, n=8, k=8))[0].labels.clock_mode == "burst"


def test_a_busy_start_where_calls_return_before_their_work_is_done():
    device = Scripted(_endless(1.0))
    device.asynchronous = True
    found, _ = _measured(device)
    assert found.us == [100.0] * 10
    assert device.blocks == [100.0, *[2000.0] * 11], "one round by itself, then graphs of 2 ms"
    lead_ins = device.now_us / 100 - sum(device.blocks) / 100
    assert lead_ins == 1 + 1 + 20 * (3 + 11)  # the first call, the round's, three replays and one before each block


@pytest.mark.parametrize(
    ("point", "copies", "step_us", "calls"),
    [
        (LINEAR, 3, 10.0, 201),
        (LINEAR, 512, 1.0, 1024),
        (LINEAR, 1, 5000.0, 1),
        (Point("stack", n_dec=1, kv_dec=16, layers=4), 1, 500.0, 1),
        (Point("layer", n_dec=1, kv_dec=16, mode="eager"), 1, 500.0, 1),
    ],
)
def test_a_graph_holds_rounds_enough_for_the_gap_to_the_next_not_to_count(point, copies, step_us, calls):
    device = Scripted(_endless(1.0), step_us=step_us)
    device.asynchronous = True
    captured = []
    capture = device.capture
    device.capture = lambda calls: captured.append(len(calls)) or capture(calls)
    found = measure(device, point, Built([device.call] * copies, 0), lambda labels, sample: None)
    assert found.us == pytest.approx([step_us] * 10)
    assert captured == [calls] * (point.mode == "graph")
    assert all(sample.calls % calls == 0 for sample in found.samples)


def test_a_reading_from_before_the_first_sample_is_not_its_own():
    device = Scripted(_endless(1.0))
    stale = Reading(900.0, at_s=-1.0)
    device.reading = lambda: stale
    built = Built([device.call], 0)
    found = measure(device, LINEAR, built, lambda labels, sample: None)
    assert {sample.reading for sample in found.samples} == {None}
    stale = Reading(900.0, at_s=device.clock_s() + 0.01)
    found = measure(device, LINEAR, built, lambda labels, sample: None)
    assert {sample.reading for sample in found.samples} == {stale}


def test_what_cannot_be_captured_is_launched_one_by_one_and_says_so():
    class NoGraphs(Scripted):
        def capture(self, calls):
            raise CaptureFailed("an operation that waits")

    found, _ = _measured(NoGraphs(_endless(1.0)))
    assert found.labels.mode == "eager"
    assert found.labels.reason == "graph capture failed: an operation that waits"
    plain, _ = _measured(NoGraphs(_endless(1.0)), Point("linear", m=1, n=8, k=8, mode="plain"))
    assert plain.labels == Labels("plain", "hot", "burst")


def test_blocks_that_others_timed_are_taken_as_they_are():
    device = Scripted(())
    built = Built((), 4096, timed=[(20.0 + i / 100, 50) for i in range(20)])
    seen = []
    found = measure(device, Point("allreduce", bytes=4096, ranks=2, mode="eager"), built, lambda *s: seen.append(s))
    assert len(found.samples) == len(seen) == 20
    assert found.converged
    assert found.labels.mode == "eager"


def _with(reading, clock_mode="burst"):
    return Measurement(Labels("graph", "cold", clock_mode), [Sample(1.0, 1, reading)], True)


def test_throttling_is_a_reason_of_the_driver_or_a_slow_clock():
    assert throttling(_with(Reading(1500.0)), 1500.0) == ""
    assert throttling(_with(None), 1500.0) == ""
    assert throttling(_with(Reading(1500.0, throttled="hw_slowdown+sw_power_cap")), 0.0) == (
        "throttled: hw_slowdown+sw_power_cap"
    )
    assert throttling(_with(Reading(1300.0)), 1500.0) == "SM clock 1300 MHz, where 1500 is usual"
    assert throttling(_with(Reading(1360.0)), 1500.0) == ""


def test_under_sustained_load_the_power_cap_is_what_is_measured():
    capped = _with(Reading(1200.0, throttled="sw_power_cap"), "sustained")
    assert throttling(capped, 1500.0) == ""
    hot = _with(Reading(1200.0, throttled="sw_power_cap+hw_thermal_slowdown"), "sustained")
    assert throttling(hot, 1500.0) == "throttled: hw_thermal_slowdown"


def test_the_usual_clock_takes_readings_to_know():
    assert usual_clock([1500.0] * 5) == 0.0
    assert usual_clock([1500.0] * 30 + [900.0] * 10) == 1500.0
