"""What the README shows is run: the scheduler from outside the repository, and the table of the quickstart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from config_table import table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of a user's own, with the README's scheduler in it."""
    (code,) = re.findall(r"```python\n# (?:\S+)\n(.*?)```", README, re.DOTALL)
    (tmp_path / "shortest_first.py").write_text(code)
    return tmp_path


def test_the_scheduler_keeps_its_contract(outside: Path) -> None:
    (command,) = re.findall(r'python -c "(.*?)"', README)
    done = run(outside, "-c", command)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_scheduler_runs_beside_a_built_in_one(outside: Path) -> None:
    (override,) = re.findall(r"servesim run quickstart '(sweep\.scheduler=.*?)'", README)
    done = run(outside, "-m", "experiments", "run", "quickstart", override, "trace.limit=50", "figures=false")
    assert done.returncode == 0, done.stderr
    assert "chunked" in done.stdout
    assert "shortest_first" in done.stdout


def test_the_table_is_what_quickstart_prints(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "experiments", "run", "quickstart", "figures=false")
    assert done.returncode == 0, done.stderr
    shown = re.search(r"output of: servesim run quickstart -->\n\n(.*?)\n\n", README, re.DOTALL)
    assert shown is not None
    lines = [line.strip() for line in shown[1].splitlines()]
    printed = [line.strip() for line in done.stdout.splitlines()]
    for line in lines:
        assert line in printed, f"the README shows {line!r}; printed was\n{done.stdout}"


def test_the_table_of_keys_is_the_schemas() -> None:
    shown = re.search(r"made by: python tests/docs/config_table\.py -->\n\n(.*?)\n\n", README, re.DOTALL)
    assert shown is not None
    assert shown[1] == table()


def test_the_held_out_errors_are_those_of_the_reports() -> None:
    """Medians of each shipped profile's report, as the README rounds them."""
    names = {
        "H200": "h200_llama-3.1-8b", "A100 80 GB": "a100-80gb_llama-3.1-8b", "RTX 4090": "rtx4090_llama-3.1-8b",
        "RTX PRO 6000": "rtxpro6000_llama-3.1-8b_tp1", "RTX PRO 6000, TP 2": "rtxpro6000_llama-3.1-8b_tp2",
    }  # fmt: skip
    lines = {cells[0]: cells for line in README.splitlines() if (cells := line.strip("| ").split(" | "))[0] in names}
    assert lines.keys() == names.keys()
    for title, name in names.items():
        report = json.loads((ROOT / "simulator" / "profiles" / "reports" / f"{name}.json").read_text())
        medians = {(row["operation"], row["region"]): f"{row['median_pct']:.1f}" for row in report["regions"]}
        for cell, operation in zip(lines[title][1:5], ("linear", "prefill", "decode", "mixed"), strict=True):
            assert cell.split(" (")[0] == medians.get((operation, "all"), "not timed"), (title, operation)
        steps = [median for (operation, region), median in medians.items()
                 if operation.startswith("stack") and region != "all"]  # fmt: skip
        assert lines[title][5] == (" / ".join(steps) or "not timed"), title
