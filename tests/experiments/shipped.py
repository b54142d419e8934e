"""Shipped experiments, run in a folder of their own: what their claims come to."""

from __future__ import annotations

from pathlib import Path

from experiments.claims import Finding, findings
from experiments.config import load
from experiments.replay import Runs
from experiments.run import run_plan


def outcomes(config: str, folder: Path, *overrides: str) -> Runs:
    """The runs of a config, without figures."""
    plan = load(config, ["figures=false", *overrides])
    return Runs(list(run_plan(plan, folder, force=False, say=lambda _: None)))


def found(config: str, folder: Path, *overrides: str) -> dict[str, Finding]:
    """The findings of a config by the words of their claims."""
    return {one.what: one for one in findings(load(config, []).claims, outcomes(config, folder, *overrides))}
