from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay
import replay_sglang

from simulator.metrics import duration_ns
from simulator.tokens import token_times
from simulator.waste import slot_time

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


@pytest.mark.parametrize("name", ["013_tight_kv", "017_lpm_tight", "020_priority", "037_tight_kv", "022_ignore_eos"])
def test_tokens_that_are_lost_and_rows_for_nobody_leave_the_accounts_straight(name: str) -> None:
    """Every request has its tokens once, its time is in one state or another, and slot time adds up."""
    (file,) = (path for path in FILES if path.name.startswith(f"{name}_overlap"))
    log = replay_sglang.run_of(json.loads(gzip.decompress(file.read_bytes())), fast_forward=True)
    s = log.sequences
    assert [len(token_times(log, row)) for row in range(len(log.ids))] == s["output_tokens"].tolist()
    spent = s["queued_ns"] + s["prefill_ns"] + s["decode_ns"] + s["preempted_ns"]
    assert (spent == s["finish_ns"] - s["arrival_ns"]).all()
    assert sum(slot_time(log)) == log.info["max_num_seqs"] * duration_ns(log)


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (lambda data: data["results"].pop(), 1, "recorded results"),
        (lambda data: data["steps"].__setitem__(3, None), 2, "has another form"),
    ],
)
def test_what_is_missing_from_a_recording_is_found(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(gzip.decompress(FILES[0].read_bytes()))
    change(data)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    assert replay.main([str(path)]) == status
    assert said in capsys.readouterr().out
