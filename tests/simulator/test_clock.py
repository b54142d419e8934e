from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.clock import NS_PER_MS, NS_PER_S, NS_PER_US, iteration_ns, ns_from_ms, ns_from_s, ns_from_us


@pytest.mark.parametrize(
    ("convert", "factor"), [(ns_from_us, NS_PER_US), (ns_from_ms, NS_PER_MS), (ns_from_s, NS_PER_S)]
)
def test_units(convert: object, factor: int) -> None:
    assert convert(0) == 0
    assert convert(3) == 3 * factor
    assert convert(0.25) == factor // 4
    assert convert(-2) == -2 * factor
    assert type(convert(1.5)) is int


def test_half_a_nanosecond_goes_up() -> None:
    assert [ns_from_us(x / 1000) for x in (0.49, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_time_must_be_finite(value: float) -> None:
    for convert in (ns_from_us, ns_from_ms, ns_from_s):
        with pytest.raises(ValueError, match="not a finite time"):
            convert(value)


@given(st.floats(-10, 1e15))
def test_an_iteration_takes_at_least_a_nanosecond(ns: float) -> None:
    whole = iteration_ns(ns)
    assert type(whole) is int
    assert whole == max(1, math.floor(ns + 0.5))
