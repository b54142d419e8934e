from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay

HERE = Path(__file__).parent
FILES = sorted((HERE / "sglang-0.5.23").glob("*.json.gz"))


def test_every_recorded_family_is_there() -> None:
    families = Counter(name.stem.split("_", 1)[1].removesuffix(".json") for name in FILES)
    names = (
        "plain", "tight_kv", "chunked", "mixed_chunk", "lpm", "lpm_tight", "lpm_over_128", "conservative", "priority",
        "slots", "ignore_eos", "turns",
    )  # fmt: skip
    assert families.keys() == {name + end for name in names for end in ("", "_overlap")}
    assert len(FILES) == 40


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_sglang_takes_sglangs_steps_to_the_nanosecond_stepped_and_skipped(file: Path) -> None:
    assert replay.replay(file) is None


def altered(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads(gzip.decompress((HERE / "sglang-0.5.23" / name).read_bytes()))
    change(data)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("field", range(12))
def test_any_difference_of_a_step_is_found(tmp_path: Path, field: int) -> None:
    def change(data: dict[str, Any]) -> None:
        value = data["steps"][90][field]
        data["steps"][90][field] = [*value, 7] if isinstance(value, list) else "MIXED" if field == 4 else value + 0.001

    said = replay.replay(altered(tmp_path, "013_tight_kv_overlap.json.gz", change), fast_forward=False)
    assert said is not None
    assert said.startswith("step 90, ")


@pytest.mark.parametrize("field", ["first_token_ns", "finish_ns", "cached_tokens", "retractions", "max_new_tokens"])
def test_any_difference_of_a_result_is_found(tmp_path: Path, field: str) -> None:
    def change(data: dict[str, Any]) -> None:
        data["results"][3][field] += 1

    said = replay.replay(altered(tmp_path, "013_tight_kv_overlap.json.gz", change), fast_forward=False)
    assert said is not None
    assert said.startswith(f"request 3, {field}: ")


def test_a_missing_step_is_found(tmp_path: Path) -> None:
    path = altered(tmp_path, "000_plain.json.gz", lambda data: data["steps"].pop())
    assert replay.replay(path) == "295 steps, recorded 294"
