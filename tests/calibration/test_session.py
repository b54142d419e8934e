"""The loop, on fake devices that misbehave in one way each: nothing is lost, and everything is said."""

import csv
import io
import json
import signal
from dataclasses import replace

import pytest

from calibration.harness.backends import CaptureFailed, OutOfMemory, Reading, Unsupported
from calibration.harness.backends.fake import FakeDevice, FakeKernels, true_us
from calibration.harness.grid import plan
from calibration.harness.order import POINT, REPEAT, anchors, visits
from calibration.harness.progress import Progress
from calibration.harness.records import RAW_COLUMNS, Records, load
from calibration.harness.session import COMPLETE, Session
from calibration.harness.stopping import BUDGET, INTERRUPTED, Watch
from calibration.points import FLAGGED, OK, Point, load_points
from simulator.errors import SimError
from simulator.specs import MODELS

TINY = MODELS["tiny"]
PLAN = plan(TINY)
SOME = [each for each in PLAN if each.point.op in ("linear", "norm", "prefill", "decode", "stack")][::3]


class Kernels(FakeKernels):
    """The fake's, with `before` called for each point that is built."""

    def __init__(self, device, before):
        super().__init__(device, TINY, 1)
        self.before = before

    def build(self, point):
        self.before(point)
        return super().build(point)


