"""Configs: every fault one line that names where, key, value and rule; every legal config accepted."""

# ruff: noqa: E501  (a fault is one line)
from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.config import Plan, load, shipped
from experiments.schema import config_schema
from simulator.errors import ConfigError

BASE = "model: llama-3.1-8b\ngpu: a100-80gb\ntrace: {path: azure-2023-conv, limit: 50}\n"
SYNTHETIC = "model: llama-3.1-8b\ngpu: a100-80gb\nload: {num_prompts: 10, request_rate: 4}\n"


def plan_of(tmp_path: Path, text: str, *overrides: str) -> Plan:
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(str(path), list(overrides))


def faults_of(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, text, *overrides)
    assert all("\n" not in fault for fault in caught.value.faults)
    return [fault.replace(str(tmp_path) + "/", "") for fault in caught.value.faults]


# text appended to BASE (its line 4), and what the one fault must say.
BAD_LINES = {
    "unknown key": ("engin: {}", "c.yaml:4: engin = {}: unknown key; did you mean 'engine'?"),
    "unknown engine key": ("engine: {max_seqs: 3}", "c.yaml:4: engine.max_seqs = 3: unknown key; did you mean 'engine.max_num_seqs'?"),
    "another engine's name": (
        "engine: {chunked_prefill_size: 512}",
        "engine.chunked_prefill_size = 512: unknown key; did you mean 'engine.max_num_batched_tokens'?",
    ),
    "key of another section": ("max_num_seqs: 3", "max_num_seqs = 3: unknown key; did you mean 'engine.max_num_seqs'?"),
    "boolean for a count": ("engine: {max_num_seqs: true}", "engine.max_num_seqs = true: must be a whole number"),
    "text for a count": ('engine: {max_num_seqs: "8"}', 'engine.max_num_seqs = "8": must be a whole number'),
    "fraction for a count": ("engine: {max_num_seqs: 2.5}", "engine.max_num_seqs = 2.5: must be a whole number"),
    "zero": ("engine: {max_num_seqs: 0}", "engine.max_num_seqs = 0: must be at least 1"),
    "negative": ("engine: {block_size: -16}", "engine.block_size = -16: must be at least 1"),
    "huge": ("engine: {max_num_seqs: 1e30}", "engine.max_num_seqs = 1e+30: must be at most 1000000000"),
    "thousands of digits": ("seed: " + "9" * 5000, "must be a whole number of at most 1000000000"),
    "infinite count": ("seed: .inf", "seed = Infinity: must be a whole number of at most 1000000000"),
    "NaN count": ("seed: .nan", "seed = NaN: must be a whole number"),
    "NaN": ("host_overhead_us: .nan", "host_overhead_us = NaN: must be a finite number"),
    "infinite": ("host_overhead_us: .inf", "host_overhead_us = Infinity: must be a finite number"),
    "null for a number": ("seed: null", "c.yaml:4: seed = null: must be a whole number"),
    "list for a number": ("seed: [1]", "seed = [1]: must be a whole number"),
    "utilisation above 1": ("engine: {gpu_memory_utilization: 1.1}", "gpu_memory_utilization = 1.1: must be at most 1"),
    "utilisation 0": ("engine: {gpu_memory_utilization: 0}", "gpu_memory_utilization = 0: must be above 0"),
    "negative overhead": ("host_overhead_us: -1", "host_overhead_us = -1: must be at least 0"),
    "text for a boolean": ("fast_forward: maybe", "fast_forward = maybe: must be true or false"),
    "number for a boolean": ("fast_forward: 1", "fast_forward = 1: must be true or false"),
    "section is a number": ("engine: 3", "engine = 3: must be a mapping of keys"),
    "section is a list": ("engine: [max_num_seqs]", "must be a mapping of keys"),
    "slo 0": ("slo: {ttft: 0}", "slo.ttft = 0: must be above 0"),
    "slo unknown": ("slo: {itl: 5}", "slo.itl = 5: unknown key; did you mean 'slo.ttft'?"),
    "percentile 100": ("percentiles: [50, 100]", "percentiles[1] = 100: must be below 100"),
    "no percentiles": ("percentiles: []", "percentiles = []: must hold at least 1"),
    "name of a path": ("name: a/b", "name = a/b: must be a word of letters"),
    "unknown scheduler": ("scheduler: chunkd", "c.yaml:4: scheduler: 'chunkd' is not one of static, dynamic, continuous, chunked"),
    "scheduler without a name": ("scheduler: {batch_size: 3}", "c.yaml:4: scheduler.name: is required, and missing"),
    "unknown option": ("scheduler: {name: chunked, batch_size: 3}", "c.yaml:4: scheduler.batch_size: unknown option"),
    "option of a wrong type": ("scheduler: {name: static, batch_size: x}", "scheduler.batch_size = x: must be a whole number"),
    "option out of range": ("scheduler: {name: static, batch_size: 0}", "c.yaml:4: scheduler.batch_size = 0: must be at least 1"),
    "unknown policy": ("scheduler: {name: chunked, policy: fifo}", "c.yaml:4: scheduler.policy = fifo: must be one of fcfs"),
    "module missing": ("scheduler: no_such_pkg:X", "Could not import module 'no_such_pkg'"),
    "not a scheduler": ("scheduler: collections:Counter", "must be a class with the method plan"),
    "unknown cost model": ("cost_model: rofline", "did you mean 'roofline'?"),
    "efficiency above 1": (
        "cost_model: {name: roofline, compute_efficiency: 1.5}",
        "c.yaml:4: cost_model.compute_efficiency: 1.5 must be a number",
    ),
    "unknown memory": ("kv: {name: page}", "c.yaml:4: kv.name = page: must be one of paged, reserve, radix; did you mean 'paged'?"),
    "unknown rule": ("kv: {name: reserve, rule: min}", "c.yaml:4: kv.rule = min"),
    "rule for paged": ("kv: {name: paged, rule: max}", "c.yaml:4: kv.rule: unknown option"),
    "prefix caching in vain": (
        "engine: {enable_prefix_caching: true}\nscheduler: static",
        "engine.enable_prefix_caching = true: changes nothing: scheduler static doesn't obey it",
    ),
    "prefix caching without pages": (
        "engine: {enable_prefix_caching: true, max_model_len: 8192}\nkv: reserve",
        "engine.enable_prefix_caching = true: changes nothing: only paged memory has a prefix cache",
    ),
    "max_tokens": ("engine: {max_tokens: many}", "must be column, oracle or a number of tokens"),
    "ranks that don't divide": ("engine: {tensor_parallel_size: 64}", "64 doesn't divide the 32 heads of llama-3.1-8b"),
    "longer than the model": ("engine: {max_model_len: 200000}", "must be at most the 131072 tokens that llama-3.1-8b takes"),
    "fewer tokens than sequences": (
        "engine: {max_num_batched_tokens: 128, max_num_seqs: 129}",
        "max_num_batched_tokens (128) must be at least max_num_seqs (129)",
    ),
    "one block": ("engine: {num_gpu_blocks_override: 1}", "num_gpu_blocks_override"),
    "longer than the memory": (
        "engine: {num_gpu_blocks_override: 50, max_model_len: 785}",
        "engine.max_model_len = 785: must be at most the 784 tokens that the KV memory holds (49 usable blocks of 16)",
    ),
    "reserving more than there is": (
        "engine: {num_gpu_blocks_override: 50}\nkv: {name: reserve, rule: max}",
        "engine.max_model_len: llama-3.1-8b takes 131072 tokens, more than the 800 tokens that the KV memory holds",
    ),
    "threshold above the length": (
        "engine: {max_model_len: 1000, long_prefill_token_threshold: 1001}",
        "long_prefill_token_threshold = 1001: must be at most max_model_len (1000)",
    ),
    "threshold above the budget": (
        "engine: {long_prefill_token_threshold: 2048}",
        "engine.long_prefill_token_threshold = 2048: changes nothing: no iteration has more than max_num_batched_tokens (2048)",
    ),
    "prefill budget above the budget": (
        "engine: {max_num_prefill_tokens: 4096}",
        "engine.max_num_prefill_tokens = 4096: changes nothing: no iteration has more than",
    ),
    "looking ahead in request-level batching": (
        "engine: {async_scheduling: true}\nscheduler: static",
        "engine.async_scheduling = true: changes nothing: scheduler static doesn't obey it; continuous, chunked",
    ),
    "seed of a trace": ("seed: 3", "c.yaml:4: seed = 3: changes nothing: nothing about a recorded trace is drawn"),
    "rule of memory": (
        "kv: {name: reserve, rule: maxx}",
        "c.yaml:4: kv.rule = maxx: must be one of max, pow2, exact; did you mean 'max'?",
    ),
    "batch above the slots": (
        "engine: {max_num_seqs: 8}\nscheduler: {name: static, batch_size: 9}",
        "c.yaml:5: scheduler.batch_size = 9: batch_size (9) must be at most engine.max_num_seqs (8)",
    ),
    "a limit nobody obeys": (
        "scheduler: static\nengine: {max_num_batched_tokens: 512}",
        "c.yaml:5: engine.max_num_batched_tokens = 512: changes nothing: scheduler static doesn't obey it; continuous, chunked",
    ),
    "trace and load": ("load: {num_prompts: 3}", "c.yaml:4: load = {\"num_prompts\": 3}: trace and load exclude each other"),
    "a changed file": ("pins: {trace.path: abc}", "c.yaml:4: pins.trace.path = abc: the file has changed: its SHA-256 is now"),
    "a pin of nothing": ("pins: {model: abc}", "pins.model = abc: this run depends on no such file"),
    "given twice": ("seed: 1\nseed: 2", "c.yaml:5: seed: given twice, first on line 4"),
    "a tab": ("engine:\n\tblock_size: 16", "c.yaml:5: not valid YAML: a tab, where YAML wants spaces"),
    "unclosed": ("engine: {block_size: 16", "c.yaml:"),
    "unknown tag": ("seed: !!python/name:os.system x", "c.yaml:4: seed: 'x' is no tag:yaml.org,2002:python/name:os.system"),
    "second document": ("---\nseed: 1", "a second document begins here"),
    "list as a key": ("? [a]\n: 1", "a key must be a word"),
    "sweep is a list": ("sweep: [1]", "c.yaml:4: sweep = [1]: must be a mapping"),
    "axis is no list": ("sweep: {seed: 3}", "c.yaml:4: sweep.seed = 3: must be a list"),
    "empty axis": ("sweep: {seed: []}", "sweep.seed = []: must be a list of at least one value"),
    "swept twice": ("sweep: {seed: [1, 1]}", "sweep.seed: holds the same value twice"),
    "axis in an axis": (
        "sweep: {scheduler: [static, dynamic], scheduler.batch_size: [1, 2]}",
        "sweep.scheduler.batch_size: lies in sweep.scheduler",
    ),
    "bad swept value": ("sweep: {engine.block_size: [16, 0]}", "c.yaml:4: engine.block_size = 0: must be at least 1"),
    "unknown swept key": ("sweep: {engine.blocksize: [16]}", "engine.blocksize = 16: unknown key; did you mean 'engine.block_size'?"),
    "swept name": ("sweep: {name: [a, b]}", "sweep.name: can't be swept"),
    "too many runs": (f"sweep: {{seed: {list(range(200))}, host_overhead_us: {list(range(51))}}}", "more than 10000 runs"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_one_fault(tmp_path: Path, case: str) -> None:
    line, expected = BAD_LINES[case]
    faults = faults_of(tmp_path, BASE + line + "\n")
    assert len(faults) == 1, faults
    assert expected in faults[0]
    assert faults[0].startswith("c.yaml")


BAD_TEXTS = {
    "empty": ("", "c.yaml: empty"),
    "only a comment": ("# nothing\n", "c.yaml: empty"),
    "a list": ("- 1\n", "c.yaml:1: a list, where a mapping of keys is expected"),
    "a word": ("quickstart\n", "c.yaml:1: the value quickstart, where a mapping"),
    "no model": (BASE.replace("model", "#"), "c.yaml: model: is required, and missing"),
    "no workload": ("model: llama-3.1-8b\ngpu: a100-80gb\n", "trace or load is required, and both are missing"),
    "unknown model": (BASE.replace("llama-3.1-8b", "llama-3.1-9b"), "c.yaml:1: model: 'llama-3.1-9b' is neither"),
    "unknown gpu": (BASE.replace("a100-80gb", "a100-80"), "did you mean 'a100-80gb'?"),
    "unknown trace": (BASE.replace("azure-2023-conv", "azure-2023-cnv"), "did you mean 'azure-2023-conv'?"),
    "unknown format": (BASE.replace("limit: 50", "format: azur"), "c.yaml:3: trace.format = azur"),
    "model too large": (
        BASE.replace("8b", "70b"),
        "engine.gpu_memory_utilization: llama-3.1-70b on 1 x a100-80gb leaves no room for the KV cache",
    ),
    "window": (BASE.replace("limit: 50", "window_s: [9, 3]"), "trace.window_s = [9, 3]: must be [from, to)"),
    "window of one": (BASE.replace("limit: 50", "window_s: [9]"), "c.yaml:3: trace.window_s"),
    "window of a number": (BASE.replace("limit: 50", "window_s: 5"), "trace.window_s = 5: must be [from, to), two numbers"),
    "unit of stamps": (BASE.replace("limit: 50", "unit: s"), "c.yaml:3: trace.unit = s: azure has date and time stamps"),
    "blocks without ids": (BASE.replace("limit: 50", "block_size: 16"), "c.yaml:3: trace.block_size = 16: azure has no block ids"),
    "huge time scale": (BASE.replace("limit: 50", "time_scale: 1e30"), "c.yaml:3: trace.time_scale = 1e+30: a number above 0 and below 4e9"),
    "rate of one request": (BASE.replace("limit: 50", "limit: 1, request_rate: 3"), "c.yaml:3: trace.request_rate = 3.0: all requests arrive at one instant"),
    "tiny burstiness": (SYNTHETIC.replace("rate: 4", "rate: 4, burstiness: 1e-300"), "load.burstiness = 1e-300: must be at least 0.001"),
    "seed of constants": (
        SYNTHETIC.replace("rate: 4", "rate: inf") + "seed: 1\n", "c.yaml:4: seed = 1: changes nothing: nothing about this load is drawn"
    ),
    "time scale": (BASE.replace("limit: 50", "time_scale: 0"), "trace.time_scale = 0: must be above 0"),
    "two scales": (
        BASE.replace("limit: 50", "time_scale: 0.5, request_rate: 3"),
        "c.yaml:3: trace.time_scale = 0.5: changes nothing: request_rate sets the scale",
    ),
    "rate 0": (SYNTHETIC.replace("rate: 4", "rate: 0"), "load.request_rate = 0: must be above 0, or inf"),
    "no prompts": (SYNTHETIC.replace("prompts: 10", "prompts: 0"), "load.num_prompts = 0: must be at least 1"),
    "burstiness": (SYNTHETIC.replace("rate: 4", "rate: 4, burstiness: -1"), "load.burstiness = -1: must be above 0"),
    "gaps without a rate": (
        SYNTHETIC.replace("rate: 4", "rate: inf, burstiness: 2"),
        "load.burstiness = 2: changes nothing: request_rate inf has no gaps",
    ),
    "half a ramp": (
        SYNTHETIC.replace("request_rate: 4", "ramp_up_strategy: linear, ramp_up_start_rps: 1"),
        "c.yaml:3: load.ramp_up_end_rps = None: finite requests per second, above 0",
    ),
    "ramp without a strategy": (
        SYNTHETIC.replace("rate: 4", "rate: 4, ramp_up_end_rps: 1"),
        "c.yaml:3: load.ramp_up_end_rps = 1.0: needs a ramp_up_strategy (linear, exponential)",
    ),
    "unknown distribution": (
        SYNTHETIC.replace("rate: 4", "rate: 4, input_len: {unifrm: [1, 2]}"),
        "c.yaml:3: load.input_len.unifrm: no such distribution; did you mean uniform?",
    ),
    "length of 0": (SYNTHETIC.replace("rate: 4", "rate: 4, output_len: 0"), "c.yaml:3: load.output_len = 0: a whole number"),
    "lengths of no file": (
        SYNTHETIC.replace("rate: 4", "rate: 4, output_len: {empirical: azure-2023-cov}"),
        "load.output_len.empirical = azure-2023-cov: neither a file nor a shipped trace; did you mean 'azure-2023-conv'?",
    ),
    "priority": (SYNTHETIC.replace("rate: 4", "rate: 4, priority: [[0, 0]]"), "c.yaml:3: load.priority = [[0, 0]]"),
    "unknown ramp": (
        SYNTHETIC.replace("request_rate: 4", "ramp_up_strategy: linar, ramp_up_start_rps: 1, ramp_up_end_rps: 2"),
        "must be one of linear, exponential; did you mean 'linear'?",
    ),
    "an alias of itself": ("a: &a [*a]\n", "c.yaml:1: an alias that contains itself"),
    "a control character": ("a: \x01\n", "c.yaml:1: not text: character 0x01"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_bad_text_is_one_fault(tmp_path: Path, case: str) -> None:
    text, expected = BAD_TEXTS[case]
    faults = faults_of(tmp_path, text)
    assert len(faults) == 1, faults
    assert expected in faults[0]


def test_all_faults_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "model: nope\ngpu: a100-80gb\ntrace: nope\nengine: {block_size: 0, foo: 1}\nscheduler: nope\nseed: x\n"
    lines = [int(fault.split(":")[1]) for fault in faults_of(tmp_path, text)]
    assert lines == [1, 3, 4, 4, 5, 6]


def test_independent_checks_run_whatever_else_is_wrong(tmp_path: Path) -> None:
    text = """model: llama-3.1-8b
gpu: nope
load:
  input_len: {unifrom: [1, 2]}
  output_len: {uniform: [5, 2]}
kv: {name: reserve, rule: maxx}
scheduler: {name: continuous, order: prefill, policy: lpm}
cost_model: {name: roofline, compute_efficiency: 3}
slo: {ttft: abc}
engine: {max_num_seqs: 8}
sweep: {engine.max_num_batched_tokens: [xx, 4], host_overhead_us: 3}
"""
    keys = [
        "host_overhead_us", "gpu", "load.input_len.unifrom", "load.output_len.uniform", "kv.rule", "scheduler.policy",
        "scheduler.order", "cost_model.compute_efficiency", "slo.ttft",
        "engine.max_num_batched_tokens = xx", "engine.max_num_batched_tokens = 4",
    ]  # fmt: skip
    faults = faults_of(tmp_path, text)
    assert len(faults) == len(keys)
    for key, fault in zip(keys, faults, strict=True):
        assert key in fault


def test_a_fault_brings_no_others_with_it(tmp_path: Path) -> None:
    text = BASE + "engine: {max_num_seqs: x, max_num_batched_tokens: 100}\nscheduler: {name: static, batch_size: 300}\n"
    faults = faults_of(tmp_path, text)
    assert [fault.split(" = ")[0] for fault in faults] == [
        "c.yaml:4: engine.max_num_seqs", "c.yaml:4: engine.max_num_batched_tokens"  # which static doesn't obey
    ]  # fmt: skip


def test_the_default_batch_keeps_to_the_slots(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BASE + "scheduler: static\nengine: {max_num_seqs: 4}\n")
    assert plan.runs[0].pieces.options["scheduler"]["batch_size"] == 4
    assert plan.runs[0].sources["scheduler.batch_size"] == "derived: engine.max_num_seqs"
    assert plan.notices == ["scheduler.batch_size is max_num_seqs (4), below its default of 16"]


@pytest.mark.parametrize(
    ("line", "notice"),
    [
        ("engine: {enable_prefix_caching: true}", "changes nothing unless a request is preempted"),
        (
            "scheduler: {name: chunked, policy: priority}",
            "scheduler.policy = priority: all requests have the same priority",
        ),
        (
            "engine: {max_model_len: 1000}",
            "of 50 requests are longer than max_model_len (1000 tokens): rejected on arrival",
        ),
    ],
)
def test_what_depends_on_the_requests_is_a_notice(tmp_path: Path, line: str, notice: str) -> None:
    (said,) = plan_of(tmp_path, BASE + line + "\n").notices
    assert notice in said


def test_a_cost_model_that_is_built_otherwise_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "costs_otherwise.py").write_text(
        "class Mine:\n    def __init__(self, model):\n        pass\n    def iteration_ns(self, shape):\n        return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    (fault,) = faults_of(tmp_path, BASE + "cost_model: costs_otherwise:Mine\n")
    assert "a cost model is built as __init__(self, platform, **options), and has the attributes name" in fault


def test_an_override_that_is_a_mapping_names_the_key_inside(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, BASE, "scheduler={name: chunked, policy: lpm}")
    assert fault.startswith("override scheduler={name: chunked, policy: lpm}: scheduler.policy = lpm: must be one of")
    (fault,) = faults_of(tmp_path, BASE + "scheduler: static\n", "scheduler.batch_size=0")
    assert fault == "override scheduler.batch_size=0: must be at least 1"


def test_a_large_file_that_is_no_config_is_a_short_line(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, "a,b,c\n" * 9000)
    assert len(fault) < 200


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.max_num_seqs=-1", "override engine.max_num_seqs=-1: must be at least 1"),
        ("engine.max_seqs=1", "override engine.max_seqs=1: unknown key; did you mean 'engine.max_num_seqs'?"),
        ("foo.bar=1", "override foo.bar=1: foo = {\"bar\": 1}: unknown key"),
        ("foo", "override foo: must be key.path=value"),
        ("=1", "override =1: must be key.path=value"),
        ("seed=[1", "override seed=[1:1: not valid YAML"),
        ("seed.x=1", "override seed.x=1: seed = 0 has no keys"),
        ("scheduler.batch_size=3", "override scheduler.batch_size=3: unknown option"),
        ("model=nope", "override model=nope: 'nope' is neither a file nor one of"),
        ("engine.max_num_batched_tokens=1", "max_num_batched_tokens (1) must be at least max_num_seqs (256)"),
        ("trace=null", "trace or load is required"),
        ("trace.request_rate=0", "override trace.request_rate=0: must be above 0"),
        ("sweep.seed=3", "override sweep.seed=3: sweep.seed = 3: must be a list"),
    ],
)  # fmt: skip
def test_a_bad_override_names_itself(tmp_path: Path, override: str, expected: str) -> None:
    faults = faults_of(tmp_path, BASE + "seed: 0\n", override)
    assert len(faults) == 1, faults
    assert expected in faults[0]


def test_files_that_are_no_configs(tmp_path: Path) -> None:
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"model: \xff\xfe\n")
    large = tmp_path / "l.yaml"
    large.write_text("#" * (1 << 21))
    dangling = tmp_path / "quickstart.yaml"
    dangling.symlink_to("nowhere")
    for path, expected in [
        (binary, "b.yaml:1: not UTF-8 text"),
        (large, "larger than"),
        (tmp_path, "a folder, where a config file is expected"),
        (tmp_path / "none.yaml", "no such file"),
        (dangling, "a link to nowhere, which isn't there"),
        (Path("/dev/null"), "not a regular file"),
        (Path("quickstrat"), "did you mean 'quickstart'?"),
    ]:
        with pytest.raises(ConfigError, match=expected.replace(".", r"\.").replace("?", r"\?")):
            load(str(path), [])


LEGAL = {
    "least": "",
    "numbers of YAML 1.1 and 1.2": "engine: {max_num_seqs: 1_0, max_num_batched_tokens: 1e3, block_size: 0x10}",
    "words for booleans": "fast_forward: off\nsave_detailed: yes",
    "budget above slots times length": "engine: {max_num_batched_tokens: 8192, max_num_seqs: 1, max_model_len: 1024}",
    "budget below the length, chunked": "engine: {max_num_batched_tokens: 300, max_model_len: 8192}",
    "budget equal to the slots": "engine: {max_num_batched_tokens: 64, max_num_seqs: 64}",
    "all of the memory": "engine: {gpu_memory_utilization: 1}",
    "as long as the memory": "engine: {num_gpu_blocks_override: 50, max_model_len: 784}",
    "batch as large as the slots": "engine: {max_num_seqs: 8}\nscheduler: {name: static, batch_size: 8}",
    "whole numbers for decimals": "scheduler: {name: static, batch_timeout_ms: 100}",
    "override beside utilisation": "engine: {num_gpu_blocks_override: 5000, gpu_memory_utilization: 0.9}",
    "limits that are off": "scheduler: continuous\nengine: {max_num_prefill_tokens: null}",
    "anchors and merges": "slo: &a {ttft: 100}\nsweep: {slo: [{<<: *a, tpot: 10}, {<<: *a, tpot: 20}]}",
    "four schedulers": "engine: {max_num_batched_tokens: 512}\nsweep: {scheduler: [static, dynamic, continuous, chunked]}",
    "no sweep": "sweep: null",
}


@pytest.mark.parametrize("case", LEGAL)
def test_legal_configs_are_accepted(tmp_path: Path, case: str) -> None:
    assert plan_of(tmp_path, BASE.replace(", limit: 50", "") + LEGAL[case] + "\n").runs


def test_the_documented_example_is_legal(tmp_path: Path) -> None:
    text = """
name: quickstart
seed: 0
model: llama-3.1-8b
gpu: a100-80gb
trace: {path: azure-2023-conv, limit: 2000, time_scale: 1.0}
engine: {max_num_seqs: 256, max_num_batched_tokens: 2048, max_model_len: 8192, block_size: 16, gpu_memory_utilization: 0.9,
         num_gpu_blocks_override: null, tensor_parallel_size: 1, enable_prefix_caching: false, max_tokens: column}
kv: {name: paged}
scheduler: {name: chunked}
cost_model: {name: roofline}
host_overhead_us: 0
slo: {ttft: 1000, tpot: 50}
fast_forward: true
save_detailed: false
sweep: {scheduler: [{name: static, batch_size: 16, batch_timeout_ms: 100}, {name: dynamic}, {name: continuous}, {name: chunked}]}
"""
    plan = plan_of(tmp_path, text)
    assert [run.label for run in plan.runs] == ["static", "dynamic", "continuous", "chunked"]
    assert any("max_num_batched_tokens changes nothing: scheduler static" in notice for notice in plan.notices)


def test_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "\ufeff" + BASE.replace("\n", "\r\n")).runs


