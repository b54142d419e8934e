"""Strict numbers against Python's own, and random requests through every layout that can hold them."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import load_trace
from workloads.readers import values
from workloads.readers.azure import Stamps
from workloads.readers.values import BadValue


@given(st.integers(0, values.MAX_TOKENS))
def test_whole_numbers_agree_with_int(number):
    assert values.text_tokens(str(number)) == values.json_tokens(number) == number
    assert values.text_tokens(f" {number}.0 ") == number


@given(st.floats(0, 1e9, allow_nan=False))
def test_seconds_are_exact_decimals(seconds):
    expected = int((Decimal(repr(seconds)) * 10**9).to_integral_value(ROUND_HALF_UP))
    assert values.text_ns("s")(repr(seconds)) == values.json_ns("s")(seconds) == expected


@given(st.text(max_size=12))
def test_what_is_accepted_is_what_python_reads(text):
    try:
        number = values.text_number(text)
    except BadValue:
        return
    assert float(number) == float(text)
    assert text.isascii()


@pytest.mark.parametrize(
    "text", ["1_000", "١٢", "²", "0x10", "nan", "-inf", "1e400", "", " ", "1,5", "1 2", "--1", "True", "1e"]
)
def test_pythons_kindness_is_refused(text):
    with pytest.raises(BadValue):
        values.text_tokens(text)
    with pytest.raises(BadValue):
        values.text_ns("ms")(text)


@pytest.mark.parametrize("value", [True, False, None, "5", [1], {}, float("nan"), float("inf"), -1, 0.5, 10**30])
def test_json_values_that_are_no_tokens(value):
    with pytest.raises(BadValue):
        values.json_tokens(value)


@pytest.mark.parametrize("text", ["1e-7", "1e-9999999999999", "1e9999999999999999999", "9" * 5000])
def test_extreme_exponents_end_quickly(text):
    with suppress(BadValue):
        assert values.text_ns("s")(text) in (0, 100)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)),
    st.integers(0, 999),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from([" ", "T"]),
)
def test_stamps_agree_with_datetime(moment, nanos, offset_minutes, separator):
    moment = moment.replace(tzinfo=UTC)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000 + nanos
    parse = Stamps()
    text = moment.strftime(f"%Y-%m-%d{separator}%H:%M:%S.%f") + f"{nanos:03}"
    assert [parse(text), parse(text), parse(text + "Z"), parse(text + "+00:00")] == [expected] * 4
    local = moment + timedelta(minutes=offset_minutes)
    sign = "-" if offset_minutes < 0 else "+"
    zone = f"{sign}{abs(offset_minutes) // 60:02}:{abs(offset_minutes) % 60:02}"
    assert parse(local.strftime("%Y-%m-%d %H:%M:%S.%f") + f"{nanos:03}{zone}") == expected
    whole = moment.strftime("%Y-%m-%d %H:%M:%S")
    assert parse(whole) == parse(whole + "+00:00") == expected // 10**9 * 10**9


@pytest.mark.parametrize(
    "text",
    ["", "2024-05-10", "2024-13-01 00:00:00", "2024-05-10 00:00:60", "2024-05-10 00:00:0x.5", "1969-12-31 23:59:59",
     "2024-05-10 00:00:00.1234567891", "2024-05-10 00:00:00.", "2024-05-10 00:00:00+25:00", "2300-01-01 00:00:00",
     "2024-05-10 00:00:٠٠.5", "2024-05-10 00:00:00Z+00:00", "1700158546.68"],
)  # fmt: skip
def test_no_stamps(text):
    parse = Stamps()
    parse("2024-05-10 00:00:00")
    with pytest.raises(BadValue):
        parse(text)


def test_show_is_one_safe_line():
    assert values.show("a\nb", False) == "'a\\nb'"
    assert values.show("x" * 100, False) == "x" * 59 + "…"
    assert values.show(float("inf"), True) == "Infinity"
    assert values.show(10**6000, True) == f"an integer of {(10**6000).bit_length()} bits"


LENGTHS = st.integers(1, 10**6)
REQUESTS = st.lists(st.tuples(st.integers(0, 10**9), LENGTHS, LENGTHS), min_size=1, max_size=30)


def azure(rows):
    start = datetime(2024, 5, 10)
    lines = [f"{start + timedelta(microseconds=us)},{p},{o}" for us, p, o in rows]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])


def table(header, per_us):
    return lambda rows: "\n".join([header, *(f"{Decimal(us) / per_us},{p},{o}" for us, p, o in rows)])


def lines(arrival, prompt, output, per_us):
    def write(rows):
        return "\n".join(json.dumps({arrival: float(Decimal(us) / per_us), prompt: p, output: o}) for us, p, o in rows)

    return write


LAYOUTS = {
    "azure": azure,
    "vidur": table("arrived_at,num_prefill_tokens,num_decode_tokens", 10**6),
    "burstgpt": table("Timestamp,Request tokens,Response tokens", 10**6),
    "splitwise-sim": table("arrival_timestamp,prompt_size,token_size", 10**6),
    "csv": table("arrival_ms,prompt_tokens,output_tokens", 10**3),
    "jsonl": lines("arrival_us", "prompt_tokens", "output_tokens", 1),
    "mooncake": lines("timestamp", "input_length", "output_length", 10**3),
    "llmservingsim": lines("arrival_time_ns", "input_toks", "output_toks", Decimal("0.001")),
    "apex_plus": lines("StartTimeOffset", "ContextTokens", "GeneratedTokens", Decimal("0.001")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(rows=REQUESTS)
def test_round_trip(layout, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_text(LAYOUTS[layout](rows))
        trace = load_trace(path)
    assert trace.info.format == layout
    first = min(us for us, _, _ in rows)
    expected = sorted((((us - first) * 1000, p, o) for us, p, o in rows), key=lambda row: row[0])
    assert [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in trace.requests] == expected
    assert len({r.id for r in trace.requests}) == len(rows)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.integers(0, 2)), min_size=1),
    st.sampled_from(["drop", "keep"]),
)
def test_rows_read_is_requests_and_dropped(rows, rule):
    if all(not p or not o for _, p, o in rows):
        rows = [*rows, (0, 1, 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_text(LAYOUTS["vidur"](rows))
        trace = load_trace(path, zero_output=rule)
    info = trace.info
    assert info.rows_read == len(rows) == len(trace.requests) + sum(info.dropped.values())
    assert sum(info.dropped.values()) == sum((not o and rule == "drop") or (not p and o > 0) for _, p, o in rows)
