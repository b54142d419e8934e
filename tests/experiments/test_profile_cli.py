from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from simulator.names import gpu_named, model_named
from simulator.profile import load_profile, shipped_profiles

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
RTXPRO6000 = KERNELS / "rtxpro6000_llama-3.1-8b"


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[str, str]:
    assert main(["profile", *words]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_list_names_every_shipped_profile(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "list")
    assert "`servesim calibrate measure` has run on no GPU yet" in err
    assert [line.split()[0] for line in out.splitlines()] == shipped_profiles()
    assert "llama-3.1-8b on 2 x rtx-pro-6000" in out


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "show", "rtxpro6000_llama-3.1-8b_tp1")
    assert "licence: MIT" in out
    assert "lm_head: 1 x, 40 points, 1 to 256 sequences" in out
    assert "uneven lengths, decode: alpha 0.0429 at 2" in out
    assert "uneven lengths, decode: no term" in run(capsys, "show", "rtx4090_llama-3.1-8b")[0]


def test_import_takes_names_from_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "import", "--format", "llmservingsim", str(RTXPRO6000), "--source", "here")
    assert "rtx-pro-6000_llama-3.1-8b_tp1.json: llama-3.1-8b on 1 x rtx-pro-6000, vLLM 0.19.0" in out
    assert not err
    profile = load_profile(tmp_path / "rtx-pro-6000_llama-3.1-8b_tp1.json")
    assert profile.metadata["device"] == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert (profile.metadata["source"], profile.metadata["licence"]) == ("here", "not stated")


def test_import_with_everything_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.json"
    folder = str(KERNELS / "rtx4090_llama-3.1-8b")
    run(capsys, "import", folder, "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--tp", "1", "--out", str(out))
    profile = load_profile(out)
    assert (profile.name, profile.metadata["engine"]) == ("mine", "not stated")
    _, err = run(capsys, "import", folder, status=2)
    assert err.splitlines() == [
        "model: meta.yaml names none; state --model M",
        "gpu: meta.yaml names none; state --gpu G",
        f"{folder}: which tensor-parallel degree? state --tp N",
    ]


def test_import_of_several_degrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    shutil.copytree(RTXPRO6000 / "tp1", tmp_path / "k" / "tp2")
    (tmp_path / "k" / "tp2" / "skew.csv").unlink()
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "import", "k")
    assert out.count(".json: llama") == 2
    assert err == "notice: k/tp2: skew_fit is enabled, but no skew.csv is there: no term\n"
    assert run(capsys, "import", "k", "--out", "x.json", status=2)[1].startswith(
        "--out x.json: one file for 2 profiles; choose one of --tp 1, --tp 2"
    )
    run(capsys, "import", "k", "--tp", "2", "--out", "x.json")
    assert load_profile("x.json").metadata["tensor_parallel_size"] == 2
    assert "no folder tp8" in run(capsys, "import", "k", "--tp", "8", status=2)[1]


def test_import_of_tables_of_two_projects_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a100.json"
    given = ("import", str(KERNELS / "a100_sxm"), "--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--out", str(out))
    text, _ = run(capsys, *given, "--engine", "kernels", "--source", "here", "--licence", "mine")
    assert f"{out}: llama-3.1-8b on 1 x a100-80gb, kernels; mine" in text
    assert "pass: median <= 5.0" in text
    imported, shipped = load_profile(out), load_profile("a100-80gb_llama-3.1-8b")
    assert [(op.op, op.basis, op.axis) for op in imported.token_ops] == [
        (op.op, op.basis, op.axis) for op in shipped.token_ops
    ]
    assert imported.attention.decode.us == shipped.attention.decode.us
    assert imported.metadata["source"] == "here"
    assert "vidur" in imported.metadata["timed_linear"]
    assert "decode 2." in imported.metadata["held_out"]
    assert "roofline" in run(capsys, "show", str(out))[0]


