from __future__ import annotations

import sys

import numpy as np
import pytest

from calibration.fitting.forms import Roofline, fit_linear, fit_roofline, gathered, gemm_work
from calibration.fitting.grids import decode_grid, smooth_grid
from simulator.errors import MissingError

TRUTH = Roofline(3.0, 5e8, 2e6, 2.5)
TOKENS = np.array([1.0, 4, 16, 64, 256, 1024, 4096])


def timed(shapes: list[tuple[int, int]]) -> dict[tuple[int, int, int], float]:
    return {(int(m), n, k): float(us)
            for n, k in shapes for m, us in zip(TOKENS, TRUTH.us(*gemm_work(TOKENS, n, k)), strict=True)}  # fmt: skip


def test_a_roofline_by_hand() -> None:
    assert Roofline(3.0, 10.0, 4.0, 2.0).us(np.array([30.0]), np.array([16.0])) == pytest.approx(3 + 5)


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_fit_finds_the_roofline(noise: float) -> None:
    rng = np.random.default_rng(1)
    work, moved = (10 ** rng.uniform(*ends, 300) for ends in ((5, 12), (5, 9)))
    us = TRUTH.us(work, moved) * (1 + noise * rng.standard_normal(300))
    us[::50] *= 1.4  # some points go their own way
    found = fit_roofline(work, moved, us)
    close = 0.003 + 2 * noise
    assert found.floor_us == pytest.approx(TRUTH.floor_us, rel=close)
    assert found.work_per_us == pytest.approx(TRUTH.work_per_us, rel=close)
    assert found.bytes_per_us == pytest.approx(TRUTH.bytes_per_us, rel=close)
    assert found.power == pytest.approx(TRUTH.power, rel=4 * close)


def test_a_linear_layer_that_was_never_timed_takes_the_residual_of_its_neighbours() -> None:
    times = timed([(n, k) for n in (1024, 4096, 8192) for k in (1024, 4096, 8192)])
    exact = TRUTH.us(*gemm_work(TOKENS, 6144, 4096))
    assert fit_linear(times).us(TOKENS, 6144, 4096) == pytest.approx(exact, rel=0.01)
    slower = {key: us * (1.2 if key[1] >= 4096 else 1.0) for key, us in times.items()}
    near, far = fit_linear(slower).us(TOKENS, 6144, 8192), TRUTH.us(*gemm_work(TOKENS, 6144, 8192))
    assert np.median(near / far) == pytest.approx(1.2, abs=0.08)  # as its neighbours, not as the mean of all shapes


def test_without_scipy_a_fit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingError, match=r"scipy.*pip install -e '\.\[calibrate\]' in a clone"):
        fit_roofline(TOKENS, TOKENS, TOKENS)


def test_times_of_one_size_become_their_median() -> None:
    assert gathered([(8, 3.0), (1, 2.0), (8, 5.0), (8, 4.0)]) == ((1, 8), (2.0, 4.0))


def decode(rows: float, context: float) -> float:
    return 5 + 0.1 * rows + 0.002 * rows * context


def test_missing_crossings_are_filled_in() -> None:
    cells = {(r, c): decode(r, c) for r in (1, 4, 16, 64) for c in (16, 256, 4096) if r * c <= 70_000}
    del cells[4, 256], cells[16, 16]
    table = decode_grid(cells)
    assert (table.rows, table.columns, table.total_tokens) == ((1, 4, 16, 64), (16, 256, 4096), 16 * 4096)
    assert table.us[1][1] == pytest.approx(decode(4, 256), rel=0.02)
    assert table.us[2][0] == pytest.approx(decode(16, 16), rel=0.15)
    assert table.us[3][2] == pytest.approx(decode(64, 4096))  # beyond what was timed the row goes on straight
    assert table.us[0] == tuple(cells[1, c] for c in table.columns)


def test_lines_with_a_single_crossing_are_left_out() -> None:
    grid = {(r, c): decode(r, c) for r in (1, 4, 16) for c in (16, 256)}
    assert decode_grid({**grid, (7, 3000): 9.0}) == decode_grid(grid)
    assert decode_grid(grid).total_tokens is None


def test_a_grid_is_filled_along_the_row_and_by_the_form_along_the_column() -> None:
    def form(chunk: float, context: float) -> float:
        return 4 + 1e-3 * chunk * (context + chunk / 2)

    cells = {(r, c): 1.1 * form(r, c) for r in (16, 64, 256) for c in (0, 100, 400)}
    kept = {cell: us for cell, us in cells.items() if cell not in ((64, 100), (256, 400))}
    table = smooth_grid(kept, form)
    assert table.us[1][1] == pytest.approx(cells[64, 100])
    assert table.us[2][2] == pytest.approx(cells[256, 400])
    assert smooth_grid({(r, 0): form(r, 0) for r in (16, 64)}, form).us == ((form(16, 0),), (form(64, 0),))
