"""docs/policies.md: every built-in policy is in its table, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from simulator.schedulers import BUILTIN

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text()


def test_every_policy_has_its_rules() -> None:
    named = {name for row in PAGE.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row[:40])}
    assert BUILTIN.keys() <= named


def test_every_rule_names_a_test_that_is_there() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", code))
    rules = [row for row in PAGE.splitlines() if row.startswith("| ") and not row.startswith("| policy")]
    assert all(re.search(r"`test_|`tests/", row) for row in rules)
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= defined
    assert all((ROOT / path).exists() for path in re.findall(r"`(tests/[\w/.]+)`", PAGE))
