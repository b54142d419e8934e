from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import curves
from simulator.curves import Curve, Grid, total

CURVE = Curve([1, 3, 10], [10.0, 20.0, 13.0])


@pytest.mark.parametrize(
    ("x", "y"),
    [(1, 10), (3, 20), (10, 13), (2, 15), (6.5, 16.5), (0, 10), (-5, 10), (11, 13), (1e9, 13)],
)
def test_lines_between_points_and_the_rule_at_the_ends(x: float, y: float) -> None:
    assert CURVE.at(x) == pytest.approx(y)


def test_the_rise_over_the_last_octave_goes_on() -> None:
    assert Curve([1, 2], [5.0, 7.0]).at(12) == 27.0
    assert Curve([4], [5.0]).at(100) == 5.0
    noisy = Curve([256, 512, 1008, 1024], [30.0, 50.0, 101.0, 98.0])  # its last segment falls
    assert noisy.at(2048) == pytest.approx(98 + 1024 * (98 - 50) / 512)


def test_rows_go_on_as_curves_do() -> None:
    grid = Grid([256, 512, 1008, 1024], [1, 2], [[30.0, 3.0], [50.0, 5.0], [101.0, 9.0], [98.0, 9.0]])
    assert grid.row(2048).at(1) == pytest.approx(98 + 1024 * (98 - 50) / 512)
    assert grid.row(2048).at(2) == pytest.approx(9 + 1024 * (9 - 5) / 512)


@given(st.lists(st.floats(-10, 40), max_size=30))
def test_many_equal_single_look_ups(xs: list[float]) -> None:
    assert CURVE.at_many(np.array(xs, dtype=np.float64)).tolist() == [CURVE.at(x) for x in xs]


def test_covers() -> None:
    assert [CURVE.covers(x) for x in (0.9, 1, 10, 10.1)] == [False, True, True, False]
    grid = Grid([1, 2], [10, 20], [[1, 2], [3, 4]])
    assert grid.covers(1, 20)
    assert not grid.covers(3, 10)
    assert not grid.covers(1, 9)


def test_grid_is_bilinear_and_exact_at_its_points() -> None:
    grid = Grid([2, 4], [0, 10], [[1, 2], [5, 10]], scale=10)
    assert [[grid.row(r).at(c) for c in (0, 10)] for r in (2, 4)] == [[10, 20], [50, 100]]
    assert grid.row(3).at(5) == pytest.approx(45)
    assert grid.row(1).at(0) == 10  # below the first row: the first row
    assert grid.row(6).at(10) == pytest.approx(180)  # above the last: on along the last segment
    assert Grid([2, 4], [0], [[5], [1]]).row(9).at(0) == 1  # but never falling
    assert Grid([2], [0], [[5]]).row(9).at(0) == 5


def test_rows_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "CACHED_ROWS", 3)
    grid = Grid([1, 100], [0], [[1], [100]])
    assert [grid.row(v).at(0) for v in range(1, 9)] == list(range(1, 9))
    assert grid.row(5) is grid.row(5)


def test_total_is_exact_at_every_point_of_every_curve() -> None:
    other = Curve([1, 2, 10], [1.0, 5.0, 6.0])
    both = total([(1, CURVE), (2, other)])
    for x in (0, 1, 2, 3, 7.7, 10):
        assert both.at(x) == pytest.approx(CURVE.at(x) + 2 * other.at(x))
