"""A run that leans on more than measured points says so, in its result and under its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli import main
from simulator.support import most_of, support_notes

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
    assert "into operations never timed (gate_up " in capsys.readouterr().out


def test_a_cost_model_without_points_has_none(tmp_path: Path) -> None:
    (sim,) = run(tmp_path, "cost_model.name=roofline")
    assert sim["cost_support"] is None


def test_a_sweep_says_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sims = run(tmp_path, "sweep.engine.max_num_batched_tokens=[4096, 8192]")
    assert len(sims) == 2
    notes = [line for line in capsys.readouterr().out.splitlines() if "extrapolated" in line]
    assert len(notes) == 1
    most = max(sim["cost_support"]["extrapolated"] for sim in sims)
    assert notes[0].startswith(f"every run: up to {100 * most:.3g} % of the busy time is extrapolated")


def test_a_sweep_names_what_each_part_leans_on_most() -> None:
    def one(share: float, far: int, op: float) -> dict[str, object]:
        axes = {"tokens": {"share": share, "farthest": far, "measured": [1, 10]}} if share else {}
        return {"extrapolated": share, "fallback": 0.9, "axes": axes, "operations": {"rope": op}}

    most = most_of([one(0.0, 0, 0.3), one(0.4, 20, 0.1), one(0.2, 30, 0.2)])
    assert most["axes"]["tokens"]["farthest"] == 20
    assert support_notes(most, "up to ") == [
        "up to 40 % of the busy time is extrapolated (tokens 20, measured 1 to 10)",
        "up to 30 % of the busy time goes into operations never timed (rope 30 %)",
    ]
