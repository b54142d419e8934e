from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs

from experiments import results
from experiments.latencies import latencies_ms
from experiments.results import is_complete, load_result, load_results, write_result
from experiments.tables import comparison_table, console_block
from simulator.errors import ConfigError
from simulator.metrics import request_table, summary
from simulator.tokens import expand_itls

# The order in `vllm bench serve`'s file, percentiles aside.
VLLM_ORDER = [
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
    *("max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
    *(
        f"{kind}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el", "queue")
        for kind in ("mean", "median", "std", "p99")
    ),
]


def table_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def strict_json(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} isn't JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def write(folder: Path, scheduler: str = "chunked", **changes: Any) -> dict[str, Any]:
    return write_result(folder, runs.make_log(scheduler), runs.make_context(scheduler, **changes))


def test_result_json_has_vllms_fields_in_its_order_then_arrays_then_sim(tmp_path: Path) -> None:
    write(tmp_path, percentiles=(99,))
    fields = strict_json(tmp_path / "result.json")
    assert list(fields) == [*VLLM_ORDER, "latencies", "queue_times", "sim"]
    assert fields["request_rate"] == "inf"
    assert fields["request_goodput"] is None
    assert (fields["completed"], fields["failed"], fields["num_prompts"]) == (59, 1, 60)


def test_the_sim_block_says_what_ran(tmp_path: Path) -> None:
    log = runs.make_log()
    fields = write_result(tmp_path, log, runs.make_context(cost_is_bound=True, warnings=["slow"]))
    sim = fields["sim"]
    assert sim["digest"] == log.digest
    assert sim["cost_kind"] == "bound"
    assert sim["rejected"] == {"exceeds_max_model_len": 1}
    assert sim["preemptions"] == log.sequences["preemptions"].sum() > 0
    assert sim["iterations"] == len(log.iterations["end_ns"])
    assert sum(mode["count"] for mode in sim["iterations_by_mode"].values()) == sim["iterations"]
    assert sim["speedup"] == pytest.approx(fields["duration"] / 0.25)
    assert sim["warnings"] == ["slow"]
    assert {"version", "config_hash", "seed", "scheduler", "cost_model", "oracle", "utilisation", "kv_usage",
            "wall_s", "fast_forward", "profile", "respond_at", "policy"} <= set(sim)  # fmt: skip


def test_detailed_arrays_are_vllms_seconds_per_request(tmp_path: Path) -> None:
    log = runs.make_log()
    fields = write_result(tmp_path, log, runs.make_context(save_detailed=True))
    table = request_table(log)
    assert fields["itls"] == [(gaps / 1e9).tolist() for gaps in expand_itls(log)]
    assert fields["input_lens"] == table["prompt_tokens"].tolist()
    failed = fields["errors"].index("exceeds_max_model_len")
    assert fields["latencies"][failed] == fields["ttfts"][failed] == fields["output_lens"][failed] == 0
    assert fields["itls"][failed] == []
    ok = [i for i, error in enumerate(fields["errors"]) if not error]
    for i in ok:  # vLLM's own consistency: the token gaps fill the time after the first token
        assert fields["ttfts"][i] + sum(fields["itls"][i]) == pytest.approx(fields["latencies"][i])
        assert len(fields["itls"][i]) == fields["output_lens"][i] - 1
    assert fields["mean_ttft_ms"] == pytest.approx(np.mean([fields["ttfts"][i] for i in ok]) * 1e3)


