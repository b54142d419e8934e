"""The bound on what scheduling can gain, the factors of a chain, and the two mixed forms they are measured with."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.decomposition import RaggedStatic, Rectangle, factors, longest_over_mean
from simulator import BatchShape, BlockPool, Limits, Request, RunLog, Scheduler, run
from simulator.costs.constant import Constant
from simulator.costs.roofline import Roofline
from simulator.kv import Reservation
from simulator.schedulers.static import Static
from simulator.specs import Platform, get_gpu, get_model
from simulator.testing import check_cost_model, check_scheduler

PLATFORM = Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb"))
LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)
SHAPES = st.builds(
    lambda prefill, rows: BatchShape(
        tuple(prefill), len(rows), sum(rows), max(rows, default=0)
    ),
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2000)), max_size=5),
    st.lists(st.integers(1, 4000), max_size=8),
)  # fmt: skip


# ---- the bound -----------------------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 300))
def test_equal_lengths_leave_exactly_nothing_to_gain(length: int, count: int, batch: int) -> None:
    assert longest_over_mean([length] * count, batch) == 1.0


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32, 64])
def test_exponential_lengths_give_the_harmonic_number(batch: int) -> None:
    """From 100,000 quantiles in place of draws, the k-th at -ln(1 - (k - 1/2) / n): no chance is left."""
    quantiles = -np.log1p(-(np.arange(1, 100_001) - 0.5) / 100_000)
    assert longest_over_mean(quantiles, batch) == pytest.approx(sum(1 / i for i in range(1, batch + 1)), rel=1e-3)


@pytest.mark.parametrize("batch", [1, 2, 8, 64])
def test_uniform_lengths_give_twice_b_over_b_plus_one(batch: int) -> None:
    assert longest_over_mean((np.arange(100_000) + 0.5), batch) == pytest.approx(2 * batch / (batch + 1), rel=1e-3)


@given(LENGTHS, st.integers(1, 6))
def test_the_bound_is_the_mean_over_all_batches(lengths: list[int], batch: int) -> None:
    """Against the definition, P(longest <= x) = F(x) ** batch, summed value by value."""
    values = sorted(set(lengths))
    below = [sum(length <= value for length in lengths) / len(lengths) for value in values]
    steps = np.diff(np.array([0.0, *below]) ** batch)
    expected = float(steps @ values) / (sum(lengths) / len(lengths))
    assert longest_over_mean(lengths, batch) == pytest.approx(expected, rel=1e-9)


@given(LENGTHS)
def test_the_bound_grows_with_the_batch_up_to_longest_over_mean(lengths: list[int]) -> None:
    bounds = [longest_over_mean(lengths, batch) for batch in (1, 2, 5, 20, 100_000)]
    assert bounds[0] == pytest.approx(1)
    assert all(b >= a - 1e-12 for a, b in pairwise(bounds))
    assert bounds[-1] <= max(lengths) / (sum(lengths) / len(lengths)) + 1e-12


def test_factors_are_ratios_of_neighbours() -> None:
    assert factors([100, 150, 300]) == [1.5, 2.0]
    for bad in ([100], [], [100, 0]):
        with pytest.raises(ValueError, match="two throughputs or more"):
            factors(bad)


# ---- batches without padding ---------------------------------------------------------------------------------------

LOAD = [
    Request(str(i), 0, prompt, output) for i, (prompt, output) in enumerate([(9, 3), (4, 8), (6, 1), (2, 5), (3, 3)])
]


def serve(scheduler: Scheduler) -> RunLog:
    cost = Constant(PLATFORM, iteration_us=1000)
    return run(LOAD, scheduler=scheduler, cost_model=cost, kv=Reservation(99, 16, "max", 64), limits=Limits(8))


def test_ragged_batches_are_those_of_static_without_what_is_dead_in_them() -> None:
    padded, ragged = serve(Static(2)), serve(RaggedStatic(2))
    assert ragged.end_ns == padded.end_ns
    for log in (padded, ragged):
        assert log.sequences["scheduled_ns"].tolist() == [0, 0, 8_000_000, 8_000_000, 13_000_000]
    assert padded.iterations["padding_tokens"].sum() > 0
    assert ragged.iterations["padding_tokens"].sum() == 0
    live = (ragged.iterations["prefill_seqs"] + ragged.iterations["decode_seqs"]).tolist()
    assert ragged.iterations["slots"].tolist() == live


def test_ragged_static_keeps_the_contract_of_schedulers() -> None:
    check_scheduler(lambda: RaggedStatic(4))


# ---- rectangles ----------------------------------------------------------------------------------------------------


def test_a_rectangle_costs_every_row_as_the_longest() -> None:
    rectangle, roofline = Rectangle(PLATFORM), Roofline(PLATFORM)
    mixed = BatchShape(((100, 0), (700, 0)), 3, 900, 500)
    assert rectangle.iteration_ns(mixed) == roofline.iteration_ns(BatchShape(((700, 0), (700, 0)), 3, 1500, 500))
    even = BatchShape(((300, 0), (300, 0)), 2, 800, 400)
    assert rectangle.iteration_ns(even) == roofline.iteration_ns(even)


@given(SHAPES)
def test_a_rectangle_is_never_cheaper_than_its_rows(shape: BatchShape) -> None:
    if shape.prefill or shape.decode_seqs:
        assert Rectangle(PLATFORM).iteration_ns(shape) >= Roofline(PLATFORM).iteration_ns(shape)


def test_rectangles_keep_the_contract_of_cost_models() -> None:
    check_cost_model(lambda: Rectangle(PLATFORM))


def test_memory_for_a_whole_pool_is_needed_by_neither() -> None:
    """A pool that is too small for a batch preempts in both, and everybody is served in the end."""
    for scheduler in (Static(4), RaggedStatic(4)):
        cost = Constant(PLATFORM, iteration_us=1000)
        log = run(LOAD, scheduler=scheduler, cost_model=cost, kv=BlockPool(22, 1), limits=Limits(8))
        assert log.sequences["finished"].all()
