"""What the harness's choice of points is worth: take its plan's points out of dense tables, fit, compare with the rest.

    python tests/bench/grid_choice.py KERNELS

KERNELS holds the folders rtx4090 and rtxpro6000 (LLMServingSim's form). For each point of the plan that a fit may use,
the nearest call of the table is taken (sizes beyond the table fall together; it has no several prompts, uneven lengths
or whole steps), a profile is fitted to these alone, and asked about every other attention call and about whole steps
added up from measured kernels. Points that
the plan holds out are not fitted here either.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibration.fit import fit_profile
from calibration.harness.grid import plan
from calibration.importers.layer_points import layer_points, summed_steps
from calibration.importers.llmservingsim import sources
from calibration.points import ATTENTION, FIT, OFF_GRID, WHOLE, Point, Timed
from calibration.predict import Predictor
from simulator.specs import get_model

MODEL = get_model("llama-3.1-8b")
TABLES = {"rtxpro6000/llama-3.1-8b/tp1": 1, "rtxpro6000/llama-3.1-8b/tp2": 2, "rtx4090/llama-3.1-8b/tp1": 1}
METADATA = dict.fromkeys(("device", "engine", "source", "licence"), "grid choice")
SIZES = ("m", "seqs", "chunk", "ctx", "n_dec", "kv_dec")
ROUND = 8.0  # tokens or rows added to each size, so that 0 and 16 are an octave and a half apart


def wanted(tp: int) -> list[Point]:
    """Points of the plan that the fit may use, of the kinds of calls that the tables have."""
    points = [each.point for each in plan(MODEL, tp=tp) if each.split == FIT]
    return [point for point in points if point.op not in WHOLE and point.seqs < 2 and not point.kv_max]


def nearest(rows: Iterable[Timed], points: Sequence[Point]) -> list[Timed]:
    """The rows that are nearest to the points, each once."""
    tables: dict[tuple[str, int, int], list[Timed]] = {}
    for row in rows:
        tables.setdefault((row.point.op, row.point.n, row.point.k), []).append(row)
    places = {key: np.array([place(row.point) for row in table]) for key, table in tables.items()}
    found: dict[Point, Timed] = {}
    for point in points:
        key = (point.op, point.n, point.k)
        if key in tables:
            row = tables[key][int(np.abs(places[key] - place(point)).sum(axis=1).argmin())]
            found.setdefault(row.point, replace(row, split=FIT))
    return list(found.values())


def place(point: Point) -> np.ndarray:
    """Its sizes in octaves."""
    return np.log2([getattr(point, size) + ROUND for size in SIZES])


def asked(rows: Iterable[Timed], steps: Iterable[Timed], used: Iterable[Timed]) -> Iterator[tuple[str, Timed]]:
    """(kind, row) of what the profile is asked: attention calls that weren't used, and the steps around them."""
    seen = {row.point for row in used}
    for row in rows:
        if row.point.op in ATTENTION and row.point not in seen:
            yield row.point.op, row
    for row in steps:
        point = row.point
        op = "mixed" if point.chunk and point.n_dec else "prefill" if point.chunk else "decode"
        if replace(point, op=op, layers=0) not in seen:
            yield f"step, {op}", row


def main() -> None:
    """Print a line per table and kind of call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path)
    given = parser.parse_args()
    for name, tp in TABLES.items():
        (source,) = sources(given.kernels / name)
        rows = [replace(row, split=OFF_GRID) for row in layer_points(source, model=MODEL, tp=tp).rows]
        steps = summed_steps(rows, model=MODEL, tp=tp)
        fitted = nearest(rows, wanted(tp))
        profile = fit_profile(fitted, name=name, model=MODEL, tensor_parallel_size=tp, gpu="any", metadata=METADATA)
        counts = ", ".join(f"{sum(row.point.op == op for row in fitted)} {op}" for op in ("linear", *ATTENTION))
        print(f"{name}: {len(fitted)} points fitted ({counts})")
        at, off = Predictor(profile).of, dict[str, list[float]]()
        for kind, row in asked(rows, steps, fitted):
            off.setdefault(kind, []).append(100 * (at(row.point).us / row.median_us - 1))
        for kind, errors in off.items():
            median, high = np.percentile(np.abs(errors), [50, 90])
            spread = f"median {median:4.1f} %, 90th percentile {high:4.1f} %, bias {np.mean(errors):+4.1f} %"
            print(f"    {kind:<14}{len(errors):>6} calls: {spread}")


if __name__ == "__main__":
    main()