def test_a_shipped_profile_is_shown_with_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "show", "h200_llama-3.1-8b")
    assert "gate_up: 32 x, never timed: a roofline" in out
    assert "caution_l2: " in out
    assert "held-out errors" in out
    assert "linear (as if never timed)" in out
    assert "held-out errors" in run(capsys, "show", "rtx4090_llama-3.1-8b")[0]


def test_tables_that_lack_something_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(KERNELS / "a100_sxm", tmp_path / "k")
    (tmp_path / "k" / "generation_attention_bf16.csv").unlink()
    given = ("import", str(tmp_path / "k"), "--gpu", "a100-80gb", "--out", str(tmp_path / "p.json"))
    assert run(capsys, *given, status=2)[1] == "model: these tables name none; state --model M\n"
    _, err = run(capsys, *given, "--model", "llama-3.1-8b", status=2)
    assert err.startswith(f"{tmp_path / 'k'}: ")
    assert err.endswith("decode: no call was timed\n")
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["import"], "servesim profile import: needs a DIR"),
        (["show"], "servesim profile show: needs a PROFILE"),
        (["show", "rtx4090"], "neither a file nor one of"),
        (["list", "x"], "servesim profile list: takes no argument"),
        (["import", "none"], "none: no such folder"),
        (["import", "none", "--format", "vidor"], "must be one of aiconfigurator, vidur, llmservingsim; did you mean"),
        (["import", "none", "--format", "vidur", "--model", "tiny", "--gpu", "h200"], "none: no such folder"),
        (
            ["import", str(KERNELS.parent / "awkward")],
            "no tables of a form known here: aiconfigurator, vidur, llmservingsim",
        ),
        (["import", str(RTXPRO6000), "--gpu", "rtx-4091"], "gpu: 'rtx-4091' is neither a file nor one of"),
        (["import", str(RTXPRO6000), "--model", "Qwen/Qwen9-8B"], "model: 'Qwen/Qwen9-8B' is none of the shipped"),
        (["import", str(RTXPRO6000), "--out", "/none/x.json"], "--out /none/x.json: can't be written: No such file"),
    ],
)
def test_faults_are_one_line(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, *words, status=2)
    assert len(err.splitlines()) == 1
    assert fault in err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("/models/Qwen3-8B/", "qwen3-8b"),
    ],
)
def test_models_by_their_repositories(text: str, name: str) -> None:
    assert model_named(text).name == name


@pytest.mark.parametrize("text", ["Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B-FP8", "", "/"])
def test_other_models_are_refused(text: str) -> None:
    with pytest.raises(Exception, match="is none of the shipped models"):
        model_named(text)


@pytest.mark.parametrize(
    ("device", "gib", "name"),
    [
        ("NVIDIA GeForce RTX 4090", None, "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 94.97, "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", None, "h100"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", None, "a100-40gb"),
        ("NVIDIA H200", 139.8, "h200"),
        ("NVIDIA L40S", None, "l40s"),
    ],
)
def test_gpus_by_their_drivers_names(device: str, gib: float | None, name: str) -> None:
    assert gpu_named(device, gib).name == name


def test_degrees_that_a_model_or_its_tables_lack(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("import", str(KERNELS / "h200_sxm"), "--gpu", "h200")
    _, err = run(capsys, *given, "--model", "tiny", "--tp", "3", status=2)
    assert "3 doesn't divide the 4 heads of tiny" in err
    _, err = run(capsys, *given, "--model", "llama-3-70b", "--tp", "16", status=2)
    assert err.splitlines()[0].endswith("h200_sxm/collectives.csv: no all_reduce over 16 GPUs; it has 2, 4 GPUs")
    assert "no rows with num_heads 4, num_kv_heads 1, head_dim 128" in err


def test_options_of_import_alone_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "show", "h200_llama-3.1-8b", "--tp", "2", "--out", "x.json", status=2)
    assert err.splitlines() == [f"servesim profile show: --{name}: is for import only" for name in ("tp", "out")]
    assert run(capsys, "list", "--model", "tiny", status=2)[1] == (
        "servesim profile list: --model: is for import only\n"
    )
