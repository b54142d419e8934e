"""`load_trace`: a file, or a shipped trace by name, as the requests to simulate and what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from simulator.clock import ns_from_s
from simulator.errors import ConfigError, TraceError
from simulator.request import Request
from workloads.info import TraceInfo
from workloads.ordered import Ordered, collector_paused
from workloads.readers import reader_class
from workloads.readers.base import Reader
from workloads.readers.detect import detect, refuse_markup
from workloads.readers.rows import DROP, ZERO_OUTPUT_RULES, Rows
from workloads.readers.source import Source
from workloads.readers.values import UNITS
from workloads.shipped import SHIPPED, shipped_path
from workloads.transform import Times, Window, rate_factor

WindowSeconds = float | tuple[float, float]


@dataclass
class Trace:
    """Requests in order of arrival, the first at 0 ns, and what is known about them."""

    requests: list[Request]
    info: TraceInfo


def load_trace(
    path: str | Path,
    *,
    format: str | None = None,
    unit: str | None = None,
    block_size: int | None = None,
    zero_output: str = DROP,
    strict: bool = False,
    limit: int | None = None,
    window_s: WindowSeconds | None = None,
    time_scale: float = 1.0,
    request_rate: float | None = None,
) -> Trace:
    """Read a request trace.

    `path` is a file or the name of a shipped trace. `format` is a built-in name or `pkg.module:Class`, detected where
    it is None. `unit` (s, ms, us, ns) is that of the file's times and `block_size` the prompt tokens per block id,
    where the file's own differ from the format's. `strict` makes every warning an error.

    A row with no output tokens is a request that failed. `zero_output` says what becomes of it: "drop" (counted under
    its reason, never lifted to one token), "keep" (it stays in the trace with `output_tokens == 0`; the engine rejects
    it on arrival, reason `zero_output`, since there is nothing to generate) or "error". A row with output but no
    prompt can't be run at all: it is dropped as `zero_input` under both "drop" and "keep". A turn chained to a dropped
    one is dropped too, as `after_dropped_turn`.

    In this order: rows are read in file order until `limit` requests are taken, or up to the first row that arrives
    `window_s` seconds after the file's first row (or outside of a pair of such seconds); failed rows are dropped; the
    rest is sorted by arrival (ties keep file order) and rebased to the first arrival; then gaps and delays are
    multiplied by `time_scale`, or by what makes (requests - 1) / span equal `request_rate`. Rows behind the limit or
    the window's end aren't read, so their faults aren't seen.

    Raises ConfigError for wrong options, TraceError for everything wrong in the file, both with all faults at once.
    """
    if block_size is None and (shipped := SHIPPED.get(str(path))) is not None:
        block_size = shipped.block_size
    window, wrong = _options(unit, block_size, zero_output, limit, window_s, time_scale, request_rate)
    named = {fault.partition(" = ")[0] for fault in wrong}
    try:
        source, reader = _open(
            locate(path), format, None if "unit" in named else unit, None if "block_size" in named else block_size
        )
    except ConfigError as error:
        wrong += error.faults
    if wrong:
        raise ConfigError(wrong)
    rows = Rows(source.faults, reader.block_size, zero_output, window)
    with collector_paused():
        bound, ignored = reader.read(source, rows)
    rows.finish()
    if source.faults:
        raise source.faults.error()
    if not len(rows):
        raise TraceError(f"{source.path}: {_nothing(rows)}")
    ordered = Ordered(rows)
    warnings = _warnings(rows, ordered, reader)
    if strict and warnings:
        raise TraceError([f"{source.path}: {text} (strict)" for text in warnings])
    factor = time_scale if request_rate is None else rate_factor(ordered.arrivals, request_rate)
    info = TraceInfo(
        path=str(path),
        format=format if format is not None and ":" in format else reader.name,
        title=reader.title,
        unit=reader.unit or "datetime",
        sha256=source.sha256(),
        cumulative=reader.turns,
        columns=bound,
        ignored_columns=ignored,
        rows_read=rows.read,
        dropped=dict(rows.dropped),
        block_size=reader.block_size,
        time_scale=factor,
        warnings=warnings,
        **ordered.facts(factor),
    )
    return Trace(ordered.requests(factor), info)


def _options(
    unit: str | None,
    block_size: int | None,
    zero_output: str,
    limit: int | None,
    window_s: WindowSeconds | None,
    time_scale: float,
    request_rate: float | None,
) -> tuple[Window, list[str]]:
    """(which part to take, what is wrong with the options)."""
    faults = []
    if unit is not None and unit not in UNITS:
        faults.append(f"unit = {unit}: one of {', '.join(UNITS)}")
    if zero_output not in ZERO_OUTPUT_RULES:
        faults.append(f"zero_output = {zero_output}: one of {', '.join(ZERO_OUTPUT_RULES)}")
    for name, count in (("block_size", block_size), ("limit", limit)):
        if count is not None and not (_is(count, Integral) and count >= 1):
            faults.append(f"{name} = {count}: a whole number of at least 1")
    stretches: dict[str, Any] = {"time_scale": time_scale, "request_rate": request_rate}
    for name, number in stretches.items():
        if number is not None and not (_finite(number) and number > 0):
            faults.append(f"{name} = {number}: a number above 0 and below 4e9")
    if request_rate is not None and time_scale != 1.0:
        faults.append(f"time_scale = {time_scale}, request_rate = {request_rate}: state one of them, both stretch time")
    start_s, end_s = _bounds(window_s)
    if not (_finite(start_s) and _finite(end_s) and 0 <= start_s < end_s):
        faults.append(f"window_s = {window_s}: seconds above 0, or a pair [start, end] with 0 <= start < end")
    if window_s is None or faults:
        return Window(limit), faults
    return Window(limit, ns_from_s(start_s) if start_s else None, ns_from_s(end_s)), faults


def _bounds(window_s: WindowSeconds | None) -> tuple[float, float]:
    if isinstance(window_s, (tuple, list)) and len(window_s) == 2:
        return window_s[0], window_s[1]
    return 0.0, 1.0 if window_s is None else window_s


def _finite(value: Any) -> bool:
    return _is(value, Real) and math.isfinite(value) and bool(abs(value) < 4e9)


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def locate(path: str | Path) -> str:
    """A shipped name or an existing file; else TraceError with the nearest choice."""
    text = str(path)
    found = shipped_path(text)
    if found is not None:
        return found
    place = Path(text)
    try:
        if text and place.exists():
            return text
        siblings = [entry.name for entry in place.parent.iterdir()] if place.parent.is_dir() else []
    except (OSError, ValueError) as error:
        raise TraceError(f"{text!r}: can't be read: {error}") from None
    near = get_close_matches(text, SHIPPED, n=1, cutoff=0.6)
    if not near:
        near = [str(place.with_name(name)) for name in get_close_matches(place.name, siblings, n=1, cutoff=0.6)]
    hint = f"; did you mean {near[0]}?" if near else ""
    raise TraceError(f"{text or '(empty path)'}: no such file or shipped trace{hint} (shipped: {', '.join(SHIPPED)})")


def _open(path: str, format: str | None, unit: str | None, block_size: int | None) -> tuple[Source, Reader]:
    chosen = reader_class(format) if format is not None else None
    readers = [chosen] if chosen else [reader_class("inference-sim")]
    path = next((rows for rows in (reader.companion(path) for reader in readers) if rows), path)
    source = Source(path)
    if chosen is None:
        chosen = detect(source)
    refuse_markup(source)
    if chosen.container != source.container:
        raise TraceError(f"{path}: holds {source.container.upper()}, and {chosen.name} is {chosen.container.upper()}")
    faults = []
    if unit is not None and chosen.default_unit is None:
        faults.append(f"unit = {unit}: {chosen.name} has date and time stamps, which need no unit")
    if block_size is not None and "prefix_hashes" not in chosen.columns:
        faults.append(f"block_size = {block_size}: {chosen.name} has no block ids")
    if faults:
        raise ConfigError(faults)
    return source, chosen(unit, block_size)


def _nothing(rows: Rows) -> str:
    if not rows.read:
        return "no requests in the file"
    reasons = ", ".join(f"{reason} {n}" for reason, n in rows.dropped.items())
    return f"no requests left of {rows.read} rows; dropped: {reasons}"


def _warnings(rows: Rows, ordered: Ordered, reader: Reader) -> list[str]:
    warnings = ordered.disorder()
    for what, (count, line) in rows.notes.items():
        warnings.append(f"{'1 row has' if count == 1 else f'{count} rows have'} {what}, first at line {line}")
    return warnings + rows.warnings + _implausible(ordered.arrivals, reader)


def _implausible(arrivals: Times, reader: Reader) -> list[str]:
    """A unit that is wrong by a thousand shows in the rate: under one request per hour, or over 10,000 a second."""
    span_s = int(arrivals[-1] - arrivals[0]) / 1e9 if len(arrivals) > 1 else 0.0
    gaps = len(arrivals) - 1
    if span_s and span_s / gaps > 3600:
        why = f"{gaps + 1} arrivals over {span_s:.0f} s"
    elif span_s and gaps >= 100 and gaps / span_s > 10_000:
        why = f"{gaps + 1} arrivals within {span_s:.6f} s"
    else:
        return []
    return [f"{why}: is {reader.unit or 'the stamp'} the right unit?"]
