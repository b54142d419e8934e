"""points.csv: what is written comes back, and what no measurement writes is refused, all of it at once."""

import pytest

from calibration.points import COLUMNS, OPS, Point, Timed, load_points, save_points
from simulator.errors import ConfigError
from tests.calibration.measured import fake_folder

ROWS = [
    Timed(Point("linear", m=8, n=64, k=32), "fit", median_us=2.5, samples=10),
    Timed(Point("norm", m=8), "holdout", status="skipped_oom", reason='too large, says "CUDA"'),
    Timed(Point("prefill", seqs=1, chunk=16, ctx=32), "fit", median_us=3),
    Timed(Point("decode", n_dec=4, kv_dec=100, kv_max=300), "off_grid", median_us=4),
    Timed(Point("layer", n_dec=4, kv_dec=100, mode="eager"), "fit", median_us=5),
    Timed(Point("stack", seqs=2, chunk=16, n_dec=4, kv_dec=100, layers=2), "fit", median_us=6),
]


@pytest.fixture
def path(tmp_path):
    save_points(tmp_path / "points.csv", ROWS)
    return tmp_path / "points.csv"


def _faults(path):
    with pytest.raises(ConfigError) as caught:
        load_points(path)
    assert all(fault.startswith(str(path)) and "\n" not in fault for fault in caught.value.faults)
    return caught.value.faults


def _edit(path, line, **cells):
    lines = [text.split(",") for text in path.read_text().splitlines()]
    for name, cell in cells.items():
        lines[line - 1][COLUMNS.index(name)] = cell
    path.write_text("".join(",".join(cells) + "\n" for cells in lines))


def test_what_is_written_comes_back(path):
    assert load_points(path) == ROWS
    path.write_text("\ufeff" + path.read_text().replace("\n", "\r\n"), newline="")
    assert load_points(path) == ROWS


def test_every_point_of_a_measurement_is_one_that_may_be_read():
    assert {row.point.op for row in load_points(fake_folder() / "points.csv")} == set(OPS) - {"allreduce"}


@pytest.mark.parametrize("cell", ["", "nan", "inf", "-1", "1e300", "9" * 400, "1_0", "\u0663", "x"])
def test_cells_that_are_no_number_in_range(path, cell):
    _edit(path, 2, m=cell, median_us=cell)
    assert [fault.split(" = ")[0] for fault in _faults(path)] == [f"{path}:2: m", f"{path}:2: median_us"]


@pytest.mark.parametrize(
    ("line", "cells", "fault"),
    [
        (2, {"op": "liner"}, "op = liner: must be one of linear, "),
        (2, {"m": "2.5"}, "m = 2.5: must be a whole number from 0 to 1e+12"),
        (2, {"n": "0"}, "n = 0: must be at least 1 for linear"),
        (2, {"seqs": "1"}, "seqs = 1: must be 0 for linear, which has no such size"),
        (2, {"median_us": "0"}, "median_us = 0: must be at least 0.001, as the point was timed"),
        (4, {"op": "decode"}, "seqs = 1: must be 0 for decode"),
        (4, {"chunk": "0"}, "chunk = 0: must be at least 1 for prefill"),
        (5, {"kv_max": "50"}, "kv_max = 50: must be at least kv_dec, 100, the mean"),
        (6, {"n_dec": "0"}, "n_dec = 0: must be at least 1 for layer"),
        (6, {"ctx": "5"}, "ctx = 5: must be 0 for layer"),
        (7, {"layers": "0"}, "layers = 0: must be at least 1 for stack"),
        (7, {"seqs": "1000000"}, "seqs = 1000000: must be a whole number from 0 to 100000"),
    ],
)
def test_sizes_that_an_operation_does_not_have(path, line, cells, fault):
    _edit(path, line, **cells)
    assert f"{path}:{line}: {fault}" in _faults(path)[0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: text + text.splitlines()[1] + "\n", ":8: the same point as in line 2: each is there once"),
        (lambda text: text + text.splitlines()[1] + ",7\n", ":8: has more cells than the first line has names"),
        (lambda text: text + "linear,1\n", ":8: has fewer cells than the first line has names"),
        (lambda text: text[:-1] + '"\n', ": isn't a CSV file: unexpected end of data"),
        (lambda text: text.replace("p10_us", "m"), ":1: lacks the columns p10_us"),
        (lambda text: text.replace("\n", ",5\n").replace("reason,5", "reason,m"), ":1: has more than one column m"),
        (lambda text: text.splitlines()[0], ": holds no points"),
    ],
)
def test_rows_and_quotes_that_would_be_read_as_something_else(path, change, fault):
    path.write_text(change(path.read_text()))
    assert _faults(path) == [f"{path}{fault}"]


def test_many_faults_are_counted(path):
    rows = [Timed(Point("norm", m=m), "fit") for m in range(1, 31)]
    save_points(path, rows)
    assert len(_faults(path)) == 21
    assert _faults(path)[-1] == f"{path}: and 10 more"
