"""What a result was made by, told apart by content."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from pathlib import Path

import pytest

from experiments import provenance
from experiments.provenance import code_sha256, sha256, user_modules
from simulator.schedulers.chunked import Chunked


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packages copied, with the digest taken over the copy."""
    for package in ("simulator", "workloads", "experiments"):
        shutil.copytree(provenance.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data", "*.pyc"))
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["simulator/schedulers/chunked.py", "workloads/arrivals.py", "experiments/records.py", "simulator/new.json"]
)
def test_the_digest_of_the_code_follows_its_files(copy: Path, name: str) -> None:
    before = code_sha256.__wrapped__()
    assert code_sha256.__wrapped__() == before
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    assert code_sha256.__wrapped__() != before


def test_what_is_compiled_is_no_code(copy: Path) -> None:
    before = code_sha256.__wrapped__()
    (copy / "simulator" / "__pycache__").mkdir(exist_ok=True)
    (copy / "simulator" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert code_sha256.__wrapped__() == before


def test_our_own_classes_draw_on_no_modules_of_a_user() -> None:
    assert user_modules([Chunked]) == {}


def test_a_users_class_draws_on_what_lies_outside_python_and_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "drawn_limits.py").write_text("N = 3\n")
    (tmp_path / "drawn_policy.py").write_text("from drawn_limits import N\nclass Mine:\n    pass\n")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    (installed / "drawn_other.py").write_text("")
    (installed / "drawn_plugin.py").write_text("class Theirs:\n    pass\n")
    mine = importlib.import_module("drawn_policy").Mine
    importlib.import_module("drawn_other")
    found = user_modules([mine, Chunked])
    names = {Path(path).name for path in found}
    assert {"drawn_limits.py", "drawn_policy.py"} <= names
    assert names.isdisjoint({"drawn_other.py", Path(json.__file__).name, Path(pytest.__file__).name, "chunked.py"})
    assert found[str(tmp_path / "drawn_limits.py")] == hashlib.sha256(b"N = 3\n").hexdigest()
    theirs = importlib.import_module("drawn_plugin").Theirs
    assert "drawn_plugin.py" in {Path(path).name for path in user_modules([theirs])}


def test_sha256_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
