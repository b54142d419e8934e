from __future__ import annotations

import pytest
from costs_samples import PLATFORM

from simulator.costs.constant import Constant
from simulator.errors import ConfigError
from simulator.plan import BatchShape


def test_same_time_for_everything() -> None:
    model = Constant(PLATFORM, iteration_us=0.0015)
    assert model.iteration_ns(BatchShape(((5000, 3),), 7, 70, 10)) == 2
    assert model.decode_run_ns(BatchShape((), 1, 1, 1), 3).tolist() == [2, 2, 2]


@pytest.mark.parametrize("value", [0, -1, "10", True, float("nan"), float("inf")])
def test_refuses_what_is_no_time(value: float) -> None:
    with pytest.raises(ConfigError, match=r"^cost_model\.iteration_us: "):
        Constant(PLATFORM, iteration_us=value)
