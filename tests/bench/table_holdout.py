"""How well tables of kernel times predict calls that they were not made from.

    python tests/bench/table_holdout.py FOLDER/tp1 --model llama-3.1-8b --gpu rtx-pro-6000

FOLDER is of LLMServingSim's form (`servesim profile import --help`). A profile is made of the calls whose sizes are
powers of two (from 16 on), and asked about all others, if there are any. Errors are shares of one decoder layer's time.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import tempfile
from pathlib import Path

import numpy as np

from calibration.importers.llmservingsim import import_profile, sources
from calibration.importers.tables import Row, read_table
from simulator.costs.table import Table
from simulator.plan import BatchShape
from simulator.specs import Platform, get_gpu, get_model

KEYS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
METADATA = dict.fromkeys(("device", "dtype", "engine", "source", "licence"), "held out")


def power_of_two(call: Row) -> bool:
    """Whether every size of a call is 0 or a power of two."""
    return all(int(call[key]) & (int(call[key]) - 1) == 0 for key in KEYS[:-1])


def coarse(folder: Path, calls: list[Row], copy: Path) -> None:
    """`folder` with the calls of the coarse grid only."""
    shutil.copytree(folder, copy)
    (copy / "attention.csv").unlink()
    with (copy / "attention.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, KEYS)
        writer.writeheader()
        writer.writerows(call for call in calls if power_of_two(call))


def main() -> None:
    """Print errors by kind of call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--gpu", required=True)
    given = parser.parse_args()
    calls = read_table(given.folder / "attention.csv", KEYS)
    model, gpu = get_model(given.model), get_gpu(given.gpu)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / given.folder.resolve().name
        coarse(given.folder, calls, copy)
        (source,) = sources(copy)
        degree = source.tensor_parallel_size or 1
        profile = import_profile(
            source, name="coarse", model=model, gpu=gpu.name, tensor_parallel_size=degree, metadata=METADATA
        )
        path = Path(temporary) / "coarse.json"
        profile.save(path)
        table = Table(Platform(model, gpu, degree), profile=str(path))
    off: dict[str, list[float]] = {"prefill": [], "decode": [], "mixed": []}
    for call in calls:
        if power_of_two(call):
            continue
        chunk, before, seqs, context = (int(call[key]) for key in KEYS[:-1])
        prefill = ((chunk, before),) if chunk else ()
        shape = BatchShape(prefill, seqs, seqs * context, context)
        rest = table._tokens.at(chunk + seqs)
        attention = table._attention.of(shape)
        truth = call["time_us"] * 1e3 * model.layers
        kind = "mixed" if chunk and seqs else "prefill" if chunk else "decode"
        off[kind].append((attention - truth) / (rest + truth))
    for kind, errors in off.items():
        if errors:
            median, high = np.percentile(np.abs(errors), [50, 90]) * 100
            bias = 100 * float(np.mean(errors))
            spread = f"median {median:.2f} %, 90th percentile {high:.2f} %, bias {bias:+.2f} %"
            print(f"{kind:<8}{len(errors):>6} calls: {spread}")


if __name__ == "__main__":
    main()
