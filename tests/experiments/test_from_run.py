from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic

from experiments.cli import main
from experiments.config import load
from experiments.from_run import write_config
from experiments.measured import shipped_runs
from simulator.errors import ConfigError
from simulator.specs import get_gpu, get_model, plan_memory

RTX4090 = "rtx4090_llama-3.1-8b_vllm-0.19.0"
TP1, TP2 = "rtxpro6000_llama-3.1-8b_tp1", "rtxpro6000_llama-3.1-8b_tp2"


def errors(folder: Path, profile: str, out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the three commands say about a measured folder."""
    assert main(["config", "from-run", str(folder), "--profile", profile, "--out", str(out)]) == 0
    results = str(out.parent / "results")
    assert main(["run", str(out), "figures=false", "--out", results]) == 0
    capsys.readouterr()
    assert main(["compare", results, str(folder), "--json", "--out", str(out.parent / "figures")]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_shipped_config_is_what_the_run_says(tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    _, notices = write_config(shipped_runs()[RTX4090], "rtx4090_llama-3.1-8b", out)
    assert notices == []
    (mine,), (shipped,) = load(str(out), []).runs, load("rtx4090_vllm", []).runs
    assert mine.settings.engine == shipped.settings.engine
    for key in ("scheduler", "cost_model", "model", "gpu", "kv", "host_overhead_us"):
        assert mine.effective[key] == shipped.effective[key]
    from workloads import load_trace

    assert mine.settings.trace is not None
    theirs = load_trace("llmservingsim-sharegpt-300").requests
    assert load_trace(mine.settings.trace.path, format="mooncake", block_size=16).requests == theirs


@pytest.mark.parametrize(("tp", "profile"), [(1, TP1), (2, TP2)])
def test_a_simulated_server_is_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tp: int, profile: str
) -> None:
    folder = tmp_path / "run"
    synthetic.write(folder, synthetic.meta(tp), tp=tp)
    found = errors(folder, profile, tmp_path / "c.yaml", capsys)
    assert all(abs(m["error_pct"]) < 1e-4 for m in found["metrics"])  # stamps are rounded to double seconds
    assert all(error < 1e-4 for error in found["per_request"].values())
    assert found["differences"] == []


def test_blocks_from_the_log_wherever_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places: list[dict[str, Any]] = [
        {"kv_cache": {"num_gpu_blocks": 300, "block_size": 16}},
        {"kv_cache": {"num_kv_tokens": 4800}},
        {"resolved_config": {"cache_config": {"num_gpu_blocks": 300}}, "kv_cache": None},
    ]
    for i, place in enumerate(places):
        folder = tmp_path / str(i)
        synthetic.write(folder, synthetic.meta() | place, blocks=300)
        found = errors(folder, TP1, tmp_path / str(i) / "c.yaml", capsys)
        assert found["preemptions"]["a"] > 0
        assert all(abs(m["error_pct"]) < 1e-4 for m in found["metrics"])


def test_what_is_missing_is_assumed_and_said(tmp_path: Path) -> None:
    document = synthetic.meta()
    synthetic.write(tmp_path / "run", document)
    for key in ("vllm_version", "kv_cache", "hardware"):
        del document[key]
    document["engine_kwargs"] = {"model": "meta-llama/Llama-3.1-8B"}
    (tmp_path / "run" / "meta.json").write_text(json.dumps(document))
    (tmp_path / "run" / "workload.jsonl").unlink()
    out = tmp_path / "c.yaml"
    _, notices = write_config(tmp_path / "run", TP1, out)
    blocks = plan_memory(get_model("llama-3.1-8b"), get_gpu("rtx-pro-6000")).num_gpu_blocks
    about = "\n".join(notices)
    for text in (
        "vllm_version isn't in meta.json: taken as vLLM 0.19",
        "max_num_seqs isn't in meta.json: 256, the default of vLLM 0.19",
        "max_num_batched_tokens isn't in meta.json: 2048",
        "max_model_len isn't in meta.json: the model's",
        "block_size isn't in meta.json: 16",
        "enable_prefix_caching isn't in meta.json: true",
        "async_scheduling isn't in meta.json: true",
        "gpu_memory_utilization isn't in meta.json: 0.9",
        "hardware.device_name isn't in meta.json: the profile's GPU, rtx-pro-6000",
        f"the KV blocks aren't in meta.json: {blocks}, planned from 94.97 GiB x 0.9",
    ):
        assert text in about
        assert f"# {text}" in out.read_text()
    assert len(notices) == 10
    (run,) = load(str(out), []).runs
    engine = run.settings.engine
    assert (engine.num_gpu_blocks_override, engine.enable_prefix_caching) == (blocks, True)
    assert run.settings.trace is not None


def test_defaults_follow_the_version_and_stated_values_win(tmp_path: Path) -> None:
    document = synthetic.meta() | {"vllm_version": "0.15.1"}
    synthetic.write(tmp_path / "run", document)
    document["resolved_config"] = {"scheduler_config": {"policy": "priority", "max_num_seqs": 64}}
    document["engine_kwargs"] |= {"gpu_memory_utilization": 0.5, "enable_prefix_caching": False, "block_size": 32}
    (tmp_path / "run" / "meta.json").write_text(json.dumps(document))
    write_config(tmp_path / "run", TP1, tmp_path / "c.yaml")
    (run,) = load(str(tmp_path / "c.yaml"), []).runs
    engine = run.settings.engine
    assert (engine.async_scheduling, engine.enable_prefix_caching) == (False, False)
    assert (engine.max_num_seqs, engine.block_size) == (64, 32)
    assert run.pieces.options["scheduler"] == {
        "policy": "priority", "scheduler_reserve_full_isl": False, "watermark": 0.0
    }  # fmt: skip
    half = plan_memory(
        get_model("llama-3.1-8b"), get_gpu("rtx-pro-6000"), gpu_memory_utilization=0.5, block_size=32,
        max_num_seqs=64, max_num_batched_tokens=1024,
    )  # fmt: skip
    assert engine.num_gpu_blocks_override == half.num_gpu_blocks
    assert run.settings.trace is not None
    assert run.settings.trace.block_size == 16  # the workload's, not the engine's


def test_tensor_parallelism_says_what_links_are_assumed(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "run", synthetic.meta(2), tp=2)
    _, notices = write_config(tmp_path / "run", TP2, tmp_path / "c.yaml")
    assert any("all-reduces of 2 GPUs: a ring at 64 GB/s, 4.4 us per call as on H200" in notice for notice in notices)
    (run,) = load(str(tmp_path / "c.yaml"), ["cost_model.link_gbps=20", "cost_model.allreduce_latency_us=15"]).runs
    assert run.pieces.options["cost_model"]["link_gbps"] == 20


def test_files_and_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile by path is found from anywhere; a config of this command may be written again, nothing else."""
    from simulator.profile import load_profile

    synthetic.write(tmp_path / "run", synthetic.meta())
    (tmp_path / "sub").mkdir()
    load_profile(TP1).save(tmp_path / "p.json")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        write_config(Path("run"), "p.json", Path("sub/c.yaml"))
    monkeypatch.chdir("/")
    (run,) = load(str(tmp_path / "sub" / "c.yaml"), []).runs
    assert run.pieces.options["cost_model"]["profile"] == str(tmp_path / "p.json")
    (tmp_path / "own.yaml").write_text("model: x\n")
    with pytest.raises(ConfigError, match="exists already, and isn't of this command"):
        write_config(tmp_path / "run", TP1, tmp_path / "own.yaml")
    assert (tmp_path / "own.yaml").read_text() == "model: x\n"
    assert not (tmp_path / "own.trace.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model": None, "engine_kwargs": {}}, "meta.json: model: isn't stated; give --model M"),
        ({"engine_kwargs": {"model": "x/Mixtral-8x7B"}}, "'x/Mixtral-8x7B' is none of the shipped models"),
        ({"hardware": {"device_name": "Tesla T4"}}, "'Tesla T4' has no shipped specification"),
        ({"hardware": {"device_name": "NVIDIA L40S"}}, f"--profile {TP1}: gpu: timed with 'rtx-pro-6000', but the run"),
        ({"engine_kwargs": {"tensor_parallel_size": 2}}, f"--profile {TP1}: tensor_parallel_size: timed with 1, but"),
        ({"engine_kwargs": {"max_num_seqs": 0}}, "engine_kwargs.max_num_seqs = 0: makes no sense"),
        ({"engine_kwargs": {"pipeline_parallel_size": 2}}, "pipeline parallelism: not modelled"),
        ({"resolved_config": {"speculative_config": {"method": "eagle"}}}, "speculative decoding: not modelled"),
        ({"resolved_config": {"model_config": {"quantization": "fp8"}}}, "quantised weights: not modelled"),
        ({"kv_cache": {"num_gpu_blocks": -5}}, "kv_cache.num_gpu_blocks = -5: makes no sense"),
    ],
)
def test_faults_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], fault: str
) -> None:
    synthetic.write(tmp_path / "run", synthetic.meta())
    document = synthetic.meta() | change
    if "model" not in change:
        document["model"] = document["engine_kwargs"].get("model", "meta-llama/Llama-3.1-8B")
    (tmp_path / "run" / "meta.json").write_text(json.dumps(document))
    out = tmp_path / "c.yaml"
    assert main(["config", "from-run", str(tmp_path / "run"), "--profile", TP1, "--out", str(out)]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("notice")]
    assert len(err) == 1
    assert fault in err[0]
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["from-run"], "needs one folder, and got none"),
        (["from-run", "none", "--profile", TP1], "none: no such folder; a measured run is a folder with"),
        (["from-run", RTX4090], "needs --profile P"),
        (["from-run", RTX4090, "x=1", "--profile", TP1], f"needs one folder, and got {RTX4090}, x=1"),
        (["from-run", RTX4090, "--profile", "none"], "'none' is neither a file nor one of"),
        (["show", "tiny", "--profile", TP1], "--profile is an option of from-run"),
        (["from-run", RTX4090, "--profile", "rtx4090_llama-3.1-8b", "--out", "/none/x.yaml"], "/none/x.trace.jsonl"),
    ],
)  # fmt: skip
def test_misuse_is_one_line(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert fault in err[0]


def test_workloads_that_dont_fit(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "run", synthetic.meta())
    path = tmp_path / "run" / "workload.jsonl"
    good = [json.loads(line) for line in path.read_text().splitlines()]

    def refused(rows: list[dict[str, Any]], fault: str) -> None:
        synthetic.lines(path, rows)
        with pytest.raises(ConfigError) as caught:
            write_config(tmp_path / "run", TP1, tmp_path / "c.yaml")
        assert len(caught.value.faults) == 1
        assert fault in caught.value.faults[0]

    refused(good[1:], "workload.jsonl: holds 79 requests, requests.jsonl 80")
    refused([good[0] | {"input_length": 7}, *good[1:]], "workload.jsonl:1: input_length = 7: the request had")
    refused([good[0] | {"hash_ids": "x"}, *good[1:]], "workload.jsonl:1: hash_ids: must be a list of whole numbers")
    refused([good[0] | {"hash_ids": [1] * 999}, *good[1:]], "no block size fits the number of ids")
    synthetic.lines(path, [{k: v for k, v in row.items() if k != "hash_ids"} for row in good])
    trace, _ = write_config(tmp_path / "run", TP1, tmp_path / "c.yaml")
    assert "hash_ids" not in trace.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "Qwen/Qwen3-8B"}, "model = Qwen/Qwen3-8B says otherwise"),
        ({"vllm_version": "1.2.3"}, "scheduled by the rules of 0.19"),
        ({"dtype": "float32"}, "dtype is float32"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is fp8"),
    ],
)
def test_what_contradicts_or_goes_beyond_the_model_is_said(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    meta = synthetic.meta(1)
    if "model" in change:
        meta.setdefault("engine_kwargs", {})["model"] = "meta-llama/Llama-3.1-8B"
    synthetic.write(tmp_path / "run", {**meta, **change})
    _, notices = write_config(tmp_path / "run", TP1, tmp_path / "c.yaml")
    assert any(said in notice for notice in notices), notices
