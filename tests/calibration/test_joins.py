from __future__ import annotations

import pytest

from calibration.fitting.joins import MixedCall, UnevenCall, fit_alphas, fit_powers


def calls(truth: dict[tuple[int, int], float]) -> list[MixedCall]:
    """Four calls per cell, joined by its p; other work of a layer takes 5 us."""
    found = []
    for (chunk, seqs), p in truth.items():
        for a in (3.0 * chunk, 4.0 * chunk):
            for b in (2.0 * seqs, 5.0 * seqs):
                us = (a**p + b**p) ** (1 / p)
                found.append(MixedCall(chunk, seqs, a, b, us, us + 5.0))
    return found


def test_finds_the_exponent_of_each_cell() -> None:
    table, errors = fit_powers(calls({(1, 1): 1.7, (1, 2): 0.9, (2, 1): 2.5}))  # (2, 2) wasn't timed
    assert (table.rows, table.columns) == ((1, 2), (1, 2))
    assert table.us[0] == (1.7, 0.9)
    assert table.us[1][0] == 2.5
    assert 0.9 <= table.us[1][1] <= 2.5  # of its neighbours' calls
    assert errors.max() < 1e-9


def test_a_cell_with_few_calls_goes_by_the_nearest_as_well() -> None:
    truth = {(64, 1): 1.1, (64, 4): 1.1, (1024, 1): 2.0, (1024, 4): 2.0}
    few = calls(truth)[::4]  # one call each, of four
    table, errors = fit_powers(few, fewest=2)
    assert table.us == ((1.1, 1.1), (2.0, 2.0))
    assert errors.max() < 1e-9
    table, errors = fit_powers(few, fewest=4)
    assert len({p for line in table.us for p in line}) == 1
    assert len(errors) == 4


def test_alpha_is_fitted_for_each_number_of_rows() -> None:
    truth = {2: 0.5, 8: 0.1}
    found = [UnevenCall(n, 10.0, t, 10.0 + alpha * (t - 10.0)) for n, alpha in truth.items() for t in (20.0, 40.0)]
    table = fit_alphas([*found, UnevenCall(64, 10.0, 20.0, 9.0)])  # faster than even: no alpha below 0
    assert table.axis == (2, 8, 64)
    assert table.values == pytest.approx((0.5, 0.1, 0.0))
