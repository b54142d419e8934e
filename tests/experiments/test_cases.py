"""Cases of a sweep, which change several keys together, and loads whose requests are written out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.build import workload
from experiments.config import Plan, load
from experiments.resolved import resolved_text
from simulator.errors import ConfigError

HEAD = "model: llama-3.1-8b\ngpu: a100-80gb\n"
LISTED = (
    HEAD
    + "load: {requests: [{id: A, input_len: 4, output_len: 6},"
    + " {id: B, arrival_ms: 1.5, input_len: 2, output_len: 3}]}\n"
)
CASES = LISTED + "engine: {max_num_seqs: 8, max_model_len: 4096}\n"


def plan_of(tmp_path: Path, text: str, *overrides: str) -> Plan:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load(str(path), list(overrides))


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, text, *overrides)
    return [fault.replace(f"{tmp_path}/", "") for fault in caught.value.faults]


# ---- cases ---------------------------------------------------------------------------------------------------------


def test_a_case_changes_single_keys_of_sections_and_everything_else_whole(tmp_path: Path) -> None:
    text = (
        CASES
        + "scheduler: {name: static, batch_size: 4}\n"
        + "sweep: {case: {a: {engine: {max_num_seqs: 4}}, b: {scheduler: dynamic, engine: {max_num_seqs: 64}}}}\n"
    )
    a, b = plan_of(tmp_path, text).runs
    assert (a.label, b.label) == ("a", "b")
    assert (a.settings.engine.max_num_seqs, a.settings.engine.max_model_len) == (4, 4096)
    assert a.pieces.options["scheduler"]["batch_size"] == 4
    assert (b.settings.engine.max_num_seqs, b.settings.engine.max_model_len) == (64, 4096)
    assert b.pieces.options["scheduler"]["batch_size"] == 16
    assert a.sources["engine.max_num_seqs"] == "sweep"
    assert a.sources["engine.max_model_len"] == "file"


def test_cases_multiply_with_other_axes_in_stated_order(tmp_path: Path) -> None:
    sweep = "{case: {a: {engine: {max_num_seqs: 4}}, b: {scheduler: continuous}}, host_overhead_us: [1, 2]}"
    labels = [run.label for run in plan_of(tmp_path, CASES + f"sweep: {sweep}\n").runs]
    assert labels == [f"{case}, host_overhead_us={us}" for case in "ab" for us in (1, 2)]


def test_overrides_reach_into_cases_and_win_over_them(tmp_path: Path) -> None:
    text = CASES + "sweep: {case: {a: {engine: {max_num_seqs: 4}}, b: {scheduler: continuous}}}\n"
    a, _ = plan_of(tmp_path, text, "sweep.case.a.engine.max_num_seqs=2").runs
    assert a.settings.engine.max_num_seqs == 2
    assert {run.settings.engine.max_num_seqs for run in plan_of(tmp_path, text, "engine.max_num_seqs=3").runs} == {3}
    (only,) = plan_of(tmp_path, text, "sweep.case=null").runs
    assert only.label == ""
    (left,) = plan_of(tmp_path, text, "sweep.case.a=null").runs
    assert left.label == "b"


def test_a_case_may_change_the_workload(tmp_path: Path) -> None:
    text = CASES + "sweep: {case: {a: {load: {repeat: 2}}, b: {load: {requests: null, num_prompts: 5}}}}\n"
    assert [len(workload(run.settings).requests) for run in plan_of(tmp_path, text).runs] == [4, 5]


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{case: [a, b]}", "c.yaml:5: sweep.case = ['a', 'b']: must be a mapping name: keys"),
        ("{case: {}}", "c.yaml:5: sweep.case = {}: must be a mapping name: keys"),
        ("{case: {a: 3}}", "c.yaml:5: sweep.case.a = 3: must be a mapping of at least one key"),
        ("{case: {a: {name: x}}}", "c.yaml:5: sweep.case.a.name: a case can't set it"),
        ("{case: {'a, b': {seed: 1}}}", "sweep.case: a, b: a name has no comma and no equals sign, as labels have"),
        ("{case: {a: {sheduler: x}, b: {seed: 1}}}", "c.yaml:5: sheduler = x: unknown key; did you mean 'scheduler'?"),
        ("{case: {a: {engine: {seqs: 1}}, b: {seed: 1}}}", "engine.seqs = 1: unknown key; did you mean"),
        ("{case: {a: {seed: 1}, b: {seed: 2}}, seed: [3, 4]}", "sweep.seed: lies in sweep.case"),
        ("{case: {a: {scheduler: static}, b: {seed: 2}}, scheduler.policy: [sjf, fcfs]}", "lies in sweep.case"),
        ("{case: {a: {seed: {x: 1}}, b: {seed: 2}}}", "seed = "),
    ],
)
def test_what_is_wrong_with_cases(tmp_path: Path, sweep: str, expected: str) -> None:
    said = faults(tmp_path, CASES + f"sweep: {sweep}\n")
    assert any(expected in fault for fault in said), said


def test_equal_cases_are_run_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, CASES + "sweep: {case: {a: {host_overhead_us: 1}, b: {host_overhead_us: 1}}}\n")
    assert [run.label for run in plan.runs] == ["a"]
    assert any("is the same run as" in notice for notice in plan.notices)


# ---- listed requests -----------------------------------------------------------------------------------------------


def test_requests_are_taken_as_they_are_written(tmp_path: Path) -> None:
    (run,) = plan_of(tmp_path, LISTED).runs
    load = workload(run.settings)
    assert [(r.id, r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in load.requests] == [
        ("A", 0, 4, 6),
        ("B", 1_500_000, 2, 3),
    ]
    assert load.request_rate == pytest.approx(1 / 0.0015)


def test_the_list_is_gone_through_as_often_as_asked(tmp_path: Path) -> None:
    (run,) = plan_of(tmp_path, LISTED, "load.repeat=3").runs
    ids = [request.id for request in workload(run.settings).requests]
    assert ids == ["A", "A.2", "A.3", "B", "B.2", "B.3"]
    (together,) = plan_of(tmp_path, LISTED, "load.repeat=3", "load.requests.1.arrival_ms=0").runs
    load = workload(together.settings)
    assert [request.id for request in load.requests] == ["A", "B", "A.2", "B.2", "A.3", "B.3"]
    assert load.request_rate == math.inf


def test_a_resolved_list_reads_back(tmp_path: Path) -> None:
    (run,) = plan_of(tmp_path, LISTED).runs
    text = resolved_text(run)
    assert "num_prompts" not in text
    (again,) = plan_of(tmp_path, text).runs
    assert again.hash == run.hash
    assert workload(again.settings).requests == workload(run.settings).requests


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ("{requests: []}", "load.requests = []: must hold at least 1 values"),
        ("{requests: A}", "load.requests = A: must be a list"),
        ("{requests: [A]}", "load.requests[0] = A: must be a mapping of keys"),
        ("{requests: [{id: A, input_len: 4}]}", "load.requests[0].output_len: is required, and missing"),
        ("{requests: [{id: A, input_len: 0, output_len: 1}]}", "load.requests[0].input_len = 0: must be at least 1"),
        ("{requests: [{id: 1, input_len: 1, output_len: 1}]}", "load.requests[0].id = 1: must be text"),
        ("{requests: [{id: A, inputlen: 1, input_len: 1, output_len: 1}]}", "did you mean 'load.requests.input_len'?"),
        (
            "{requests: [{id: A, input_len: 1, output_len: 1}, {id: A, input_len: 1, output_len: 1}]}",
            "two requests have the id A",
        ),
        ("{requests: [{id: A, arrival_ms: -1, input_len: 1, output_len: 1}]}", "arrival_ms = -1: must be at least 0"),
        (
            "{requests: [{id: A, input_len: 1, output_len: 1}], num_prompts: 3}",
            "c.yaml:3: load.num_prompts = 3: changes nothing: the requests are listed",
        ),
        ("{num_prompts: 3, repeat: 2}", "load.repeat = 2: changes nothing: no requests are listed"),
    ],
)
def test_what_is_wrong_with_listed_requests(tmp_path: Path, load: str, expected: str) -> None:
    said = faults(tmp_path, HEAD + f"load: {load}\n")
    assert any(expected in fault for fault in said), said
