"""Synthetic load: vLLM's arrival arithmetic, the length distributions, separate streams, faults."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError, TraceError
from workloads import draw_lengths, synthesize
from workloads.arrivals import arrival_times_ns

DATA = Path(__file__).parents[1] / "data"


def rng(seed=0):
    return np.random.default_rng(seed)


def reference(n, rate, burstiness, generator, rescale=True):
    """The loop of `vllm bench serve`, one draw at a time."""
    delays = [float(generator.gamma(shape=burstiness, scale=1.0 / (rate * burstiness))) for _ in range(n)]
    for i in range(1, n):
        delays[i] += delays[i - 1]
    if rescale and delays[-1] != 0:
        factor = n / rate / delays[-1]
        delays = [delay * factor for delay in delays]
    return [math.floor(delay * 1e9 + 0.5) for delay in delays]


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rescale", [True, False])
def test_gamma_arrivals_are_vllms(burstiness, rescale):
    ours = arrival_times_ns(500, 7.0, rng(3), burstiness=burstiness, rescale=rescale)
    assert ours.tolist() == reference(500, 7.0, burstiness, rng(3), rescale)


def test_rescaled_arrivals_end_on_time():
    assert arrival_times_ns(1000, 8.0, rng())[-1] == 125 * 10**9


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_cv_is_one_over_root_burstiness(burstiness):
    times = arrival_times_ns(40_000, 10.0, rng(1), burstiness=burstiness, rescale=False)
    gaps = np.diff(times, prepend=0)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)
    assert gaps.mean() == pytest.approx(1e8, rel=0.04)


def test_constant_and_all_at_once():
    assert arrival_times_ns(4, 2.0, rng(), burstiness=math.inf).tolist() == [5 * 10**8, 10**9, 15 * 10**8, 2 * 10**9]
    assert arrival_times_ns(3, math.inf, rng()).tolist() == [0, 0, 0]


def test_ramps():
    ramp = {"ramp_up_start_rps": 1.0, "ramp_up_end_rps": 4.0, "burstiness": math.inf}
    linear = arrival_times_ns(4, math.inf, rng(), ramp_up_strategy="linear", **ramp)
    assert np.diff(linear, prepend=0).tolist() == pytest.approx([1e9, 0.5e9, 1e9 / 3, 0.25e9], abs=1)
    rising = arrival_times_ns(3, 1.0, rng(), ramp_up_strategy="exponential", **ramp)
    assert np.diff(rising, prepend=0).tolist() == [10**9, 5 * 10**8, 25 * 10**7]


def test_streams_are_separate_and_seeded():
    base = {
        "num_prompts": 50,
        "request_rate": 3.0,
        "seed": 5,
        "input_len": {"uniform": [1, 99]},
        "output_len": {"exponential": {"mean": 50}},
    }
    first = synthesize(**base)
    assert first == synthesize(**base)
    assert first != synthesize(**base | {"seed": 6})
    other = synthesize(**base | {"output_len": 7, "priority": [[0, 1], [5, 3]]})
    assert [(r.arrival_ns, r.prompt_tokens) for r in other] == [(r.arrival_ns, r.prompt_tokens) for r in first]
    assert {r.output_tokens for r in other} == {7}
    assert {r.priority for r in other} == {0, 5}
    assert [r.id for r in first[:2]] == ["0", "1"]


def test_length_distributions():
    assert draw_lengths(512, 3, rng()).tolist() == [512] * 3
    assert set(draw_lengths({"uniform": [2, 4]}, 300, rng()).tolist()) == {2, 3, 4}
    assert set(draw_lengths({"choice": [[5, 0], [6, 1]]}, 50, rng()).tolist()) == {6}
    mix = draw_lengths({"mix": [[10, 1], [20, 3]]}, 20_000, rng())
    assert mix.mean() == pytest.approx(17.5, rel=0.02)
    for spread in ({"sigma": 0.5}, {"cv": 0.8}):
        assert draw_lengths({"lognormal": {"mean": 400, **spread}}, 50_000, rng()).mean() == pytest.approx(
            400, rel=0.02
        )
    drawn = draw_lengths({"lognormal": {"mean": 400, "cv": 0.8}}, 50_000, rng())
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.04)
    capped = draw_lengths({"exponential": {"mean": 100, "max": 150}}, 1000, rng())
    assert (capped.min() >= 1, capped.max()) == (True, 150)


def test_empirical_lengths():
    assert set(draw_lengths({"empirical": [3, 9]}, 50, rng()).tolist()) == {3, 9}
    file = str(DATA / "traces/vidur_arxiv_lengths_only.csv")
    assert 3772 in draw_lengths({"empirical": file}, 500, rng(), column="input")
    assert 54 in draw_lengths({"empirical": file}, 500, rng())
    assert draw_lengths({"empirical": "burstgpt-1-400"}, 10, rng()).min() >= 1
    with pytest.raises(TraceError, match="no such file"):
        draw_lengths({"empirical": "nowhere.csv"}, 5, rng())


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (0, "whole number of tokens"),
        (True, "whole number of tokens"),
        (2.5, "whole number of tokens"),
        ({}, "exactly one"),
        ({"uniform": [1, 2], "choice": []}, "exactly one"),
        ({"unifrom": [1, 2]}, "did you mean uniform"),
        ({"uniform": [5, 1]}, r"len.uniform = \[5, 1\]"),
        ({"uniform": 5}, "lowest first"),
        ({"choice": []}, "a list of"),
        ({"choice": [[1, -1], [2, 1]]}, r"choice\[0\]"),
        ({"choice": [[1, 0]]}, "sum to 0"),
        ({"lognormal": {"mean": 5}}, "exactly one of sigma, cv"),
        ({"lognormal": {"mean": 5, "sigma": float("inf")}}, "sigma = inf"),
        ({"lognormal": 3}, "a mapping with mean"),
        ({"exponential": {"mean": 0}}, "mean = 0"),
        ({"exponential": {"mean": 5, "maximum": 3}}, "maximum: unknown"),
        ({"exponential": {"mean": 5, "max": 0}}, "max = 0"),
        ({"empirical": []}, "a file"),
        ({"empirical": [1, 2.5]}, "a file"),
    ],
)
def test_wrong_length_specs(spec, fault):
    with pytest.raises(ConfigError, match=fault):
        draw_lengths(spec, 5, rng(), key="len")


def test_all_faults_of_a_load_at_once():
    with pytest.raises(ConfigError) as caught:
        synthesize(
            num_prompts=0, request_rate=-1, seed=-1, input_len=0, output_len={"uniform": [2, 1]}, burstiness=0,
            ramp_up_strategy="steep", ramp_up_start_rps=0, ramp_up_end_rps=math.inf, priority=[[1]],
        )  # fmt: skip
    assert len(caught.value.faults) == 10
    with pytest.raises(ConfigError, match="needs a ramp_up_strategy"):
        synthesize(num_prompts=1, request_rate=1, input_len=1, output_len=1, ramp_up_end_rps=3)


def test_a_rate_too_small_for_the_clock():
    with pytest.raises(ConfigError, match="126 years"):
        arrival_times_ns(10, 1e-9, rng())
