"""What a trace reader is: the columns a format has, their units, and what one row means.

A reader is a subclass of `Reader` in a file of its own. Most say only which column is which; the loop below opens,
checks and parses for all of them. One row of the built-in table, or `format: "my_pkg.mod:MyReader"`, makes it known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar

from workloads.readers import values
from workloads.readers.rows import Enough, Rows
from workloads.readers.source import CSV, JSON, Source
from workloads.readers.values import BadValue, Parser

# What a follow-up turn's prompt holds: the whole conversation so far, or only what is new, or there are no turns.
CUMULATIVE = "cumulative"
DELTA = "delta"
SINGLE = "single turns"

# Field -> (parser of a CSV cell, parser of a JSON value). Times depend on the unit and are made in `Reader.parser`.
_PARSERS: dict[str, tuple[Parser, Parser]] = {
    "prompt_tokens": (values.text_tokens, values.json_tokens),
    "output_tokens": (values.text_tokens, values.json_tokens),
    "total_tokens": (values.text_tokens, values.json_tokens),
    "id": (values.text_label, values.json_label),
    "session": (values.text_label, values.json_label),
    "prefix_hashes": (values.text_hashes, values.json_hashes),
    "max_tokens": (values.text_integer, values.json_integer),
    "priority": (values.text_integer, values.json_integer),
}
HEAD_RECORDS = 20  # how far to look to learn what a JSON-lines file holds
_CHUNK = 4096  # rows
_TIMES = ("arrival_ns", "delay_ns")


class Reader:
    """A trace format. Subclasses set the class attributes and, where a row means more than its cells, `row`.

    `columns` maps fields to the names they go by in the file, in order of preference. Fields are those of
    `simulator.Request` (`arrival_ns`, `prompt_tokens`, `output_tokens`, `id`, `session`, `prefix_hashes`,
    `max_tokens`, `priority`, `delay_ns`), `total_tokens` (checked against the sum, a mismatch warns), or a reader's
    own, for which it overrides `parser`. A column that isn't listed is ignored, and named in the summary.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # one line: whose format, and what its numbers are
    container: ClassVar[str] = CSV  # or JSON: one object per line, or one array of objects
    turns: ClassVar[str] = SINGLE  # or CUMULATIVE, DELTA: what a follow-up row's prompt holds
    columns: ClassVar[Mapping[str, tuple[str, ...]]]
    required: ClassVar[tuple[str, ...]] = ("arrival_ns", "prompt_tokens", "output_tokens")
    marks: ClassVar[tuple[str, ...]] = ()  # detected only where one of these columns is there too
    default_unit: ClassVar[str | None] = "s"  # of times; None where the values carry their own
    default_block_size: ClassVar[int | None] = None  # tokens per block id
    folds_case: ClassVar[bool] = False  # column names match in any case

    def __init__(self, unit: str | None = None, block_size: int | None = None) -> None:
        self.stated_unit = unit
        self.unit = unit or self.default_unit
        self.block_size = block_size or self.default_block_size

    @classmethod
    def bind(cls, names: Iterable[str]) -> dict[str, str]:
        """Which of a file's column names holds which field; fields that aren't there are left out."""
        there = {cls.fold(name): name for name in reversed(list(names))}
        found = {f: [there[cls.fold(a)] for a in known if cls.fold(a) in there] for f, known in cls.columns.items()}
        return {field: held[0] for field, held in found.items() if held}

    @classmethod
    def missing(cls, names: Iterable[str]) -> list[str]:
        """The columns a file with these names lacks to be of this format, under their first-choice names."""
        bound = cls.bind(names)
        return [cls.columns[field][0] for field in cls.required if field not in bound]

    @classmethod
    def fold(cls, name: str) -> str:
        """A column name as it is compared: without outer spaces, and in lower case where case doesn't matter."""
        return name.strip().casefold() if cls.folds_case else name.strip()

    @classmethod
    def companion(cls, path: str) -> str | None:
        """The file that holds the rows where `path` is only a header beside it; None for most formats."""
        return None

    def prepare(self, source: Source, names: list[str], bound: dict[str, str]) -> None:
        """Look at the file's columns and what they are bound to, before the first row; faults go to the source's."""

    def parser(self, field: str) -> Parser:
        """What turns a cell of this field into its value; raises BadValue. None stands for "not stated"."""
        of_json = self.container == JSON
        if field in _TIMES:
            parse = (values.json_ns if of_json else values.text_ns)(self.unit or "s")
        else:
            parse = _PARSERS[field][of_json]
        return parse if field in self.required else _optional(parse, of_json)

    def row(self, line: int, fields: dict[str, Any], rows: Rows) -> None:
        """Turn one row's parsed fields into requests: `rows.add`, once or several times. May raise BadValue."""
        hashes = fields.get("prefix_hashes")
        if hashes is not None:
            rows.check_hashes(hashes, fields["prompt_tokens"])
        if "total_tokens" in fields:
            total = fields.pop("total_tokens")
            if total is not None and total != fields["prompt_tokens"] + fields["output_tokens"]:
                rows.note("a total that isn't prompt + output", line)
        limit = fields.get("max_tokens")
        if limit is not None and limit < max(1, fields["output_tokens"]):
            rows.note("more output tokens than max_tokens", line)
        rows.add(line, **fields)

    def finish(self, rows: Rows) -> None:
        """Called once after the last row, for what only the whole file can tell."""

    def read(self, source: Source, rows: Rows) -> tuple[dict[str, str], list[str]]:
        """Read the whole source into `rows`; returns (field -> column) and the columns that were ignored."""
        opener = _bind_json if self.container == JSON else _bind_csv
        opened = opener(self, source)
        if opened is None:
            return {}, []
        bound, cells_of, seen = opened
        _loop(self, source, rows, bound, cells_of)
        self.finish(rows)
        ignored = [name or "(unnamed)" for name in seen if name not in bound.values()]
        return {field: name for field, name in bound.items() if name in seen}, ignored