def test_a_limit_that_the_command_line_made_idle_is_a_notice(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BASE + "engine: {max_num_batched_tokens: 512}\n", "scheduler=static")
    (notice,) = plan.notices
    assert notice.startswith("engine.max_num_batched_tokens changes nothing: scheduler static doesn't obey it; ")
    assert "chunked" in notice


def test_longer_than_the_memory_by_default_is_a_notice(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BASE, "engine.num_gpu_blocks_override=50")
    assert "longer requests are rejected on arrival" in plan.notices[0]


def test_a_trace_lies_beside_its_config(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.680590,10,5\n")
    (run,) = plan_of(tmp_path, BASE.replace("{path: azure-2023-conv, limit: 50}", "t.csv")).runs
    assert run.settings.trace is not None
    assert run.settings.trace.path == str(tmp_path / "t.csv")


def test_every_shipped_config_is_valid_and_says_what_it_is() -> None:
    assert "quickstart" in shipped()
    for name, path in shipped().items():
        first = path.read_text().split("\n")[0]
        assert first.startswith("# "), path
        assert f"servesim run {name}" in path.read_text()
        assert load(name, []).runs
        assert load(name, ["fast_forward=false"]).runs


def test_the_schema_is_json_and_covers_the_sweep() -> None:
    schema = json.loads(json.dumps(config_schema()))
    assert schema["additionalProperties"] is False
    assert {"model", "gpu", "trace", "load", "engine", "sweep"} <= set(schema["properties"])
    assert schema["$defs"]["Engine"]["properties"]["max_num_seqs"]["minimum"] == 1
