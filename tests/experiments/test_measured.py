from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import synthetic

from experiments.accuracy import accuracy, accuracy_table
from experiments.accuracy_plots import _curves, plot_accuracy
from experiments.cli import main
from experiments.latencies import latencies_ms, per_request
from experiments.results import load_result, load_results, write_result
from simulator.errors import ConfigError

# Two requests by hand: queued at 10 and 11 s, first token after 0.5 and 1 s, 3 and 1 tokens.
ROWS = [
    {"input_toks": 7, "output_toks": 3, "queued_ts": 10.0, "scheduled_ts": 10.1, "first_token_ts": 10.5,
     "last_token_ts": 11.5},
    {"input_toks": 9, "output_toks": 1, "queued_ts": 11.0, "scheduled_ts": 11.0, "first_token_ts": 12.0,
     "last_token_ts": 12.0},
]  # fmt: skip
META = {"model": "m", "vllm_version": "0.19.0", "num_requests": 2}


def folder(path: Path, rows: list[dict[str, Any]] = ROWS, meta: object = META, series: str | None = None) -> Path:
    path.mkdir(exist_ok=True)
    synthetic.lines(path / "requests.jsonl", rows)
    (path / "meta.json").write_text(json.dumps(meta))
    if series is not None:
        (path / "timeseries.csv").write_text(series)
    return path


def sglang(**changes: Any) -> dict[str, Any]:
    """As SGLang 0.4's bench_serving writes it with --output-details."""
    return {
        "backend": "sglang", "dataset_name": "random", "request_rate": math.inf, "max_concurrency": None,
        "duration": 4.0, "completed": 2, "total_input_tokens": 16, "total_output_tokens": 4,
        "total_output_tokens_retokenized": 4, "request_throughput": 0.5, "input_throughput": 4.0,
        "output_throughput": 1.0, "mean_e2e_latency_ms": 1250.0, "median_e2e_latency_ms": 1250.0,
        "std_e2e_latency_ms": 250.0, "p99_e2e_latency_ms": 1495.0, "mean_ttft_ms": 750.0, "median_ttft_ms": 750.0,
        "std_ttft_ms": 250.0, "p99_ttft_ms": 995.0, "mean_tpot_ms": 500.0, "mean_itl_ms": 500.0, "p95_itl_ms": 590.0,
        "concurrency": 0.6, "accept_length": None,
        "input_lens": [7, 9], "output_lens": [3, 1], "ttfts": [0.5, 1.0], "itls": [[0.4, 0.6], []],
        "generated_texts": ["", ""], "errors": ["", ""],
    } | changes  # fmt: skip


