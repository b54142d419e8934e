"""`servesim live`: result files, medians over runs, what it refuses, and comparing it with a simulation."""

# ruff: noqa: E501
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from experiments import live, live_executor  # noqa: E402
from experiments.cli import main  # noqa: E402
from experiments.config import load  # noqa: E402
from experiments.live_device import LiveDevice  # noqa: E402
from experiments.live_errors import Timed, errors_text, iteration_errors  # noqa: E402
from experiments.live_result import medians, middle, spread, spread_text  # noqa: E402
from experiments.results import is_complete, is_live, load_result  # noqa: E402
from experiments.yamltext import read  # noqa: E402
from simulator.plan import MODES, BatchShape  # noqa: E402
from simulator.profile import SHAPE, SHIPPED  # noqa: E402
from simulator.specs import get_model  # noqa: E402

CONFIG = """
model: tiny
gpu: cpu
seed: 3
load: {num_prompts: 12, request_rate: 200, input_len: {uniform: [4, 60]}, output_len: {uniform: [2, 20]}}
engine: {max_num_seqs: 4, max_num_batched_tokens: 48, num_gpu_blocks_override: 16, max_model_len: 200}
cost_model: {name: constant, iteration_us: 2000}
figures: false
"""
NEEDS_RADIX = ["kv=radix", "scheduler=sglang"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    before = torch.get_num_threads()
    monkeypatch.setattr("experiments.live_device.threads", lambda: 1)  # small layers gain nothing by more
    yield
    torch.set_num_threads(before)


def only(pattern: str) -> Path:
    (found,) = Path("results").glob(pattern)
    return found


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_live_run_writes_what_a_simulated_one_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml"]) == 0
    assert main(["live", "c.yaml", "--runs", "2", "engine.max_num_seqs=3", "figures=true"]) == 0
    out, err = capsys.readouterr()
    folder = only("c/live-*-3")
    assert is_complete(folder)
    for name in ("config.resolved.yaml", "result.json", "requests.csv", "iterations.csv", "latency.png", "load.svg"):
        assert (folder / name).is_file(), name
    result, simulated = load_result(folder), load_result(only("c/[0-9a-f]*-3"))
    assert set(result) == set(simulated)
    assert set(result["sim"]) == {*simulated["sim"], "executor", "live"}
    assert (result["completed"], result["total_output_tokens"]) == (12, simulated["total_output_tokens"])
    assert (result["label"], result["sim"]["cost_model"], result["sim"]["cost_kind"]) == (
        "live on cpu",
        "live",
        "measured",
    )
    known = {"device": "cpu", "dtype": "float32", "runs": 2, "threads": 1, "torch": torch.__version__}
    assert result["sim"]["live"].items() >= known.items()
    assert result["sim"]["live"]["backend"].startswith("sdpa")
    assert 0 < result["sim"]["live"]["host_us"] < 1000 * result["duration"] * 1000
    assert is_live(result)
    assert not is_live(simulated)
    low, high = result["sim"]["live"]["spread"]["mean_e2el_ms"]
    assert low <= result["mean_e2el_ms"] <= high
    assert "run 2 of 2" in err
    assert err.count("replayed: identical RunLog") == 2
    assert "measured on" in out
    assert "the median of 2 runs by mean E2EL; all runs: mean_ttft " in out
    head = (folder / "config.resolved.yaml").read_text()
    assert "# Measured by `servesim live` --device cpu --dtype float32 --runs 2" in head
    assert read(folder / "config.resolved.yaml").value["engine"]["max_num_seqs"] == 3


def test_what_is_measured_already_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    first = json_of(capsys, "live", "c.yaml", "--runs", "1")["runs"][0]
    assert json_of(capsys, "live", "c.yaml", "--runs", "1")["runs"][0]["sim"]["digest"] == first["sim"]["digest"]
    assert json_of(capsys, "live", "c.yaml", "--runs", "2")["runs"][0]["sim"]["live"]["runs"] == 2
    again = json_of(capsys, "live", "c.yaml", "--runs", "2", "--force")["runs"][0]
    assert again["out_dir"] == first["out_dir"]
    assert main(["live", "c.yaml", "--runs", "2"]) == 0
    assert "c: measured already, skipped" in capsys.readouterr().err
    other = json_of(capsys, "live", "c.yaml", "--runs", "1", "--dtype", "bf16")["runs"][0]
    assert other["out_dir"] != first["out_dir"]
    assert other["sim"]["live"]["dtype"] == "bfloat16"


def test_static_against_continuous(capsys: pytest.CaptureFixture[str]) -> None:
    """Every combination of a sweep runs live, padded batches as rectangles."""
    sweep = "sweep.scheduler=[{name: static, batch_size: 4, batch_timeout_ms: 5}, continuous, vllm_v1, chunked]"
    assert main(["live", "c.yaml", sweep, "--runs", "1", "engine.max_num_batched_tokens=200"]) == 0
    out, _ = capsys.readouterr()
    lines = Path("results/c/live-summary.csv").read_text().splitlines()
    assert len(lines) == 5
    results = [load_result(path) for path in Path("results/c").glob("live-*-3")]
    by_label = {result["label"]: result for result in results}
    assert set(by_label) == {f"{name}, live on cpu" for name in ("static", "continuous", "vllm_v1", "chunked")}
    static = by_label["static, live on cpu"]["sim"]
    assert static["utilisation"]["padding"] > 0
    assert static["respond_at"] == "batch_end"
    assert "static, live on cpu" in out.replace("\n", " ")
    folder = by_label["static, live on cpu"]["out_dir"]
    assert main(["run", "c.yaml", "scheduler={name: static, batch_size: 4, batch_timeout_ms: 5}"]) == 0
    simulated = only("c/[0-9a-f]*-3")
    capsys.readouterr()
    assert main(["compare", str(simulated), str(folder)]) == 0
    table = capsys.readouterr().out
    assert "e2el ms" in table
    assert "tpot ms" not in table  # nobody saw tokens come one by one
    assert "itl ms" not in table


def test_compare_holds_a_simulation_to_a_live_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "c.yaml"]) == 0
    assert main(["live", "c.yaml", "--runs", "3", "engine.max_num_seqs=3"]) == 0
    simulated, live = str(only("c/[0-9a-f]*-3")), str(only("c/live-*-3"))
    capsys.readouterr()
    assert main(["compare", simulated, live]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("chunked against live on cpu\n")
    for words in (
        "makespan s",
        "ttft ms",
        "tpot ms",
        "e2el ms",
        "itl ms",
        "  measured",
        "  error %",
        "per request, mean",
    ):
        assert words in out
    assert "engine.max_num_seqs differs: 4, 3" in out
    assert "cost_" not in out
    assert "median of 3 runs" in out
    assert "error of constant %" in out
    assert "compare_latency.png" in err
    assert main(["run", "c.yaml", "host_overhead_us=100", "--out", "other"]) == 0
    assert main(["compare", "other", live]) == 0
    assert "error of constant %" not in capsys.readouterr().out  # that is of other times than were simulated
    found = json_of(capsys, "compare", simulated, live)
    assert found["reference"] == "b"
    metrics = {one["metric"]: one for one in found["metrics"]}
    result = load_result(live)
    for key in ("mean_itl_ms", "p99_ttft_ms", "duration", "mean_e2el_ms"):
        assert metrics[key]["b"] == result[key]  # medians over runs
        assert metrics[key]["error_pct"] == pytest.approx((metrics[key]["a"] / result[key] - 1) * 100)
    assert set(found["per_request"]) == {"ttft_mape_pct", "tpot_mape_pct", "e2el_mape_pct"}


def test_two_live_runs_are_compared_like_any_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "c.yaml", "--runs", "1", "sweep.scheduler=[continuous, chunked]"]) == 0
    capsys.readouterr()
    assert main(["compare", "results"]) == 0
    assert "diff %" in capsys.readouterr().out


