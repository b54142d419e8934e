"""Sweeps: the product in stated order, labels that tell runs apart, overrides that reach into them."""

# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import pytest

from experiments.config import Plan, load
from simulator.errors import ConfigError

BASE = "model: llama-3.1-8b\ngpu: a100-80gb\nload: {num_prompts: 10, request_rate: 4}\n"
SWEEP = BASE + "sweep: {scheduler: [{name: static, batch_size: 8}, chunked], seed: [1, 2]}\n"


def plan_of(tmp_path: Path, text: str, *overrides: str) -> Plan:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load(str(path), list(overrides))


def labels(plan: Plan) -> list[str]:
    return [run.label for run in plan.runs]


def test_the_product_in_stated_order(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SWEEP)
    assert labels(plan) == ["static, seed=1", "static, seed=2", "chunked, seed=1", "chunked, seed=2"]
    assert [(run.settings.scheduler.name, run.settings.seed) for run in plan.runs] == [
        ("static", 1),
        ("static", 2),
        ("chunked", 1),
        ("chunked", 2),
    ]
    assert len({run.folder for run in plan.runs}) == 4


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{scheduler: [static, {name: static, batch_size: 8}]}", ["static", "static batch_size=8"]),
        ("{load.request_rate: [1, 2.5, inf]}", ["request_rate=1", "request_rate=2.5", "request_rate=inf"]),
        ("{model: [qwen3-8b, qwen3-14b]}", ["qwen3-8b", "qwen3-14b"]),
        (
            "{load.input_len: [100, {uniform: [1, 9]}]}",
            ["input_len=100", "input_len={uniform: [1, 9]}"],
        ),
        ("{engine.max_num_prefill_tokens: [null, 512]}", ["max_num_prefill_tokens=null", "max_num_prefill_tokens=512"]),
        ("{fast_forward: [true, false]}", ["fast_forward=True", "fast_forward=False"]),
    ],
)
def test_labels_are_readable_and_unique(tmp_path: Path, sweep: str, expected: list[str]) -> None:
    assert labels(plan_of(tmp_path, BASE + f"sweep: {sweep}\n")) == expected


def test_an_override_of_a_swept_key_takes_its_place(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SWEEP, "scheduler=continuous")
    assert labels(plan) == ["seed=1", "seed=2"]
    assert {run.settings.scheduler.name for run in plan.runs} == {"continuous"}
    assert plan.notices == ["override scheduler=continuous: takes the place of sweep.scheduler"]


def test_an_override_of_a_section_takes_the_place_of_all_axes_in_it(tmp_path: Path) -> None:
    text = BASE + "sweep: {load.request_rate: [1, 2]}\n"
    plan = plan_of(tmp_path, text, "load={num_prompts: 3, request_rate: 9}")
    assert [run.settings.load.request_rate for run in plan.runs if run.settings.load] == [9]


def test_an_override_below_a_swept_key_holds_for_all_its_values(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SWEEP, "scheduler.policy=sjf")
    assert {run.pieces.options["scheduler"]["policy"] for run in plan.runs} == {"sjf"}
    assert plan.runs[0].pieces.options["scheduler"]["batch_size"] == 8


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sweep.seed=[7]", ["static", "chunked"]),
        ("sweep.seed=null", ["static", "chunked"]),
        ("sweep.scheduler[0]=continuous", ["continuous, seed=1", "continuous, seed=2", "chunked, seed=1", "chunked, seed=2"]),
        ("sweep.load.request_rate=[5]", ["static, seed=1", "static, seed=2", "chunked, seed=1", "chunked, seed=2"]),
        ("sweep=null", [""]),
        ("sweep={seed: [3, 4]}", ["seed=3", "seed=4"]),
    ],
)  # fmt: skip
def test_overrides_reach_into_the_sweep(tmp_path: Path, override: str, expected: list[str]) -> None:
    assert labels(plan_of(tmp_path, SWEEP, override)) == expected


def test_an_override_changes_one_value_of_an_axis(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SWEEP, "sweep.scheduler.0.batch_size=4")
    assert plan.runs[0].pieces.options["scheduler"]["batch_size"] == 4
    with pytest.raises(ConfigError, match="has the elements 0 to 1, and not 5"):
        plan_of(tmp_path, SWEEP, "sweep.scheduler.5.batch_size=4")


def test_every_combination_is_validated_before_anything_runs(tmp_path: Path) -> None:
    text = BASE + "sweep: {engine.max_num_seqs: [16, 4096], engine.max_num_batched_tokens: [2048, 8]}\n"
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, text)
    rules = [fault.split("max_num_batched_tokens (")[1] for fault in caught.value.faults]
    assert rules == [
        "8) must be at least max_num_seqs (16)",
        "2048) must be at least max_num_seqs (4096)",
        "8) must be at least max_num_seqs (4096)",
    ]


def test_a_fault_of_all_runs_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, SWEEP + "host_overhead_us: -1\n")
    assert len(caught.value.faults) == 1


def test_a_base_value_under_an_axis_is_a_notice(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SWEEP + "seed: 5\n")
    assert len(plan.notices) == 1
    assert plan.notices[0].endswith("c.yaml:5: seed: sweep.seed takes its place")


def test_runs_that_do_not_differ_are_run_once(tmp_path: Path) -> None:
    text = BASE + "sweep: {scheduler: [static, chunked], engine.max_num_batched_tokens: [512, 1024]}\n"
    plan = plan_of(tmp_path, text)
    assert len(plan.runs) == 3
    assert any("is the same run as" in notice for notice in plan.notices)
