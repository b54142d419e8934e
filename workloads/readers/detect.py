"""Which format a file is, from its column names; and what it is, where it is no request trace at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simulator.errors import TraceError
from workloads.readers import BUILTIN, reader_class
from workloads.readers.base import HEAD_RECORDS, Reader
from workloads.readers.source import CSV, JSON, Source
from workloads.readers.values import printable

_BENCH_KEYS = {"request_throughput", "output_throughput", "mean_ttft_ms", "ttfts", "input_lens", "total_output_tokens"}
_TEXT_KEYS = {"prompt", "text_input", "conversations", "messages", "text"}
_LENGTHS_ONLY = "lengths without arrivals; use it as {empirical: FILE} lengths of a synthetic load, with a request rate"


def detect(source: Source) -> type[Reader]:
    """The first built-in format whose columns the file has. Raises TraceError saying what the file is instead."""
    refuse_markup(source)
    names, records = _head(source)
    for name in BUILTIN:
        reader = reader_class(name)
        if reader.container != source.container or reader.missing(names):
            continue
        if not reader.marks or set(reader.marks) & set(names):
            return reader
    raise _unknown(source, names, records)


def refuse_markup(source: Source) -> None:
    """Raise TraceError for what only looks like text with columns: HTML, XML, Markdown, a Git LFS pointer."""
    head = source.head.lstrip().lower()
    kind = None
    if re.match(r"<(!doctype html|html|head|body)", head):
        kind = "looks like an HTML page (a failed download?)"
    elif head.startswith(("<?xml", "<!doctype", "<")):
        kind = "looks like XML or markup"
    elif head.startswith("version https://git-lfs"):
        kind = "a Git LFS pointer, not the data it points to (git lfs pull fetches it)"
    elif re.match(r"#{1,6} \S|```|---\n", head) or source.path.lower().endswith((".md", ".rst")):
        kind = "begins as a text document (Markdown) or with a # comment, where column names are expected"
    if kind is not None:
        raise TraceError(f"{source.path}: {kind}, not a request trace")


def nearest(names: Sequence[str], container: str) -> tuple[type[Reader], list[str]] | None:
    """The built-in format that shares most of its required columns with these names, and those it lacks."""
    best: tuple[float, type[Reader], list[str]] | None = None
    for name in BUILTIN:
        reader = reader_class(name)
        lacking = reader.missing(names)
        share = 1 - len(lacking) / len(reader.required)
        if reader.marks and not set(reader.marks) & set(names):
            share -= 0.01  # a plainer format that fits as well is the better guess
        if reader.container == container and share > 0 and (best is None or share > best[0]):
            best = (share, reader, lacking)
    return best[1:] if best else None


def head_names(source: Source) -> list[str]:
    """The column names, or the keys of the first JSON records; what is broken there goes to the source's faults."""
    return _head(source)[0]


def _head(source: Source) -> tuple[list[str], list[Any]]:
    """Column names, and the first records: the header's cells for CSV, decoded values for JSON."""
    if source.container == CSV:
        header = next(source.csv_rows(), (1, []))[1]
        return [name.strip() for name in header], header
    names: dict[str, None] = {}
    records: list[Any] = []
    for _, record in source.json_records():
        records.append(record)
        if isinstance(record, dict):
            names.update(dict.fromkeys(record))
        if len(records) == HEAD_RECORDS:
            break
    return list(names), records


def _unknown(source: Source, names: list[str], records: list[Any]) -> TraceError:
    path = source.path
    what = _identify_csv(names) if source.container == CSV else _identify_json(names, records, source)
    if what is not None:
        return TraceError(f"{path}: {what}")
    if source.faults:
        return source.faults.error()
    near = nearest(names, source.container)
    found = printable(", ".join(names[:30]))[:300] or "none"
    if near is None:
        return TraceError(f"{path}:1: columns = {found}: no known trace format has them (known: {', '.join(BUILTIN)})")
    reader, lacking = near
    needs = ", ".join(lacking or reader.marks)
    return TraceError(
        f"{path}:1: columns = {found}: missing {needs}; the nearest known format is {reader.name}, "
        f"which needs {', '.join(reader.columns[f][0] for f in reader.required)}"
    )


def _identify_csv(names: list[str]) -> str | None:
    if len(names) == 1 and (mark := next((m for m in ";\t|" if m in names[0]), None)):
        return f"columns are separated by {mark!r}, where commas are expected"
    if names and all(re.fullmatch(r"[-+.\deE]*", name) or name in ("Gamma", "Weibull") for name in names):
        if len(names) == 6 and names[3] in ("Gamma", "Weibull", ""):
            return "ServeGen window statistics (start, rate, CV, distribution per window), not a request trace"
        return "the first line is no header: name the columns (arrival_s, prompt_tokens, output_tokens)"
    if has_lengths(names):
        return f"{_LENGTHS_ONLY}; not a request trace"
    if names and re.fullmatch(r"[\w-]+:( .*)?", names[0]):
        return "looks like YAML or a key: value file, not a request trace"
    return None


def has_lengths(names: Sequence[str]) -> bool:
    """Whether these columns hold prompt and output lengths under any known name, and no arrival."""
    plain = reader_class("csv").bind(names)
    return {"prompt_tokens", "output_tokens"} <= plain.keys() and "arrival_ns" not in plain


def _identify_json(names: list[str], records: list[Any], source: Source) -> str | None:
    if not any(isinstance(record, dict) for record in records):
        document = source.document()
        if isinstance(document, dict):
            records, names = [document], list(document)
    keys = set(names)
    if len(keys & _BENCH_KEYS) >= 2:
        return "a benchmark result (as vllm bench serve writes it), not a request trace"
    if names and all(name.isdigit() for name in names):
        return "ServeGen length distributions per window, not a request trace"
    if keys & _TEXT_KEYS and not keys & {"timestamp", "arrival_time_ns", "arrival_s", "arrival_ms"}:
        return "prompt texts without arrivals, not a request trace"
    if has_lengths(names):
        return f"{_LENGTHS_ONLY}; not a request trace"
    if len(records) == 1 and isinstance(records[0], dict) and nearest(names, JSON) is None:
        keys_found = printable(", ".join(names[:6]))[:200]
        return f"one JSON object (keys {keys_found}, ...), not a request trace of one object per line"
    return None
