"""What a trace is, in numbers: everything `servesim trace info` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.transform import Times, mean_rate

Lengths = dict[str, float]


@dataclass
class TraceInfo:
    """A trace after reading, cutting and stretching. `rows_read == requests + sum(dropped.values())`.

    Rows are counted as requests read: a row that holds a chain of three counts three. `cumulative` says what a
    follow-up turn's prompt states: "cumulative" (the whole conversation), "delta" (only what is new; the prompts in
    this trace have the rest prepended) or "single turns". `span_s`, `request_rate`, `cv` and `iod` are measured on
    requests that arrive at a time of their own, as they are replayed; a chained turn arrives when the turn before it
    has been answered.
    """

    path: str
    format: str
    title: str
    unit: str  # of the file's times; "datetime" where they are stamps
    sha256: str  # of the file as it lies on disk
    cumulative: str
    columns: dict[str, str]  # what each field of a request was read from
    ignored_columns: list[str]
    rows_read: int
    requests: int
    dropped: dict[str, int]
    sessions: int
    chained_turns: int
    has_prefix_hashes: bool
    block_size: int | None  # prompt tokens per prefix hash
    first_arrival_s: float  # on the file's own clock, before rebasing
    span_s: float  # first arrival to last
    request_rate: float | None  # (arrivals - 1) / span_s
    cv: float | None  # standard deviation / mean of the gaps between arrivals; Poisson: 1
    iod: float | None  # variance / mean of the arrivals per second (index of dispersion); Poisson: 1
    time_scale: float  # what gaps and delays were multiplied by
    input_tokens: Lengths
    output_tokens: Lengths
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    def text(self) -> str:
        """A dozen aligned lines for people."""
        rows = [
            ("trace", self.path),
            ("format", f"{self.format} ({self.title})"),
            ("unit", self.unit),
            ("sha256", self.sha256),
            ("requests", f"{self.requests} of {self.rows_read} rows read; dropped: {_counts(self.dropped)}"),
            ("turns", self._turns()),
            ("arrivals", self._arrivals()),
            ("burstiness", f"CV {_number(self.cv)} of the gaps, IoD {_number(self.iod)} per 1 s (Poisson: 1, 1)"),
            ("prompt", _lengths(self.input_tokens)),
            ("output", _lengths(self.output_tokens)),
            (
                "prefixes",
                f"one hash per {self.block_size} tokens" if self.has_prefix_hashes else "no prefix information",
            ),
            ("columns", ", ".join(f"{name} -> {to}" for to, name in self.columns.items())),
            ("ignored", ", ".join(self.ignored_columns) or "none"),
            *(("warning", text) for text in self.warnings),
        ]
        return "\n".join(f"{name:<11}{value}" for name, value in rows)

    def _turns(self) -> str:
        sessions = f"{self.sessions} sessions" if self.sessions else "no sessions"
        return f"{self.cumulative}; {sessions}, {self.chained_turns} chained turns"

    def _arrivals(self) -> str:
        scaled = "" if self.time_scale == 1.0 else f", times x {self.time_scale:.6g}"
        return (
            f"{_number(self.request_rate)} req/s over {self.span_s:.3f} s, "
            f"first at {self.first_arrival_s:.6f} s{scaled}"
        )


def arrival_statistics(arrival_ns: Times) -> dict[str, float | None]:
    """`span_s`, `request_rate`, `cv` and `iod` of sorted arrivals; None where the number isn't defined.

    CV needs two gaps of which one isn't 0; IoD counts arrivals in bins [0, 1 s), [1 s, 2 s) ... from the first one,
    up to and including the last one's bin, with the population variance, and needs two bins.
    """
    since = arrival_ns - arrival_ns[0] if len(arrival_ns) else arrival_ns
    span_s = int(since[-1]) / 1e9 if len(since) else 0.0
    gaps = np.diff(since)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) >= 2 and span_s else None
    return {"span_s": span_s, "request_rate": mean_rate(arrival_ns), "cv": cv, "iod": _dispersion(since)}


def _dispersion(since_ns: Times) -> float | None:
    seconds = since_ns // 1_000_000_000
    if not len(seconds) or seconds[-1] == 0:
        return None
    # Bins that hold nothing only add to their number, so a long silent trace needs no long array.
    _, counts = np.unique(seconds, return_counts=True)
    bins = int(seconds[-1]) + 1
    mean = len(seconds) / bins
    return float((np.square(counts).sum() / bins - mean * mean) / mean)


def length_statistics(tokens: NDArray[np.int32]) -> Lengths:
    """Mean, median, percentiles (linear between ranks) and maximum of token counts."""
    p50, p90, p99 = np.percentile(tokens, (50, 90, 99))
    return {
        "mean": float(tokens.mean()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": int(tokens.max()),
    }


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in dropped.items()) or "none"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}"


def _lengths(stats: Lengths) -> str:
    parts = [f"{name} {value:.6g}" for name, value in stats.items()]
    return f"{', '.join(parts)} tokens"
