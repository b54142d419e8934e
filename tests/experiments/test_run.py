"""Runs: every key matters, a resolved config gives the same run again, what is done is kept."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import run as running
from experiments.build import workload
from experiments.cli import main
from experiments.config import Plan, RunConfig, load
from experiments.faults import known_keys
from experiments.results import load_result
from experiments.run import execute, run_plan, simulate_run, write_sweep
from simulator import costs, plugins, schedulers
from simulator.errors import ConfigError, MissingError, PolicyError, UserError

SYNTHETIC = """
name: base
model: llama-3.1-8b
gpu: a100-80gb
load: {num_prompts: 30, request_rate: 20, input_len: {uniform: [100, 3000]}, output_len: {uniform: [5, 60]}}
figures: false
"""
TRACE = """
name: base
model: llama-3.1-8b
gpu: a100-80gb
trace: {path: TRACE.csv}
figures: false
"""
# Vidur's columns; one request generates nothing, and one row is out of order.
ROWS = [
    "arrived_at,num_prefill_tokens,num_decode_tokens",
    *(f"{i * 0.01:.2f},{100 + i},{5 + i % 7}" for i in range(40)),
]
ROWS[20] = "0.19,119,0"
ROWS[30], ROWS[31] = ROWS[31], ROWS[30]
# Mooncake's form: every prompt begins with the same block of 512 tokens.
HASHED = TRACE.replace("TRACE.csv", "HASHED.jsonl")
PROMPTS = [
    json.dumps({"timestamp": 50 * i, "input_length": 600, "output_length": 9, "hash_ids": [0, i + 1]})
    for i in range(20)
]


def resolve(tmp_path: Path, text: str, *overrides: str) -> Plan:
    (tmp_path / "TRACE.csv").write_text("\n".join(ROWS) + "\n")
    (tmp_path / "TRACE2.csv").write_text("\n".join(ROWS[:10]) + "\n")
    (tmp_path / "HASHED.jsonl").write_text("\n".join(PROMPTS) + "\n")
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load(str(path), list(overrides))


def one(tmp_path: Path, text: str, *overrides: str) -> RunConfig:
    (run,) = resolve(tmp_path, text, *overrides).runs
    return run


def outcome(tmp_path: Path, text: str, *overrides: str) -> dict[str, Any]:
    """Everything that a run leaves behind apart from dates, real times and its own config; or why it was refused."""
    try:
        with contextlib.chdir(tmp_path):
            run = one(tmp_path, text, *overrides)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        result = execute(run, tmp_path / "out")
    except (UserError, MissingError) as error:
        return {"refused": str(error)}
    for key in ("date", "out_dir"):
        del result[key]
    for key in ("wall_s", "speedup", "config_hash"):
        del result["sim"][key]
    return {**result, "files": sorted(path.name for path in (tmp_path / "out").iterdir())}


# key: (config, overrides on both sides, the override that must matter)
KEYS: dict[str, tuple[str, list[str], str]] = {
    "name": (SYNTHETIC, [], "name=other"),
    "seed": (SYNTHETIC, [], "seed=1"),
    "model": (SYNTHETIC, [], "model=qwen3-8b"),
    "gpu": (SYNTHETIC, [], "gpu=h100"),
    "trace.path": (TRACE, [], "trace.path=TRACE2.csv"),
    "trace.format": (TRACE, [], "trace.format=azure"),
    "trace.unit": (TRACE, [], "trace.unit=ms"),
    "trace.block_size": (HASHED, [], "trace.block_size=16"),
    "trace.zero_output": (TRACE, [], "trace.zero_output=keep"),
    "trace.strict": (TRACE, [], "trace.strict=true"),
    "trace.limit": (TRACE, [], "trace.limit=7"),
    "trace.window_s": (TRACE, [], "trace.window_s=[0.1, 0.2]"),
    "trace.time_scale": (TRACE, [], "trace.time_scale=3"),
    "trace.request_rate": (TRACE, [], "trace.request_rate=3"),
    "load.num_prompts": (SYNTHETIC, [], "load.num_prompts=31"),
    "load.request_rate": (SYNTHETIC, [], "load.request_rate=21"),
    "load.burstiness": (SYNTHETIC, [], "load.burstiness=2"),
    "load.rescale": (SYNTHETIC, [], "load.rescale=false"),
    "load.input_len": (SYNTHETIC, [], "load.input_len=77"),
    "load.output_len": (SYNTHETIC, [], "load.output_len=7"),
    "load.ramp_up_strategy": (
        SYNTHETIC, ["load.ramp_up_start_rps=1", "load.ramp_up_end_rps=9"], "load.ramp_up_strategy=linear"
    ),
    "load.ramp_up_start_rps": (
        SYNTHETIC, ["load={num_prompts: 9, ramp_up_strategy: linear, ramp_up_start_rps: 1, ramp_up_end_rps: 9}"],
        "load.ramp_up_start_rps=2",
    ),
    "load.ramp_up_end_rps": (
        SYNTHETIC, ["load={num_prompts: 9, ramp_up_strategy: linear, ramp_up_start_rps: 1, ramp_up_end_rps: 9}"],
        "load.ramp_up_end_rps=10",
    ),
    "load.priority": (
        SYNTHETIC, ["scheduler.policy=priority", "engine.max_num_seqs=2"], "load.priority=[[0, 1], [1, 1]]"
    ),
    "load.requests": (
        SYNTHETIC, ["load={requests: [{id: A, input_len: 50, output_len: 4}]}"],
        "load.requests=[{id: A, input_len: 50, output_len: 5}]",
    ),
    "load.repeat": (
        SYNTHETIC, ["load={requests: [{id: A, input_len: 50, output_len: 4}]}"], "load.repeat=3"
    ),
    "engine.max_num_seqs": (SYNTHETIC, [], "engine.max_num_seqs=2"),
    "engine.max_num_batched_tokens": (SYNTHETIC, [], "engine.max_num_batched_tokens=512"),
    "engine.max_num_prefill_tokens": (SYNTHETIC, [], "engine.max_num_prefill_tokens=100"),
    "engine.long_prefill_token_threshold": (SYNTHETIC, [], "engine.long_prefill_token_threshold=100"),
    "engine.max_model_len": (SYNTHETIC, [], "engine.max_model_len=1000"),
    "engine.block_size": (SYNTHETIC, [], "engine.block_size=32"),
    "engine.gpu_memory_utilization": (SYNTHETIC, [], "engine.gpu_memory_utilization=0.5"),
    "engine.num_gpu_blocks_override": (SYNTHETIC, [], "engine.num_gpu_blocks_override=200"),
    "engine.tensor_parallel_size": (SYNTHETIC, [], "engine.tensor_parallel_size=2"),
    "engine.enable_prefix_caching": (HASHED, [], "engine.enable_prefix_caching=true"),
    "engine.max_tokens": (SYNTHETIC, [], "engine.max_tokens=9"),
    "engine.async_scheduling": (SYNTHETIC, [], "engine.async_scheduling=true"),
    "kv.name": (SYNTHETIC, ["engine.max_model_len=8192"], "kv.name=reserve"),
    "scheduler.name": (SYNTHETIC, [], "scheduler=continuous"),
    "cost_model.name": (SYNTHETIC, [], "cost_model=constant"),
    "host_overhead_us": (SYNTHETIC, [], "host_overhead_us=5"),
    "slo.ttft": (SYNTHETIC, [], "slo.ttft=50"),
    "slo.tpot": (SYNTHETIC, [], "slo.tpot=10"),
    "slo.e2el": (SYNTHETIC, [], "slo.e2el=500"),
    "percentiles": (SYNTHETIC, [], "percentiles=[75]"),
    "fast_forward": (SYNTHETIC, [], "fast_forward=false"),
    "save_detailed": (SYNTHETIC, [], "save_detailed=true"),
    "figures": (SYNTHETIC, [], "figures=true"),
    "pins": (SYNTHETIC, [], "pins={model: abc}"),
    "sweep": (SYNTHETIC, [], "sweep={seed: [3]}"),
}  # fmt: skip
REFUSED = {"trace.format", "trace.strict", "trace.block_size", "pins"}
_SECTIONS = {"trace", "load", "engine", "kv", "scheduler", "cost_model", "slo"}
_NO_RUNS = {"claims"}  # what a run leaves behind doesn't depend on it; see test_claims


def test_the_table_of_keys_is_complete() -> None:
    assert set(KEYS) == set(known_keys()) - _SECTIONS - _NO_RUNS


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_something_or_is_refused(tmp_path: Path, key: str) -> None:
    text, common, override = KEYS[key]
    if key != "load.ramp_up_strategy":  # whose base alone is refused, as the ramp's rates need it
        assert "refused" not in outcome(tmp_path, text, *common)
    changed = outcome(tmp_path, text, *common, override)
    assert outcome(tmp_path, text, *common) != changed
    assert ("refused" in changed) == (key in REFUSED), changed


PRIORITIES = "load.priority=[[0, 1], [20, 1], [5, 1]]"
SHARED_PREFIXES = ["load=null", "trace={path: mooncake-conversation-1k, limit: 40, request_rate: 40}"]

# Options of schedulers, memories and cost models: a value that must matter, and what it matters beside.
OPTIONS: dict[tuple[str, str, str], tuple[Any, list[str]]] = {
    ("scheduler", "static", "batch_size"): (2, []),
    ("scheduler", "static", "batch_timeout_ms"): (1, []),
    ("scheduler", "static", "respond_at"): ("token", []),
    ("scheduler", "static", "policy"): ("sjf", []),
    ("scheduler", "dynamic", "batch_size"): (2, []),
    ("scheduler", "dynamic", "max_queue_delay_ms"): (300, []),
    ("scheduler", "dynamic", "respond_at"): ("token", []),
    ("scheduler", "dynamic", "policy"): ("sjf", []),
    ("scheduler", "continuous", "order"): ("orca", []),
    ("scheduler", "continuous", "policy"): ("sjf", []),
    ("scheduler", "chunked", "policy"): ("sjf", []),
    ("scheduler", "vllm_v1", "policy"): ("sjf", []),
    ("scheduler", "vllm_v1", "scheduler_reserve_full_isl"): ("false", ["engine.num_gpu_blocks_override=250"]),
    ("scheduler", "vllm_v1", "watermark"): (0.5, ["engine.num_gpu_blocks_override=450"]),
    ("scheduler", "sglang", "chunked_prefill_size"): (500, []),
    ("scheduler", "sglang", "max_prefill_tokens"): (
        1500,
        ["scheduler.chunked_prefill_size=-1", "load.request_rate=inf"],
    ),
    ("scheduler", "sglang", "schedule_policy"): ("lpm", ["kv=radix", *SHARED_PREFIXES]),
    ("scheduler", "sglang", "schedule_conservativeness"): (0.2, ["engine.num_gpu_blocks_override=450"]),
    ("scheduler", "sglang", "enable_mixed_chunk"): ("true", []),
    ("scheduler", "sglang", "enable_priority_scheduling"): ("true", [PRIORITIES, "engine.max_num_seqs=3"]),
    ("scheduler", "sglang", "schedule_low_priority_values_first"): (
        "true",
        [PRIORITIES, "engine.max_num_seqs=3", "scheduler.enable_priority_scheduling=true"],
    ),
    ("scheduler", "sglang", "priority_scheduling_preemption_threshold"): (
        0,
        [PRIORITIES, "engine.max_num_seqs=3", "scheduler.enable_priority_scheduling=true"],
    ),
    ("scheduler", "vllm_v0", "policy"): ("sjf", []),
    ("scheduler", "vllm_v0", "watermark"): (0.5, ["engine.num_gpu_blocks_override=450"]),
    ("scheduler", "faster_transformer", "batch_size"): (2, []),
    ("scheduler", "faster_transformer", "max_queue_delay_ms"): (300, []),
    ("scheduler", "faster_transformer", "respond_at"): ("token", []),
    ("scheduler", "faster_transformer", "policy"): ("sjf", []),
    ("scheduler", "tgi", "waiting_served_ratio"): (2, ["engine.max_tokens=60"]),
    ("scheduler", "tgi", "max_waiting_tokens"): (1, ["scheduler.waiting_served_ratio=2", "engine.max_tokens=60"]),
    ("scheduler", "tgi", "max_batch_prefill_tokens"): (100, ["engine.max_tokens=60"]),
    ("scheduler", "tgi", "max_batch_total_tokens"): (5000, ["engine.max_tokens=60"]),
    ("scheduler", "trtllm", "capacity"): ("max_utilization", []),
    ("kv", "reserve", "rule"): ("exact", ["engine.max_model_len=8192"]),
}


def _options(section: str) -> dict[str, type]:
    if section == "kv":
        return running_kv()
    table = {"scheduler": schedulers.BUILTIN, "cost_model": costs.BUILTIN}[section]
    return {name: plugins.resolve(f"{section}s", name, table) for name in table}


def running_kv() -> dict[str, type]:
    from experiments.pieces import KV_MEMORIES

    return KV_MEMORIES


def test_the_table_of_options_is_complete() -> None:
    given_by_us = {"num_gpu_blocks", "block_size", "max_model_len"}
    found = {
        (section, name, option)
        for section in ("scheduler", "kv")
        for name, cls in _options(section).items()
        for option in set(inspect.signature(cls).parameters) - given_by_us
    }
    assert found == set(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=".".join)
def test_every_option_changes_something(tmp_path: Path, option: tuple[str, str, str]) -> None:
    section, name, key = option
    value, common = OPTIONS[option]
    base = outcome(tmp_path, SYNTHETIC, f"{section}={name}", *common)
    changed = outcome(tmp_path, SYNTHETIC, f"{section}={name}", *common, f"{section}.{key}={value}")
    assert "refused" not in base
    assert "refused" not in changed
    base["sim"].pop("scheduler_options")
    changed["sim"].pop("scheduler_options")
    assert base != changed


@pytest.mark.parametrize("name", costs.BUILTIN)
def test_every_option_of_a_cost_model_is_checked(tmp_path: Path, name: str) -> None:
    cls = _options("cost_model")[name]
    for option in set(inspect.signature(cls).parameters) - {"platform"}:
        assert "refused" in outcome(tmp_path, SYNTHETIC, f"cost_model={name}", f"cost_model.{option}=[]")


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (SYNTHETIC, []),
        (SYNTHETIC, ["scheduler={name: static, batch_size: 3}", "engine.max_num_seqs=9", "seed=5"]),
        (SYNTHETIC, ["engine.num_gpu_blocks_override=300", "kv=reserve", "engine.max_model_len=4000"]),
        (SYNTHETIC, ["load.request_rate=inf", "load.input_len={lognormal: {mean: 300, cv: 1.2, max: 4000}}"]),
        (TRACE, ["trace.request_rate=7", "engine.max_tokens=oracle", "kv={name: reserve, rule: exact}"]),
        (TRACE, ["name=on", "host_overhead_us=1e-3", "slo.ttft=0.5", "engine.async_scheduling=true"]),
    ],
)
def test_a_resolved_config_gives_the_same_run_bit_for_bit(
    tmp_path: Path, text: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = one(tmp_path, text, *overrides)
    first = execute(run, tmp_path / "first")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    plan = load(str(tmp_path / "first" / "config.resolved.yaml"), [])
    assert plan.notices == list(run.notices)
    (again,) = plan.runs
    second = execute(again, tmp_path / "second")
    assert second["sim"]["digest"] == first["sim"]["digest"]
    assert again.folder == run.folder
    assert again.effective == run.effective
    resolved = (tmp_path / "second" / "config.resolved.yaml").read_text()
    assert " # default" not in resolved


def test_the_resolved_config_says_who_gave_each_value(tmp_path: Path) -> None:
    plan = resolve(tmp_path, SYNTHETIC + "sweep: {engine.block_size: [8, 16]}\n", "engine.max_num_seqs=9")
    run_dir = tmp_path / "out"
    execute(plan.runs[0], run_dir)
    text = (run_dir / "config.resolved.yaml").read_text()
    assert "model: llama-3.1-8b  # file" in text
    assert "  block_size: 8  # sweep" in text
    assert "  max_num_seqs: 9  # override" in text
    assert "  max_num_batched_tokens: 2048  # default" in text
    assert yaml.safe_load(text)["engine"]["block_size"] == 8


def test_a_changed_trace_is_refused(tmp_path: Path) -> None:
    execute(one(tmp_path, TRACE), tmp_path / "out")
    (tmp_path / "TRACE.csv").write_text("\n".join(ROWS[:-1]) + "\n")
    with pytest.raises(ConfigError, match=r"pins\.trace\.path = .*\.\.\.: the file has changed"):
        load(str(tmp_path / "out" / "config.resolved.yaml"), [])


def test_the_hash_is_of_contents_not_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = one(tmp_path, TRACE)
    assert run.hash == one(tmp_path, TRACE, "name=other").hash
    (tmp_path / "copy.csv").write_bytes((tmp_path / "TRACE.csv").read_bytes())
    assert run.hash == one(tmp_path, TRACE, "trace.path=copy.csv").hash
    assert run.hash != one(tmp_path, TRACE, "trace.path=TRACE2.csv").hash
    assert run.hash != one(tmp_path, TRACE, "engine.max_num_seqs=255").hash


def run_all(plan: Plan, folder: Path, *, force: bool = False) -> tuple[list[bool], list[str]]:
    said: list[str] = []
    return [done.skipped for done in run_plan(plan, folder, force=force, say=said.append)], said


def test_complete_runs_are_skipped_and_said_so(tmp_path: Path) -> None:
    plan = resolve(tmp_path, SYNTHETIC + "sweep: {scheduler: [continuous, chunked]}\n")
    assert run_all(plan, tmp_path / "r")[0] == [False, False]
    skipped, said = run_all(plan, tmp_path / "r")
    assert skipped == [True, True]
    assert all("skipped" in line for line in said)
    (tmp_path / "r" / plan.runs[1].folder / "requests.csv").unlink()
    assert run_all(plan, tmp_path / "r")[0] == [True, False]
    assert run_all(plan, tmp_path / "r", force=True)[0] == [False, False]


def test_a_sweep_has_a_summary(tmp_path: Path) -> None:
    plan = resolve(tmp_path, SYNTHETIC + "sweep: {scheduler: [continuous, chunked]}\n")
    results = [done.result for done in run_plan(plan, tmp_path / "r", force=False, say=print)]
    folder = write_sweep(plan, tmp_path / "r", results)
    header, *rows = (folder / "summary.csv").read_text().splitlines()
    assert len(rows) == 2
    assert {"label", "out_dir", "mean_ttft_ms", "request_throughput", "scheduler", "digest"} <= set(header.split(","))
    assert not list(folder.glob(".*"))


def test_an_interrupt_keeps_what_is_done_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(tmp_path, SYNTHETIC + "sweep: {seed: [1, 2, 3]}\n")
    original: Callable[..., Any] = running.simulate
    calls = []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(running, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_all(plan, tmp_path / "r")
    assert [(tmp_path / "r" / run.folder).exists() for run in plan.runs] == [True, False, False]
    assert run_all(plan, tmp_path / "r")[0] == [True, False, False]


def test_a_trace_that_cannot_be_read_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("what,is,this\n1,2,3\n")
    with pytest.raises(UserError, match=r"bad\.csv:1: columns = what, is, this"):
        resolve(tmp_path, TRACE + f"sweep: {{trace.path: [TRACE.csv, {tmp_path}/bad.csv]}}\n")


def test_no_completed_request_is_an_error_with_the_reasons_counted(tmp_path: Path) -> None:
    run = one(tmp_path, SYNTHETIC, "engine.max_model_len=50")
    with pytest.raises(ConfigError, match=r"no request completed, of 30: \w+ 30"):
        execute(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_requests_that_cannot_fit_are_rejected_and_the_rest_goes_on(tmp_path: Path) -> None:
    result = outcome(tmp_path, SYNTHETIC, "engine.num_gpu_blocks_override=100")
    assert result["completed"] > 0
    assert result["sim"]["rejected"]["exceeds_kv_capacity"] == result["failed"] > 0


def test_who_knows_how_long_answers_get_is_an_oracle(tmp_path: Path) -> None:
    assert outcome(tmp_path, SYNTHETIC, "engine.max_tokens=oracle")["sim"]["oracle"] is True
    assert outcome(tmp_path, SYNTHETIC)["sim"]["oracle"] is False


def test_max_tokens(tmp_path: Path) -> None:
    as_is = workload(one(tmp_path, SYNTHETIC).settings).requests
    oracle = workload(one(tmp_path, SYNTHETIC, "engine.max_tokens=oracle").settings).requests
    capped = workload(one(tmp_path, SYNTHETIC, "engine.max_tokens=20").settings).requests
    assert all(request.max_tokens is None for request in as_is)
    assert all(request.max_tokens == request.output_tokens for request in oracle)
    assert all(request.max_tokens == 20 and request.output_tokens <= 20 for request in capped)
    assert [r._replace(max_tokens=None) for r in oracle] == as_is


FAULTY = """
from simulator.schedulers.base import Scheduler
from simulator.plan import IterationPlan