def test_tables_hold_every_request_and_iteration(tmp_path: Path) -> None:
    log = runs.make_log()
    write_result(tmp_path, log, runs.make_context())
    rows = table_of(tmp_path / "requests.csv")
    table = request_table(log)
    assert [row["id"] for row in rows] == log.ids
    done = [row for row in rows if row["status"] == "finished"]
    assert [float(row["ttft_ms"]) * 1e6 for row in done] == pytest.approx(table["ttft_ns"][table["finished"]])
    for row in done:
        parts = sum(int(row[name]) for name in ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns"))
        assert parts == int(row["finish_ns"]) - int(row["arrival_ns"])
    (rejected,) = (row for row in rows if row["status"] == "rejected")
    assert rejected["reason"] == "exceeds_max_model_len"
    assert rejected["ttft_ms"] == rejected["finish_ns"] == rejected["scheduled_ns"] == ""
    assert rows[5]["tpot_ms"] == "" or rows[5]["output_tokens"] != "1"
    steps = table_of(tmp_path / "iterations.csv")
    assert [int(step["end_ns"]) for step in steps] == log.iterations["end_ns"].tolist()
    assert {step["mode"] for step in steps} <= {"extend", "decode", "mixed"}
    assert max(float(step["kv_cache_usage_perc"]) for step in steps) <= 1
    assert {"num_requests_running", "num_requests_waiting"} <= set(steps[0])


def test_ids_with_commas_and_quotes_survive_the_table(tmp_path: Path) -> None:
    log = runs.make_log()
    log.ids[:3] = ['a,"b"', "line\nbreak", "plain"]
    write_result(tmp_path, log, runs.make_context())
    rows = table_of(tmp_path / "requests.csv")
    assert [row["id"] for row in rows][:3] == ['a,"b"', "line\nbreak", "plain"]


def test_a_result_reads_back_as_it_was_returned(tmp_path: Path) -> None:
    written = write(tmp_path / "demo")
    assert load_result(tmp_path / "demo") == written
    assert load_result(tmp_path / "demo" / "result.json") == written
    assert (tmp_path / "demo" / "config.resolved.yaml").read_text() == "scheduler: chunked\n"
    meta = strict_json(tmp_path / "demo" / "meta.json")
    assert meta["wall_s"] == 0.25
    assert meta["versions"] == {"numpy": np.__version__}


def test_date_and_wall_time_are_all_that_two_writes_differ_in(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", wall_s=1.0), write(tmp_path / "b", wall_s=2.0)
    for fields in (first, second):
        for name in ("date", "out_dir"):
            del fields[name]
        for name in ("wall_s", "speedup"):
            del fields["sim"][name]
    assert first == second
    for name in ("requests.csv", "iterations.csv", "config.resolved.yaml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("name", ["config.resolved.yaml", "requests.csv", "iterations.csv", "result.json", "meta.json"])
def test_an_interrupted_write_is_never_complete(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)  # an older, complete result lies there already
    assert is_complete(tmp_path)
    replace = results.os.replace

    def fail(source: Path, target: Path) -> None:
        if target.name == name:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(results.os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path)
    assert not is_complete(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_truncated_or_missing_file_is_not_complete(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "requests.csv").write_text("id\n")
    assert not is_complete(tmp_path)
    (tmp_path / "requests.csv").unlink()
    assert not is_complete(tmp_path)
    (tmp_path / "meta.json").write_text("[]")
    assert not is_complete(tmp_path)
    assert not is_complete(tmp_path / "nowhere")


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


VLLM_FILE = {
    "date": "20260101-000000", "endpoint_type": "openai", "backend": "openai", "label": None, "model_id": "m",
    "tokenizer_id": "m", "num_prompts": 3, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": None,
    "duration": 2.5, "completed": 2, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 15,
    "request_throughput": 0.8, "request_goodput": None, "output_throughput": 6.0, "total_token_throughput": 18.0,
    "mean_ttft_ms": 100.0, "median_ttft_ms": 100.0, "std_ttft_ms": float("nan"), "p99_ttft_ms": 100.0,
    "mean_tpot_ms": 20.0, "ttfts": [0.1, 0.1, 0.0], "itls": [[0.02] * 4, [0.02] * 9, []],
    "input_lens": [10, 20, 5], "output_lens": [5, 10, 0], "generated_texts": ["", "", ""],
    "errors": ["", "", "Traceback: refused"],
}  # fmt: skip


def test_a_file_of_vllm_reads(tmp_path: Path) -> None:
    file = tmp_path / "openai-infqps-m-20260101-000000.json"
    file.write_text(json.dumps(VLLM_FILE))  # with the NaN that Python's writer allows
    result = load_result(file)
    assert result["out_dir"] is None
    assert result["request_rate"] == "inf"
    assert result["std_ttft_ms"] is None
    assert {name: values.tolist() for name, values in latencies_ms(result).items()} == {
        "ttft": [100.0, 100.0],
        "tpot": [pytest.approx(20.0), pytest.approx(20.0)],
    }
    assert "Mean TTFT (ms):                          100.00" in console_block(result)
    assert "openai" in comparison_table([result])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not JSON"),
        ("{} {}", "--append-result"),
        ("[1]", "holds a list, not an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"duration": 1}', "lacks completed, request_throughput, output_throughput"),
        (json.dumps(VLLM_FILE | {"duration": "long"}), 'duration = "long": must be a number or null'),
        (json.dumps(VLLM_FILE | {"p99_ttft_ms": [1]}), "p99_ttft_ms = [1]: must be a number or null"),
        (json.dumps(VLLM_FILE | {"request_rate": "fast"}), 'request_rate = "fast": must be a number or "inf"'),
        (json.dumps(VLLM_FILE | {"completed": True}), "completed = true: must be a number or null"),
        (json.dumps(VLLM_FILE | {"sim": 3}), "sim = 3: must be an object"),
        (json.dumps(VLLM_FILE).replace("2.5", "1e999"), "duration = Infinity: must be a number or null"),
    ],
)
def test_junk_is_refused_in_one_line_with_the_file(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "junk.json"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_result(file)
    (line,) = caught.value.faults
    assert line.startswith(str(file))
    assert fault in line
    assert "\n" not in line


def test_all_faults_of_a_file_and_of_all_files_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "junk.json"
    file.write_text(json.dumps(VLLM_FILE | {"duration": "long", "failed": "no"}))
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    paths = [file, tmp_path / "missing.json", tmp_path / "empty", tmp_path / "binary.json"]
    with pytest.raises(ConfigError) as caught:
        load_results(paths)
    assert len(caught.value.faults) == 5
    assert all(str(tmp_path) in fault for fault in caught.value.faults)


def test_a_folder_of_runs_stands_for_its_complete_runs(tmp_path: Path) -> None:
    for name in ("static", "chunked"):
        write(tmp_path / "sweep" / name, name)
    write(tmp_path / "sweep" / "broken")
    (tmp_path / "sweep" / "broken" / "meta.json").unlink()
    assert [r["sim"]["scheduler"] for r in load_results([tmp_path / "sweep"])] == ["chunked", "static"]
    with pytest.raises(ConfigError, match="incomplete"):
        load_result(tmp_path / "sweep" / "broken")


def test_latencies_come_from_the_table_beside_the_result(tmp_path: Path) -> None:
    log = runs.make_log()
    result = write_result(tmp_path, log, runs.make_context())
    table = request_table(log)
    got = latencies_ms(result)
    np.testing.assert_allclose(got["ttft"], np.sort(table["ttft_ns"][table["finished"]]) / 1e6)
    assert len(got["tpot"]) == (table["finished"] & (table["emitted_tokens"] > 1)).sum()
    (tmp_path / "requests.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"requests\.csv: not a table of requests"):
        latencies_ms(result)


def test_the_console_block_is_vllms(tmp_path: Path) -> None:
    log = runs.make_log()
    result = write_result(tmp_path, log, runs.make_context(request_rate=20.0, percentiles=(99,), slo={"ttft": 500}))
    result["sim"]["unstable"] = False
    block, after = console_block(result).split("\n" + "=" * 50 + "\n")
    lines = block.splitlines()
    assert after == "chunked: rejected 1 (exceeds_max_model_len)"
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert "Successful requests:                     59        " in lines
    assert "Failed requests:                         1         " in lines
    assert "Request rate configured (RPS):           20.00     " in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    labels = [line.split(":")[0] for line in lines if ":" in line]
    assert labels[-12:] == [f"{n} {m} (ms)" for m in ("TTFT", "TPOT", "ITL", "E2EL") for n in ("Mean", "Median", "P99")]
    assert f"{summary(log)['p99_ttft_ms']:.2f}" in next(line for line in lines if "P99 TTFT" in line)
    assert "Request goodput (req/s):" in console_block(result)


def test_the_block_of_an_overloaded_batch_says_what_its_latencies_are(tmp_path: Path) -> None:
    text = console_block(write(tmp_path, "static", cost_is_bound=True))
    mean = next(line for line in text.splitlines() if line.startswith("Mean TTFT"))
    assert mean.endswith("(grows)")
    assert "Mean TPOT (ms):                          n/a" in text
    assert "Mean ITL (ms):                           n/a" in text
    for note in ("grows: with the queue", "answered when the batch ends", "lower bound", "arrive at once"):
        assert note in text


def test_rows_whose_requests_arrive_at_once_are_named(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", request_rate=5.0), write(tmp_path / "b", label="burst")
    assert "burst: all requests arrive at once" in comparison_table([one, other])
    assert "every run: all requests arrive at once" in comparison_table([other, other])
    assert "at once" not in comparison_table([one])


def test_the_comparison_table_fits_and_says_what_misleads(tmp_path: Path) -> None:
    many = [write(tmp_path / name, name, cost_is_bound=True) for name in runs.SCHEDULERS]
    text = comparison_table(many)
    assert all(len(line) <= 100 for line in text.splitlines()[:6])
    row = next(line for line in text.splitlines() if line.startswith("static"))
    assert row.split()[5:7] == ["-", "-"]  # no token is streamed, so 0 ms between tokens would mislead
    assert "static: answered when the batch ends" in text
    assert "rejected 1 (exceeds_max_model_len)" in text
    assert "lower bound" in text


def test_runs_with_one_label_are_told_apart(tmp_path: Path) -> None:
    same = [write(tmp_path / str(rate), request_rate=rate) for rate in (1.0, 2.0)]
    text = comparison_table(same)
    assert "chunked @ 1/s" in text
    assert "chunked @ 2/s" in text
    assert "chunked (2)" in comparison_table([same[0], same[0]])


def test_long_names_stay_apart_and_the_table_fits(tmp_path: Path) -> None:
    labels = [f"max_num_seqs={a}, max_num_batched_tokens={b}" for a in (16, 32) for b in (512, 2048)]
    base = write(tmp_path)
    lines = comparison_table([{**base, "label": label} for label in labels]).splitlines()
    assert [line.split("  ")[0] for line in lines[3:7]] == ["16, 512", "16, 2048", "32, 512", "32, 2048"]
    assert "run: max_num_seqs, max_num_batched_tokens." in lines
    mixed = [labels[0], "a label of quite another kind, of two parts and more than anything in width"]
    lines = comparison_table([{**base, "label": label} for label in mixed]).splitlines()
    assert max(map(len, lines[:8])) <= 103
    names = "".join(line[:20].strip() for line in lines[3:9])
    assert "max_num_batched_tokens=512" in names
