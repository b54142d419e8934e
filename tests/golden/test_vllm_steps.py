from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay

HERE = Path(__file__).parent
FILES = sorted((HERE / "vllm-0.19.0").glob("*.json.gz"))


def test_every_recorded_family_is_there() -> None:
    families = Counter(name.stem.split("_", 1)[1].removesuffix(".json") for name in FILES)
    names = (
        "plain", "tight_kv", "prefix", "prefix_tight", "priority", "long_prompts", "threshold", "no_full_isl", "burst",
        "slots",
    )  # fmt: skip
    real = {"2588blocks": 1, "2588blocks_async": 1}
    assert families == {name + end: 3 for name in names for end in ("", "_async")} | real


@pytest.mark.parametrize("fast_forward", [True, False], ids=["fast-forward", "step"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_vllm_v1_takes_vllms_steps_to_the_nanosecond(file: Path, fast_forward: bool) -> None:
    assert replay.replay(file, fast_forward=fast_forward) is None


def altered(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A recording with six preemptions, changed and written plain."""
    data = json.loads(gzip.decompress((HERE / "vllm-0.19.0" / "011_tight_kv_async.json.gz").read_bytes()))
    change(data)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return path


def later(data: dict[str, Any]) -> None:
    data["steps"][100][1] += 1


def swapped(data: dict[str, Any]) -> None:
    rows = next(step[2] for step in data["steps"] if len(step[2]) > 1)
    rows[0], rows[1] = rows[1], rows[0]


def blamed(data: dict[str, Any]) -> None:
    next(step for step in data["steps"] if step[3])[3] = [0]


def shorter(data: dict[str, Any]) -> None:
    data["steps"].pop()


def slower(data: dict[str, Any]) -> None:
    data["results"][3]["first_token_ns"] += 1


def uncounted(data: dict[str, Any]) -> None:
    next(result for result in data["results"] if result["preemptions"] == 1)["preemptions"] = 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (later, "step 100, end_ns: "),
        (swapped, "tokens: [("),
        (blamed, "preempted: [], recorded ['0']"),
        (shorter, "246 steps, recorded 245"),
        (slower, "request 3, first_token_ns: "),
        (uncounted, "preemptions: 1, recorded 0"),
    ],
)
def test_any_difference_is_found(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(tmp_path, change)
    assert replay.main([str(path), str(FILES[0])]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: ")
    assert said in first
    assert second == f"{FILES[0]}: ok"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("enable_chunked_prefill", False, "not modelled yet: chunked prefill is off"),
    ],
)
def test_what_is_not_modelled_is_said(
    tmp_path: Path, key: str, value: bool, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(tmp_path, lambda data: data["config"].update({key: value}))
    assert replay.main([str(path)]) == 2
    assert capsys.readouterr().out == f"{path}: {reason}\n"


@pytest.mark.parametrize("content", ["", "[]", '{"config": {}}', "\x1f\x8b"])
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content.encode("latin-1"))
    assert replay.main([str(path), str(tmp_path / "absent.json")]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{path}: ")
    assert "can't be read" in lines[1]


def test_it_runs_as_a_script() -> None:
    ran = subprocess.run(
        [sys.executable, str(HERE / "replay.py"), str(FILES[0])], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{FILES[0]}: ok\n", "")
