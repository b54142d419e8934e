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
from experiments.style import figure, heading, legend, line_style, log_where_wide, time_unit
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


def test_runs_of_unlike_configs_share_no_line(tmp_path: Path) -> None:
    def one(name: str, rate: float, budget: int, label: str | None) -> dict[str, Any]:
        text = f"trace: {{request_rate: {rate}}}\nengine: {{max_num_batched_tokens: {budget}}}\n"
        return run(tmp_path / name, "chunked", rate, label=label, config_yaml=text)[1]

    results = [one("a", 2.0, 2048, "chunked, request_rate=2"), one("b", 20.0, 2048, None), one("c", 20.0, 512, None)]
    found = words(drawn(plot_sweep(results, tmp_path))["latency_vs_rate"])
    assert "chunked, max_num_batched_tokens=2048" in found
    assert "chunked, max_num_batched_tokens=512" in found


def test_budgets_that_only_some_runs_name_are_no_axis(tmp_path: Path) -> None:
    labels = ("max_num_batched_tokens=256", "max_num_batched_tokens=512", "other")
    results = [run(tmp_path / label, label=label)[1] for label in labels]
    assert list(drawn(plot_sweep(results[:2], tmp_path))) == ["latency_vs_budget"]
    assert list(drawn(plot_sweep(results, tmp_path))) == ["distributions", "throughput"]


def test_figures_name_what_was_run_and_what_a_growing_queue_means(tmp_path: Path) -> None:
    text = "model: m\ngpu: a100-80gb\ntrace: {path: azure-2023-conv}\n"
    log, result = run(tmp_path / "a", config_yaml=text, cost_is_bound=True, cost_model="roofline")
    result["sim"]["unstable"] = True
    for figures in (plot_run(log, result, tmp_path), plot_sweep([result, result], tmp_path)):
        for svg in drawn(figures).values():
            what = "llama-3.1-8b on a100-80gb; azure-2023-conv, 60 requests; roofline: lower bound on time"
            assert what in " ".join(words(svg).split())
    for name in ("latency", "distributions"):
        text = " ".join(words((tmp_path / f"{name}.svg").read_text()).split())
        assert "queue grew until the last arrived" in text


@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("length", [4, 40, 300])
def test_headings_and_legends_stay_inside_however_long(tmp_path: Path, count: int, length: int) -> None:
    with figure(tmp_path / "x", 1, 1, 6.4, 3.0) as (fig, axes):
        for i in range(count):
            axes[0][0].plot([0, 1], [i, i], label=f"{i} " + ("word, " * length)[:length])
        heading(fig, ("title " * length)[: length + 30], "what " * (length // 4))
        legend(fig, 4)
    fig.draw_without_rendering()
    whole = fig.bbox
    for part in (fig.legends[0], fig._suptitle):
        box = part.get_window_extent()
        assert whole.x0 - 1 <= box.x0
        assert box.x1 <= whole.x1 + 1
        assert whole.y0 - 1 <= box.y0
        assert box.y1 <= whole.y1 + 1
    assert axes[0][0].get_window_extent().height > 150  # of the plot itself, in hundredths of an inch


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
