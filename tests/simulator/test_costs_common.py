"""What holds for every cost model: exact decode runs, more work never takes less time, at least a nanosecond."""

from __future__ import annotations

import json

import numpy as np
import pytest
from costs_samples import PLATFORM, models, profile_document, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.costs import BUILTIN
from simulator.costs.base import CostModel
from simulator.plan import BatchShape
from simulator.plugins import bind_options, resolve

NAMES = ("constant", "linear", "linear-fractions", "roofline", "roofline-efficiencies", "table")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CostModel]:
    path = tmp_path_factory.mktemp("profiles") / "made-up.json"
    path.write_text(json.dumps(profile_document()))
    return models(str(path))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(shape=shapes(prefill=False), k=st.integers(0, 40))
def test_decode_run_equals_single_calls(samples: dict[str, CostModel], name: str, shape: BatchShape, k: int) -> None:
    model = samples[name]
    run = model.decode_run_ns(shape, k)
    assert run.dtype == np.int64
    assert run.tolist() == [model.iteration_ns(shape.later(step)) for step in range(k)]


@pytest.mark.parametrize("name", NAMES)
def test_long_decode_run_is_exact(samples: dict[str, CostModel], name: str) -> None:
    model = samples[name]
    shape = BatchShape((), 37, 37 * 411 + 5, 2000)
    assert model.decode_run_ns(shape, 5000).tolist() == CostModel.decode_run_ns(model, shape, 5000).tolist()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(shape=shapes())
def test_whole_positive_and_repeatable(samples: dict[str, CostModel], name: str, shape: BatchShape) -> None:
    model = samples[name]
    ns = model.iteration_ns(shape)
    assert type(ns) is int
    assert ns >= 1
    assert model.iteration_ns(shape) == ns


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(shape=shapes(), more=st.integers(1, 3000))
def test_longer_contexts_never_take_less(
    samples: dict[str, CostModel], name: str, shape: BatchShape, more: int
) -> None:
    model = samples[name]
    chunks = tuple((new, before + more) for new, before in shape.prefill)
    longer = shape._replace(
        prefill=chunks,
        decode_context=shape.decode_context + more * shape.decode_seqs,
        decode_max_context=shape.decode_max_context + more * (shape.decode_seqs > 0),
    )
    assert model.iteration_ns(longer) >= model.iteration_ns(shape)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(chunk=st.integers(1, 5000), history=st.integers(0, 20_000), more=st.integers(1, 500), seqs=st.integers(0, 90))
def test_more_prompt_tokens_never_take_less(
    samples: dict[str, CostModel], name: str, chunk: int, history: int, more: int, seqs: int
) -> None:
    model = samples[name]
    decode = (seqs, seqs * 500, 500 if seqs else 0)
    short = BatchShape(((chunk, history),), *decode)
    assert model.iteration_ns(BatchShape(((chunk + more, history),), *decode)) >= model.iteration_ns(short)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100)
@given(seqs=st.integers(1, 500), more=st.integers(1, 50), context=st.integers(1, 9000), mixed=st.booleans())
def test_more_sequences_never_take_less(
    samples: dict[str, CostModel], name: str, seqs: int, more: int, context: int, mixed: bool
) -> None:
    model = samples[name]
    prefill = ((300, 100),) if mixed else ()
    few, many = (BatchShape(prefill, n, n * context, context) for n in (seqs, seqs + more))
    assert model.iteration_ns(many) >= model.iteration_ns(few)


@pytest.mark.parametrize("name", ["roofline", "roofline-efficiencies"])
@settings(max_examples=100)
@given(chunk=st.integers(1, 4000), history=st.integers(0, 9000), seqs=st.integers(1, 256), context=st.integers(1, 4000))
def test_a_mixed_batch_is_cheaper_than_its_halves(
    samples: dict[str, CostModel], name: str, chunk: int, history: int, seqs: int, context: int
) -> None:
    model = samples[name]
    decode = (seqs, seqs * context, context)
    mixed = model.iteration_ns(BatchShape(((chunk, history),), *decode))
    apart = model.iteration_ns(BatchShape(((chunk, history),))) + model.iteration_ns(BatchShape((), *decode))
    assert mixed < apart


def test_every_builtin_resolves_and_takes_named_options() -> None:
    for name, target in BUILTIN.items():
        cls = resolve("cost_model", name, BUILTIN)
        assert target.endswith(f":{cls.__name__}")
        assert cls.name == name
        options = bind_options(cls, {}, skip=("platform",), where="cost_model")
        if name != "linear":  # all its coefficients are 0 unless given
            assert cls(PLATFORM, **options).iteration_ns(BatchShape((), 1, 1, 1)) >= 1


def test_labels() -> None:
    assert resolve("cost_model", "roofline", BUILTIN)(PLATFORM).is_bound
    assert not resolve("cost_model", "roofline", BUILTIN)(PLATFORM, memory_efficiency=0.8).is_bound
    assert not any(resolve("cost_model", name, BUILTIN).is_bound for name in ("constant", "linear", "table"))
