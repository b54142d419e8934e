"""The loop: points in their order, anchors between, drift watched, everything on disk when it ends, however it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from calibration.harness.backends import Built, Device, Kernels, Reading
from calibration.harness.findings import clocks, describe, falls, repeat_floor_pct, skipped
from calibration.harness.grid import Planned
from calibration.harness.order import ANCHOR, POINT, REPEAT, Visit, anchors, visits
from calibration.harness.progress import Progress
from calibration.harness.records import Records
from calibration.harness.stats import mad, median, quantile
from calibration.harness.stopping import Stopped, Watch
from calibration.harness.timing import Labels, Measurement, Sample, measure, throttling, usual_clock
from calibration.points import FLAGGED, OK, Point, Timed
from simulator.errors import SimError

BLOCK = 25  # timings between two looks at the anchors
DRIFTED, UNSTABLE = 0.03, 0.10
MAX_AGAIN = 2  # blocks that are timed again for drift, and timings again of a throttled point
MAX_RETRIES = 60  # of throttled points in a run: where clocks are always throttled, timing all again is for nothing
SAVE_EVERY_S = 2.0
COMPLETE = "complete"
UNSUPPORTED = "skipped_unsupported"


class Session:
    """One run over a plan. `rows` and `anchor_us` hold what an earlier run of the same plan left."""

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        planned: Sequence[Planned],
        records: Records,
        *,
        seed: int,
        watch: Watch,
        progress: Progress,
        rows: Sequence[Timed] = (),
        anchor_us: Mapping[str, list[float]] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.device, self.kernels, self.planned, self.records = device, kernels, planned, records
        self.watch, self.progress, self.about = watch, progress, dict(about or {})
        self.warnings: list[str] = list(self.about.get("warnings", []))
        self.anchor_us: dict[str, list[float]] = {key: list(us) for key, us in (anchor_us or {}).items()}
        self.readings: list[Reading] = []
        self.drifts: list[float] = list(self.about.get("drifts", []))
        self.rows = _by_plan(rows, planned)
        self._points = {each.point for each in planned}
        self._pending = [visit for visit in visits(planned, seed) if not self._is_done(visit)]
        self._order, self._redone, self._retries, self._saved = 0, 0, 0, time.monotonic()
        self._owed: list[float] = []  # drifts over blocks that are to be timed again
        progress.total = len(self._pending)

    def run(self) -> str:
        """Time what is pending. Returns COMPLETE, or why it stopped: `budget` or `interrupted`."""
        outcome = COMPLETE
        try:
            if self._pending:
                self._drift()
            self._loop(deque(self._pending))
        except Stopped as stopped:
            outcome = str(stopped)
        finally:
            self.progress.finish()
            self.save()
        return outcome

    def _loop(self, queue: deque[Visit]) -> None:
        block: list[Visit] = []
        while queue:
            visit = queue.popleft()
            self._visit(visit)
            self.progress.step(describe(visit.point))
            block.append(visit)
            if len(block) == BLOCK or not queue:
                again = self._again(block)
                self.progress.more(len(again))
                queue.extend(again)  # last, so that a budget first goes to what wasn't timed at all
                block = []
            if time.monotonic() - self._saved > SAVE_EVERY_S:
                self.save()
        self._owed.clear()

    def save(self) -> None:
        """Write points.csv and meta.json as they stand."""
        self.records.save(self.rows.values(), {**self.about, **self.found()})
        self._saved = time.monotonic()

    def found(self) -> dict[str, Any]:
        """What meta.json says about the run so far."""
        rows = list(self.rows.values())
        return {
            "status": self.status,
            "drift_pct": round(self._worst * 100, 2),
            "drifts": [round(drift, 5) for drift in (*self.drifts, *self._owed)],
            "repeat_floor_pct": repeat_floor_pct(rows),
            "clocks": clocks(self.readings) or self.about.get("clocks", {}),
            "skipped": skipped(rows),
            "points": {"planned": len(self.planned), "timed": sum(row.timed for row in rows)},
            "anchors": self.anchor_us,
            "warnings": list(dict.fromkeys((*self.warnings, *self.device.warnings(), *falls(rows)))),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    @property
    def status(self) -> str:
        """`partial` until every point was visited, then `stable`, `drifted` or `unstable` by the worst drift."""
        if len(self.rows) < len(self.planned):
            return "partial"
        return "unstable" if self._worst > UNSTABLE else "drifted" if self._worst > DRIFTED else "stable"

    @property
    def _worst(self) -> float:
        return max((*self.drifts, *self._owed), default=0.0)

    def _is_done(self, visit: Visit) -> bool:
        row = self.rows.get(visit.point)
        return row is not None and (visit.purpose == POINT or bool(row.repeat_us) or not row.timed)

    def _visit(self, visit: Visit) -> None:
        """Time a point and keep what came out; a repeat is kept beside the first time."""
        timed = self._timed(visit)
        before = self.rows.get(visit.point)
        if visit.purpose == REPEAT:
            if before and before.timed and timed.timed:
                self.rows[visit.point] = replace(before, repeat_us=timed.median_us)
        else:
            self.rows[visit.point] = replace(timed, repeat_us=before.repeat_us) if before else timed

    def _timed(self, visit: Visit) -> Timed:
        """Time one point, again where clocks were throttled; a failure of the device is a reason to skip."""
        self.watch.check()
        self._order += 1
        point, split = visit.point, visit.planned.split
        try:
            measurement, why = self._measured(visit, self.kernels.build(point))
        except Stopped:
            raise
        except Exception as error:
            return self._skipped(visit, error)
        finally:
            self.device.release()
        labels = measurement.labels
        eager = replace(point, mode=labels.mode)
        if eager != point and eager in self._points:  # the plan has it launch by launch as well
            return Timed(point, split, UNSUPPORTED, converged=0, reason=labels.reason)
        return _summary(eager, split, measurement, why)

    def _skipped(self, visit: Visit, error: Exception) -> Timed:
        """A point that the device refused. A defect of ours is raised, and so is a device that is lost."""
        skipped = Timed(visit.point, visit.planned.split, UNSUPPORTED, converged=0, reason=_one_line(error))
        try:
            status = self.device.skipped(error)
        except SimError:
            if visit.purpose == POINT:  # so that a resumed run doesn't lose the device to it again
                self.rows[visit.point] = skipped
            raise
        if not status:
            raise error
        return replace(skipped, status=status)

    def _measured(self, visit: Visit, built: Built) -> tuple[Measurement, str]:
        """(the last attempt, why it was throttled)."""
        for attempt in range(1 + MAX_AGAIN):

            def keep(labels: Labels, sample: Sample, attempt: int = attempt) -> None:
                self.watch.check()
                self.records.sample(visit, self._order, attempt, labels, sample)

            measurement = measure(self.device, visit.point, built, keep)
            self.readings += [sample.reading for sample in measurement.samples if sample.reading]
            usual = usual_clock([reading.sm_mhz for reading in self.readings])
            if not (why := throttling(measurement, usual)) or self._retries == MAX_RETRIES:
                break
            self._retries += attempt < MAX_AGAIN
        return measurement, why

    def _again(self, block: list[Visit]) -> list[Visit]:
        """Look at the anchors after a block: the block once more where they drifted, as often as allowed."""
        drift = self._drift()
        if drift > DRIFTED:
            redo = self._redone < MAX_AGAIN
            then = "; its points are timed again" if redo else ""
            self._warn(f"anchors differ by {drift:.1%} from their first times after {self._order} timings{then}")
            if redo:
                self._redone += 1
                self._owed.append(drift)
                return [visit for visit in block if visit.purpose == POINT]
        self.drifts.append(drift)
        return []

    def _drift(self) -> float:
        """Time the anchors. Returns the largest difference from their first times, as a share."""
        worst = 0.0
        for each in anchors(self.planned):
            timed = self._timed(Visit(each, ANCHOR))
            if timed.timed:
                times = self.anchor_us.setdefault(each.point.key, [])
                times.append(float(f"{timed.median_us:.6g}"))
                worst = max(worst, abs(times[-1] / times[0] - 1))
        return worst

    def _warn(self, line: str) -> None:
        self.warnings.append(line)
        self.progress.say(f"warning: {line}")


def _by_plan(rows: Sequence[Timed], planned: Sequence[Planned]) -> dict[Point, Timed]:
    """Rows by the point of the plan that they are the outcome of: one that couldn't be a graph is under its graph."""
    points = {each.point for each in planned}
    found = {}
    for row in rows:
        graph = replace(row.point, mode="graph")
        if row.point in points or graph in points:
            found[row.point if row.point in points else graph] = row
    return found


def _summary(point: Point, split: str, measurement: Measurement, why: str) -> Timed:
    us = sorted(measurement.us)
    labels = measurement.labels
    return Timed(
        point,
        split,
        status=FLAGGED if why else OK,
        median_us=median(us),
        p10_us=quantile(us, 0.1),
        p90_us=quantile(us, 0.9),
        mad_us=mad(us),
        samples=len(us),
        converged=int(measurement.converged),
        l2=labels.l2,
        clock_mode=labels.clock_mode,
        reason="; ".join(text for text in (labels.reason, why) if text),
    )


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
