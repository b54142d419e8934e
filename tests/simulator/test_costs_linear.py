from __future__ import annotations

import pytest
from costs_samples import COEFFICIENTS, PLATFORM, shapes
from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.linear import Linear
from simulator.errors import ConfigError
from simulator.plan import BatchShape


def expected(shape: BatchShape, c: dict[str, int]) -> int:
    prefill_tokens = sum(new for new, _ in shape.prefill)
    held = sum(new + before for new, before in shape.prefill) + shape.decode_context
    pairs = sum(sum(before + i for i in range(1, new + 1)) for new, before in shape.prefill)
    return (
        c["base_ns"]
        + c["per_token_ns"] * shape.tokens
        + c["per_seq_ns"] * shape.sampled
        + c["per_context_ns"] * held
        + c["per_prefill_pair_ns"] * pairs
        + c["per_prefill_token_ns"] * prefill_tokens
        + c["per_decode_seq_ns"] * shape.decode_seqs
    )


@given(shape=shapes())
def test_is_the_weighted_sum(shape: BatchShape) -> None:
    assert Linear(PLATFORM, **COEFFICIENTS).iteration_ns(shape) == expected(shape, COEFFICIENTS)


@given(shape=shapes(), factor=st.integers(2, 1000))
def test_whole_coefficients_scale_exactly(shape: BatchShape, factor: int) -> None:
    one = Linear(PLATFORM, **COEFFICIENTS)
    many = Linear(PLATFORM, **{key: value * factor for key, value in COEFFICIENTS.items()})
    assert many.iteration_ns(shape) == factor * one.iteration_ns(shape)
    decode = BatchShape((), 3, 1000, 500)
    assert (many.decode_run_ns(decode, 9) == factor * one.decode_run_ns(decode, 9)).all()


def test_exact_beyond_float_precision() -> None:
    model = Linear(PLATFORM, base_ns=10**15, per_context_ns=10**9)
    shape = BatchShape((), 1, 10**7 + 1, 10**7 + 1)
    assert model.iteration_ns(shape) == 10**15 + 10**16 + 10**9
    assert model.decode_run_ns(shape, 2).tolist() == [11 * 10**15 + 10**9, 11 * 10**15 + 2 * 10**9]


def test_fractions_round_half_up_and_to_at_least_one() -> None:
    assert Linear(PLATFORM, per_token_ns=0.5).iteration_ns(BatchShape((), 5, 5, 1)) == 3
    assert Linear(PLATFORM, per_token_ns=0.01).iteration_ns(BatchShape((), 1, 1, 1)) == 1
    assert Linear(PLATFORM, per_prefill_pair_ns=1).iteration_ns(BatchShape((), 1, 1, 1)) == 1
    assert Linear(PLATFORM, per_prefill_pair_ns=1).decode_run_ns(BatchShape((), 1, 1, 1), 2).tolist() == [1, 1]


def test_names_every_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        Linear(PLATFORM, base_ns=-1, per_token_ns=float("inf"), per_seq_ns="2")  # type: ignore[arg-type]
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "cost_model.base_ns",
        "cost_model.per_token_ns",
        "cost_model.per_seq_ns",
    ]
    with pytest.raises(ConfigError, match="at least one coefficient"):
        Linear(PLATFORM)
