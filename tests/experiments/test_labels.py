"""What runs are called beside one another, whichever folders they come from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.labels import differing, line_names, row_names, run_labels, settings_of, subtitle, wrapped
from experiments.rates import rate_lines

CONFIG = """
name: {name}
model: llama-3.1-8b
gpu: {gpu}
trace: {{path: data/azure.csv, time_scale: {scale}}}
engine: {{max_num_batched_tokens: {budget}, tensor_parallel_size: {gpus}}}
scheduler: {{name: chunked, policy: fcfs}}
figures: true
pins: {{trace.path: {pin}}}
"""


def run(folder: Path, label: str | None = None, rate: float = 8.0, **config: Any) -> dict[str, Any]:
    """A result with a config beside it."""
    folder.mkdir()
    values = {"name": folder.name, "gpu": "a100-80gb", "scale": 1.0, "budget": 2048, "gpus": 1, "pin": "a" * 64}
    (folder / "config.resolved.yaml").write_text(CONFIG.format(**values | config))
    sim = {"scheduler": "chunked", "cost_model": "roofline", "cost_kind": "bound"}
    return {
        "name": folder.name,
        "out_dir": str(folder),
        "label": label,
        "model_id": "llama-3.1-8b",
        "num_prompts": 2000,
        "request_rate": rate,
        "sim": sim,
    }


def test_runs_of_two_folders_share_a_line_only_where_rates_alone_differ(tmp_path: Path) -> None:
    slow = run(tmp_path / "a", "chunked, request_rate=2", rate=2.0, scale=4.0)
    fast, small = run(tmp_path / "b"), run(tmp_path / "c", budget=512)
    lines = rate_lines([fast, small, slow])
    assert list(lines) == ["chunked, max_num_batched_tokens=2048", "chunked, max_num_batched_tokens=512"]
    assert list(lines.values()) == [[slow, fast], [small]]


def test_a_label_that_says_it_already_isnt_said_twice(tmp_path: Path) -> None:
    results = [run(tmp_path / str(b), f"max_num_batched_tokens={b}", budget=b) for b in (512, 1024)]
    assert line_names(results) == ["max_num_batched_tokens=512", "max_num_batched_tokens=1024"]
    assert line_names(results, ("max_num_batched_tokens",)) == ["chunked", "chunked"]


def test_a_file_counts_by_content(tmp_path: Path) -> None:
    results = [run(tmp_path / pin, pin=pin * 64) for pin in "ab"]
    assert run_labels(results) == ["chunked, trace.path sha256=aaaaaaaa", "chunked, trace.path sha256=bbbbbbbb"]
    one, other = {"trace.path": "x", "pins.trace.path": "1"}, {"trace.path": "y", "pins.trace.path": "2"}
    assert differing([one, other]) == ["trace.path"]


def test_the_same_run_twice_is_numbered_and_a_rate_rounded(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    assert run_labels([one, one]) == ["chunked (1)", "chunked (2)"]
    bare = [{"backend": "openai", "request_rate": rate} for rate in (7.852899002476842, "inf")]
    assert run_labels(bare) == ["openai @ 7.853/s", "openai @ all at once"]


def test_a_config_that_is_gone_or_broken_tells_nothing(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    assert settings_of(one)["engine.max_num_batched_tokens"] == 2048
    assert not {"name", "figures"} & settings_of(one).keys()
    for text in ("a: [", "- 1\n", ""):
        (tmp_path / "a" / "config.resolved.yaml").write_text(text)
        assert settings_of(one) == {}
    (tmp_path / "a" / "config.resolved.yaml").unlink()
    assert settings_of(one) == {}
    assert settings_of({"out_dir": None}) == {}


def test_a_subtitle_names_machine_workload_and_bound(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    assert subtitle([one]) == "llama-3.1-8b on a100-80gb; azure.csv, 2,000 requests; roofline: lower bound on time"
    four = run(tmp_path / "b", gpu="h100", gpus=4)
    assert subtitle([one, four]).startswith("llama-3.1-8b on a100-80gb / llama-3.1-8b on 4 x h100; azure.csv")
    third = run(tmp_path / "c", gpu="l4")
    assert subtitle([one, four, third]).startswith("3 machines; ")
    estimated = {**one, "sim": {"cost_model": "table", "cost_kind": "estimate"}}
    assert subtitle([estimated]).endswith("2,000 requests")
    assert subtitle([one, estimated]).endswith("roofline: lower bound on time (not for all runs)")
    assert subtitle([{"backend": "openai"}]) == ""


def test_a_subtitle_names_what_load_it_was(tmp_path: Path) -> None:
    one = run(tmp_path / "a")
    for load, name in (("{num_prompts: 5}", "synthetic load"), ("{requests: [{id: a}], repeat: 1}", "listed requests")):
        (tmp_path / "a" / "config.resolved.yaml").write_text(f"load: {load}\n")
        assert subtitle([one]).startswith(f"llama-3.1-8b; {name}, 2,000 requests")


words = st.text("ab=_ ,1", min_size=1, max_size=60).map(str.strip).filter(bool)


@given(st.lists(words, min_size=1, max_size=6), st.integers(3, 30))
def test_names_of_rows_fit_and_stay_apart(labels: list[str], width: int) -> None:
    results = [{"label": label} for label in labels]
    rows, _ = row_names(results, width)
    assert all(len(line) <= width for row in rows for line in row)
    given_names = run_labels(results)
    for (i, one), (j, other) in itertools.combinations(enumerate(rows), 2):
        if "".join(given_names[i].split()) != "".join(given_names[j].split()):
            assert one != other


def test_lines_break_after_commas_and_within_what_is_too_long() -> None:
    assert wrapped("chunked, max_num_seqs=16", 16) == ["chunked,", "max_num_seqs=16"]
    assert wrapped("abcdefgh", 3) == ["abc", "def", "gh"]