Cells = Iterator[tuple[int, tuple[Any, ...]]]
Bound = tuple[dict[str, str], Cells, Collection[str]]  # field -> column, rows, columns seen (growing as rows are read)


def _optional(parse: Parser, of_json: bool) -> Parser:
    def parse_or_none(cell: Any) -> Any:
        absent = cell is None if of_json else not cell.strip(" \t")
        return None if absent else parse(cell)

    return parse_or_none


def _bind_csv(reader: Reader, source: Source) -> Bound | None:
    records = source.csv_rows()
    line, header = next(records, (1, []))
    names = [name.strip() for name in header]
    for name in sorted({n for n in names if n and names.count(n) > 1}):
        source.faults.add(line, f"column {name} appears {names.count(name)} times in the header")
    lacking = reader.missing(names)
    if lacking:
        source.faults.add(line, f"columns = {', '.join(names)}: {reader.name} also needs {', '.join(lacking)}")
    bound = reader.bind(names)
    if not source.faults:
        reader.prepare(source, names, bound)
    if source.faults:
        return None
    pick = _picker([names.index(name) for name in bound.values()])
    return bound, _csv_cells(source, records, len(names), pick), names


def _picker(places: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    if len(places) == 1:  # itemgetter of one place gives no tuple
        return lambda row: (row[places[0]],)
    return itemgetter(*places)


def _csv_cells(
    source: Source, records: Iterator[tuple[int, list[str]]], width: int, pick: Callable[[list[str]], tuple[str, ...]]
) -> Cells:
    for line, row in records:
        if len(row) == width:
            yield line, pick(row)
        else:
            source.faults.add(line, f"{len(row)} field{'s' * (len(row) != 1)}, expected {width}")


def _bind_json(reader: Reader, source: Source) -> Bound | None:
    seen: dict[str, None] = {}
    for number, (_, record) in enumerate(source.json_records()):
        if number == HEAD_RECORDS:
            break
        if isinstance(record, dict):
            seen.update(dict.fromkeys(record))
    bound = reader.bind(seen)
    before = source.faults.count  # bad lines among these records are met again below; only `prepare` ends the reading
    reader.prepare(source, list(seen), bound)
    if source.faults.count > before:
        return None
    for field, names in reader.columns.items():
        bound.setdefault(field, names[0])  # an optional key may come up late in the file

    def cells() -> Cells:
        names = tuple(bound.values())
        for line, record in source.json_records():
            if isinstance(record, dict):
                seen.update(dict.fromkeys(record))
                yield line, tuple([record.get(name) for name in names])
            else:
                source.faults.add(line, f"{values.json_kind(record)}, expected an object with one request's fields")

    return bound, cells(), seen


def _loop(reader: Reader, source: Source, rows: Rows, bound: dict[str, str], cells_of: Cells) -> None:
    fields = tuple(bound)
    parsers = [reader.parser(field) for field in fields]
    # Nothing but an arrival and two lengths, as in most large files: taken by the thousand while all goes well.
    bare = fields == Reader.required and type(reader).row is Reader.row and rows.unbounded
    chunk = _CHUNK if bare else 1
    while records := list(islice(cells_of, chunk)):
        if bare and _many(records, parsers, rows):
            continue
        for line, cells in records:
            try:
                parsed = [parse(cell) for parse, cell in zip(parsers, cells, strict=True)]
            except BadValue:
                _explain(source, line, parsers, bound, cells)
                continue
            try:
                reader.row(line, dict(zip(fields, parsed, strict=True)), rows)
            except Enough:
                return
            except BadValue as bad:
                column = bad.column or "row"
                raw = dict(zip(bound, cells, strict=True)).get(column)
                value = raw if bad.value is None else bad.value
                source.faults.add_value(line, bound.get(column, column), value, bad.rule)


def _many(records: list[tuple[int, tuple[Any, ...]]], parsers: list[Parser], rows: Rows) -> bool:
    """Parse column by column, at the speed of `map`; False, with nothing taken, where a row needs a closer look."""
    lines, cells = zip(*records, strict=True)
    try:
        columns = [list(map(parse, column)) for parse, column in zip(parsers, zip(*cells, strict=True), strict=True)]
    except BadValue:
        return False
    return rows.add_many(lines, *columns)


def _explain(source: Source, line: int, parsers: list[Parser], bound: dict[str, str], cells: tuple[Any, ...]) -> None:
    """A row with a bad cell may have several: name each."""
    for name, parse, cell in zip(bound.values(), parsers, cells, strict=True):
        try:
            parse(cell)
        except BadValue as bad:
            value = cell if bad.value is None else bad.value
            source.faults.add_value(line, bad.column or name, value, bad.rule)
