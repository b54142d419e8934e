from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import IntegerCost, SteppedCost

from simulator.errors import PolicyError
from simulator.fastforward import VECTOR_MAX, SimulatedExecutor, decode_ends
from simulator.plan import BatchShape

SHAPE = BatchShape((), 3, 30, 12)


def naive_ends(
    cost: IntegerCost, shape: BatchShape, start_ns: int, most: int, horizon_ns: float, lag: int
) -> list[int]:
    """One iteration at a time, until one at whose planning instant for the next the horizon has come."""
    ends: list[int] = []
    while len(ends) < most:
        began_ns = start_ns
        start_ns += cost.iteration_ns(shape.later(len(ends)))
        ends.append(start_ns)
        if (began_ns if lag else start_ns) >= horizon_ns:
            break
    return ends


@given(
    st.sampled_from([IntegerCost, SteppedCost]),
    st.tuples(st.integers(1, 50), st.integers(0, 3), st.integers(0, 2)),
    st.integers(1, 20),
    st.integers(0, 1_000),
    st.integers(1, 300),
    st.one_of(st.just(float("inf")), st.integers(0, 9_000)),
    st.integers(0, 1),
)
def test_decode_ends_against_a_loop(
    cost: type[IntegerCost],
    coefficients: tuple[int, int, int],
    seqs: int,
    start_ns: int,
    most: int,
    horizon: float,
    lag: int,
) -> None:
    model, horizon_ns = cost(*coefficients), start_ns + 1 + horizon
    shape = BatchShape((), seqs, 7 * seqs, 9)
    ends = decode_ends(SimulatedExecutor(model), shape, start_ns, most, horizon_ns, lag)
    assert list(ends) == naive_ends(model, shape, start_ns, most, horizon_ns, lag)
    assert all(type(end) is int for end in ends)


@pytest.mark.parametrize("lag", [0, 1])
def test_one_window_is_at_most_so_long(lag: int) -> None:
    ends = decode_ends(SimulatedExecutor(IntegerCost(5)), SHAPE, 0, 10 * VECTOR_MAX, float("inf"), lag)
    assert list(ends) == list(range(5, 5 * VECTOR_MAX + 1, 5))


@pytest.mark.parametrize(
    ("hidden", "host_ns", "expected"), [(False, 0, 7), (False, 100, 107), (True, 0, 7), (True, 3, 7), (True, 100, 100)]
)
def test_host_time_is_added_or_hidden(hidden: bool, host_ns: int, expected: int) -> None:
    executor = SimulatedExecutor(IntegerCost(7), host_ns, hidden)
    assert executor.iteration_ns(SHAPE) == expected
    assert executor.decode_run_ns(SHAPE, 3).tolist() == [expected] * 3


class Says(IntegerCost):
    name = "says"

    def __init__(self, value: Any) -> None:
        self.value = value

    def iteration_ns(self, shape: BatchShape) -> int:
        return self.value  # type: ignore[no-any-return]

    def decode_run_ns(self, shape: BatchShape, k: int) -> np.ndarray:
        return self.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("value", [0, -3, 2.0, True, np.int64(5), None])
def test_a_time_must_be_a_whole_positive_number(value: object) -> None:
    with pytest.raises(
        PolicyError, match=r"cost model says: an iteration must take a whole number .* got .* BatchShape"
    ):
        SimulatedExecutor(Says(value), host_overhead_ns=10).iteration_ns(SHAPE)


@pytest.mark.parametrize(
    "value", [np.array([1, 2]), np.array([1, 0, 3]), np.array([1.0, 2.0, 3.0]), np.array([1, 2, 3], dtype=np.int32)]
)
def test_a_decode_run_must_be_k_of_them(value: np.ndarray) -> None:
    with pytest.raises(PolicyError, match="cost model says: an iteration must take a whole number"):
        SimulatedExecutor(Says(value)).decode_run_ns(SHAPE, 3)