def test_a_folder_by_hand(tmp_path: Path) -> None:
    result = load_result(folder(tmp_path / "run", ROWS[::-1]))  # the file's order doesn't matter
    assert (result["name"], result["out_dir"], result["backend"]) == ("run", None, "vLLM 0.19.0")
    assert (result["duration"], result["completed"], result["request_rate"]) == (2.0, 2, 1.0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (16, 4)
    assert (result["request_throughput"], result["output_throughput"], result["total_token_throughput"]) == (1, 2, 10)
    assert (result["mean_ttft_ms"], result["std_ttft_ms"], result["p90_ttft_ms"]) == (750, 250, 950)
    assert (result["mean_e2el_ms"], result["median_e2el_ms"], result["mean_tpot_ms"]) == (1250, 1250, 500)
    assert {name: values.tolist() for name, values in latencies_ms(result).items()} == {
        "ttft": [500, 1000], "tpot": [500], "e2el": [1000, 1500]
    }  # fmt: skip
    columns = per_request(result)
    assert columns["arrival"].tolist() == [0, 1]
    assert columns["input"].tolist() == [7, 9]
    json.dumps(result, allow_nan=False)


def test_logs_without_all_stamps_and_equal_arrivals(tmp_path: Path) -> None:
    rows = [{**row, "queued_ts": 10.0} for row in ROWS]
    del rows[0]["scheduled_ts"]
    result = load_result(folder(tmp_path / "run", rows, {"model": "m"}))
    assert result["request_rate"] == "inf"
    assert result["backend"] == "measured"
    assert per_request(result)["input"].tolist() == [7, 9]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"queued_ts": None}, "requests.jsonl:1: queued_ts = null: must be a number of seconds"),
        ({"last_token_ts": math.nan}, "requests.jsonl:1: last_token_ts = NaN: must be a number of seconds"),
        ({"first_token_ts": math.inf}, "requests.jsonl:1: first_token_ts = Infinity: must be a number of seconds"),
        ({"first_token_ts": "10.5"}, 'requests.jsonl:1: first_token_ts = "10.5": must be a number of seconds'),
        ({"output_toks": 0}, "requests.jsonl:1: output_toks = 0: must be a whole number of at least 1"),
        ({"input_toks": 2.5}, "requests.jsonl:1: input_toks = 2.5: must be a whole number of at least 1"),
        ({"last_token_ts": 10.2}, "requests.jsonl:1: last_token_ts = 10.2: lies before first_token_ts = 10.5"),
        ({"queued_ts": 10.2}, "requests.jsonl:1: scheduled_ts = 10.1: lies before queued_ts = 10.2"),
    ],
)
def test_bad_rows(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = folder(tmp_path / "run", [ROWS[0] | change, ROWS[1]])
    with pytest.raises(ConfigError) as caught:
        load_result(path)
    assert caught.value.faults == [f"{path}/{fault}"]


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("requests.jsonl", "", "requests.jsonl: holds no requests"),
        ("requests.jsonl", "\n\n", "requests.jsonl: holds no requests"),
        ("requests.jsonl", "{", "requests.jsonl:1: not JSON: Expecting property name"),
        ("requests.jsonl", "[1]", "requests.jsonl:1: must be an object"),
        ("requests.jsonl", "[" * 100_000, "requests.jsonl:1: nested too deeply"),
        ("requests.jsonl", b"\xff\xfe", "requests.jsonl: not a text file"),
        ("meta.json", None, ": no meta.json in it"),
        ("meta.json", "[]", "meta.json: holds a list, not an object"),
        ("meta.json", "{\n x", "meta.json:2: not JSON"),
        ("meta.json", '{"num_requests": 3}', "meta.json: num_requests = 3: requests.jsonl holds 2"),
        ("timeseries.csv", "", "timeseries.csv:1: lacks the columns t, running, waiting"),
        ("timeseries.csv", "t,running\n", "timeseries.csv:1: lacks the columns waiting"),
        ("timeseries.csv", "t,running,waiting\n1,2,nan\n", "timeseries.csv:2: waiting = nan: must be a number"),
    ],
)
def test_bad_files(tmp_path: Path, file: str, text: str | bytes | None, fault: str) -> None:
    path = folder(tmp_path / "run")
    if text is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_result(path)
    assert len(caught.value.faults) == 1
    assert fault in caught.value.faults[0]


def test_many_faults_are_cut_short_and_a_run_without_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_result(folder(tmp_path / "run", [{}] * 30))
    assert len(caught.value.faults) == 21
    same = {name: 10.0 for name in ROWS[0] if name.endswith("_ts")}
    with pytest.raises(ConfigError, match="the run takes no time"):
        load_result(folder(tmp_path / "run", [ROWS[0] | same], {}))


