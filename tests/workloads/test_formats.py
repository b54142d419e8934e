"""Each format by a sample of its own: detected, read, and what is no request trace refused by name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from simulator.errors import ConfigError, TraceError
from workloads import load_trace
from workloads.readers import BUILTIN, reader_class
from workloads.readers.base import JSON, Reader
from workloads.readers.rows import Rows
from workloads.testing import check_reader

DATA = Path(__file__).parents[1] / "data"

# file -> (format, unit, turns, requests, first arrival in s, prompt tokens of the last request)
READ = {
    "traces/azure_2024_code.csv": ("azure", "datetime", "single turns", 19, 1715503664.02258, 5578),
    "traces/azure_2025_multimodal.csv": ("azure", "datetime", "single turns", 5, 1728993600.269, 1724),
    "traces/burstgpt_3.csv": ("burstgpt", "s", "cumulative", 19, 19440110.0, None),
    "traces/fissionspec_azure_llm_code.csv": ("csv", "ms", "cumulative", 19, 0.0, 5578),
    "traces/vidur_splitwise_conv.csv": ("vidur", "s", "single turns", 19, 0.0, None),
    "traces/splitwise_sim.csv": ("splitwise-sim", "s", "single turns", 3, 1.0, 2048),
    "traces/frontier.csv": ("frontier", "s", "cumulative", 2, 0.0, 32),
    "traces/mooncake_synthetic.jsonl": ("mooncake", "ms", "cumulative", 8, 0.0, None),
    "traces/apex_plus_creation.jsonl": ("apex_plus", "ns", "single turns", 10, 0.618518284, None),
    "traces/llmservingsim_mixed.jsonl": ("llmservingsim", "ns", "cumulative", 10, 0.101537, None),
    "formats/aiperf_mooncake_multiturn.jsonl": ("aiperf", "ms", "delta", 3, 0.0, 790),
    "formats/bailian_16tok.jsonl": ("bailian", "s", "cumulative", 3, 0.0, 70),
    "formats/inference_sim_trace_v2.csv": ("inference-sim", "us", "cumulative", 2, 0.0, 50),
    "formats/inference_sim_trace_v2.yaml": ("inference-sim", "us", "cumulative", 2, 0.0, 50),
    "formats/llmservingsim_agentic.jsonl": ("llmservingsim", "ns", "cumulative", 2, 0.00405974, 1582),
}

REFUSED = {
    "formats/aiperf_text_input.jsonl": "prompt texts without arrivals",
    "formats/vllm_custom.jsonl": "prompt texts without arrivals",
    "formats/vllm_bench_serve_result.json": "a benchmark result",
    "formats/README.md": "a text document",
    "traces/vidur_arxiv_lengths_only.csv": "lengths without arrivals",
    "traces/servegen_windows.csv": "ServeGen window statistics",
    "traces": "a directory",
    "traces/burstgpt_33.csv": "did you mean .*burstgpt_3.csv",
}


@pytest.mark.parametrize("name", READ)
def test_read(name):
    form, unit, turns, requests, first_s, last_prompt = READ[name]
    trace = load_trace(DATA / name)
    info = trace.info
    assert (info.format, info.unit, info.cumulative, info.requests) == (form, unit, turns, requests)
    assert info.first_arrival_s == first_s
    assert last_prompt in (None, trace.requests[-1].prompt_tokens)
    assert info.rows_read == info.requests + sum(info.dropped.values())
    assert load_trace(DATA / name, format=form).requests == trace.requests


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(TraceError, match=REFUSED[name]):
        load_trace(DATA / name)


@pytest.mark.parametrize("name", [name for name in READ if not name.endswith("yaml")])
def test_contract(name):
    check_reader(READ[name][0], (DATA / name).read_text())


def test_every_builtin_is_sampled_and_declared_under_its_name():
    assert {form for form, *_ in READ.values()} | {"jsonl"} == BUILTIN.keys()
    assert all(reader_class(name).name == name for name in BUILTIN)


def test_aiperf_turns_accumulate_and_wait():
    first, other, second = load_trace(DATA / "formats/aiperf_mooncake_multiturn.jsonl").requests
    assert (second.prompt_tokens, second.output_tokens) == (600 + 40 + 150, 20)
    assert (second.after, second.delay_ns, second.prefix_hashes) == (first.id, 2_000_000_000, (1, 2, 3))
    assert (other.after, other.session) == (None, "s-2")


def test_aiperf_follow_up_with_a_timestamp_waits_for_the_answer_too(tmp_path):
    rows = [
        '{"session_id": 7, "timestamp": 100, "input_length": 10, "output_length": 5}',
        '{"session_id": 7, "timestamp": 900, "input_length": 3, "output_length": 4}',
        '{"session_id": 7, "input_length": 2, "output_length": 4}',
    ]
    trace = load_trace(write(tmp_path, rows))
    assert [(r.arrival_ns, r.prompt_tokens, r.after) for r in trace.requests] == [
        (0, 10, None),
        (800_000_000, 18, "0"),
        (800_000_000, 24, "1"),
    ]
    assert trace.info.chained_turns == 1
    assert "neither timestamp nor delay" in trace.info.warnings[0]


def test_aiperf_rows_that_look_cumulative_warn(tmp_path):
    rows = [
        f'{{"session_id": "a", "timestamp": {t}, "input_length": {n}, "output_length": 5}}'
        for t, n in ((0, 10), (1, 20), (2, 30))
    ]
    assert "look cumulative" in load_trace(write(tmp_path, rows)).info.warnings[0]


def test_a_turn_after_a_dropped_one_is_dropped(tmp_path):
    rows = [
        '{"session_id": "a", "timestamp": 0, "input_length": 10, "output_length": 5}',
        '{"session_id": "a", "delay": 1, "input_length": 10, "output_length": 0}',
        '{"session_id": "a", "delay": 1, "input_length": 10, "output_length": 5}',
    ]
    info = load_trace(write(tmp_path, rows)).info
    assert (info.requests, info.dropped) == (1, {"zero_output": 1, "after_dropped_turn": 1})


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"session_id": "a", "input_length": 10, "output_length": 5}', "timestamp = null: missing"),
        ('{"session_id": "b", "timestamp": 3, "input_length": 10}', "output_length = null: null or missing"),
        ('{"session_id": "x", "timestamp": 4, "input_length": 10, "output_length": 5}', "earlier than the session's"),
        ('{"session_id": true, "timestamp": 4, "input_length": 10, "output_length": 5}', "a boolean, not a name"),
    ],
)
def test_aiperf_faults(tmp_path, row, fault):
    first = '{"session_id": "x", "timestamp": 9, "input_length": 10, "output_length": 5}'
    with pytest.raises(TraceError, match=fault):
        load_trace(write(tmp_path, [first, row]))


def test_llmservingsim_chain():
    first, second = load_trace(DATA / "formats/llmservingsim_agentic.jsonl").requests
    assert (first.id, first.after) == ("task-0-run0/0", None)
    assert (second.after, second.delay_ns, second.arrival_ns) == (first.id, 127_348_767, 127_348_767)


@pytest.mark.parametrize(
    ("chain", "fault"),
    [
        ("[]", "an empty list"),
        ("3", "not a list"),
        ("[4]", r"sub_requests\[0\] = 4: not an object"),
        ('[{"input_toks": 1.5, "output_toks": 2}]', r"sub_requests\[0\].input_toks = 1.5: not a whole number"),
        ('[{"input_toks": 1, "output_toks": 2, "tool_duration_ns": -1}]', "tool_duration_ns = -1: negative time"),
    ],
)
def test_llmservingsim_faults(tmp_path, chain, fault):
    with pytest.raises(TraceError, match=fault):
        load_trace(write(tmp_path, [f'{{"arrival_time_ns": 5, "sub_requests": {chain}}}']))


def test_bailian_sessions_follow_parents_and_refuse_cycles(tmp_path):
    assert [r.session for r in load_trace(DATA / "formats/bailian_16tok.jsonl").requests] == ["0", "1", "0"]
    row = '{{"chat_id": {}, "parent_chat_id": {}, "timestamp": {}, "input_length": 16, "output_length": 5}}'
    for parents, fault in (
        (((1, 1, 0),), "ancestor"),
        (((1, 2, 0), (2, 1, 0)), "ancestor"),
        (((1, 2, 0), (2, -1, 9)), "later"),
    ):
        with pytest.raises(TraceError, match=fault):
            load_trace(write(tmp_path, [row.format(*parent) for parent in parents]))


def test_only_columns_that_are_there_are_stated():
    info = load_trace(DATA / "traces/llmservingsim_mixed.jsonl").info
    assert list(info.columns.values()) == ["arrival_time_ns", "input_toks", "output_toks"]
    assert load_trace(DATA / "formats/bailian_16tok.jsonl").info.ignored_columns == ["type", "turn"]


def test_hashes_are_exact(tmp_path):
    big = 2**64 - 1
    path = write(tmp_path, [f'{{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [{big}]}}'])
    assert load_trace(path).requests[0].prefix_hashes == (big,)
    assert load_trace(DATA / "traces/frontier.csv").requests[1].prefix_hashes == (11, 22)


def test_inference_sim_header_must_agree(tmp_path):
    rows = (DATA / "formats/inference_sim_trace_v2.csv").read_text()
    (tmp_path / "t.csv").write_text(rows)
    (tmp_path / "t.yaml").write_text("trace_version: 3\ntime_unit: ms\n")
    with pytest.raises(TraceError, match=r"t\.yaml:2: time_unit = ms"):
        load_trace(tmp_path / "t.yaml")


def test_plain_names_its_mapping_and_never_guesses(tmp_path):
    path = write(tmp_path, ["Arrival_MS,input_tokens,osl,extra", "5,1,2,z", "7.5,3,4,z"], "t.csv")
    info = load_trace(path).info
    assert info.columns == {"arrival_ns": "Arrival_MS", "prompt_tokens": "input_tokens", "output_tokens": "osl"}
    assert (info.unit, info.span_s, info.ignored_columns) == ("ms", 0.0025, ["extra"])
    with pytest.raises(TraceError, match="the name says ms, the stated unit is s"):
        load_trace(path, unit="s")
    two = write(tmp_path, ["arrival_s,arrival_ms,input_tokens,output_tokens", "5,5,1,2"], "two.csv")
    with pytest.raises(TraceError, match="arrival_s, arrival_ms: each could be arrival_ns"):
        load_trace(two)
    bare = write(tmp_path, ["timestamp,input_tokens,output_tokens", "5,1,2"], "bare.csv")
    assert "taken as seconds" in load_trace(bare).info.warnings[0]
    assert load_trace(bare, unit="ms").info.warnings == []


def test_plain_hashes_need_a_block_size(tmp_path):
    path = write(tmp_path, ['{"arrival_s": 1, "prompt_tokens": 20, "output_tokens": 2, "prefix_hashes": [4, 5]}'])
    assert load_trace(path, block_size=16).requests[0].prefix_hashes == (4, 5)
    with pytest.raises(TraceError, match="need a stated block size"):
        load_trace(path)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "the file is empty"),
        (b" \n\r\n\t", "the file is empty"),
        ("arrived_at".encode("utf-16"), "UTF-16"),
        (b"arrived_at\0", "binary data"),
        (b"PK\x03\x04zip", "a ZIP archive"),
        (gzip.compress(b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n")[:-12], "damaged gzip data"),
        (gzip.compress(gzip.compress(b"x")), "gzip data inside gzip"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3\n1,\xff,3\n", ":3: not UTF-8 text"),
        (b'arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,"3\n', ":2: not valid CSV"),
        (b"arrived_at,arrived_at,num_prefill_tokens,num_decode_tokens\n1,1,2,3\n", "arrived_at appears 2 times"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,2,3,4\n", ":2: 4 fields, expected 3"),
        (b"1,2,3\n2,3,4\n", "no header"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"[" * 20_000, "nested too deeply"),
        (b'{"timestamp": 1, "timestamp": 2, "input_length": 1, "output_length": 1}', "appears twice"),
        (b'{"timestamp": 1, "input_length": 1, "output_length": 1}\n[1]\n3\n', ":2: an array, expected an object"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,10.5,3\n", "= 10.5: not a whole number"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n1,99999999999999999999,3\n", "more than 2147483647"),
        (b'{"file": "x", "rows": 3}', "one JSON object"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, data, fault):
    path = tmp_path / "input"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=fault):
        load_trace(path)


def test_all_faults_at_once_capped(tmp_path):
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens", *("x,-1,1.5" for _ in range(10))]
    with pytest.raises(TraceError) as caught:
        load_trace(write(tmp_path, rows, "t.csv"))
    assert len(caught.value.faults) == 21
    assert "10 more faults" in caught.value.faults[-1]


class Tiny(Reader):
    """A reader as another package would write it: lengths in kilotokens."""

    name = "tiny"
    title = "tiny"
    container = JSON
    columns = {"arrival_ns": ("t",), "prompt_tokens": ("in",), "output_tokens": ("out",)}  # noqa: RUF012

    def row(self, line, fields, rows: Rows):
        rows.add(line, fields["arrival_ns"], fields["prompt_tokens"] * 1000, fields["output_tokens"])


def test_a_reader_from_outside(tmp_path):
    path = write(tmp_path, ['{"t": 0.5, "in": 2, "out": 3}'])
    trace = load_trace(path, format=f"{__name__}:Tiny")
    assert trace.requests[0].prompt_tokens == 2000
    assert trace.info.format == f"{__name__}:Tiny"
    check_reader(Tiny, path.read_text())


class Lazy(Reader):
    name = "lazy"
    title = "lazy"
    columns = {"arrival_ns": ("t",), "prompt_tokens": ("in",)}  # noqa: RUF012


def test_check_reader_finds_what_is_wrong():
    with pytest.raises(AssertionError, match="required fields without a column: output_tokens"):
        check_reader(Lazy, "t,in\n1,2\n")


@pytest.mark.parametrize(
    "name", ["azur", "no.such.module:Reader", "workloads.readers.base:BUILTIN", "json:JSONDecoder"]
)
def test_wrong_format_names(name):
    with pytest.raises(ConfigError, match="format = "):
        load_trace("azure-2023-conv", format=name)


def write(folder: Path, lines: list[str], name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path
