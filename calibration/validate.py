"""How far a profile's predictions lie from times that its fit never saw, by operation and region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.points import FIT, OPS, SPLITS, WHOLE, Point, Timed
from calibration.predict import Prediction, Predictor
from calibration.report import Region, Report, Worst
from simulator.profile import Profile

WORST = 5
# Held-out errors in per cent that a calibration should stay below: (median, 90th percentile or None). Linear layers may
# be LINEAR_FLOORS x as far off as two timings of the same call where that is more.
GATES: dict[str, tuple[float, float | None]] = {
    "linear": (3.0, None), "prefill": (5.0, None), "decode": (5.0, None), "mixed": (10.0, None),
    "layer": (5.0, 15.0), "stack": (5.0, 15.0),
}  # fmt: skip
LINEAR_FLOORS = 1.5
# Reasons that set rows apart from others of their operation: steps whose kernels were timed one by one and added up;
# and rows that were kept from the fit with all others of their layer, for what a fallback is worth (no gate).
SUMMED, NEVER_TIMED = "summed kernels", "as if never timed"
ALL = "all"
REGIONS = (
    "m <= 64", "m 65 to 1,024", "m > 1,024", "<= 1,024 tokens", "> 1,024 tokens", "<= 16k KV tokens",
    "> 16k KV tokens", "uneven lengths", "decode", "prefill", "mixed", ALL,
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """A timed point and what a profile makes of it."""

    row: Timed
    prediction: Prediction

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.prediction.us / self.row.median_us - 1.0

    @property
    def held_out(self) -> bool:
        """Whether the fit never saw it."""
        return self.row.split != FIT


def validate(profile: Profile, rows: Iterable[Timed], repeat_floor: Mapping[str, float]) -> Report:
    """The report on `profile` over timed rows; `repeat_floor` is in per cent by operation."""
    rows = list(rows)
    checked = check(Predictor(profile).of, rows)
    return summarise(profile, checked, repeat_floor, unknown(rows, checked))


def check(predict: Callable[[Point], Prediction], rows: Iterable[Timed]) -> list[Checked]:
    """Every timed row with its prediction; rows of an operation that the profile doesn't have are left out."""
    checked = []
    for row in rows:
        if not row.timed:
            continue
        try:
            checked.append(Checked(row, predict(row.point)))
        except KeyError:
            continue
    return checked


def unknown(rows: Iterable[Timed], checked: Iterable[Checked]) -> dict[str, int]:
    """{operation: timed rows} that were held out and that a profile has no prediction for."""
    known = {one.row.point for one in checked}
    counts: dict[str, int] = {}
    for row in rows:
        if row.timed and row.split != FIT and row.point not in known:
            counts[row.point.op] = counts.get(row.point.op, 0) + 1
    return counts


def summarise(
    profile: Profile, checked: Sequence[Checked], repeat_floor: Mapping[str, float], unpredicted: Mapping[str, int]
) -> Report:
    """The report on checked points. Only held-out ones count."""
    held = [one for one in checked if one.held_out]
    groups: dict[str, dict[str, list[Checked]]] = {}
    for one in held:
        groups.setdefault(operation(one.row), {}).setdefault(region(one.row.point), []).append(one)
    regions = []
    for name in sorted(groups, key=_order):
        parts = groups[name]
        several = len(parts) > 1
        for part in sorted(parts, key=REGIONS.index):
            regions.append(_region(name, part, parts[part], repeat_floor, gated=not several))
        if several:
            regions.append(_region(name, ALL, [one for part in parts.values() for one in part], repeat_floor))
    meta = profile.metadata
    return Report(
        profile=profile.name,
        what=f"{meta['model']} on {meta['tensor_parallel_size']} x {meta['device']}, {meta['engine']}",
        points={split: sum(one.row.split == split for one in checked) for split in SPLITS},
        regions=tuple(regions),
        worst=tuple(map(_worst, sorted(held, key=lambda one: -abs(one.error))[:WORST])),
        unpredicted=dict(unpredicted),
    )


def operation(row: Timed) -> str:
    """The operation; whole layers and stacks by how they were run."""
    apart = row.reason if row.reason in (SUMMED, NEVER_TIMED) else row.point.mode if row.point.op in WHOLE else ""
    return f"{row.point.op} ({apart})" if apart else row.point.op


def _order(name: str) -> tuple[int, str]:
    return OPS.index(name.partition(" ")[0]), name


def region(point: Point) -> str:
    """Where in its operation's range a point lies; one of REGIONS."""
    if point.op == "linear":
        return REGIONS[0 if point.m <= 64 else 1 if point.m <= 1024 else 2]
    if point.op == "prefill":
        return REGIONS[3 if point.tokens <= 1024 else 4]
    if point.op == "decode":
        return REGIONS[7 if point.kv_max else 5 if point.n_dec * point.kv_dec <= 16384 else 6]
    if point.op in WHOLE:
        return REGIONS[10 if point.chunk and point.n_dec else 9 if point.chunk else 8]
    return ALL


def _region(
    name: str, part: str, checked: Sequence[Checked], repeat_floor: Mapping[str, float], gated: bool = True
) -> Region:
    errors = 100 * np.array([one.error for one in checked])
    median, p90, most = (float(x) for x in np.percentile(np.abs(errors), (50, 90, 100)))
    op = checked[0].row.point.op
    floor = repeat_floor.get(op)
    gated = gated and name != f"{op} ({NEVER_TIMED})"
    limit, p90_limit = GATES.get(op, (None, None)) if gated else (None, None)
    if limit is not None and op == "linear" and floor is not None:
        limit = max(limit, LINEAR_FLOORS * floor)
    tags = [one.prediction.tag for one in checked]
    return Region(
        operation=name, region=part, points=len(errors), median_pct=median, p90_pct=p90, max_pct=most,
        bias_pct=float(errors.mean()), floor_pct=floor, extrapolated=tags.count("extrapolated"),
        fallback=tags.count("fallback"), limit_pct=limit, p90_limit_pct=p90_limit,
    )  # fmt: skip


def _worst(one: Checked) -> Worst:
    point = one.row.point
    sizes = {key: getattr(point, key) for key in ("m", "n", "k", "seqs", "chunk", "ctx", "n_dec", "kv_dec", "kv_max")}
    where = ", ".join(f"{key} {value}" for key, value in sizes.items() if value)
    return Worst(operation(one.row), where, one.row.median_us, one.prediction.us, 100 * one.error, one.prediction.tag)
