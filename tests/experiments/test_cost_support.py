"""A run that leans on more than measured points says so, in its result and under its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli import main

CONFIG = """
name: far
model: llama-3.1-8b
gpu: rtx-4090
load: {num_prompts: 12, request_rate: inf, input_len: 3000, output_len: 4}
engine: {max_num_batched_tokens: 8192}
cost_model: {name: table}
figures: false
"""


def run(tmp_path: Path, *more: str) -> list[dict]:
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "out"), *more]) == 0
    return [json.loads(path.read_text())["sim"] for path in sorted((tmp_path / "out").glob("**/result.json"))]


def test_beyond_the_measured_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sim,) = run(tmp_path)
    support = sim["cost_support"]
    assert support["extrapolated"] > 0.5
    assert support["axes"]["tokens"]["measured"] == [1, 2048]
    assert support["interpolated"] + support["extrapolated"] + support["fallback"] == pytest.approx(1)
    assert sim["warnings"][-1] == support["notes"][0]
    assert "of the busy time is extrapolated (tokens 8,192, measured 1 to 2,048;" in capsys.readouterr().out


def test_within_them_there_is_nothing_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sim,) = run(tmp_path, "engine.max_num_batched_tokens=2048")
    assert sim["cost_support"]["interpolated"] > 0.99
    assert "extrapolated" not in capsys.readouterr().out


def test_operations_that_were_never_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sim,) = run(tmp_path, "gpu=h200", "engine.max_num_batched_tokens=8192")
    assert sim["cost_support"]["operations"]["gate_up"] > 0.1
    assert "on operations never timed (gate_up " in capsys.readouterr().out


def test_a_cost_model_without_points_has_none(tmp_path: Path) -> None:
    (sim,) = run(tmp_path, "cost_model.name=roofline")
    assert sim["cost_support"] is None


def test_a_sweep_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sims = run(tmp_path, "sweep.engine.max_num_batched_tokens=[4096, 8192]")
    assert len(sims) == 2
    notes = [line for line in capsys.readouterr().out.splitlines() if "extrapolated" in line]
    assert len(notes) == 1
    assert notes[0].startswith("every run: up to ")
