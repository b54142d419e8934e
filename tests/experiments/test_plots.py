from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from hypothesis import given
from hypothesis import strategies as st

from experiments.curves import BINS, STEPS, envelope
from experiments.plots import plot_run, plot_sweep
from experiments.results import write_result
from experiments.style import figure, line_style, log_where_wide, time_unit
from simulator.recorder import RunLog


def drawn(paths: list[Path]) -> dict[str, str]:
    """The SVG text of each figure by name, after checking that its PNG is one too."""
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
    return {path.stem: path.with_suffix(".svg").read_text() for path in paths}


def words(svg: str) -> str:
    """The texts in a figure: glyphs are paths, but each text is kept as a comment."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", svg))


def run(folder: Path, scheduler: str = "chunked", rate: float = 20.0, **changes: Any) -> tuple[RunLog, dict[str, Any]]:
    log = runs.make_log(scheduler, rate=rate)
    return log, write_result(folder, log, runs.make_context(scheduler, request_rate=rate, **changes))


def test_a_run_has_latencies_load_and_iterations_with_units(tmp_path: Path) -> None:
    figures = drawn(plot_run(*run(tmp_path), tmp_path))
    assert list(figures) == ["latency", "load", "iterations"]
    for unit in ("TTFT (ms)", "TPOT (ms)", "requests at or below (%)", "p99"):
        assert unit in words(figures["latency"])
    for text in ("Waiting", "Running (holding a slot)", "KV blocks taken", "time since the start of the run (s)"):
        assert text in words(figures["load"])
    for text in ("decode: ", "mixed: ", "iteration time (ms)", "tokens computed"):
        assert text in words(figures["iterations"])


def test_a_batch_that_answers_late_shows_no_tpot(tmp_path: Path) -> None:
    figures = drawn(plot_run(*run(tmp_path, "static"), tmp_path))
    assert "TPOT" not in words(figures["latency"])
    assert "answered when their batch ends" in words(figures["latency"])


def test_a_run_without_a_block_limit_or_second_tokens_still_draws(tmp_path: Path) -> None:
    log, result = run(tmp_path)
    log.info["num_gpu_blocks"] = None
    log.sequences["emitted_tokens"][:] = 1
    figures = drawn(plot_run(log, result, tmp_path))
    assert "KV" not in words(figures["load"])
    assert "TPOT" not in words(figures["latency"])


def test_figures_are_the_same_bytes_from_the_same_numbers(tmp_path: Path) -> None:
    log, result = run(tmp_path)
    first, second = (plot_run(log, result, tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        for suffix in (".png", ".svg"):
            assert one.with_suffix(suffix).read_bytes() == other.with_suffix(suffix).read_bytes()


def test_schedulers_at_one_rate_are_overlaid(tmp_path: Path) -> None:
    results = [run(tmp_path / name, name)[1] for name in runs.SCHEDULERS]
    figures = drawn(plot_sweep(results, tmp_path))
    assert list(figures) == ["distributions", "throughput"]
    for name in runs.SCHEDULERS:
        assert name in words(figures["distributions"])
        assert name in words(figures["throughput"])
    assert "static: no tokens before the batch ends, so no TPOT" in words(figures["distributions"])


def test_several_rates_give_one_line_per_scheduler(tmp_path: Path) -> None:
    results = [
        run(tmp_path / f"{name}{rate}", name, rate, label=f"{name}, request_rate={rate:g}")[1]
        for name in ("static", "chunked")
        for rate in (2.0, 20.0)
    ]
    figures = drawn(plot_sweep(results, tmp_path))
    assert list(figures) == ["latency_vs_rate", "throughput_vs_latency"]
    for text in ("static", "chunked", "request rate (requests/s)", "mean TTFT", "p99 TPOT", "mean E2EL"):
        assert text in words(figures["latency_vs_rate"])
    assert "request_rate=" not in words(figures["latency_vs_rate"])
    assert "from 2 to 20 requests/s along each line" in words(figures["throughput_vs_latency"])


def test_results_without_requests_on_disk_draw_what_they_can(tmp_path: Path) -> None:
    bare = {"name": "x", "out_dir": None, "backend": "openai", "request_rate": "inf", "output_throughput": 5.0}
    assert plot_sweep([bare], tmp_path) == []
    detailed = bare | {"errors": ["", ""], "ttfts": [0.1, 0.2], "itls": [[0.01], []]}
    (path,) = plot_sweep([detailed, run(tmp_path / "ours")[1] | {"sim": {}}], tmp_path)
    assert "openai" in words(path.with_suffix(".svg").read_text())


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=2, max_size=60)


@given(steps, st.integers(1, 40))
def test_an_envelope_has_the_exact_extremes_and_mean_of_each_stretch(rows: list[tuple[int, int]], bins: int) -> None:
    gaps, values = (np.array(column) for column in zip(*rows, strict=True))
    time = np.cumsum(gaps).astype(np.float64) * bins  # so that edges are whole numbers
    time -= time[0]
    edges, least, most, mean = envelope(time, values, bins)
    grid = np.arange(int(time[-1]))  # every instant, listed
    held = values[np.searchsorted(time, grid, side="right") - 1]
    for k in range(bins):
        inside = held[(grid >= round(edges[k])) & (grid < round(edges[k + 1]))]
        assert (least[k], most[k]) == (inside.min(), inside.max())
        assert mean[k] == pytest.approx(inside.mean())


def test_a_long_series_is_drawn_as_an_envelope(tmp_path: Path) -> None:
    log = runs.make_log(count=STEPS + 200, rate=50)
    result = write_result(tmp_path, log, runs.make_context())
    assert f"of each 1/{BINS} of the time" in words(drawn(plot_run(log, result, tmp_path))["load"])


def test_thirty_lines_look_different() -> None:
    assert len({(line.color, str(line.linestyle)) for line in map(line_style, range(30))}) == 30


def test_axes_are_logarithmic_only_where_values_span_far(tmp_path: Path) -> None:
    with figure(tmp_path / "x", 1, 2, 9, 2) as (_, axes):
        near, far = axes[0]
        log_where_wide(near, "x", np.array([1.0, 19.0]))
        log_where_wide(far, "x", np.array([1.0]), np.array([0.0, 1000.0]))
        log_where_wide(far, "y", np.empty(0))
        assert (near.get_xscale(), far.get_xscale(), far.get_yscale()) == ("linear", "log", "linear")
        far.set_xlim(0.01, 2_000)
        labels = [text.get_text() for text in far.get_xticklabels()]
        assert {"0.01", "1", "1000"} <= set(labels)
    assert time_unit(np.array([9_999.0])) == (1.0, "ms")
    assert time_unit(np.array([1.0]), np.array([10_000.0])) == (1000.0, "s")
