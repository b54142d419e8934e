"""A validation report: what it holds, as text for a terminal, as Markdown, as JSON and as a CSV of every error."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibration.validate import Checked

HEAD = ("operation", "region", "points", "median %", "p90 %", "max %", "bias %", "repeats %", "not inside", "gate")
NUMBERS = ("%", "us", "points")  # endings of the names of columns that hold numbers
WORST_HEAD = ("worst", "where", "measured us", "predicted us", "error %", "tag")


@dataclass(frozen=True)
class Region:
    """Held-out errors of one operation in one region, in per cent of the measured time.

    `floor_pct` is how far two timings of the same call lie apart, None where nothing was timed twice. The limits are
    the gate's, None where there is none. `extrapolated` and `fallback` count predictions that lean on these.
    """

    operation: str
    region: str
    points: int
    median_pct: float
    p90_pct: float
    max_pct: float
    bias_pct: float
    floor_pct: float | None
    extrapolated: int
    fallback: int
    limit_pct: float | None
    p90_limit_pct: float | None

    @property
    def passed(self) -> bool:
        """Whether it stays within its gate; without one, it does."""
        inside = self.limit_pct is None or self.median_pct <= self.limit_pct
        return inside and (self.p90_limit_pct is None or self.p90_pct <= self.p90_limit_pct)

    @property
    def gate(self) -> str:
        """The gate and whether it is met, "" where there is none."""
        if self.limit_pct is None:
            return ""
        tail = "" if self.p90_limit_pct is None else f", p90 <= {self.p90_limit_pct:.0f}"
        return f"{'pass' if self.passed else 'MISS'}: median <= {self.limit_pct:.1f}{tail}"

    def cells(self) -> list[str]:
        """One line of the table."""
        numbers = (self.median_pct, self.p90_pct, self.max_pct)
        floor = "-" if self.floor_pct is None else f"{self.floor_pct:.1f}"
        outside = [f"{n} {what}" for n, what in ((self.extrapolated, "extrapolated"), (self.fallback, "fallback")) if n]
        return [self.operation, self.region, f"{self.points:,}", *(f"{x:.1f}" for x in numbers),
                f"{self.bias_pct:+.1f}", floor, ", ".join(outside) or "-", self.gate or "-"]  # fmt: skip


@dataclass(frozen=True)
class Worst:
    """One of the rows that are farthest off."""

    operation: str
    where: str
    measured_us: float
    predicted_us: float
    error_pct: float
    tag: str

    def cells(self) -> list[str]:
        """One line of the table."""
        times = f"{self.measured_us:,.1f}", f"{self.predicted_us:,.1f}"
        return [self.operation, self.where, *times, f"{self.error_pct:+.1f}", self.tag]


@dataclass(frozen=True)
class Report:
    """A profile's errors. `points` counts rows by split, `unpredicted` held-out rows that the profile can't tell.

    `note` says what else a reader should know.
    """

    profile: str
    what: str
    points: Mapping[str, int]
    regions: Sequence[Region]
    worst: Sequence[Worst]
    unpredicted: Mapping[str, int]
    note: str = ""

    def misses(self) -> list[str]:
        """A line per gate that isn't met."""
        return [
            f"{r.operation}, {r.region}: median {r.median_pct:.1f} %, p90 {r.p90_pct:.1f} %: {r.gate}"
            for r in self.regions
            if not r.passed
        ]

    def text(self, worst: bool = True) -> str:
        """For a terminal."""
        table = _aligned(self._table())
        more = ["", *_aligned([WORST_HEAD, *(row.cells() for row in self.worst)])] if worst else []
        return "\n".join([f"{self.profile}: {self.what}", self._counts(), "", *table, *more])

    def markdown(self, heading: str = "#", worst: bool = True) -> str:
        """For report.md."""
        lines = [f"{heading} {self.profile}", "", f"{self.what}. {self._counts()}", ""]
        head, *rows = self._table()
        lines += _markdown(head, rows)
        if worst:
            rows = [row.cells() for row in self.worst]
            lines += ["", "The rows that are farthest off:", "", *_markdown(WORST_HEAD, rows)]
        return "\n".join(lines) + "\n"

    def totals(self) -> list[Region]:
        """One region for each operation: all of its points."""
        operations = [region.operation for region in self.regions]
        return [r for r in self.regions if r.region == "all" or operations.count(r.operation) == 1]

    def summary(self) -> str:
        """Median / 90th percentile of each operation's held-out errors, in one line."""
        errors = ", ".join(f"{r.operation} {r.median_pct:.1f} / {r.p90_pct:.1f}" for r in self.totals())
        return f"median / 90th percentile in %: {errors}" if errors else "no point was held out"

    def to_json(self) -> dict[str, Any]:
        """The JSON document, numbers to 4 significant digits."""
        rounded: dict[str, Any] = _rounded(asdict(self))
        return rounded

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """A document that `to_json` made."""
        regions = tuple(Region(**region) for region in data["regions"])
        worst = tuple(Worst(**row) for row in data["worst"])
        return cls(**{**data, "regions": regions, "worst": worst})

    def _table(self) -> list[list[str]]:
        """Head and lines, without the columns that say nothing anywhere."""
        rows = [region.cells() for region in self.regions]
        said = [i for i in range(len(HEAD)) if any(row[i] != "-" for row in rows)]
        return [[row[i] for i in said] for row in (HEAD, *rows)]

    def _counts(self) -> str:
        held = self.points.get("holdout", 0) + self.points.get("off_grid", 0)
        counts = f"{self.points.get('fit', 0):,} points fitted; errors are of {held:,} that the fit never saw."
        left = ", ".join(f"{count:,} of {op}" for op, count in self.unpredicted.items())
        return " ".join(filter(None, (counts, left and f"No prediction for {left}.", self.note)))


def save_errors(path: Path, checked: Iterable[Checked]) -> None:
    """Every point with its error, fitted ones too, the largest of each operation first."""
    ordered = sorted(checked, key=lambda one: (one.row.point.op, -abs(one.error)))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, one in enumerate(ordered):
            point = asdict(one.row.point)
            if not number:
                writer.writerow([*point, "split", "measured_us", "predicted_us", "error_pct", "tag"])
            times = f"{one.row.median_us:.6g}", f"{one.prediction.us:.6g}", f"{100 * one.error:.3f}"
            writer.writerow([*point.values(), one.row.split, *times, one.prediction.tag])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    right = [name.endswith(NUMBERS) for name in rows[0]]

    def line(row: Sequence[str]) -> str:
        padded = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return [line(row) for row in rows]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = "|" + "|".join("---:" if name.endswith(NUMBERS) else "---" for name in head) + "|"
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
