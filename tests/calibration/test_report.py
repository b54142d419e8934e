from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from calibration.points import FIT, HOLDOUT, OFF_GRID, Point, Timed
from calibration.predict import Prediction
from calibration.report import Report, save_errors
from calibration.validate import NEVER_TIMED, SUMMED, check, operation, region, summarise, unknown
from simulator.profile import load_profile

PROFILE = load_profile("rtx4090_llama-3.1-8b")


def timed(point: Point, split: str = HOLDOUT, us: float = 100.0, status: str = "ok", reason: str = "") -> Timed:
    return Timed(point, split, status, median_us=us, reason=reason)


def report_of(errors_pct: list[float], floor: float | None = None, op: str = "linear", split: str = HOLDOUT) -> Report:
    """A report on one point per error."""
    rows = [timed(Point(op, m=i + 1, chunk=i + 1, seqs=1), split) for i in range(len(errors_pct))]
    errors = dict(zip((row.point for row in rows), errors_pct, strict=True))
    checked = check(lambda point: Prediction(100.0 + errors[point], "interpolated"), rows)
    return summarise(PROFILE, checked, {} if floor is None else {op: floor}, {})


def test_statistics_of_known_errors() -> None:
    (region,) = report_of([1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11]).regions
    assert (region.operation, region.region, region.points) == ("linear", "m <= 64", 11)
    assert (region.median_pct, region.p90_pct, region.max_pct) == pytest.approx((6.0, 10.0, 11.0))
    assert region.bias_pct == pytest.approx(6 / 11)


def test_fitted_points_never_count() -> None:
    assert report_of([50, 60], split=FIT).regions == ()
    assert report_of([50, 60], split=OFF_GRID).regions[0].points == 2


@pytest.mark.parametrize(
    ("floor", "median", "passed", "limit"), [(None, 2.9, True, 3.0), (None, 3.1, False, 3.0), (4.0, 5.9, True, 6.0),
                                             (4.0, 6.1, False, 6.0), (1.0, 3.1, False, 3.0)],
)  # fmt: skip
def test_the_gate_of_linears_follows_the_repeat_floor(
    floor: float | None, median: float, passed: bool, limit: float
) -> None:
    report = report_of([median] * 3, floor)
    assert report.regions[0].limit_pct == pytest.approx(limit)
    assert report.regions[0].passed is passed
    assert bool(report.misses()) is not passed
    assert ("pass" if passed else "MISS") in report.text()


def test_the_gate_of_whole_steps_has_a_tail() -> None:
    (narrow,) = report_of([4.0] * 8 + [14.0] * 2, op="stack").regions
    (wide,) = report_of([4.0] * 8 + [20.0] * 2, op="stack").regions
    assert narrow.passed
    assert not wide.passed
    assert "p90 <= 15" in wide.gate
    (mixed,) = report_of([9.0], op="mixed").regions
    (norm,) = report_of([90.0], op="norm").regions
    assert mixed.limit_pct == 10.0
    assert norm.gate == ""
    assert norm.passed


def test_regions() -> None:
    places = {
        region(Point("linear", m=64)): "m <= 64", region(Point("linear", m=65)): "m 65 to 1,024",
        region(Point("linear", m=1025)): "m > 1,024", region(Point("prefill", seqs=4, chunk=256)): "<= 1,024 tokens",
        region(Point("prefill", seqs=4, chunk=257)): "> 1,024 tokens",
        region(Point("decode", n_dec=16, kv_dec=1024)): "<= 16k KV tokens",
        region(Point("decode", n_dec=16, kv_dec=1025)): "> 16k KV tokens",
        region(Point("decode", n_dec=2, kv_dec=5, kv_max=8)): "uneven lengths",
        region(Point("stack", n_dec=2, kv_dec=5)): "decode", region(Point("stack", seqs=1, chunk=5)): "prefill",
        region(Point("layer", seqs=1, chunk=5, n_dec=1, kv_dec=1)): "mixed",
        region(Point("mixed", seqs=1, chunk=5, n_dec=1, kv_dec=1)): "all",
    }  # fmt: skip
    assert all(got == wanted for got, wanted in places.items())
    assert operation(timed(Point("stack", mode="eager"))) == "stack (eager)"
    assert operation(timed(Point("stack"), reason=SUMMED)) == "stack (summed kernels)"
    assert operation(timed(Point("linear"), reason=NEVER_TIMED)) == "linear (as if never timed)"
    assert operation(timed(Point("linear"), reason="clocks were low", status="flagged")) == "linear"


def test_what_was_never_timed_has_no_gate() -> None:
    rows = [timed(Point("linear", m=1), reason=NEVER_TIMED)]
    (region,) = summarise(PROFILE, check(lambda point: Prediction(200.0, "fallback"), rows), {}, {}).regions
    assert (region.gate, region.passed, region.fallback) == ("", True, 1)


def test_several_regions_are_followed_by_all_which_has_the_gate() -> None:
    rows = [timed(Point("linear", m=m)) for m in (2000, 1, 2, 500)]
    checked = check(lambda point: Prediction(100.0 + point.m / 100, "interpolated"), rows)
    report = summarise(PROFILE, checked, {}, {})
    assert [(r.region, r.points, r.gate != "") for r in report.regions] == [
        ("m <= 64", 2, False), ("m 65 to 1,024", 1, False), ("m > 1,024", 1, False), ("all", 4, True),
    ]  # fmt: skip
    assert [row.where for row in report.worst] == ["m 2000", "m 500", "m 2", "m 1"]


def test_what_cannot_be_predicted_is_counted_and_skipped_points_are_not() -> None:
    def predict(point: Point) -> Prediction:
        if point.op == "norm":
            raise KeyError("norm")
        return Prediction(100.0, "fallback" if point.m == 1 else "extrapolated")

    rows = [timed(Point("linear", m=1)), timed(Point("linear", m=2)), timed(Point("norm", m=1)),
            timed(Point("norm", m=2), FIT), Timed(Point("linear", m=9), HOLDOUT, "skipped_oom")]  # fmt: skip
    checked = check(predict, rows)
    report = summarise(PROFILE, checked, {}, unknown(rows, checked))
    assert report.unpredicted == {"norm": 1}
    assert "No prediction for 1 of norm." in report.text()
    assert (report.regions[0].extrapolated, report.regions[0].fallback) == (1, 1)
    assert "1 extrapolated, 1 fallback" in report.text()


def test_json_goes_there_and_back() -> None:
    report = report_of([1.23456, -2, 30], 2.5)
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again.text() == report.text()
    assert again.markdown() == report.markdown()
    assert again.to_json() == report.to_json()


def test_markdown_is_a_table() -> None:
    lines = report_of([1, 2, 3]).markdown("##").splitlines()
    assert lines[0] == "## rtx4090_llama-3.1-8b"
    tables = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in tables[:3]}) == 1
    assert "| linear | m <= 64 | 3 | 2.0 | 2.8 | 3.0 | +2.0 | pass: median <= 3.0 |" in tables


def test_every_error_is_in_the_csv_file(tmp_path: Path) -> None:
    rows = [timed(Point("linear", m=1)), timed(Point("linear", m=2), FIT, 200.0), timed(Point("decode", n_dec=3))]
    checked = check(lambda point: Prediction(110.0, "interpolated"), rows)
    save_errors(tmp_path / "errors.csv", checked)
    with (tmp_path / "errors.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["op"], line["m"], line["split"], line["error_pct"]) for line in lines] == [
        ("decode", "0", "holdout", "10.000"), ("linear", "2", "fit", "-45.000"), ("linear", "1", "holdout", "10.000"),
    ]  # fmt: skip
