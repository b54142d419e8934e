from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from simulator import plugins
from simulator.costs import BUILTIN
from simulator.costs.roofline import Roofline
from simulator.errors import ConfigError
from simulator.plugins import bind_options, resolve


def test_built_in() -> None:
    assert resolve("cost_model", "roofline", BUILTIN) is Roofline


@pytest.mark.parametrize("name", ["rooflin", "Roofline", "table:", ":", "", 5, "a..b:C", "simulator.costs:"])
def test_unknown_names_are_config_errors(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^cost_model: "):
        resolve("cost_model", name, BUILTIN)


def test_unknown_name_has_a_suggestion_and_the_list() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("cost_model", "rooflin", BUILTIN)
    assert "did you mean 'roofline'" in str(caught.value)
    assert "constant" in str(caught.value)


@pytest.mark.parametrize("kind", ["scheduler", "schedulers"])
def test_entry_points(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def installed(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("theirs", "collections:OrderedDict", group)]

    monkeypatch.setattr(plugins, "entry_points", installed)
    assert resolve(kind, "theirs", {}).__name__ == "OrderedDict"
    assert asked == ["servesim.schedulers"]
    with pytest.raises(ConfigError, match="did you mean 'theirs'"):
        resolve(kind, "their", {})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory off the import path, where modules can be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return tmp_path


def test_a_class_in_the_working_directory(here: Path) -> None:
    before = list(sys.path)
    (here / "my_policy_a.py").write_text("class Outer:\n    class Mine:\n        pass\nNUMBER = 3\n")
    assert resolve("scheduler", "my_policy_a:Outer", {}).__module__ == "my_policy_a"
    assert resolve("scheduler", "my_policy_a:Outer.Mine", {}).__name__ == "Mine"
    assert sys.path == before
    with pytest.raises(ConfigError, match=r"Module 'my_policy_a' has no attribute 'Otter'; did you mean 'Outer'\?"):
        resolve("scheduler", "my_policy_a:Otter", {})
    with pytest.raises(ConfigError, match="must be a class, not int"):
        resolve("scheduler", "my_policy_a:NUMBER", {})


def test_the_working_directory_shadows_nothing_installed(here: Path) -> None:
    (here / "colorsys.py").write_text("class Mine: pass\n")
    sys.modules.pop("colorsys", None)
    with pytest.raises(ConfigError, match="has no attribute 'Mine'"):
        resolve("scheduler", "colorsys:Mine", {})


@pytest.mark.parametrize(
    ("source", "why"),
    [("import nothing_of_that_name", "No module named 'nothing_of_that_name'"), ("1 / 0", "ZeroDivisionError: ")],
)
def test_a_module_that_fails_to_import(here: Path, source: str, why: str) -> None:
    (here / "broken_policy.py").write_text(source)
    with pytest.raises(ConfigError, match="Could not import module 'broken_policy'") as caught:
        resolve("scheduler", "broken_policy:Mine", {})
    assert why in str(caught.value)


def test_a_module_that_is_not_there(here: Path) -> None:
    with pytest.raises(ConfigError, match="Could not import module 'not_there_at_all'"):
        resolve("scheduler", "not_there_at_all:Mine", {})


class Sample:
    def __init__(self, platform: object, batch_size: int, *, timeout_ms: float = 5.0) -> None:
        pass


class Anything:
    def __init__(self, **options: object) -> None:
        pass


class Nothing:
    pass


def test_bind_fills_in_defaults() -> None:
    assert bind_options(Sample, {"batch_size": 3}, skip=("platform",)) == {"batch_size": 3, "timeout_ms": 5.0}
    assert bind_options(Anything, {"a": 1}) == {"a": 1}
    assert bind_options(Nothing, {}) == {}


def test_bind_names_every_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        bind_options(Sample, {"batchsize": 3, "zzz": 1}, skip=("platform",), where="scheduler")
    assert caught.value.faults == [
        "scheduler.batchsize: unknown option; did you mean 'batch_size'?; valid options: batch_size, timeout_ms",
        "scheduler.zzz: unknown option; valid options: batch_size, timeout_ms",
        "scheduler.batch_size: missing; Sample needs it",
    ]
    with pytest.raises(ConfigError, match=r"kv\.platform: unknown option"):
        bind_options(Sample, {"platform": 1, "batch_size": 2}, skip=("platform",), where="kv")
    with pytest.raises(ConfigError, match="valid options: none"):
        bind_options(Nothing, {"a": 1}, where="kv")