class Divides(Scheduler):
    name = "divides"
    def plan(self, view):
        return 1 // 0

class Refuses(Scheduler):
    def __init__(self):
        raise RuntimeError("no")
"""


def test_a_failing_scheduler_of_the_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_faulty.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    run = one(tmp_path, SYNTHETIC, "scheduler=my_faulty:Divides")
    with pytest.raises(PolicyError, match=r"my_faulty:Divides \(.*my_faulty.py:8\): ZeroDivisionError"):
        simulate_run(run, workload(run.settings).requests)
    with pytest.raises(ConfigError, match="can't be built: RuntimeError: no"):
        resolve(tmp_path, SYNTHETIC, "scheduler=my_faulty:Refuses")


def test_a_changed_scheduler_of_the_user_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "my_policy.py"
    source.write_text("from simulator.schedulers.chunked import Chunked\nclass Mine(Chunked):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    run = one(tmp_path, SYNTHETIC, "scheduler=my_policy:Mine")
    source.write_text(source.read_text() + "# changed\n")
    assert one(tmp_path, SYNTHETIC, "scheduler=my_policy:Mine").hash != run.hash


def test_the_result_is_json(tmp_path: Path) -> None:
    result = execute(one(tmp_path, SYNTHETIC, "load.request_rate=inf"), tmp_path / "out")
    json.dumps(result, allow_nan=False)
    assert result["request_rate"] == "inf"
    assert result["sim"]["warnings"] == []


def test_gpu_local_asks_torch(tmp_path: Path) -> None:
    """The real one: on a machine without a GPU it finds none, on one with a GPU that GPU."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        assert one(tmp_path, SYNTHETIC, "gpu=local").settings.gpu
    else:
        with pytest.raises(MissingError, match="no CUDA device"):
            resolve(tmp_path, SYNTHETIC, "gpu=local")


