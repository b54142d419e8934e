from __future__ import annotations

import json

import pytest

from simulator.costs.table import Table
from simulator.profile import shipped_profiles
from tests.golden.predictions import FOLDER, SHAPES, platform_of, predicted, recorded

CHANGED = (
    "predicted times moved. If that is meant: add an entry under 'Numbers change' in CHANGELOG.md that says what, by "
    "how much and why, and run `python tests/golden/predictions.py --write`"
)


def test_every_shipped_profile_is_on_file() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == shipped_profiles()


@pytest.mark.parametrize("name", shipped_profiles())
def test_predictions_are_the_same_to_the_nanosecond(name: str) -> None:
    moved = [
        f"{shape}: {now:,} ns, was {then:,}"
        for shape, now, then in zip(SHAPES, predicted(name), recorded(name), strict=True)
        if now != then
    ]
    assert not moved, f"{name}: {CHANGED}\n" + "\n".join(moved)


@pytest.mark.parametrize("name", shipped_profiles())
def test_the_file_is_of_these_shapes(name: str) -> None:
    lines = json.loads((FOLDER / f"{name}.json").read_text())
    shapes = [(tuple(map(tuple, line["prefill"])), *list(line.values())[1:4]) for line in lines]
    assert shapes == list(SHAPES)


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_run_of_its_model_and_gpu_takes_it_by_itself(name: str) -> None:
    assert Table(platform_of(name)).profile.name == name
