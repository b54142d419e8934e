"""Kernel timings of casys-kaist/LLMServingSim (MIT): one decoder layer timed inside vLLM, eager, mean of 3.

A folder holds one tensor-parallel degree, times in microseconds per call on one rank:

    dense.csv         layer,tokens,time_us
    per_sequence.csv  layer,sequences,time_us
    attention.csv     prefill_chunk,kv_prefill,n_decode,kv_decode,time_us      one call; 0 means absent
    skew.csv          (optional) uneven decode lengths: regime,...,t_mean_us,t_max_us,t_skew_us

    python -m calibration.importers.llmservingsim FOLDER --model llama-3.1-8b --gpu rtx-4090 --tp 1 --out NAME.json \\
        --device "NVIDIA GeForce RTX 4090" --engine "vLLM 0.19.0, eager" --source "..." --licence "MIT, ..."
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.curves import Grid
from simulator.profile import SHAPE, Attention, GridTable, OpTable, Profile
from simulator.specs import ModelSpec, get_gpu, get_model

# Calls per iteration that aren't one per layer; `layernorm` runs before attention and before the MLP.
ONCE = ("embedding", "final_layernorm", "lm_head", "sampler")
TWICE_PER_LAYER = ("layernorm",)
POWERS = np.arange(1.0, 8.005, 0.01)

Call = Mapping[str, float]


def import_profile(
    folder: str | Path,
    *,
    name: str,
    model: ModelSpec,
    gpu: str,
    tensor_parallel_size: int,
    metadata: Mapping[str, str],
) -> Profile:
    """Read a folder as a Profile. `metadata` gives device, engine, source and licence.

    Prefill comes from the calls without decode rows, decode from those without a chunk, and "decode inside a mixed
    call" from those beside the smallest chunk without history; the p that joins the two is the one with the least mean
    |log(predicted / measured)| over all mixed calls: the median alone would ignore the tail. Raises OSError, KeyError
    or ValueError where files are not of that form.
    """
    root = Path(folder)
    calls = [{key: float(value) for key, value in row.items()} for row in _rows(root / "attention.csv")]
    chunk = min(call["prefill_chunk"] for call in calls if call["prefill_chunk"])
    prefill = _complete(_prefill_key, (c for c in calls if not c["n_decode"]))
    decode = _complete(_decode_key, (c for c in calls if not c["prefill_chunk"]))
    beside = [c for c in calls if c["prefill_chunk"] == chunk and not c["kv_prefill"] and c["n_decode"]]
    mixed = _complete(_decode_key, beside)
    p, errors = fit_power(prefill, mixed, [c for c in calls if c["prefill_chunk"] and c["n_decode"]])
    median, high = np.percentile(errors, [50, 90]) * 100
    skew = _skew(root / "skew.csv")
    return Profile(
        name=name,
        metadata={
            "gpu": gpu,
            "model": model.name,
            "dtype": "bfloat16",
            "tensor_parallel_size": tensor_parallel_size,
            "all_reduce": "absent",
            **metadata,
            "mixed_attention_error": f"median {median:.1f} %, 90th percentile {high:.1f} % of {len(errors)} calls",
        },
        shape={key: getattr(model, key) for key in SHAPE},
        token_ops=_ops(root / "dense.csv", "tokens", model.layers),
        sequence_ops=_ops(root / "per_sequence.csv", "sequences", model.layers),
        attention=Attention(model.layers, prefill, decode, mixed, p, skew.get("pure", 0.0), skew.get("mixed", 0.0)),
        base_us=0.0,
        per_sequence_us=0.0,
    )


def fit_power(prefill: GridTable, mixed: GridTable, calls: Iterable[Call]) -> tuple[float, NDArray[np.float64]]:
    """The p in (prefill^p + decode^p)^(1/p) with the least mean |log ratio|, and the relative errors there."""
    rows, columns = Grid(prefill.rows, prefill.columns, prefill.us), Grid(mixed.rows, mixed.columns, mixed.us)
    parts = np.array(
        [
            (
                rows.row(c["prefill_chunk"]).at(c["kv_prefill"]),
                columns.row(c["n_decode"]).at(c["kv_decode"]),
                c["time_us"],
            )
            for c in calls
        ]
    )
    a, b, truth = parts.T
    ratios = [(a**p + b**p) ** (1 / p) / truth for p in POWERS]
    best = int(np.argmin([np.abs(np.log(ratio)).mean() for ratio in ratios]))
    return round(float(POWERS[best]), 2), np.abs(ratios[best] - 1)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _ops(path: Path, axis: str, layers: int) -> tuple[OpTable, ...]:
    tables: dict[str, dict[float, float]] = {}
    for row in _rows(path):
        tables.setdefault(row["layer"], {})[int(row[axis])] = float(row["time_us"])
    counts = dict.fromkeys(ONCE, 1) | dict.fromkeys(TWICE_PER_LAYER, 2 * layers)
    return tuple(
        OpTable(op, counts.get(op, layers), tuple(sorted(points)), tuple(points[x] for x in sorted(points)))
        for op, points in sorted(tables.items())
    )


def _prefill_key(call: Call) -> tuple[float, float]:
    return call["prefill_chunk"], call["kv_prefill"]


def _decode_key(call: Call) -> tuple[float, float]:
    return call["n_decode"], call["kv_decode"]


def _complete(key: Callable[[Call], tuple[float, float]], calls: Iterable[Call]) -> GridTable:
    """The full grid that is left when the emptiest row or column is dropped, one after the other."""
    points = {key(call): call["time_us"] for call in calls}
    rows, columns = sorted({r for r, _ in points}), sorted({c for _, c in points})
    while True:
        row_fill = [sum((r, c) in points for c in columns) / len(columns) for r in rows]
        column_fill = [sum((r, c) in points for r in rows) / len(rows) for c in columns]
        if min(row_fill) == 1:
            break
        if min(row_fill) <= min(column_fill):
            rows.pop(int(np.argmin(row_fill)))
        else:
            columns.pop(int(np.argmin(column_fill)))
    us = tuple(tuple(points[r, c] for c in columns) for r in rows)
    return GridTable(tuple(map(int, rows)), tuple(map(int, columns)), us)


def _skew(path: Path) -> dict[str, float]:
    """alpha per regime (pure, mixed) by least squares on relative errors; nothing where it wasn't measured."""
    if not path.is_file():
        return {}
    rows = _rows(path)
    alphas = {}
    for regime in sorted({row["regime"] for row in rows}):
        chosen = [row for row in rows if row["regime"] == regime]
        mean, longest, skewed = (
            np.array([float(row[key]) for row in chosen]) for key in ("t_mean_us", "t_max_us", "t_skew_us")
        )
        x, y = (longest - mean) / skewed, (skewed - mean) / skewed
        alphas[regime] = round(min(max(float(x @ y / (x @ x)), 0.0), 1.0), 4)
    return alphas


def main() -> None:
    """Import one folder and write the profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tp", type=int, required=True)
    for option in ("gpu", "device", "engine", "source", "licence"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    keys = ("device", "engine", "source", "licence")
    profile = import_profile(
        args.folder,
        name=args.out.stem,
        model=get_model(args.model),
        gpu=get_gpu(args.gpu).name,
        tensor_parallel_size=args.tp,
        metadata={key: getattr(args, key) for key in keys},
    )
    profile.save(args.out)
    print(f"{args.out}: {profile.metadata['mixed_attention_error']}; p = {profile.attention.p}")


if __name__ == "__main__":
    main()