class Run:
    """A session in `folder` and what came of it."""

    def __init__(self, folder, *, planned=SOME, device=None, before=lambda point: None, budget_s=None, resume=False):
        self.device = device or FakeDevice(seed=1)
        self.said = io.StringIO()
        rows, meta = load(folder) if resume else ([], {})
        self.files = Records(folder, dtype="bfloat16", run=2 if resume else 1)
        self.watch = Watch(self.device.clock_s, budget_s)
        self.session = Session(
            self.device, Kernels(self.device, before), planned, self.files, seed=7, watch=self.watch,
            progress=Progress(0, self.said), rows=rows, anchor_us=meta.get("anchors"), about=meta,
        )  # fmt: skip
        self.folder = folder

    def go(self):
        try:
            self.outcome = self.session.run()
        finally:
            self.files.close()
        self.rows, self.meta = load(self.folder)
        return self

    @property
    def raw(self):
        return list(csv.DictReader((self.folder / "raw.csv").read_text().splitlines()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("whole")).go()


def test_every_point_is_timed_close_to_the_truth(whole):
    assert whole.outcome == COMPLETE
    assert whole.meta["status"] == "stable"
    assert {row.point for row in whole.rows} == {each.point for each in SOME}
    assert {row.split for row in whole.rows} >= {"fit", "holdout", "off_grid"}
    for row in whole.rows:
        assert row.median_us == pytest.approx(true_us(row.point, TINY), rel=0.02)
        assert row.p10_us < row.median_us < row.p90_us
        assert 10 <= row.samples <= 100
        assert row.status == OK


def test_raw_holds_every_block(whole):
    assert tuple(whole.raw[0]) == RAW_COLUMNS
    row = next(row for row in whole.rows if row.point.op == "prefill")
    blocks = [
        line for line in whole.raw
        if line["purpose"] == POINT and line["op"] == "prefill" and line["chunk"] == str(row.point.chunk)
        and line["ctx"] == str(row.point.ctx) and line["seqs"] == str(row.point.seqs)
    ]  # fmt: skip
    assert len(blocks) == row.samples
    assert {line["sm_mhz"] for line in blocks} == {"1500"}
    times = sorted(float(line["t_us"]) for line in blocks)
    assert times[0] <= row.p10_us <= row.p90_us <= times[-1]


def test_a_tenth_is_timed_twice_far_apart_and_gives_the_repeat_floor(whole):
    repeated = [row for row in whole.rows if row.repeat_us]
    assert {row.point.op for row in repeated} == {each.point.op for each in SOME}
    assert len(repeated) >= 0.1 * len(SOME) - 3
    assert all(0 <= floor < 3 for floor in whole.meta["repeat_floor_pct"].values())
    order = visits(PLAN, 7)
    first = {visit.point: i for i, visit in enumerate(order) if visit.purpose == POINT}
    apart = [i - first[visit.point] for i, visit in enumerate(order) if visit.purpose == REPEAT]
    assert min(apart) > len(PLAN) / 5


def test_the_order_is_drawn_and_coarse_points_go_first():
    order = [visit for visit in visits(PLAN, 7) if visit.purpose == POINT]
    assert visits(PLAN, 7) == visits(PLAN, 7) != visits(PLAN, 8)
    assert {visit.point for visit in order} == {each.point for each in PLAN}
    coarse = [visit.planned.coarse for visit in order]
    assert coarse == sorted(coarse, reverse=True)
    operations = {each.point.op for each in PLAN}
    assert {visit.point.op for visit in order[: len(operations)]} == operations
    sizes = [visit.point.m for visit in order if visit.point.op == "linear"]
    assert sizes != sorted(sizes)


def test_five_anchors_are_timed_again_every_25_points(whole):
    chosen = anchors(SOME)
    assert [each.point.op for each in chosen] == ["linear", "linear", "prefill", "decode", "norm"]
    assert chosen[0].point.m * chosen[0].point.n < chosen[1].point.m * chosen[1].point.n
    assert set(whole.meta["anchors"]) == {each.point.key for each in chosen}
    timings = len(SOME) + sum(1 for row in whole.rows if row.repeat_us)
    assert {len(times) for times in whole.meta["anchors"].values()} == {1 + -(-timings // 25)}


def test_out_of_memory_skips_the_point_with_its_reason(tmp_path):
    released = []

    def before(point):
        if point.m == 8192:
            raise OutOfMemory("needs 9.0 GiB, and 1.0 are free")

    class Device(FakeDevice):
        def release(self):
            released.append(True)

    run = Run(tmp_path, device=Device(seed=1), before=before).go()
    skipped = [row for row in run.rows if not row.timed]
    assert {row.point.m for row in skipped} == {8192}
    assert {(row.status, row.reason) for row in skipped} == {("skipped_oom", "needs 9.0 GiB, and 1.0 are free")}
    assert run.meta["skipped"] == {"skipped_oom: needs 9.0 GiB, and 1.0 are free": len(skipped)}
    assert run.outcome == COMPLETE
    assert run.meta["status"] == "stable"
    assert released


def test_a_missing_kernel_skips_the_point_and_a_defect_does_not(tmp_path):
    def refuse(point):
        if point.op == "prefill":
            raise Unsupported("no kernel for float16")

    run = Run(tmp_path / "a", before=refuse).go()
    assert {row.status for row in run.rows if row.point.op == "prefill"} == {"skipped_unsupported"}
    assert all(row.timed for row in run.rows if row.point.op != "prefill")

    def break_down(point):
        if point.op == "stack":
            raise ZeroDivisionError("ours")

    with pytest.raises(ZeroDivisionError):
        Run(tmp_path / "b", before=break_down).go()
    rows, meta = load(tmp_path / "b")
    assert meta["status"] == "partial"
    assert all(row.timed for row in rows), "what was timed before it is kept"


def test_a_device_that_is_lost_stops_the_run_and_its_point_is_not_tried_again(tmp_path):
    lost = next(each.point for each in SOME if each.coarse and each.point.op == "stack")

    class Device(FakeDevice):
        def skipped(self, error):
            raise SimError("the GPU stopped answering: illegal memory access")

    def before(point):
        if point == lost:
            raise RuntimeError("illegal memory access")

    with pytest.raises(SimError, match="stopped answering"):
        Run(tmp_path, device=Device(seed=1), before=before).go()
    run = Run(tmp_path, before=before, resume=True).go()
    assert run.outcome == COMPLETE
    (skipped,) = [row for row in run.rows if not row.timed]
    assert (skipped.point, skipped.reason) == (lost, "illegal memory access")


def test_what_cannot_be_a_graph_is_eager_and_whole_steps_are_not_timed_twice(tmp_path):
    class Device(FakeDevice):
        def capture(self, calls):
            raise CaptureFailed("it waits for the device")

    run = Run(tmp_path, device=Device(seed=1)).go()
    linear = [row for row in run.rows if row.point.op == "linear"]
    assert {row.point.mode for row in linear} == {"eager"}
    assert {row.reason for row in linear} == {"graph capture failed: it waits for the device"}
    stacks = {row.point.mode: row for row in run.rows if row.point.op == "stack"}
    planned = {each.point for each in SOME}
    for row in run.rows:
        if row.point.op == "stack" and row.point.mode == "graph":
            assert row.status == "skipped_unsupported"
            assert replace(row.point, mode="eager") in planned
    assert stacks["eager"].timed
    again = Run(tmp_path, device=Device(seed=1), resume=True).go()
    assert len(again.rows) == len(run.rows)
    assert not [line for line in again.raw if line["run"] == "2"], "nothing was left to do"


class Drifting(FakeDevice):
    """Slower by `share` from its `after`-th point on."""

    def __init__(self, share, after):
        super().__init__(seed=1)
        self.share, self.after, self.points = share, after, 0

    def slower(self, point):
        self.points += 1

    @property
    def now_us(self):
        return self._now

    @now_us.setter
    def now_us(self, value):
        step = value - getattr(self, "_now", 0.0)
        slow = getattr(self, "points", 0) > getattr(self, "after", 0)
        self._now = getattr(self, "_now", 0.0) + step * (1 + self.share * slow if slow else 1)


@pytest.mark.parametrize(("share", "status"), [(0.06, "drifted"), (0.3, "unstable")])
def test_anchors_that_drift_are_warned_of_and_their_block_is_timed_again(tmp_path, share, status):
    device = Drifting(share, after=20)
    run = Run(tmp_path, device=device, before=device.slower).go()
    assert run.meta["status"] == status
    assert run.meta["drift_pct"] == pytest.approx(share * 100, abs=2.5)
    assert "its points are timed again" in run.meta["warnings"][0]
    assert "warning: anchors differ by" in run.said.getvalue()
    visited = [(line["purpose"], line["order"]) for line in run.raw if line["purpose"] == POINT]
    assert len(set(visited)) == len(SOME) + 2 * 25  # two blocks at most
    assert len(run.rows) == len(SOME)


class Throttled(FakeDevice):
    """Slow clocks for the first `times` sample blocks of prefill."""

    def __init__(self, reading, times):
        super().__init__(seed=1)
        self.slow, self.times, self.op = reading, times, ""

    def at(self, point):
        self.op = point.op

    def reading(self):
        if self.op == "decode" and self.times:
            self.times -= 1
            return self.slow
        return Reading(1500.0)


def test_a_throttled_point_is_timed_again_at_most_twice_and_then_flagged(tmp_path):
    device = Throttled(Reading(1500.0, throttled="hw_thermal_slowdown"), times=1 << 30)
    run = Run(tmp_path / "a", device=device, before=device.at).go()
    decodes = [row for row in run.rows if row.point.op == "decode"]
    assert {(row.status, row.reason) for row in decodes} == {(FLAGGED, "throttled: hw_thermal_slowdown")}
    assert all(row.median_us > 0 for row in decodes)
    assert {line["attempt"] for line in run.raw if line["op"] == "decode"} == {"0", "1", "2"}
    assert {line["flag"] for line in run.raw if line["op"] == "decode"} == {"hw_thermal_slowdown"}
    assert {row.status for row in run.rows if row.point.op != "decode"} == {OK}
    assert run.meta["clocks"]["throttled"] == ["hw_thermal_slowdown"]

    device = Throttled(Reading(900.0), times=5)
    run = Run(tmp_path / "b", device=device, before=device.at).go()
    assert {row.status for row in run.rows} == {OK}, "the second time it wasn't"
    assert run.meta["clocks"]["sm_mhz"] == {"min": 900.0, "median": 1500.0, "max": 1500.0}


def test_where_clocks_are_always_throttled_points_are_not_timed_again_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("calibration.harness.session.MAX_RETRIES", 3)
    device = Throttled(Reading(1500.0, throttled="hw_slowdown"), times=1 << 30)
    run = Run(tmp_path, device=device, before=device.at).go()
    decodes = [row for row in run.rows if row.point.op == "decode"]
    assert {row.status for row in decodes} == {FLAGGED}
    again = {(line["order"], line["attempt"]) for line in run.raw if line["op"] == "decode" and line["attempt"] != "0"}
    assert len(again) == 3


def test_times_that_fall_as_tokens_grow_are_warned_of(tmp_path):
    run = Run(tmp_path, planned=[each for each in PLAN if each.point.op in ("linear", "norm", "prefill", "decode")])
    build = run.session.kernels.build

    def odd(point):
        fast = point.op == "norm" and point.m == 8192
        return build(Point("norm", m=1) if fast else point)

    run.session.kernels.build = odd
    run.go()
    assert [line for line in run.meta["warnings"] if line.startswith("falls: norm (m 8192, graph)")]
    assert not [line for line in run.meta["warnings"] if line.startswith("falls: linear")]


def test_a_budget_ends_it_cleanly_with_the_coarse_points(tmp_path):
    run = Run(tmp_path, budget_s=0.6).go()
    assert run.outcome == BUDGET
    assert run.meta["status"] == "partial"
    assert 5 < len(run.rows) < len(SOME)
    coarse = {each.point for each in SOME if each.coarse}
    assert {row.point for row in run.rows} <= coarse or coarse <= {row.point for row in run.rows}


def test_interrupted_it_keeps_every_point_and_goes_on(tmp_path, whole):
    built = []

    def before(point):
        built.append(point)
        if len(built) == 60:
            signal.raise_signal(signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    first = Run(tmp_path, before=before)
    with first.watch.signals():
        first.go()
    assert signal.getsignal(signal.SIGTERM) is handler
    assert first.outcome == INTERRUPTED
    assert 40 < len(first.rows) < 60
    second = Run(tmp_path, resume=True).go()
    assert second.outcome == COMPLETE
    assert second.meta["status"] == "stable"
    assert {row.point for row in second.rows} == {row.point for row in whole.rows}
    kept = {row.point: row.median_us for row in first.rows}
    assert all(row.median_us == kept[row.point] for row in second.rows if row.point in kept)
    twice = {tuple(line[name] for name in RAW_COLUMNS[4:18]) for line in second.raw if line["run"] == "1"} & {
        tuple(line[name] for name in RAW_COLUMNS[4:18])
        for line in second.raw if line["run"] == "2" and line["purpose"] == POINT
    }  # fmt: skip
    assert len(twice) <= 1 + 5, "the one that was cut off, and the anchors"
    first_times = {key: times[0] for key, times in first.meta["anchors"].items()}
    assert {key: times[0] for key, times in second.meta["anchors"].items()} == first_times


def test_a_second_signal_stops_at_once():
    watch = Watch(lambda: 0.0)
    with watch.signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch = Watch(lambda: 0.0)
    try:
        with watch.signals():
            signal.raise_signal(signal.SIGHUP)
        assert not watch.interrupted
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_torn_line_of_a_killed_run_is_dropped(tmp_path, whole):
    (tmp_path / "raw.csv").write_text(",".join(RAW_COLUMNS) + "\n1,1,point")
    Run(tmp_path, planned=SOME[:30]).go()
    lines = (tmp_path / "raw.csv").read_text().splitlines()
    assert {line.count(",") for line in lines} == {len(RAW_COLUMNS) - 1}


def test_the_files_are_whole_at_any_time(tmp_path):
    seen = []

    def before(point):
        if (tmp_path / "meta.json").exists():
            seen.append(json.loads((tmp_path / "meta.json").read_text())["status"])
            load_points(tmp_path / "points.csv")

    run = Run(tmp_path, before=before)
    run.session._saved = -1e9
    run.go()
    assert seen
    assert set(seen) == {"partial"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", "points.csv", "raw.csv"]
