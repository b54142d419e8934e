"""Every awkward input gives the answer it must: accepted with these numbers, or refused with these words."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import TraceError
from workloads import load_trace

DATA = Path(__file__).parents[1] / "data" / "awkward"

# file -> (arrivals in ns, prompt tokens, dropped, part of each warning)
ACCEPTED: dict[str, tuple[list[int], list[int], dict[str, int], list[str]]] = {
    "01_bom_azure.csv": ([0, 4_314_579_000, 4_541_877_000], [374, 396, 879], {}, []),
    "02_crlf_no_final_newline.csv": ([0, 4_314_579_000, 4_541_877_000], [374, 396, 879], {}, []),
    "03_unsorted.csv": (
        [0, 2_500_000_000, 5_000_000_000],
        [10, 30, 20],
        {},
        ["1 of 3 rows out of order, first at line 4"],
    ),
    "04_same_timestamp.csv": ([0, 10**9, 10**9, 10**9], [10, 20, 30, 40], {}, []),
    "08_zero_output.csv": ([0], [472], {"zero_output": 2}, []),
    "09_zero_input_nonzero_output.csv": ([0], [200], {"zero_input": 1}, []),
    "11_float_tokens.csv": ([0, 10**9], [10, 20], {}, []),
    "13_scientific.csv": ([0, 100, 1500 * 10**9], [10, 20, 2000], {}, []),
    "14_tz_mixed_precision.csv": ([0, 41_683_000, 500_000_000], [1452, 584, 862], {}, []),
    "16_seven_digits.csv": ([0, 800], [374, 396], {}, []),
    "17_iso_t_z.csv": ([0, 5_550_000_000], [770, 949], {}, []),
    "19_extra_reordered.csv": ([0, 10**9], [10, 20], {}, []),
    "24_blank_lines_quotes.csv": ([0, 10**9], [10, 20], {}, []),
    "25_plain.csv.gz": ([0, 10**9], [10, 20], {}, []),
    "26_gzip_named_csv.csv": ([0], [10], {}, []),
    "33_total_mismatch.csv": ([0], [472], {}, ["1 row has a total that isn't prompt + output"]),
    "34_burstgpt3_offset.csv": ([0, 51 * 10**9], [906, 36], {}, []),
    "46_json_array.json": ([0, 10_000_000], [10, 10], {}, []),
    "52_bailian_dangling_parent.jsonl": ([0], [40], {}, ["1 row has a parent outside the file"]),
    "56_prompt_over_max_model_len.csv": ([0, 10**9, 2 * 10**9], [100, 200_000, 4000], {}, []),
}

# file -> what each fault says, in order
REFUSED: dict[str, list[str]] = {
    "05_negative_time.csv": [":2: arrived_at = -1.5: negative time"],
    "06_nan_time.csv": [":3: arrived_at = nan: not finite"],
    "07_inf_time.csv": [":3: arrived_at = 1e400: not finite"],
    "10_negative_tokens.csv": [":3: num_prefill_tokens = -5: negative"],
    "18_missing_column.csv": [
        ":1: columns = TIMESTAMP, ContextTokens: missing GeneratedTokens; the nearest known format is azure"
    ],
    "21_empty.csv": ["the file is empty"],
    "22_header_only.csv": ["no requests in the file"],
    "23_short_row.csv": [":3: 2 fields, expected 3"],
    "29_html_error_page.csv": ["looks like an HTML page"],
    "31_duplicate_ids.csv": [":3: request id = a: already used on line 2"],
    "35_epoch_us.csv": [
        ":2: arrived_at = 1790000000000000: more than 146 years in s; looks like us since 1970",
        ":3: ",
    ],
    "40_hash_count_mismatch.jsonl": [
        ":2: hash_ids = [1, 2]: 2 ids cover 1024 tokens at block size 512; 1025 prompt tokens need 3"
    ],
    "41_wrong_block_size.jsonl": [":1: hash_ids = ", ":2: hash_ids = ", "ceil(prompt tokens / 16) fits every row"],
    "43_hash_missing_or_empty.jsonl": [":2: hash_ids = []: no block ids for 600 prompt tokens"],
    "44_nan_json.jsonl": [":1: timestamp = NaN: not finite"],
    "45_bad_json_line.jsonl": [":2: not valid JSON"],
    "48_bool_and_string_numbers.jsonl": [
        ":1: input_length = true: a boolean, not a number",
        ':2: input_length = "12": a string, not a number',
    ],
    "50_timestamp_and_delay.jsonl": [":2: delay = 20: a turn has a timestamp or a delay, not both"],
    "51_delay_first_turn.jsonl": [":1: delay = 20: a session's first turn has no turn to wait for"],
    "55_lf_inside_quotes.csv": [":4: num_decode_tokens = x: not a number"],
}


def test_every_awkward_file_has_an_answer():
    files = {path.name for path in DATA.iterdir()} - {"INDEX.md"}
    assert files == ACCEPTED.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    arrivals, prompts, dropped, warnings = ACCEPTED[name]
    trace = load_trace(DATA / name)
    assert [r.arrival_ns for r in trace.requests] == arrivals
    assert [r.prompt_tokens for r in trace.requests] == prompts
    assert trace.info.dropped == dropped
    assert len(trace.info.warnings) == len(warnings)
    assert all(part in text for part, text in zip(warnings, trace.info.warnings, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    with pytest.raises(TraceError) as caught:
        load_trace(DATA / name)
    assert len(caught.value.faults) == len(REFUSED[name])
    assert all(part in text for part, text in zip(REFUSED[name], caught.value.faults, strict=True))
    assert all(name in fault for fault in caught.value.faults)


def test_a_stated_unit_reads_the_epoch():
    trace = load_trace(DATA / "35_epoch_us.csv", unit="us")
    assert [r.arrival_ns for r in trace.requests] == [0, 250_000_000]
    assert trace.info.first_arrival_s == 1_790_000_000.0


def test_a_stated_block_size_reads_the_hashes():
    trace = load_trace(DATA / "41_wrong_block_size.jsonl", block_size=16)
    assert trace.requests[0].prefix_hashes == tuple(range(13))


def test_strict_makes_warnings_errors():
    for name in ("03_unsorted.csv", "33_total_mismatch.csv", "52_bailian_dangling_parent.jsonl"):
        with pytest.raises(TraceError, match=r"\(strict\)"):
            load_trace(DATA / name, strict=True)


def test_ignored_columns_and_sessions_are_stated():
    assert load_trace(DATA / "17_iso_t_z.csv").info.ignored_columns == ["NumImages"]
    assert load_trace(DATA / "19_extra_reordered.csv").info.ignored_columns == ["note"]
    trace = load_trace(DATA / "34_burstgpt3_offset.csv")
    assert trace.requests[1].session is None
    assert trace.info.first_arrival_s == 19_440_110.0
    assert trace.info.sessions == 1
