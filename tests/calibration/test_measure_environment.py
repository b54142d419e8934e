"""What is said of the machine: what can be had, and nothing that fails."""

import subprocess
from pathlib import Path

from calibration.harness import environment


def test_the_host_is_described():
    host = environment.host()
    assert host["cores"] >= 1
    assert host["memory_bytes"] >= environment.available_memory_bytes() > 0
    assert all(isinstance(host[name], str) and host[name] for name in ("cpu", "os", "machine"))
    assert {"servesim", "python"} <= set(environment.versions())


def test_a_command_that_is_missing_fails_or_hangs_says_nothing():
    assert environment.output(["echo", " yes "]) == "yes"
    assert environment.output(["no-such-command-anywhere"]) is None
    assert environment.output(["false"]) is None
    assert environment.output(["sleep", "30"], timeout_s=0.05) is None


def test_a_checkout_names_its_commit_and_whether_it_was_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.checkout() == {}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run(["git", "-C", tmp_path, "add", "file"], check=True)
    subprocess.run(["git", "-C", tmp_path, *who, "commit", "-q", "-m", "one"], check=True)
    found = environment.checkout()
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert environment.checkout()["dirty"] is True
    (tmp_path / "inside").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path / "inside")
    assert environment.checkout() == {}, "someone else's repository around an installation"


def test_without_the_files_of_linux_less_is_known(monkeypatch):
    def missing(self, *args, **kwargs):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", missing)
    assert environment.available_memory_bytes() == environment.total_memory_bytes() // 2
    assert environment.last_level_cache_bytes() == 0
    assert environment.cpu_name()