def test_sglang_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "sglang.jsonl"
    path.write_text(json.dumps(sglang()) + "\n")
    result = load_result(path)
    assert (result["mean_e2el_ms"], result["p99_e2el_ms"], result["request_rate"]) == (1250, 1495, "inf")
    assert result["latencies"] == [1.5, 1.0]
    assert {name: values.tolist() for name, values in latencies_ms(result).items()} == {
        "ttft": [500, 1000], "tpot": [500], "e2el": [1000, 1500]
    }  # fmt: skip
    short = {k: v for k, v in sglang().items() if k not in ("ttfts", "itls", "errors", "input_lens", "output_lens")}
    path.write_text(json.dumps(short | {"total_throughput": 5.0}))
    result = load_result(path)
    assert latencies_ms(result) == {}
    assert result["total_token_throughput"] == 5.0


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ttfts": [0.5]}, "arrays of unequal length: input_lens 2, output_lens 2, ttfts 1, itls 2, errors 2"),
        ({"ttfts": [0.5, math.nan]}, "ttfts[1] = null: must be a finite number"),
        ({"ttfts": "x"}, 'ttfts = "x": must be a list'),
        ({"mean_ttft_ms": "fast"}, 'mean_ttft_ms = "fast": must be a number or null'),
    ],
)
def test_bad_sglang_files(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "sglang.jsonl"
    path.write_text(json.dumps(sglang(**change)))
    with pytest.raises(ConfigError) as caught:
        load_result(path)
    assert caught.value.faults == [f"{path}: {fault}"]
    path.write_text(2 * (json.dumps(sglang()) + "\n"))
    with pytest.raises(ConfigError, match="several results"):
        load_result(path)


def simulated(path: Path, **changes: Any) -> dict[str, Any]:
    return write_result(path, runs.make_log(), runs.make_context(save_detailed=True, **changes))


def benchmark(result: dict[str, Any], path: Path, factor: float = 1.0) -> Path:
    """The file that `vllm bench serve --save-detailed` would have written, latencies longer by `factor`."""
    fields = {k: v for k, v in json.loads((Path(result["out_dir"]) / "result.json").read_text()).items() if k != "sim"}
    for name in ("ttfts", "latencies"):
        fields[name] = [value * factor for value in fields[name]]
    fields["itls"] = [[gap * factor for gap in gaps] for gaps in fields["itls"]]
    fields["backend"] = "vllm"
    path.write_text(json.dumps(fields))
    return path


def test_errors_against_a_benchmark_file(tmp_path: Path) -> None:
    ours = simulated(tmp_path / "ours")
    measured = load_result(benchmark(ours, tmp_path / "vllm.json", 1.25))
    found = accuracy(load_result(tmp_path / "ours"), measured)
    errors = {m["metric"]: m["error_pct"] for m in found["metrics"]}
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "p50", "p90", "p95", "p99"):
            assert errors[f"{statistic}_{name}_ms"] == pytest.approx(-20, abs=1e-6)
    assert errors["duration"] == errors["request_throughput"] == 0
    assert found["per_request"] == pytest.approx({f"{n}_mape_pct": 20 for n in ("ttft", "tpot", "e2el")})
    assert found["differences"] == []
    assert found["preemptions"] == {"a": ours["sim"]["preemptions"], "b": None}
    json.dumps(found, allow_nan=False)


def test_a_result_equals_itself_whichever_way_it_is_read(tmp_path: Path) -> None:
    ours = simulated(tmp_path / "ours")
    found = accuracy(load_result(tmp_path / "ours"), load_result(benchmark(ours, tmp_path / "vllm.json")))
    assert all(abs(m["error_pct"]) < 1e-9 for m in found["metrics"])
    assert max(found["per_request"].values()) < 1e-9


def test_without_single_requests_the_stated_statistics_are_compared(tmp_path: Path) -> None:
    ours = simulated(tmp_path / "ours")
    path = tmp_path / "sglang.json"
    kept = {k: v for k, v in sglang().items() if not isinstance(v, list)}
    path.write_text(json.dumps(kept))
    found = accuracy(load_result(tmp_path / "ours"), load_result(path))
    errors = {m["metric"]: m for m in found["metrics"]}
    assert errors["mean_e2el_ms"]["b"] == 1250
    assert errors["p50_ttft_ms"]["b"] == 750
    assert errors["p95_itl_ms"]["a"] == pytest.approx(ours["p95_itl_ms"])
    assert "p90_ttft_ms" not in errors
    assert found["per_request"] == {}
    assert any(line.startswith("completed differs: 59, measured 2") for line in found["differences"])
    assert "per request" not in accuracy_table(load_result(tmp_path / "ours"), load_result(path))


def test_requests_that_cant_be_matched_are_stated(tmp_path: Path) -> None:
    simulated(tmp_path / "ours")
    ours = load_result(tmp_path / "ours")
    fewer = accuracy(ours, load_result(folder(tmp_path / "run")))
    assert "requests differ: 60, measured 2; single requests can't be matched" in fewer["differences"]
    assert fewer["per_request"] == {}
    other = json.loads(benchmark(ours, tmp_path / "vllm.json").read_text())
    other["input_lens"][3] += 1
    (tmp_path / "vllm.json").write_text(json.dumps(other))
    found = accuracy(ours, load_result(tmp_path / "vllm.json"))
    assert "input tokens of 1 of 60 requests differ: is it the same workload?" in found["differences"]