REFUSED = [
    (["engine.async_scheduling=true"], "c: engine.async_scheduling = true: iterations are carried out one after another; false runs live"),
    (["engine.tensor_parallel_size=2"], "c: engine.tensor_parallel_size = 2: the decoder runs on one device"),
    (["engine.enable_prefix_caching=true"], "c: engine.enable_prefix_caching = true: the decoder's sequences share no pages; false runs live"),
    (NEEDS_RADIX, "c: kv.name = radix: the decoder's sequences share no pages; paged and reserve run live"),
    (["load.request_rate=0.01"], "c: the last request arrives after 1,200.0 s of real time, and --max-duration is 600 s: take fewer requests (trace.limit, load.num_prompts) or allow more"),
    (["load.request_rate=10", "--max-duration", "0.5s"], "c: the last request arrives after 1.2 s of real time, and --max-duration is 0.5 s: take fewer requests (trace.limit, load.num_prompts) or allow more"),
    (["--runs", "0"], "servesim live: argument --runs: '0' must be a whole number of at least 1"),
    (["--device", "gpu"], "servesim live: argument --device: 'gpu' must be one of cuda, cpu; did you mean 'cpu'?"),
    (["--dtype", "fp8"], "servesim live: argument --dtype: 'fp8' must be one of bf16, fp16, fp32, bfloat16, float16, float32; did you mean 'fp32'?"),
    (["--max-duration", "0"], "servesim live: argument --max-duration: '0' must be a time above 0: seconds, or 90s, 10m, 1h"),
    (["engine.max_num_seq=4"], "override engine.max_num_seq=4: unknown key; did you mean 'engine.max_num_seqs'?"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), REFUSED)
