"""Shipped traces, options, cutting and stretching, and the summary."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError, TraceError
from workloads import SHIPPED, load_trace
from workloads.info import arrival_statistics
from workloads.transform import mean_rate, rate_factor, scaled

DATA = Path(__file__).parents[1] / "data"
ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


@pytest.fixture(scope="module")
def conv():
    return load_trace("azure-2023-conv")


def test_azure_2023_conv_is_what_was_published(conv):
    info = conv.info
    assert (info.requests, info.dropped, info.first_arrival_s) == (19_366, {}, 1700158546.68059)
    assert info.span_s == pytest.approx(3501.7, abs=0.05)
    assert info.request_rate == pytest.approx(5.53, abs=0.005)
    assert (info.cv, info.iod) == (pytest.approx(1.09, abs=0.005), pytest.approx(1.39, abs=0.005))
    assert info.input_tokens == pytest.approx(
        {"mean": 1154.7, "p50": 1020, "p90": 2734.5, "p99": 4142, "max": 14050}, abs=0.05
    )
    assert info.output_tokens == pytest.approx(
        {"mean": 211.1, "p50": 129, "p90": 424, "p99": 601, "max": 1000}, abs=0.05
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_traces_read_without_a_warning(name):
    trace = load_trace(name)
    assert trace.info.warnings == []
    assert trace.info.path == name
    assert (Path(__file__).parents[2] / "workloads" / "data" / SHIPPED[name].file).stat().st_size < 500_000


def test_mooncake_sample_keeps_its_hashes():
    trace = load_trace("mooncake-conversation-1k")
    assert trace.info.has_prefix_hashes
    assert trace.info.block_size == 512
    assert all(r.prefix_hashes[0] == 0 and len(r.prefix_hashes) == -(-r.prompt_tokens // 512) for r in trace.requests)


def test_summary_is_json_and_readable(conv):
    assert json.loads(json.dumps(conv.info.as_dict(), allow_nan=False))["requests"] == 19_366
    text = conv.info.text()
    assert "19366 of 19366 rows read; dropped: none" in text
    assert "5.53 req/s over 3501.722 s" in text
    assert "no prefix information" in text


def test_a_misspelt_name_or_path_is_an_error_with_the_nearest(tmp_path):
    with pytest.raises(TraceError, match="did you mean azure-2023-conv"):
        load_trace("azure-2023-cnv")
    with pytest.raises(TraceError, match="empty path"):
        load_trace("")
    with pytest.raises(TraceError, match="no such file"):
        load_trace("nowhere/at/all.csv")


def test_limit_and_window_stop_early(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(ROWS + "5,1,1\n6,0,1\n7,2,1\n8,3,1\n9,junk,1\n")
    assert [r.prompt_tokens for r in load_trace(path, limit=2).requests] == [1, 2]
    assert load_trace(path, limit=2).info.rows_read == 3
    cut = load_trace(path, window_s=3)
    assert (cut.info.rows_read, cut.info.requests, cut.info.dropped) == (3, 2, {"zero_input": 1})
    later = load_trace(path, window_s=(2, 3.5), limit=2)
    assert [r.prompt_tokens for r in later.requests] == [2, 3]
    assert later.info.dropped == {"before_window": 1, "zero_input": 1}
    assert (later.info.first_arrival_s, later.requests[0].arrival_ns) == (7.0, 0)


def test_zero_output_rules(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(ROWS + "0,10,0\n1,0,0\n2,0,7\n3,10,7\n")
    assert load_trace(path).info.dropped == {"zero_output": 2, "zero_input": 1}
    kept = load_trace(path, zero_output="keep")
    assert [(r.prompt_tokens, r.output_tokens) for r in kept.requests] == [(10, 0), (0, 0), (10, 7)]
    assert kept.info.dropped == {"zero_input": 1}
    with pytest.raises(TraceError) as caught:
        load_trace(path, zero_output="error")
    assert [fault.split(": ")[1] for fault in caught.value.faults] == [
        "num_decode_tokens = 0",
        "num_decode_tokens = 0",
        "num_prefill_tokens = 0",
    ]


def test_all_rows_dropped_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(ROWS + "0,10,0\n")
    with pytest.raises(TraceError, match="no requests left of 1 rows; dropped: zero_output 1"):
        load_trace(path)


@pytest.mark.parametrize("rate", [0.5, 8.0, 1234.5])
def test_request_rate_is_achieved(conv, rate):
    trace = load_trace("azure-2023-conv", request_rate=rate)
    assert trace.info.request_rate == pytest.approx(rate, rel=1e-9)
    assert trace.info.cv == pytest.approx(conv.info.cv, rel=1e-6)
    assert trace.info.time_scale == pytest.approx(conv.info.request_rate / rate)


def test_time_scale_multiplies_gaps_and_delays():
    path = DATA / "formats/aiperf_mooncake_multiturn.jsonl"
    plain, double = load_trace(path).requests, load_trace(path, time_scale=2.0).requests
    assert [r.arrival_ns for r in double] == [2 * r.arrival_ns for r in plain]
    assert [r.delay_ns for r in double] == [2 * r.delay_ns for r in plain]


def test_one_instant_has_no_rate(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(ROWS + "5,1,1\n5,1,1\n")
    with pytest.raises(ConfigError, match="one instant"):
        load_trace(path, request_rate=3)
    info = load_trace(path).info
    assert (info.span_s, info.request_rate, info.cv, info.iod) == (0.0, None, None, None)


def test_all_wrong_options_at_once():
    with pytest.raises(ConfigError) as caught:
        load_trace(
            "azure-2023-conv", unit="h", block_size=0, zero_output="clip", limit=True, window_s=(3, 1), time_scale=-1,
            request_rate=float("nan"),
        )  # fmt: skip
    assert len(caught.value.faults) == 8


def test_options_that_would_change_nothing_are_refused():
    with pytest.raises(ConfigError, match="need no unit"):
        load_trace("azure-2023-conv", unit="s")
    with pytest.raises(ConfigError, match="has no block ids"):
        load_trace("azure-2023-conv", block_size=16)
    with pytest.raises(TraceError, match="holds CSV, and mooncake is JSON"):
        load_trace("azure-2023-conv", format="mooncake")


def test_an_implausible_unit_warns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(ROWS + "0,1,1\n250000,1,1\n")
    assert "is s the right unit?" in load_trace(path).info.warnings[0]
    path.write_text(ROWS + "".join(f"{i},1,1\n" for i in range(200)))
    assert "is us the right unit?" in load_trace(path, unit="us").info.warnings[0]


def test_statistics_by_hand():
    stats = arrival_statistics(np.array([0, 10**9, 10**9, 4 * 10**9], np.int64))
    gaps = np.array([1, 0, 3])
    counts = np.array([1, 2, 0, 0, 1])
    assert stats["request_rate"] == 3 / 4
    assert stats["cv"] == pytest.approx(gaps.std() / gaps.mean())
    assert stats["iod"] == pytest.approx(counts.var() / counts.mean())


def test_scaling_rounds_half_up_and_knows_its_end():
    times = np.array([0, 1, 3], np.int64)
    assert scaled(times, 0.5).tolist() == [0, 1, 2]
    assert mean_rate(np.array([0, 10**9], np.int64)) == 1.0
    assert rate_factor(np.array([0, 10**9], np.int64), 4.0) == 0.25
    with pytest.raises(ConfigError, match="146 years"):
        scaled(np.array([0, 2**61], np.int64), 4.0)


def test_requests_know_how_many_tokens_their_block_ids_cover(tmp_path):
    """By the format, the shipped trace, or what the caller states, in that order of growing weight."""
    row = {"timestamp": 0, "input_length": 33, "output_length": 1}
    path = tmp_path / "t.jsonl"
    for size, ids in ((512, [7]), (16, [7, 8, 9]), (32, [7, 8])):
        path.write_text(json.dumps(row | {"hash_ids": ids}) + "\n")
        stated = None if size == 512 else size
        assert load_trace(path, block_size=stated).requests[0].prefix_block_tokens == size
    assert load_trace("mooncake-conversation-1k", limit=1).requests[0].prefix_block_tokens == 512
    shipped = load_trace("llmservingsim-sharegpt-300", limit=1)
    assert (shipped.requests[0].prefix_block_tokens, shipped.info.block_size) == (16, 16)
    bailian = tmp_path / "b.jsonl"
    chat = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "turn": 1, "type": "text"}
    bailian.write_text(json.dumps(chat | {"input_length": 33, "output_length": 1, "hash_ids": [1, 2, 3]}) + "\n")
    assert load_trace(bailian).requests[0].prefix_block_tokens == 16


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_another_separator_than_a_comma_is_named(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"arrival_s{mark}prompt_tokens{mark}output_tokens\n1{mark}2{mark}3\n")
    with pytest.raises(TraceError, match="where commas are expected"):
        load_trace(path)
