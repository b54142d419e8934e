"""Prefill by a smooth roofline x what was timed: exact at the points, sensible between, beside and beyond them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from costs_samples import PLATFORM, ROOFLINE, smooth_document

from simulator.costs.attention import AttentionTimes
from simulator.costs.table import Table
from simulator.plan import BatchShape
from simulator.profile import Attention, GridTable, PrefillRoofline, Profile
from simulator.testing import check_cost_model

FORM = PrefillRoofline(**ROOFLINE)


@pytest.fixture
def attention() -> Attention:
    return Profile.from_json(smooth_document(), "x.json").attention


def us(attention: Attention, *chunks: tuple[int, int]) -> float:
    return AttentionTimes(attention, 1.0).of(BatchShape(chunks))


def test_the_form_by_hand() -> None:
    assert FORM.us(3e6, 1000, 10_000) == pytest.approx(6 + (30**2 + (10 + 20) ** 2) ** 0.5)
    assert FORM.chunk_us(100, 50) == pytest.approx(FORM.us(100 * 50 + 5050, 100, 50))
    assert FORM.prompts_us(100, 3) == pytest.approx(FORM.us(3 * 5050, 300, 0))


def test_equals_the_tables_at_their_points(attention: Attention) -> None:
    for chunk, row in zip(attention.prefill.rows, attention.prefill.us, strict=True):
        for context, timed in zip(attention.prefill.columns, row, strict=True):
            assert us(attention, (int(chunk), int(context))) == pytest.approx(timed)
    several = attention.several
    assert several is not None
    for prompts, row in zip(several.rows[1:], several.us[1:], strict=True):
        for length, timed in zip(several.columns, row, strict=True):
            assert us(attention, *[(int(length), 0)] * int(prompts)) == pytest.approx(timed)


def test_a_table_of_the_form_itself_gives_the_form_everywhere(attention: Attention) -> None:
    chunks, contexts, prompts, lengths = (16, 256, 4096), (0, 512), (1, 2, 8), (16, 256)
    exact = replace(
        attention,
        roofline=FORM,
        prefill=GridTable(chunks, (0,), tuple((FORM.chunk_us(n, 0),) for n in chunks)),
        several=GridTable(prompts, lengths, tuple(tuple(FORM.prompts_us(n, k) for n in lengths) for k in prompts)),
    )
    for chunk, context in ((100, 0), (700, 0), (8192, 0), (20_000, 0), (300, 64), (300, 65_536)):
        assert us(exact, (chunk, context)) == pytest.approx(FORM.chunk_us(chunk, context))
    mixture = ((300, 0), (20, 4000), (5, 100))
    pairs = sum(new * before + new * (new + 1) / 2 for new, before in mixture)
    alone = replace(exact, several=None)
    assert us(alone, *mixture) == pytest.approx(FORM.us(pairs, 325, 4100), rel=1e-3)
    assert us(exact, *mixture) == pytest.approx(FORM.us(pairs, 325, 4100), rel=0.02)  # straight in prompts, so nearly
    both = replace(exact, prefill=GridTable(chunks, contexts, tuple(
        tuple(1.3 * FORM.chunk_us(n, c) if c else FORM.chunk_us(n, c) for c in contexts) for n in chunks)))  # fmt: skip
    assert us(both, (256, 512), (256, 512)) == pytest.approx(1.3 * us(exact, (256, 512), (256, 512)), rel=0.01)


def test_uneven_prompts_cost_more_than_even_ones_of_as_many_tokens(attention: Attention) -> None:
    even, uneven = us(attention, (256, 0), (256, 0)), us(attention, (500, 0), (12, 0))
    history = us(attention, (256, 2000), (256, 0))
    assert even < uneven < 1.5 * even
    assert history > even


def test_more_of_anything_takes_longer(attention: Attention) -> None:
    for smaller, larger in (
        (((64, 0),), ((65, 0),)),
        (((64, 0),), ((64, 1),)),
        (((64, 0),), ((64, 0), (64, 0))),
        (((64, 0),) * 7, ((64, 0),) * 8),
        (((2000, 0),), ((30_000, 0),)),
        (((512, 0),) * 20, ((512, 0),) * 40),
        (((512, 9000),), ((512, 90_000),)),
    ):
        assert us(attention, *smaller) < us(attention, *larger)


def test_the_cost_model_keeps_its_contract(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(smooth_document()))
    model = Table(PLATFORM, profile=str(tmp_path / "p.json"))
    check_cost_model(lambda: Table(PLATFORM, profile=str(tmp_path / "p.json")))
    plain, decode = BatchShape(((300, 0),)), BatchShape((), 4, 4000, 2000)
    one = smooth_document()
    one["host"]["per_layer_us"] = 1.5  # a microsecond more for each of 32 layers
    (tmp_path / "q.json").write_text(json.dumps(one))
    slower = Table(PLATFORM, profile=str(tmp_path / "q.json"))
    for shape in (plain, decode):
        assert slower.iteration_ns(shape) - model.iteration_ns(shape) == pytest.approx(32_000, abs=1)


def test_where_it_was_measured(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(smooth_document()))
    model = Table(PLATFORM, profile=str(tmp_path / "p.json"))
    assert model.in_range(BatchShape(((512, 0),) * 4))  # 2,048 tokens in all
    assert not model.in_range(BatchShape(((512, 0),) * 5))
    assert not model.in_range(BatchShape(((8, 0),) * 4))  # shorter than the shortest prompt
    assert not model.in_range(BatchShape(((16, 0),) * 17))  # more prompts than were timed together
    assert model.in_range(BatchShape((), 4, 4 * 4096, 4096))
    assert not model.in_range(BatchShape((), 64, 64 * 512, 512))  # both within their axes, but not together
    assert model.tag(BatchShape(((8, 0),))) == "extrapolated"
    assert model.tag(BatchShape(((512, 0),))) == "interpolated"
    tokens, guessed = BatchShape(((512, 0),)), smooth_document()
    guessed["token_ops"][-1]["us"] = [20.0, 900.0]
    (tmp_path / "g.json").write_text(json.dumps(guessed))
    assert Table(PLATFORM, profile=str(tmp_path / "g.json")).tag(tokens) == "fallback"
