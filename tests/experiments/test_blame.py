"""A user's scheduler or cost model that fails is named; what is ours stays ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.build import workload
from experiments.cli import main
from experiments.config import RunConfig, load
from experiments.run import execute, simulate_run
from simulator.errors import PolicyError

CONFIG = """
model: llama-3.1-8b
gpu: a100-80gb
load: {num_prompts: 20, request_rate: 20, input_len: 100, output_len: 10}
figures: false
"""
SOURCE = """
import json, sys
from blamed_helper import divide
from simulator.costs.constant import Constant
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked

class Leaves(Scheduler):
    def plan(self, view):
        sys.exit(0)

class Odd(Scheduler):
    def plan(self, view):
        return json.loads("{")  # its exception can't be copied, as SimPy does

class Helped(Scheduler):
    def plan(self, view):
        return divide(1)

class Bare:
    engine_keys = frozenset()
    def plan(self, view):
        return None

class Inherits(Helped):
    pass

class Fine(Chunked):
    def plan(self, view):
        return super().plan(view)

class Nameless:
    def __init__(self, platform):
        pass
    def iteration_ns(self, shape):
        return 10

class Unbound(Nameless):
    name = "unbound"

class Arguments(Constant):
    def iteration_ns(self):
        return 10
    def decode_run_ns(self):
        return 10

class Raises(Constant):
    def iteration_ns(self, shape):
        raise KeyError("x")
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "blamed.py").write_text(SOURCE)
    (tmp_path / "blamed_helper.py").write_text("def divide(a):\n    return a // 0\n")


def only(*overrides: str) -> RunConfig:
    (run,) = load("c.yaml", list(overrides)).runs
    return run


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("scheduler=blamed:Leaves", r"scheduler blamed:Leaves \(.*blamed.py:10\): SystemExit: 0"),
        ("scheduler=blamed:Odd", r"scheduler blamed:Odd \(.*blamed.py:14\): JSONDecodeError"),
        ("scheduler=blamed:Helped", r"scheduler blamed:Helped \(.*blamed.py:18\): ZeroDivisionError"),
        ("scheduler=blamed:Inherits", r"scheduler blamed:Inherits \(.*blamed.py:18\): ZeroDivisionError"),
        ("scheduler=blamed:Bare", r"scheduler blamed:Bare: AttributeError: 'Bare' object has no attribute"),
        ("cost_model=blamed:Arguments", r"cost model blamed:Arguments: TypeError: Arguments\.\w+_ns\(\) takes 1"),
        ("cost_model=blamed:Raises", r"cost model blamed:Raises \(.*blamed.py:49\): KeyError: 'x'"),
    ],
)
def test_whatever_an_outside_class_does_wrong_is_put_to_it(override: str, named: str) -> None:
    run = only(override)
    with pytest.raises(PolicyError, match=named):
        simulate_run(run, workload(run.settings).requests)


def test_of_two_classes_in_one_file_the_one_that_fails_is_named() -> None:
    run = only("scheduler=blamed:Fine", "cost_model=blamed:Raises")
    with pytest.raises(PolicyError, match="cost model blamed:Raises"):
        simulate_run(run, workload(run.settings).requests)


@pytest.mark.parametrize(("name", "lacks"), [("Nameless", "name"), ("Unbound", "is_bound")])
def test_what_a_cost_model_lacks_is_said_before_the_simulation(
    name: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.run.simulate", lambda *_, **__: pytest.fail("simulated"))
    with pytest.raises(PolicyError, match=f"cost model blamed:{name}: AttributeError: .* no attribute '{lacks}'"):
        execute(only(f"cost_model=blamed:{name}"), tmp_path / "out")


def test_a_defect_of_ours_stays_one_beside_an_outside_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    run = only("scheduler=blamed:Helped")
    monkeypatch.setattr("experiments.run.simulate", broken)
    with pytest.raises(RuntimeError, match="ours"):
        simulate_run(run, [])


@pytest.mark.parametrize("code", ["0", "", "'text'"])
def test_a_module_that_leaves_the_program_is_no_success(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"leaving{len(code)}.py").write_text(f"import sys\nsys.exit({code})\n")
    assert main(["config", "validate", "c.yaml", f"scheduler=leaving{len(code)}:X"]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"leaving{len(code)}" in line
