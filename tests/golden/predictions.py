"""Iteration times of every shipped profile, to the nanosecond: `predictions/PROFILE.json`.

    python tests/golden/predictions.py --write

writes what the profiles predict now. Whoever commits that says under "Numbers change" in CHANGELOG.md what moved and
why.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from simulator.costs.table import Table
from simulator.plan import BatchShape
from simulator.profile import load_profile, shipped_profiles
from simulator.specs import Platform, get_gpu, get_model

FOLDER = Path(__file__).parent / "predictions"
# (prefill chunks as (new tokens, tokens before), decode rows, tokens they attend to in all, the longest of them).
SHAPES: tuple[tuple[tuple[tuple[int, int], ...], int, int, int], ...] = (
    # decode: one row to many, even and uneven, beyond every table
    ((), 1, 1, 1), ((), 1, 100, 100), ((), 1, 16000, 16000), ((), 8, 8000, 1000), ((), 8, 8000, 6000),
    ((), 33, 40000, 1213), ((), 64, 64 * 2048, 2048), ((), 64, 64 * 2048, 16000), ((), 256, 256 * 700, 700),
    ((), 300, 300 * 4000, 4000), ((), 4096, 4096 * 100, 100), ((), 1, 130000, 130000),
    # prefill: one prompt, a chunk after others, several prompts, beyond every table
    (((1, 0),), 0, 0, 0), (((17, 0),), 0, 0, 0), (((300, 0),), 0, 0, 0), (((1024, 0),), 0, 0, 0),
    (((2048, 0),), 0, 0, 0), (((512, 512),), 0, 0, 0), (((777, 9000),), 0, 0, 0), (((8192, 0),), 0, 0, 0),
    (((128, 0),) * 4, 0, 0, 0), (((500, 0), (40, 3000), (9, 100)), 0, 0, 0), (((1, 4096),) * 16, 0, 0, 0),
    (((60000, 0),), 0, 0, 0),
    # mixed: small and large halves, uneven lengths, several chunks, beyond every table
    (((16, 0),), 1, 64, 64), (((256, 0),), 16, 16 * 500, 500), (((2000, 0),), 48, 48 * 1000, 1000),
    (((512, 1536),), 128, 128 * 3000, 3000), (((512, 1536),), 128, 128 * 3000, 12000),
    (((700, 0), (700, 0)), 200, 200 * 64, 64), (((10, 100),), 256, 256 * 16000, 16000),
    (((16000, 0),), 600, 600 * 2000, 30000),
)  # fmt: skip


def platform_of(name: str) -> Platform:
    """What a shipped profile was timed on."""
    meta = load_profile(name).metadata
    return Platform(get_model(meta["model"]), get_gpu(meta["gpu"]), meta["tensor_parallel_size"])


def predicted(name: str) -> list[int]:
    """Nanoseconds of SHAPES by a shipped profile."""
    table = Table(platform_of(name), profile=name)
    return [table.iteration_ns(BatchShape(*shape)) for shape in SHAPES]


def recorded(name: str) -> list[int]:
    """What is on file for it."""
    lines: list[dict[str, int]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return [line["ns"] for line in lines]


def as_text(name: str) -> str:
    """The file: a line per shape, and its nanoseconds."""
    keys = ("prefill", "decode_seqs", "decode_context", "decode_max_context")
    lines = [
        json.dumps({**dict(zip(keys, shape, strict=True)), "ns": ns})
        for shape, ns in zip(SHAPES, predicted(name), strict=True)
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Write the files, or say what would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    for name in shipped_profiles():
        path, text = FOLDER / f"{name}.json", as_text(name)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path}: {'written' if given.write else 'would change'}")
            if given.write:
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
