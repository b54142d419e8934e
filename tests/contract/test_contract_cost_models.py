"""Every built-in cost model keeps the contract, and each way to break it is caught."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from costs_samples import PLATFORM, models, profile_document
from strategies import IntegerCost, SteppedCost

from simulator.costs import BUILTIN
from simulator.costs.base import CostModel
from simulator.plan import BatchShape
from simulator.testing import check_cost_model

NAMES = ("constant", "linear", "linear-fractions", "roofline", "roofline-efficiencies", "table")


@pytest.mark.parametrize("name", NAMES)
def test_cost_model_contract(tmp_path: Path, name: str) -> None:
    profile = tmp_path / "made-up.json"
    profile.write_text(json.dumps(profile_document()))
    assert models(str(profile)).keys() == set(NAMES)
    check_cost_model(lambda: models(str(profile))[name])


def test_every_built_in_cost_model_is_listed() -> None:
    assert {name.partition("-")[0] for name in NAMES} == BUILTIN.keys()
    assert PLATFORM.tensor_parallel_size == 1


@pytest.mark.parametrize("cost", [IntegerCost, SteppedCost])
def test_the_costs_of_these_tests_keep_it_too(cost: type[CostModel]) -> None:
    check_cost_model(lambda: cost(7, 3, 2))


class Float(IntegerCost):
    def iteration_ns(self, shape: BatchShape) -> int:
        return super().iteration_ns(shape) / 1  # type: ignore[return-value]


class NumpyInt(IntegerCost):
    def iteration_ns(self, shape: BatchShape) -> int:
        return np.int64(super().iteration_ns(shape))  # type: ignore[return-value]


class Free(IntegerCost):
    def iteration_ns(self, shape: BatchShape) -> int:
        return 0


class Ageing(IntegerCost):
    asked = 0

    def iteration_ns(self, shape: BatchShape) -> int:
        self.asked += 1
        return super().iteration_ns(shape) + self.asked


class EachItsOwn(IntegerCost):
    number = count(1)

    def __init__(self) -> None:
        super().__init__(base_ns=next(self.number))


class OffByOne(IntegerCost):
    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        return super().decode_run_ns(shape.later(1), k)


class Rounded(SteppedCost):
    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        return super().decode_run_ns(shape, k).astype(np.float64)


class OneTooMany(IntegerCost):
    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        return super().decode_run_ns(shape, k + 1)


class Listed(IntegerCost):
    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        return super().decode_run_ns(shape, k).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Float, r"must be an int of at least 1, got \d+\.0"),
        (NumpyInt, r"must be an int of at least 1, got .*\d+"),
        (Free, "must be an int of at least 1, got 0"),
        (Ageing, r"isn't a function of the shape: \[\d+, \d+\] ns"),
        (EachItsOwn, r"isn't a function of the shape: \[1, 2\] ns"),
        (lambda: OffByOne(1, 1, 1), r"decode_run_ns\(shape, 1\)\[0\] is \d+, a single call gives \d+"),
        (Rounded, r"must be int64\[0\], got array\(\[\], dtype=float64\)"),
        (OneTooMany, r"must be int64\[0\]"),
        (Listed, r"must be int64\[0\], got \[\]"),
    ],
)
def test_broken_cost_model_is_caught(model: type[CostModel], message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        check_cost_model(model)
    assert caught.value.__notes__[0].startswith("example ")
