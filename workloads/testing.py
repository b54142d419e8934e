"""Public contract check for trace readers, those of other packages included."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from simulator.errors import TraceError
from workloads.readers import reader_class
from workloads.readers.base import CUMULATIVE, DELTA, SINGLE, Reader
from workloads.readers.source import CSV, JSON
from workloads.trace import Trace, load_trace

_PLACES = 12  # numbers per row that are damaged: a row may hold hundreds of block ids
_JUNK = ("nan", "-1", "1e400", "true", "x", "", "99999999999999999999999")


def check_reader(reader: str | type[Reader], sample: str) -> Trace:
    """Check a reader against the contract on a small valid sample of its format; returns what was read from it.

    `reader` is a class, a built-in name or `pkg.module:Class`; `sample` is the text of a file with at least one
    request. Raises AssertionError that says which rule is broken:

    1. it declares what it is (name, title, container, turns, columns of its required fields);
    2. the sample reads, twice alike, `rows_read == requests + dropped`, ids are unique, arrivals start at 0 and
       don't fall, lengths are whole, and a chained turn names an earlier one;
    3. a damaged value in any place of the sample either still reads or raises TraceError: nothing else escapes.
    """
    name = f"{reader.__module__}:{reader.__qualname__}" if isinstance(reader, type) else reader
    _check_declaration(reader_class(name))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        path.write_text(sample, encoding="utf-8")
        trace = load_trace(path, format=name)
        assert trace.requests == load_trace(path, format=name).requests, "reading twice gives two results"
        _check_trace(trace)
        for damaged in _damages(sample):
            path.write_text(damaged, encoding="utf-8")
            with suppress(TraceError):
                _check_trace(load_trace(path, format=name))
    return trace


def _check_declaration(reader: type[Reader]) -> None:
    for attribute in ("name", "title", "columns"):
        assert getattr(reader, attribute, None), f"{reader.__name__}.{attribute} isn't set"
    assert reader.container in (CSV, JSON), f"container = {reader.container}: one of {CSV}, {JSON}"
    assert reader.turns in (CUMULATIVE, DELTA, SINGLE), f"turns = {reader.turns}: say what a follow-up row holds"
    lacking = [field for field in reader.required if not reader.columns.get(field)]
    assert not lacking, f"required fields without a column: {', '.join(lacking)}"


def _check_trace(trace: Trace) -> None:
    info, requests = trace.info, trace.requests
    assert info.rows_read == info.requests + sum(info.dropped.values()), "rows_read != requests + dropped"
    assert info.requests == len(requests) > 0, "info.requests isn't the number of requests"
    arrivals = [request.arrival_ns for request in requests]
    assert arrivals[0] == 0, "arrivals aren't rebased to the first"
    assert arrivals == sorted(arrivals), "arrivals fall"
    seen: set[str] = set()
    for request in requests:
        assert request.id not in seen, f"id {request.id} appears twice"
        assert request.after is None or request.after in seen, f"{request.id} waits for a turn that isn't before it"
        seen.add(request.id)
        numbers = (request.arrival_ns, request.prompt_tokens, request.output_tokens, request.delay_ns)
        assert all(type(number) is int and number >= 0 for number in numbers), f"{request}: not whole numbers from 0"
        assert request.prompt_tokens >= 1, f"{request}: an empty prompt"
        assert request.output_tokens >= 1, f"{request}: an empty answer that wasn't dropped"


def _damages(sample: str) -> list[str]:
    """The sample cut at every tenth, and with each of the first numbers in its first three rows replaced by junk."""
    damaged = [sample[: len(sample) * tenth // 10] for tenth in range(10)]
    lines = sample.splitlines()
    for at, line in enumerate(lines[:3]):
        for start, end in _number_places(line)[:_PLACES]:
            for junk in _JUNK:
                changed = [*lines[:at], line[:start] + junk + line[end:], *lines[at + 1 :]]
                damaged.append("\n".join(changed))
    return damaged


def _number_places(line: str) -> list[tuple[int, int]]:
    places, at = [], 0
    while at < len(line):
        end = at
        while end < len(line) and (line[end].isdigit() or line[end] == "."):
            end += 1
        if end > at:
            places.append((at, end))
        at = end + 1
    return places