def test_what_can_t_run_live_is_a_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "c.yaml", *arguments]) == 2
    lines = [text for text in capsys.readouterr().err.splitlines() if not text.startswith("notice: ")]
    assert lines == [line]
    assert not list(Path().glob("results/*/*"))


def test_without_torch_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["live", "c.yaml"]) == 3
    assert "servesim live needs torch, which isn't installed: pip install -e '.[calibrate]'" in capsys.readouterr().err


def test_without_a_cuda_device_the_processor_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["live", "c.yaml", "gpu=h100"]) == 3
    assert "no CUDA device on this machine; --device cpu runs on the processor" in capsys.readouterr().err


def test_another_device_than_the_config_s_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "live", "c.yaml", "gpu=h100", "--device", "cpu", "--runs", "1")["runs"][0]
    assert any(w.startswith("gpu = h100, but this was measured on ") for w in result["sim"]["warnings"])


@pytest.mark.parametrize("fits", [True, False])
def test_rows_get_runs_of_pages_where_attention_wants_them_and_memory_suffices(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    made, pages = [], live_executor.Pages
    monkeypatch.setattr(LiveDevice, "wants_runs", lambda *_: True)
    monkeypatch.setattr(LiveDevice, "fits", lambda *_: fits)
    monkeypatch.setattr(live_executor, "Pages", lambda *given: made.append(given) or pages(*given))
    result = json_of(capsys, "live", "c.yaml", "--device", "cpu", "--runs", "1")["runs"][0]
    assert result["completed"] == 12
    ((count, run),) = made
    assert (count, run) == (4 * run, run) if fits else (count <= 16, run) == (True, 1)
    assert (run > 1) == fits


def test_what_doesn_t_fit_the_device_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveDevice, "free_bytes", lambda _: 1 << 20)
    assert main(["live", "c.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("c: weights of 0.0 GiB, 15 pages of 16 tokens (0.0 GiB) and about ")
    assert "don't fit the 0.0 GiB that" in line


def test_out_of_memory_later_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(live_executor.LiveExecutor, "iteration_ns", full)
    assert main(["live", "c.yaml"]) == 2
    assert "ran out of memory; lower engine.num_gpu_blocks_override" in capsys.readouterr().err
    assert not list(Path().glob("results/*/live-*"))


def test_an_interrupted_run_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = live_executor.LiveExecutor.iteration_ns
    calls = iter(range(100))

    def interrupted(self: live_executor.LiveExecutor, shape: Any) -> int:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return ran(self, shape)

    monkeypatch.setattr(live_executor.LiveExecutor, "iteration_ns", interrupted)
    assert main(["live", "c.yaml", "--runs", "1"]) == 130
    first, last = capsys.readouterr().err.splitlines()
    assert first == "c: 12 requests that arrive within 0.1 s, 1 x"
    assert last == "servesim: interrupted; results that were complete are kept"
    assert not list(Path().glob("results/*/live-*"))


def test_tokens_that_don_t_come_are_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_executor.LiveExecutor, "answered", lambda self, request: request.output_tokens - 1)
    assert main(["live", "c.yaml", "--runs", "1"]) == 1
    assert "tokens came out of the decoder, not " in capsys.readouterr().err


def test_a_replay_that_differs_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments import live

    monkeypatch.setattr(
        live,
        "durations_ns",
        lambda log: [n + 1 for n in (log.iterations["end_ns"] - log.iterations["start_ns"]).tolist()],
    )
    assert main(["live", "c.yaml", "--runs", "1"]) == 1
    assert "replayed, the run gives another RunLog" in capsys.readouterr().err
    assert not list(Path().glob("results/*/live-*"))


def test_the_cost_model_s_error_per_iteration_by_forward_mode() -> None:
    (run,) = load("c.yaml", ["cost_model.iteration_us=1000", "host_overhead_us=200"]).runs
    decode, chunk = BatchShape((), 1, 5, 5), BatchShape(((7, 0),))
    timed = [Timed(decode, ns) for ns in (600_000, 1_200_000, 2_400_000)] + [Timed(chunk, 1_000_000)]
    found = iteration_errors(run, timed)
    assert found == {
        "cost_model": "constant",
        "extend": {
            "count": 1,
            "median_us": 1000.0,
            "median_error_pct": pytest.approx(20),
            "p90_abs_error_pct": pytest.approx(20),
        },
        "decode": {"count": 3, "median_us": 1200.0, "median_error_pct": 0.0, "p90_abs_error_pct": pytest.approx(90)},
    }
    lines = errors_text({"sim": {"live": {"iteration_errors": found}}}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["extend", "1", "1,000", "+20.0", "20.0"],
        ["decode", "3", "1,200", "+0.0", "90.0"],
    ]


def test_a_live_run_states_its_cost_model_s_error_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_of(capsys, "live", "c.yaml", "--runs", "2")["runs"][0]["sim"]["live"]["iteration_errors"]
    tables = [pd.read_csv(path) for path in Path().glob("results/c/live-*/iterations.csv")]
    assert found["cost_model"] == "constant"
    assert sum(found[mode]["count"] for mode in MODES if mode in found) > len(tables[0])  # of both runs
    assert main(["live", "c.yaml", "--runs", "1", "cost_model=table"]) == 0
    assert "error of" not in capsys.readouterr().out


def runs(*means: float) -> list[dict[str, Any]]:
    return [
        {"date": str(i), "mean_e2el_ms": mean, "mean_ttft_ms": mean / 2, "completed": 4, "latencies": [mean],
         "output_throughput": 100.0, "sim": {"digest": f"d{i}", "preemptions": i, "kv_usage": {"mean": mean / 100, "max": None}}}
        for i, mean in enumerate(means)
    ]  # fmt: skip


def test_the_median_run_is_kept_whole_with_medians_beside_it() -> None:
    three = runs(30.0, 10.0, 20.0)
    assert middle(three) == 2
    assert middle(runs(30.0, 10.0)) == 1
    assert medians(three) == {"mean_e2el_ms": 20.0, "mean_ttft_ms": 10.0}
    assert medians(runs(30.0, 10.0))["mean_e2el_ms"] == 20.0
    assert spread(three) == {"mean_e2el_ms": [10.0, 30.0], "mean_ttft_ms": [5.0, 15.0]}
    assert spread_text({**three[2], "sim": {"live": {"runs": 3, "spread": spread(three)}}}) == (
        "the median of 3 runs by mean E2EL; all runs: mean_ttft 5.00 to 15.00, mean_e2el 10.00 to 30.00"
    )
    assert spread_text({**three[2], "sim": {"live": {"runs": 1, "spread": {}}}}) == ""


def test_a_result_is_one_run_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers, lists and tables are of the same run: counts add up, and means are those of the rows."""
    result = json_of(capsys, "live", "c.yaml", "--runs", "3")["runs"][0]
    rows = pd.read_csv(Path(result["out_dir"]) / "requests.csv")
    (ttft,) = [name for name in rows.columns if name.startswith("ttft")]
    assert result["mean_ttft_ms"] == pytest.approx(rows[ttft].mean(), rel=1e-3)
    assert len(rows) == result["completed"]
    modes = result["sim"]["iterations_by_mode"]
    assert sum(mode["count"] for mode in modes.values()) == result["sim"]["iterations"]
    assert sum(mode["time_share"] for mode in modes.values()) == pytest.approx(1)


def test_other_work_on_the_processor_is_said() -> None:
    class Device:
        kind = "cpu"

        def facts(self) -> dict[str, int]:
            return {"threads": 1}

    assert live._disturbed(Device(), [0.95, 0.97]) == []
    assert live._disturbed(Device(), [0.95, 0.5]) == [
        "other work took the processor: the decoder had it 95%, 50% of its time"
    ]


def test_the_shipped_load_needs_a_profile_to_be_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "validate", "live_tiny"]) == 0
    capsys.readouterr()
    assert main(["run", "live_tiny"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("notice: ")]
    assert lines == [
        "cost_model.profile: none is shipped for cpu; `servesim calibrate measure --model tiny --device cpu --out DIR` and"
        " `servesim calibrate fit DIR` make one: cost_model.profile=DIR/profile.json"
    ]


def test_a_profile_of_the_processor_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    profile = json.loads((SHIPPED / "rtx4090_llama-3.1-8b.json").read_text())
    profile["metadata"]["gpu"] = "cpu"
    profile["shape"] = {key: getattr(get_model("tiny"), key) for key in SHAPE}
    Path("p.json").write_text(json.dumps(profile))
    result = json_of(capsys, "run", "live_tiny", "cost_model.profile=p.json", "load.num_prompts=5")["runs"][0]
    assert result["completed"] == 5
    assert result["sim"]["utilisation"]["model_flops"] is None
    assert main(["run", "live_tiny", "cost_model.profile=p.json", "figures=cost"]) == 2
    line = "override figures=cost: cpu has no figures to hold times against; true draws the run"
    assert line in capsys.readouterr().err.splitlines()


def test_a_device_without_figures_has_no_shares_of_its_peak(capsys: pytest.CaptureFixture[str]) -> None:
    used = json_of(capsys, "run", "c.yaml")["runs"][0]["sim"]["utilisation"]
    assert used["model_flops"] is None
    assert used["bandwidth"] is None
    assert used["busy"] > 0
    claim = "claims:\n  - {what: ridge, claimed: 1, measure: {name: ridge}, why: none}\n"
    Path("claim.yaml").write_text(CONFIG + claim)
    (finding,) = json_of(capsys, "run", "claim.yaml")["claims"]
    assert finding["simulated"] == "not measured: cpu has no peaks"
