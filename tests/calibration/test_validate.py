"""The shipped tables' profiles and reports, made again from the rows that are kept with the tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from calibration.fit import fit_profile
from calibration.importers.imported import Imported
from calibration.importers.layer_points import layer_points, summed_steps
from calibration.importers.llmservingsim import sources
from calibration.points import FIT
from calibration.report import Report
from calibration.validate import validate
from experiments.commands.profile import REPORTS
from simulator.hf_config import read_json
from simulator.profile import Profile, load_profile, shipped_profiles
from tests.bench.shipped_profiles import (
    ALL_POINTS,
    BOUNDS,
    FITTED,
    MODEL,
    PAGE,
    Fitted,
    bounded,
    fitted,
    report_on,
)  # fmt: skip

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
STEPS = "stack (summed kernels)"
SAID = dict.fromkeys(("device", "dtype", "engine", "source", "licence"), "here")


@cache
def made(name: str) -> tuple[Profile, Imported]:
    return fitted(next(one for one in FITTED if one.name == name), KERNELS)


@cache
def layers_report() -> Report:
    (source,) = sources(KERNELS / "rtxpro6000_part")
    rows = layer_points(source, model=MODEL, tp=1).rows
    profile = fit_profile(
        rows, name="part", model=MODEL, tensor_parallel_size=1, gpu="rtx-pro-6000", metadata=SAID
    )  # fmt: skip
    return validate(profile, [*rows, *summed_steps(rows, model=MODEL, tp=1)], {})


@pytest.mark.parametrize("one", FITTED, ids=lambda one: one.name)
def test_a_shipped_profile_is_what_the_fit_makes_of_its_tables(one: Fitted, tmp_path: Path) -> None:
    made(one.name)[0].save(tmp_path / "p.json")
    shipped = load_profile(one.name)
    again = load_profile(tmp_path / "p.json")
    assert again.metadata == shipped.metadata
    for mine, there in ((again.token_ops, shipped.token_ops), (again.sequence_ops, shipped.sequence_ops)):
        assert [(op.op, op.count, op.basis, op.axis) for op in mine] == [
            (op.op, op.count, op.basis, op.axis) for op in there
        ]
        for a, b in zip(mine, there, strict=True):
            assert a.us == pytest.approx(b.us, rel=1e-4), a.op
    for part in ("prefill", "several", "decode"):
        a, b = getattr(again.attention, part), getattr(shipped.attention, part)
        assert (a.rows, a.columns) == (b.rows, b.columns)
        for mine_us, there_us in zip(a.us, b.us, strict=True):
            assert mine_us == pytest.approx(there_us, rel=1e-4), part


@pytest.mark.parametrize("one", FITTED, ids=lambda one: one.name)
def test_a_shipped_report_is_what_comes_out_again(one: Fitted) -> None:
    report = report_on(one, *made(one.name))
    shipped = Report.from_json(read_json(REPORTS / f"{one.name}.json"))
    assert report.points == shipped.points
    for mine, there in zip(report.regions, shipped.regions, strict=True):
        assert (mine.operation, mine.region, mine.points) == (there.operation, there.region, there.points)
        for key in ("median_pct", "p90_pct", "max_pct", "bias_pct"):
            assert getattr(mine, key) == pytest.approx(getattr(there, key), abs=0.05), (mine.operation, key)


@pytest.mark.parametrize("one", FITTED, ids=lambda one: one.name)
def test_held_out_errors_stay_within_their_bounds(one: Fitted) -> None:
    found = bounded(report_on(one, *made(one.name)))
    assert [one.region.operation for one in found] == ["linear", "prefill", "decode"]
    assert not [one.cells() for one in found if not one.met]


def test_mixed_calls_and_whole_steps_stay_within_their_bounds() -> None:
    report = layers_report()
    found = bounded(report)
    assert len(found) == len(BOUNDS)
    assert not [one.cells() for one in found if not one.met]
    mixed = {r.operation: r for r in report.regions if r.region in ("all", "mixed")}
    assert mixed["mixed"].points > 500


def test_a_step_is_the_sum_of_its_kernels() -> None:
    (source,) = sources(KERNELS / "rtxpro6000_part")
    rows = layer_points(source, model=MODEL, tp=1).rows
    at = {(r.point.op, r.point.n, r.point.k, r.point.m): r.median_us for r in rows if r.point.m}
    steps = summed_steps(rows, model=MODEL, tp=1)
    assert {row.split for row in steps} == {"off_grid"}
    held = {row.point: row.median_us for row in rows if row.split != FIT}
    (step,) = (row for row in steps if (row.point.n_dec, row.point.kv_dec, row.point.chunk) == (1, 64, 0))
    (attention,) = (us for p, us in held.items() if (p.op, p.n_dec, p.kv_dec) == ("decode", 1, 64))
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    layer = sum(at["linear", n, k, 1] for n, k in shapes) + 2 * at["norm", 0, 0, 1]
    layer += at["rope", 0, 0, 1] + at["activation", 0, 0, 1] + attention
    ends = at["embedding", 0, 0, 1] + at["norm", 0, 0, 1] + at["linear", 128256, 4096, 1] + at["sampling", 0, 0, 1]
    assert step.median_us == pytest.approx(32 * layer + ends)


def test_every_shipped_profile_has_a_report() -> None:
    assert sorted(path.stem for path in REPORTS.glob("*.json")) == shipped_profiles()
    for path in REPORTS.glob("*.json"):
        report = Report.from_json(read_json(path))
        assert report.profile == path.stem
        fitted_here = path.stem in {one.name for one in FITTED}
        assert report.note == ("" if fitted_here else ALL_POINTS)
        assert {region.operation for region in report.regions} >= {"linear", "prefill", "decode"}
        assert (STEPS in {region.operation for region in report.regions}) is not fitted_here


def test_the_page_shows_every_shipped_report() -> None:
    page = PAGE.read_text()
    for name in shipped_profiles():
        assert Report.from_json(read_json(REPORTS / f"{name}.json")).markdown("###", worst=False) in page
