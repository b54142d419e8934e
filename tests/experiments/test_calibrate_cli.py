from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from simulator.profile import load_profile
from simulator.specs import get_gpu


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate") / "fake"
    assert main(["calibrate", "measure", "--model", "tiny", "--device", "fake", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(measured: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(measured, tmp_path / "m"))


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[str, str]:
    assert main(["calibrate", *words]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def change(folder: Path, **values: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **values}))


def test_fit_then_validate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "fit", str(folder))
    assert out.startswith(f"{folder}/profile.json: tiny on 1 x ")
    assert "  linear: median error " in out
    assert out.splitlines()[-1] == f"next: servesim calibrate validate {folder}"
    assert not err
    profile = load_profile(folder / "profile.json")
    assert profile.shape["hidden"] == 256
    assert profile.metadata["held_out"].startswith("median / 90th percentile in %: linear ")
    out, err = run(capsys, "validate", str(folder), "--strict")
    assert "operation" in out
    assert "stack (graph)" in out
    assert "pass: median" in out
    assert "MISS" not in out
    assert not err
    assert (folder / "report.md").read_text().startswith(f"# {profile.name}\n")
    with (folder / "errors.csv").open() as file:
        errors = list(csv.DictReader(file))
    assert {"fit", "holdout", "off_grid"} == {row["split"] for row in errors}
    assert (folder / "measured_vs_predicted.png").stat().st_size > 20_000
    assert not list(folder.glob("*partial*"))


def test_a_device_that_is_not_shipped_gets_a_gpu_file_and_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "fit", str(folder))
    spec = get_gpu(str(folder / "gpu.json"))
    assert spec.name == load_profile(folder / "profile.json").metadata["gpu"]
    assert (spec.pcie_gbps, spec.nvlink_gbps) == (0, 0)
    assert spec.memory_gbps > 0
    assert "not the vendor's" in spec.source
    monkeypatch.chdir(tmp_path)
    config = {
        "model": "tiny", "gpu": str(folder / "gpu.json"), "load": {"num_prompts": 4, "input_len": 64, "output_len": 8},
        "cost_model": {"name": "table", "profile": str(folder / "profile.json")},
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    assert main(["run", "c.yaml", "--out", "results"]) == 0


def test_a_profile_that_is_off_misses_its_gates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "fit", str(folder))
    data = json.loads((folder / "profile.json").read_text())
    for op in data["token_ops"]:
        op["us"] = [1.3 * us for us in op["us"]]
    (folder / "slow.json").write_text(json.dumps(data))
    out, err = run(capsys, "validate", str(folder), "--profile", str(folder / "slow.json"))
    assert "MISS: median <= " in out
    assert not err
    out, err = run(capsys, "validate", str(folder), "--profile", str(folder / "slow.json"), "--strict", status=1)
    assert err.startswith(f"{folder}: linear, all: median ")
    assert len(err.splitlines()) == out.count("MISS")


@pytest.mark.parametrize(("status", "words"), [("partial", "only points so far"), ("unstable", "more than 10 %")])
def test_points_in_a_bad_state_are_fitted_with_a_warning(
    status: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, status=status)
    for action in ("fit", "validate"):
        _, err = run(capsys, action, str(folder))
        assert err.startswith(f"warning: {folder}: ")
        assert words in err
    assert words in (folder / "report.md").read_text()


def test_out_and_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "fit", str(folder), "--out", str(tmp_path / "mine.json"), "--name", "mine")
    assert load_profile(tmp_path / "mine.json").name == "mine"
    assert out.splitlines()[-1].endswith(f"validate {folder} --profile {tmp_path / 'mine.json'}")
    assert not (folder / "profile.json").exists()


def test_faults_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fault(*words: str) -> str:
        _, err = run(capsys, *words, status=2)
        assert len(err.splitlines()) == 1
        return err

    assert "calibrate: fir: unknown action; did you mean 'fit'" in fault("fir")
    assert "none: no such folder" in fault("fit", "none")
    assert f"make it with `servesim calibrate fit {folder}`" in fault("validate", str(folder))
    assert "is neither a file nor one of" in fault("validate", str(folder), "--profile", "h201_llama-3.1-8b")
    assert "can't be written: No such file" in fault("fit", str(folder), "--out", "/none/p.json")
    assert not list(folder.glob("*.partial"))
    text = (folder / "meta.json").read_text()
    change(folder, schema_version=9)
    assert "meta.json: schema_version: 9 must be 1" in fault("fit", str(folder))
    change(folder, schema_version=1, gpu=7)
    assert "meta.json: gpu: 7 must be a string" in fault("fit", str(folder))
    (folder / "meta.json").write_text(text)
    change(folder, repeat_floor_pct={"linear": "x"})
    assert "meta.json: repeat_floor_pct.linear: 'x' must be a number" in fault("fit", str(folder))
    (folder / "meta.json").write_text(text)
    change(folder, model={**json.loads(text)["model"], "hiden": 3})
    assert "meta.json: model.hiden: unknown key; did you mean 'hidden'?" in fault("fit", str(folder))
    for key, value in (("qk_norm", 1), ("max_model_len", "x"), ("dtype_bytes", 0), ("biases", "some")):
        change(folder, model={**json.loads(text)["model"], key: value})
        assert f"meta.json: model.{key}: {value!r} must be " in fault("fit", str(folder))
    change(folder, model=json.loads(text)["model"], device={"name": "A", "memory_bytes": "x"})
    assert "meta.json: device.memory_bytes: 'x' must be a number" in fault("fit", str(folder))
    (folder / "meta.json").write_text(text)
    (folder / "points.csv").write_text("op,m\nlinear,1\n")
    assert "points.csv:1: lacks the columns" in fault("fit", str(folder))
    (folder / "meta.json").unlink()
    assert "meta.json: can't be read" in fault("fit", str(folder))


def test_a_profile_of_another_model_or_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "validate", str(folder), "--profile", "h200_llama-3.1-8b", status=2)
    assert f"h200_llama-3.1-8b: hidden 4096 against 256 in {folder}\n" in err
    run(capsys, "fit", str(folder))
    data = json.loads((folder / "profile.json").read_text())
    data["metadata"]["gpu"] = "h200"
    (folder / "other.json").write_text(json.dumps(data))
    _, err = run(capsys, "validate", str(folder), "--profile", str(folder / "other.json"))
    assert err.startswith("warning: ")
    assert ": of h200, " in err


def test_a_folder_without_attention_cannot_be_fitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "points.csv").read_text().splitlines()
    (folder / "points.csv").write_text("\n".join(line for line in lines if not line.startswith("decode")) + "\n")
    _, err = run(capsys, "fit", str(folder), status=2)
    assert "decode: no call was timed" in err
    assert not (folder / "profile.json").exists()
