"""The shipped experiment against the measured server: kernel tables and metadata only, nothing fitted to the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main

MEASURED = "rtx4090_llama-3.1-8b_vllm-0.19.0"
LATENCIES = ("ttft", "tpot", "e2el")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rtx4090")
    assert main(["run", "rtx4090_vllm", "figures=false", "--out", str(folder)]) == 0
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        assert main(["compare", str(folder), MEASURED, "--json", "--out", str(folder / "figures")]) == 0
    document: dict[str, Any] = json.loads(lines[0])
    return document


def test_makespan_and_means_are_within_one_per_cent(found: dict[str, Any]) -> None:
    errors = {m["metric"]: m["error_pct"] for m in found["metrics"]}
    assert abs(errors["duration"]) < 1
    for name in LATENCIES:
        assert abs(errors[f"mean_{name}_ms"]) < 1


def test_percentiles_are_within_three_per_cent(found: dict[str, Any]) -> None:
    errors = {m["metric"]: m["error_pct"] for m in found["metrics"]}
    for name in LATENCIES:
        for percentile in ("p50", "p90", "p95", "p99"):
            assert abs(errors[f"{percentile}_{name}_ms"]) < 3


def test_single_requests_are_within_one_per_cent_end_to_end(found: dict[str, Any]) -> None:
    assert found["per_request"]["e2el_mape_pct"] < 1
    assert found["per_request"]["tpot_mape_pct"] < 3
    assert found["per_request"]["ttft_mape_pct"] < 3


def test_it_is_the_starved_run_that_was_measured(found: dict[str, Any]) -> None:
    assert 150 < found["preemptions"]["a"] < 220  # the server preempted about 190 times
    assert found["differences"] == []


def test_licence_and_source_lie_beside_the_data() -> None:
    from experiments.measured import shipped_runs

    folder: Path = shipped_runs()[MEASURED]
    assert "MIT License" in (folder / "LICENSE").read_text()
    assert "casys-kaist/LLMServingSim" in (folder / "README.md").read_text()
