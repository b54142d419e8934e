"""How well a table goes on beyond its last point: cut it, go on by one rule or another, compare with what was timed.

    python tests/bench/extrapolation.py KERNELS

KERNELS holds `*/*/tp1/dense.csv` of LLMServingSim's form and `*/gemm_bf16.csv` of aiconfigurator's. Printed are errors
in per cent of single operations, for the last segment's slope and for the rise over the last octave.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from simulator.curves import Curve

CUTS = ((512, 1024), (512, 2048), (1024, 2048), (2048, 4096), (2048, 8192), (4096, 16384))
SHAPES = {("6144", "4096"), ("4096", "4096"), ("16384", "4096"), ("4096", "12288")}
Series = dict[tuple[str, ...], dict[int, float]]


def series(root: Path) -> Series:
    """Times in microseconds by tokens, of every operation."""
    found: Series = {}
    for path in sorted(root.glob("*/*/tp1/dense.csv")):
        for row in csv.DictReader(path.open()):
            found.setdefault((str(path), row["layer"]), {})[int(row["tokens"])] = float(row["time_us"])
    for path in sorted(root.glob("*/gemm_bf16.csv")):
        for row in csv.DictReader(path.open()):
            if (row["n"], row["k"]) in SHAPES:
                found.setdefault((str(path), row["n"], row["k"]), {})[int(row["m"])] = float(row["latency_us"])
    return found


def predictions(points: dict[int, float], cut: int, tokens: int) -> tuple[float, float]:
    """(by the last segment, by the last octave) at `tokens`, from the points up to `cut`."""
    xs = sorted(x for x in points if x <= cut)
    ys = [points[x] for x in xs]
    slope = max((ys[-1] - ys[-2]) / (xs[-1] - xs[-2]), 0.0)
    return ys[-1] + slope * (tokens - xs[-1]), Curve(xs, ys).at(tokens)


def main() -> None:
    """Print a line per cut and rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path)
    found = series(parser.parse_args().kernels)
    for cut, tokens in CUTS:
        off = np.array([
            [us / points[tokens] - 1 for us in predictions(points, cut, tokens)]
            for points in found.values() if cut in points and tokens in points
        ]) * 100  # fmt: skip
        for rule, errors in zip(("last segment", "last octave"), off.T, strict=True):
            median, high = np.percentile(np.abs(errors), [50, 90])
            head = f"up to {cut:>5,}, at {tokens:>6,} tokens, {rule:<12} {len(errors):>3} operations:"
            print(f"{head} median {median:5.1f} %, 90th percentile {high:5.1f} %, bias {errors.mean():+5.1f} %")


if __name__ == "__main__":
    main()
