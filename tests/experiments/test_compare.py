from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import runs

from experiments.compare import compare, compare_table, metrics_of
from experiments.results import write_result
from simulator.errors import ConfigError


def result(folder: Path, scheduler: str = "chunked", **changes: Any) -> dict[str, Any]:
    return write_result(folder, runs.make_log(scheduler), runs.make_context(scheduler, **changes))


def test_differences_are_in_per_cent_of_the_first(tmp_path: Path) -> None:
    a = result(tmp_path)
    b = copy.deepcopy(a)
    b["mean_ttft_ms"] = a["mean_ttft_ms"] * 1.25
    b["sim"]["utilisation"]["busy"] = a["sim"]["utilisation"]["busy"] / 2
    got = {m["metric"]: m for m in compare([a, b])["metrics"]}
    assert got["mean_ttft_ms"]["error_pct"] == pytest.approx(25)
    assert got["utilisation.busy"]["error_pct"] == pytest.approx(-50)
    assert got["completed"] == {"metric": "completed", "a": 59, "b": 59, "error_pct": 0.0}
    assert all(
        m["error_pct"] in (0, None) for name, m in got.items() if name not in ("mean_ttft_ms", "utilisation.busy")
    )


def test_a_zero_has_no_relative_difference_and_nulls_are_left_out(tmp_path: Path) -> None:
    a = result(tmp_path)
    b = copy.deepcopy(a)
    a["failed"], b["failed"] = 0, 3
    a["request_goodput"], b["request_goodput"] = None, 3.0
    got = {m["metric"]: m for m in compare([a, b])["metrics"]}
    assert got["failed"] == {"metric": "failed", "a": 0, "b": 3, "error_pct": None}
    assert "request_goodput" not in got
    json.dumps(compare([a, b]), allow_nan=False)


def test_settings_and_wall_time_are_no_metrics(tmp_path: Path) -> None:
    names = set(metrics_of(result(tmp_path, request_rate=20.0)))
    assert not names & {"num_prompts", "request_rate", "burstiness", "wall_s", "speedup", "seed", "rtfx"}
    assert {"mean_ttft_ms", "p99_itl_ms", "preemptions", "kv_usage.mean", "iterations_by_mode.decode.count"} <= names


def test_what_was_run_differently_is_stated(tmp_path: Path) -> None:
    a = result(tmp_path / "a")
    b = result(tmp_path / "b", "static", config_hash="ffffffffffff", request_rate=5.0)
    b["sim"]["version"] = "9.9"
    lines = compare([a, b])["differences"]
    assert "scheduler differs: chunked, static" in lines
    assert not any("config_hash" in line for line in lines)  # what differs is known by name
    assert "request_rate differs: inf, 5.0" in lines
    assert f"version differs: {a['sim']['version']}, 9.9" in lines
    assert not compare([a, a])["differences"]
    assert "scheduler differs" in compare_table([a, b])
    (tmp_path / "b" / "config.resolved.yaml").unlink()
    assert "config_hash differs: 0123456789ab, ffffffffffff" in compare([a, b])["differences"]


def test_equal_labels_are_told_apart_by_the_keys_that_differ(tmp_path: Path) -> None:
    text = "engine: {{max_num_batched_tokens: {}, max_num_seqs: 16}}\nname: x{}\n"
    a, b = (result(tmp_path / str(n), config_yaml=text.format(n, n), config_hash=str(n)) for n in (512, 2048))
    got = compare([a, b])
    assert (got["a"], got["b"]) == ("chunked, max_num_batched_tokens=512", "chunked, max_num_batched_tokens=2048")
    assert "engine.max_num_batched_tokens differs: 512, 2048" in got["differences"]
    assert not any("name" in line or "seqs" in line for line in got["differences"])
    head = compare_table([a, b]).split("duration")[0]
    assert {"max_num_batched_tokens=512", "max_num_batched_tokens=2048"} <= set(head.split())


def test_a_growing_queue_and_unseen_tokens_are_no_numbers_to_compare(tmp_path: Path) -> None:
    a, b = result(tmp_path / "a"), result(tmp_path / "b", "static")
    a["sim"]["unstable"], b["sim"]["unstable"] = False, True
    rows = {line.split()[0]: line.split()[1:] for line in compare_table([a, b]).splitlines()}
    assert rows["mean_ttft_ms"][1:] == ["grows", "-"]
    assert "mean_tpot_ms" not in rows
    assert "mean_itl_ms" not in rows
    notes = "\n".join(compare([a, b])["notes"])
    assert "static: answered when the batch ends" in notes
    assert "grows: with the queue" in notes


def test_a_file_without_a_sim_block_compares_over_what_is_shared(tmp_path: Path) -> None:
    ours = result(tmp_path)
    theirs = {"name": "vllm", "out_dir": None, "backend": "openai", "duration": 10.0, "mean_ttft_ms": 5.0}
    got = compare([theirs, ours])
    assert [m["metric"] for m in got["metrics"]] == ["duration", "mean_ttft_ms"]
    assert (got["a"], got["b"]) == ("openai", "chunked")
    assert any(line.startswith("config_hash differs: none") for line in got["differences"])


def test_the_table_takes_any_number_from_two(tmp_path: Path) -> None:
    many = [result(tmp_path / name, name) for name in runs.SCHEDULERS]
    for one in many:
        one["sim"]["unstable"] = False
    header, *rows = compare_table(many).splitlines()
    assert header.split() == ["metric", "static", "continuous", "diff", "%", "chunked", "diff", "%"]
    row = next(row for row in rows if row.startswith("mean_e2el_ms"))
    static, continuous, diff, *_ = row.split()[1:]
    assert float(diff) == pytest.approx((float(continuous) / float(static) - 1) * 100, abs=1)
    for count in (0, 1):
        with pytest.raises(ConfigError, match="at least two"):
            compare_table(many[:count])
    with pytest.raises(ConfigError, match="needs two results, got 3"):
        compare(many)