# ---- resuming: what lies there is kept only where running again would give the same


def again(tmp_path: Path, text: str, *overrides: str) -> tuple[list[bool], list[str]]:
    return run_all(resolve(tmp_path, text, *overrides), tmp_path / "r")


def test_a_result_of_other_code_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert again(tmp_path, SYNTHETIC) == ([False], [])
    assert again(tmp_path, SYNTHETIC)[0] == [True]
    monkeypatch.setattr("experiments.results.code_sha256", lambda: "other")
    skipped, (line,) = again(tmp_path, SYNTHETIC)
    assert skipped == [False]
    assert line.startswith("base: run again, as servesim's code has changed since (")
    assert again(tmp_path, SYNTHETIC)[0] == [True]


def test_a_module_that_a_scheduler_imports_is_part_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawn_on.py").write_text("N = 1\n")
    source = (
        "from drawn_on import N\nfrom simulator.schedulers.chunked import Chunked\nclass Mine(Chunked):\n    pass\n"
    )
    (tmp_path / "drawing.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    use = "scheduler=drawing:Mine"
    assert again(tmp_path, SYNTHETIC, use)[0] == [False]
    assert again(tmp_path, SYNTHETIC, use)[0] == [True]
    (tmp_path / "drawn_on.py").write_text("N = 2\n")
    skipped, (line,) = again(tmp_path, SYNTHETIC, use)
    assert skipped == [False]
    assert f"run again, as {tmp_path}/drawn_on.py changed since" in line
    assert again(tmp_path, SYNTHETIC, use)[0] == [True]


def test_an_edit_that_keeps_the_size_is_noticed(tmp_path: Path) -> None:
    again(tmp_path, SYNTHETIC)
    (table,) = (tmp_path / "r").rglob("requests.csv")
    text = table.read_text()
    table.write_text(text.replace("finished", "finishee"))
    assert table.stat().st_size == len(text)
    skipped, (line,) = again(tmp_path, SYNTHETIC)
    assert skipped == [False]
    assert "run again, as its files aren't as they were written" in line
    assert table.read_text() == text


@pytest.mark.parametrize("lost", ["latency.png", "load.svg"])
def test_figures_that_are_lost_come_back(tmp_path: Path, lost: str) -> None:
    with_figures = SYNTHETIC.replace("figures: false", "figures: true")
    again(tmp_path, with_figures)
    (figure,) = (tmp_path / "r").rglob(lost)
    assert again(tmp_path, with_figures)[0] == [True]
    figure.unlink()
    load_result(figure.parent)  # is still a result
    skipped, (line,) = again(tmp_path, with_figures)
    assert skipped == [False]
    assert "its figures are missing" in line
    assert figure.is_file()


def test_an_interrupt_while_figures_are_drawn_loses_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_figures = SYNTHETIC.replace("figures: false", "figures: true")
    with monkeypatch.context() as patch:
        patch.setattr("experiments.plots._load", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            again(tmp_path, with_figures)
    assert again(tmp_path, with_figures)[0] == [False]
    assert len(list((tmp_path / "r").rglob("*.png"))) == 3
    assert again(tmp_path, with_figures)[0] == [True]


def test_a_full_disk_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = one(tmp_path, SYNTHETIC)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space") as caught:
            execute(run, tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out" / "config.resolved.yaml")
    monkeypatch.setattr("experiments.plots.plot_run", full)
    with pytest.raises(OSError, match="No space") as caught:
        execute(one(tmp_path, SYNTHETIC, "figures=true"), tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out")


def test_all_traces_that_cannot_be_read_are_said_at_once(tmp_path: Path) -> None:
    for name in ("bad1.csv", "bad2.csv"):
        (tmp_path / name).write_text(f"what,is,{name}\n1,2,3\n")
    paths = ", ".join(f"{tmp_path}/{name}" for name in ("bad1.csv", "bad2.csv"))
    with pytest.raises(UserError) as caught:
        run_all(resolve(tmp_path, TRACE + f"sweep: {{trace.path: [{paths}]}}\n"), tmp_path / "r")
    assert {name for fault in caught.value.faults for name in ("bad1", "bad2") if name in fault} == {"bad1", "bad2"}


# ---- a sweep in which a run fails

EMPTY_IN_THE_MIDDLE = "sweep={engine.max_model_len: [3500, 50, 4000]}"
FAILING = """
from simulator.schedulers.chunked import Chunked
class Fails(Chunked):
    def plan(self, view):
        raise RuntimeError("no")
"""


def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    (tmp_path / "c.yaml").write_text(SYNTHETIC)
    status = main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "r"), *arguments])
    return status, *capsys.readouterr()


def test_a_sweep_goes_on_after_a_run_in_which_nothing_completes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(tmp_path, capsys, EMPTY_IN_THE_MIDDLE)
    assert status == 2
    assert "max_model_len=3500" in out
    assert "max_model_len=4000" in out
    assert len((tmp_path / "r" / "base" / "summary.csv").read_text().splitlines()) == 3
    *_, last = err.splitlines()
    assert last.startswith("max_model_len=50: no request completed, of 30: ")
    status, out, err = command(tmp_path, capsys, EMPTY_IN_THE_MIDDLE, "--json")
    assert status == 2
    document = json.loads(out)
    assert [run["label"] for run in document["runs"]] == ["max_model_len=3500", "max_model_len=4000"]
    (error,) = document["errors"]
    assert error == {"label": "max_model_len=50", "kind": "ConfigError", "exit_status": 2, "message": last}


def test_a_policy_that_fails_is_the_worst_that_can_happen_to_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    sweep = "sweep={scheduler: [failing:Fails, chunked], engine.max_model_len: [50, 4000]}"
    status, out, err = command(tmp_path, capsys, sweep, "--json")
    assert status == 1
    document = json.loads(out)
    assert [run["sim"]["scheduler"] for run in document["runs"]] == ["chunked"]
    assert [error["exit_status"] for error in document["errors"]] == [1, 1, 2]
    assert "PolicyError: scheduler failing:Fails" in document["errors"][1]["message"]
    assert err.splitlines()[-3:] == [error["message"] for error in document["errors"]]


def test_a_sweep_of_failures_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = "sweep={engine.max_model_len: [50, 60]}"
    status, out, err = command(tmp_path, capsys, sweep)
    assert (status, out) == (2, "")
    assert len([line for line in err.splitlines() if "no request completed" in line]) == 2
    assert json.loads(command(tmp_path, capsys, sweep, "--json")[1])["runs"] == []


def test_what_is_complete_needs_no_folder_that_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = "sweep={engine.max_num_seqs: [8, 16]}"
    assert command(tmp_path, capsys, sweep)[0] == 0
    table = command(tmp_path, capsys, sweep)[1]

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system", str(self))

    for method in ("touch", "write_bytes", "replace"):
        monkeypatch.setattr(Path, method, refuse)
    status, out, err = command(tmp_path, capsys, sweep)
    assert (status, out) == (0, table)
    assert "Read-only file system; summary and figures in that folder stay as they were" in err.splitlines()[-1]
    assert command(tmp_path, capsys, "engine.max_num_seqs=16")[0] == 0
    assert command(tmp_path, capsys, "engine.max_num_seqs=17")[0] == 2


@pytest.mark.parametrize("text", ["", " "])
def test_a_folder_without_a_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["run", "quickstart", "--out", text]) == 2
    assert (
        capsys.readouterr().err
        == f"servesim run: argument --out: {text!r} must name a folder; '.' is the current one\n"
    )
