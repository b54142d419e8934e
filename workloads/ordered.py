"""From a reader's columns to requests: sorted by arrival, rebased to the first one, stretched."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from simulator.clock import NS_PER_S
from simulator.request import Request
from workloads.info import arrival_statistics, length_statistics
from workloads.readers.rows import Rows
from workloads.transform import scaled


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: requests hold no cycles, and the collector would walk the growing list again
    and again (three times the time for a million of them)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Ordered:
    """Rows in order of arrival (ties keep file order). `arrivals` are those of requests with a time of their own."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        in_file = np.frombuffer(rows.arrival_ns, np.int64)
        rising = bool((in_file[1:] >= in_file[:-1]).all())
        self._order = None if rising else np.argsort(in_file, kind="stable")  # None: in order already, as most are
        self._all = in_file if self._order is None else in_file[self._order]
        timed = rows.extras.get("timed")
        self._timed_in_file = np.ones(len(rows), bool) if timed is None else np.array(timed, bool)
        self._timed = self._timed_in_file if self._order is None else self._timed_in_file[self._order]
        self.arrivals = self._all[self._timed]
        self.first_ns = int(self._all[0])

    def disorder(self) -> list[str]:
        """A warning that counts the rows that arrive before one above them; empty where there are none."""
        in_file = np.frombuffer(self._rows.arrival_ns, np.int64)[self._timed_in_file]
        late = np.flatnonzero(in_file < np.maximum.accumulate(in_file))
        if not len(late):
            return []
        line = self._rows.line[int(np.flatnonzero(self._timed_in_file)[late[0]])]
        return [f"{len(late)} of {len(in_file)} rows out of order, first at line {line}; sorted by arrival"]

    def facts(self, factor: float) -> dict[str, Any]:
        """The fields of `TraceInfo` that are counted or measured, after times are multiplied by `factor`."""
        extras = self._rows.extras
        return {
            "requests": len(self._rows),
            "sessions": len(set(extras.get("session", ())) - {None}),
            "chained_turns": len(self._rows) - len(self.arrivals),
            "has_prefix_hashes": "prefix_hashes" in extras,
            "first_arrival_s": self.first_ns / NS_PER_S,
            "input_tokens": length_statistics(np.frombuffer(self._rows.prompt_tokens, np.int32)),
            "output_tokens": length_statistics(np.frombuffer(self._rows.output_tokens, np.int32)),
            **arrival_statistics(scaled(self.arrivals - self.first_ns, factor)),
        }

    def requests(self, factor: float) -> list[Request]:
        """The requests, the first at 0 ns, gaps and delays multiplied by `factor`."""
        rows, order = self._rows, self._order
        ids: Any = rows.ids()
        extras: dict[str, Any] = dict(rows.extras)
        if "after" in extras:
            extras["after"] = [None if index is None else ids[index] for index in extras["after"]]
        if "delay_ns" in extras:
            extras["delay_ns"] = scaled(np.array(extras["delay_ns"], np.int64), factor).tolist()

        def column(values: Any) -> Any:
            return values if order is None else [values[i] for i in order]

        with collector_paused():
            known = {
                "id": column(ids),
                "arrival_ns": scaled(self._all - self.first_ns, factor).tolist(),
                "prompt_tokens": column(rows.prompt_tokens),
                "output_tokens": column(rows.output_tokens),
                **{name: column(values) for name, values in extras.items() if name not in ("id", "timed")},
            }
            default = dict(Request._field_defaults)
            if rows.block_size is not None:
                default["prefix_block_tokens"] = rows.block_size
            columns = [known[name] if name in known else repeat(default[name]) for name in Request._fields]
            # Request._make without its Python frame per request; `strict` would trip over the endless defaults.
            return list(map(partial(tuple.__new__, Request), zip(*columns, strict=False)))
