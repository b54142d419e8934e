"""What a reader fills: one entry per request, in compact columns, with the rules that hold for every format.

`read == emitted + sum(dropped.values())` at any moment. Nothing raw is kept, so a million requests cost about 30 MB
here until they become `Request`s.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workloads.readers.faults import Faults
from workloads.readers.values import MAX_NS, BadValue
from workloads.transform import WHOLE, Window

DROP = "drop"
KEEP = "keep"
ERROR = "error"
ZERO_OUTPUT_RULES = (DROP, KEEP, ERROR)

ZERO_OUTPUT = "zero_output"
ZERO_INPUT = "zero_input"
AFTER_DROPPED = "after_dropped_turn"
BEFORE_WINDOW = "before_window"

# What a request may have besides its arrival and lengths, and what it has where nothing is said.
EXTRAS: dict[str, Any] = {
    "id": None,
    "session": None,
    "prefix_hashes": (),
    "max_tokens": None,
    "priority": 0,
    "after": None,
    "delay_ns": 0,
    "history_tokens": 0,
    "timed": True,
}


class Enough(Exception):
    """The limit or the window's end is reached: reading stops."""


@dataclass(frozen=True)
class Dropped:
    """Stands for the place of a request that was read and dropped; a turn after it is dropped as well."""

    reason: str


@dataclass
class Rows:
    """The requests of one file in file order. `arrival_ns` is the file's own clock, not rebased yet."""

    faults: Faults
    block_size: int | None = None
    zero_output: str = DROP
    window: Window = WHOLE

    def __post_init__(self) -> None:
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self.row = array("q")  # number of the request in the file, from 0: its id where the file has none
        self.line = array("q")
        self.arrival_ns = array("q")
        self.prompt_tokens = array("i")
        self.output_tokens = array("i")
        self.extras: dict[str, list[Any]] = {}
        self.notes: dict[str, tuple[int, int]] = {}  # what happened -> on how many rows, first line
        self.warnings: list[str] = []
        self._hashed: list[tuple[int, int]] = []  # (prompt tokens, ids) of every row with block ids
        self._misfits = 0
        self._origin_ns: int | None = None
        self._bounded = self.window.start_ns is not None or self.window.end_ns is not None
        self.unbounded = not self._bounded and self.window.limit is None

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def add(self, line: int, arrival_ns: int, prompt_tokens: int, output_tokens: int, **extra: Any) -> int | Dropped:
        """Take one request (fields as in `simulator.Request`; `after` is what an earlier `add` returned).

        `timed=False` says that `arrival_ns` is no arrival of its own but the earliest instant a chained turn could
        come. Returns the request's index, or why it was dropped. Raises BadValue where a rule is broken, Enough
        where reading shall stop.
        """
        reason = self._outside(arrival_ns, extra) if self._bounded else None
        self.read += 1
        if not prompt_tokens or not output_tokens or extra:
            reason = self._reason(arrival_ns, prompt_tokens, output_tokens, extra) or reason
        if reason is not None:
            self.dropped[reason] += 1
            return Dropped(reason)
        index = len(self.arrival_ns)
        if extra or self.extras:
            self._add_extras(extra, index)
        self.row.append(self.read - 1)
        self.line.append(line)
        self.arrival_ns.append(arrival_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        if index + 1 == self.window.limit:
            raise Enough
        return index

    def add_many(
        self, lines: Sequence[int], arrival_ns: list[int], prompt_tokens: list[int], output_tokens: list[int]
    ) -> bool:
        """Take many requests without extras at once; False, with none taken, where one has a length of zero."""
        if not (all(prompt_tokens) and all(output_tokens)):
            return False
        self.row.extend(range(self.read, self.read + len(lines)))
        self.read += len(lines)
        self.line.extend(lines)
        self.arrival_ns.extend(arrival_ns)
        self.prompt_tokens.extend(prompt_tokens)
        self.output_tokens.extend(output_tokens)
        return True

    def note(self, what: str, line: int) -> None:
        """Count a thing that is worth a warning and no error; `what` follows "12 rows have", in the summary."""
        count, first = self.notes.get(what, (0, line))
        self.notes[what] = (count + 1, first)

    def check_hashes(self, hashes: tuple[int, ...], prompt_tokens: int) -> None:
        """Block ids must cover the prompt: one per block, the last block may be partial. Raises BadValue."""
        if self.block_size is None:
            raise BadValue("block ids need a stated block size (tokens per id)", "prefix_hashes")
        if not hashes and prompt_tokens:
            raise BadValue(
                f"no block ids for {prompt_tokens} prompt tokens (leave the key out instead)", "prefix_hashes"
            )
        self._hashed.append((prompt_tokens, len(hashes)))
        need = -(-prompt_tokens // self.block_size)
        if need != len(hashes):
            self._misfits += 1
            raise BadValue(
                f"{len(hashes)} ids cover {len(hashes) * self.block_size} tokens at block size {self.block_size}; "
                f"{prompt_tokens} prompt tokens need {need}",
                "prefix_hashes",
            )

    def finish(self) -> None:
        """Checks that need the whole file: ids are unique; a block size that would fit is named."""
        if self._misfits:
            sizes = (1 << k for k in range(13))
            fits = [b for b in sizes if all(-(-tokens // b) == ids for tokens, ids in self._hashed)]
            if fits:
                self.faults.hint(
                    f"hint: ceil(prompt tokens / {fits[-1]}) fits every row; is the block size {fits[-1]}?"
                )
        if "id" in self.extras:
            self._check_ids(self.ids())

    def ids(self) -> list[str]:
        """Every request's id: the file's own, else its row number."""
        given = self.extras.get("id")
        if given is None:
            return list(map(str, self.row))
        return [str(row) if name is None else name for name, row in zip(given, self.row, strict=True)]

    def _check_ids(self, ids: list[str]) -> None:
        if len(set(ids)) == len(ids):
            return
        first: dict[str, int] = {}
        for name, line in zip(ids, self.line, strict=True):
            if name in first:
                self.faults.add_value(line, "request id", name, f"already used on line {first[name]}")
            else:
                first[name] = line

    def _outside(self, arrival_ns: int, extra: dict[str, Any]) -> str | None:
        if not extra.get("timed", True):  # a chained turn goes where its session goes
            return None
        if self._origin_ns is None:
            self._origin_ns = arrival_ns
        place = self.window.place(arrival_ns - self._origin_ns)
        if place > 0:
            raise Enough
        return BEFORE_WINDOW if place < 0 else None

    def _reason(self, arrival_ns: int, prompt: int, output: int, extra: dict[str, Any]) -> str | None:
        if arrival_ns > MAX_NS:
            raise BadValue("later than 146 years", "arrival_ns")
        if output and prompt:
            return AFTER_DROPPED if isinstance(extra.get("after"), Dropped) else None
        if self.zero_output == ERROR:
            field = "prompt_tokens" if output else "output_tokens"
            raise BadValue("zero tokens (a failed request)", field)
        if output:
            return ZERO_INPUT
        return None if self.zero_output == KEEP else ZERO_OUTPUT

    def _add_extras(self, extra: dict[str, Any], index: int) -> None:
        for name, value in extra.items():
            if name not in self.extras and value != EXTRAS[name]:
                self.extras[name] = [EXTRAS[name]] * index
        for name, column in self.extras.items():
            value = extra.get(name, EXTRAS[name])
            column.append(EXTRAS[name] if value is None else value)