def test_the_command_prints_a_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = simulated(tmp_path / "ours")
    measured = benchmark(ours, tmp_path / "vllm.json", 1.25)
    assert main(["compare", str(tmp_path / "ours"), str(measured)]) == 0
    out, err = capsys.readouterr()
    assert "chunked against vllm" in out
    assert out.count("-20.00") == 4 * 5
    assert "per request, mean absolute error: ttft 20.00 %, tpot 20.00 %, e2el 20.00 %" in out
    assert err.count("figure: ") == 2
    for name in ("compare_latency", "compare_load"):
        for suffix in (".png", ".svg"):
            assert (tmp_path / "ours" / (name + suffix)).stat().st_size > 5000
    assert main(["compare", str(tmp_path / "ours"), str(measured), "--json", "--out", str(tmp_path / "figures")]) == 0
    assert set(json.loads(capsys.readouterr().out)["per_request"]) == {
        "ttft_mape_pct",
        "tpot_mape_pct",
        "e2el_mape_pct",
    }
    assert sorted(p.name for p in (tmp_path / "figures").glob("*.png")) == ["compare_latency.png", "compare_load.png"]


def test_running_and_waiting_are_drawn_where_they_were_recorded(tmp_path: Path) -> None:
    simulated(tmp_path / "ours")
    ours = load_result(tmp_path / "ours")
    with_series = load_result(folder(tmp_path / "run", series="t,running,waiting\n1,1,0\n2,2,1\n"))
    assert with_series["measured"]["timeseries"] == {"t": [1, 2], "running": [1, 2], "waiting": [0, 1]}
    assert len(plot_accuracy(ours, with_series, tmp_path)) == 2
    three = (tmp_path / "compare_load.svg").read_text()
    assert len(plot_accuracy(ours, load_result(folder(tmp_path / "other")), tmp_path)) == 2
    one = (tmp_path / "compare_load.svg").read_text()
    assert three.count('id="axes_') == 3
    assert one.count('id="axes_') == 1
    kept = {k: v for k, v in sglang().items() if not isinstance(v, list)}
    (tmp_path / "s.json").write_text(json.dumps(kept))
    assert plot_accuracy(ours, load_result(tmp_path / "s.json"), tmp_path) == []


def test_curves_begin_with_the_first_arrival_wherever_the_clock_stands(tmp_path: Path) -> None:
    ours = simulated(tmp_path / "ours")
    fields = json.loads(benchmark(ours, tmp_path / "vllm.json").read_text())
    fields["start_times"] = [at + 5e4 for at in fields["start_times"]]
    (tmp_path / "vllm.json").write_text(json.dumps(fields))
    for result in (load_result(tmp_path / "ours"), load_result(tmp_path / "vllm.json")):
        times, system = _curves(result)["system"]
        assert times[0] == 0
        assert system[-1] == 0
        assert (system >= 0).all()
        assert times[-1] < 60


def test_every_tool_takes_a_measured_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(tmp_path / "ours")
    measured = folder(tmp_path / "run")
    assert main(["plot", str(tmp_path / "ours"), str(measured), "--out", str(tmp_path / "figures")]) == 0
    assert main(["compare", str(measured), str(tmp_path / "ours")]) == 0
    assert "mean_ttft_ms" in capsys.readouterr().out
    assert len(load_results([tmp_path / "ours", measured])) == 2
    (measured / "results" / "x").mkdir(parents=True)
    assert len(load_results([measured])) == 1
    assert np.isfinite(load_result(measured)["mean_ttft_ms"])


def test_faults_of_the_command_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated(tmp_path / "ours")
    bad = folder(tmp_path / "run", [])
    for path, fault in ((bad, "requests.jsonl: holds no requests"), (tmp_path / "none", "can't be read: No such file")):
        assert main(["compare", str(tmp_path / "ours"), str(path)]) == 2
        err = capsys.readouterr().err.splitlines()
        assert len(err) == 1
        assert fault in err[0]
