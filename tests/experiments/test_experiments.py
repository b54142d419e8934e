"""The shipped experiments: each figure that a page quotes, exact where arithmetic makes it so, else to a per cent.

What depends on a cost model may move when the model does: then the pages that quote it have to move as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shipped import found, outcomes

from experiments.claims import Finding, claims_table
from experiments.config import load, shipped

Measured = Callable[[str], dict[str, Finding]]
approx = pytest.approx
NEAR = 0.01
EXACT: dict[str, list[Any]] = {
    "three_requests": [2800, 280, 7000, approx([500, -10, 15]), 6720, approx(0.4792, abs=1e-9), 0.5, 0.52],
    "step_table": [3, 4, 5, 6, 6, approx(22 / 24), approx(22 / 36)],
    "four_slots": [4, 7, approx(120_000 / 67_550, rel=1e-3), approx(120 / 67.5), 10],
}
MEASURED: dict[str, list[Any]] = {
    "ascii_timeline": [3, 50, 25 / 32, 0, 7 / 32, 0.3557],
    "hundred_requests": [0.548, 0.799, 1.0, 0.905, 0.0908, 0.1396, 0.383, 0.361, 1.870],
    "speedup_table": [
        1.989, [1.0, 1.989, 1.0, 1.989], 4.961, [2.426, 1.673, 1.223, 4.961], 2.565, 6.942, [2.426, 2.026, 1.412, 6.942]
    ],
    "memory_reservation": [0.191, 0.458, 0.555, 0.906, 0.983, 6.86, 20.03, 33.2, 3.188, 1.309],
    "gain_decomposition": [7.219, [2.474, 2.328, 1.253, 7.219], [1.126, 2.516, 2.549, 7.219], 2.584, 4.090, 6.98, 29.1],
    "prefill_vs_decode": [1943, 25.8, 153.0, 0.995, 0.1865, 0.989, 7.92, 1.064, 8.97, 2.544],
    "chunked_prefill_stalls": [431.3, 423.6, 30.19, 424.6, 440.1],
    "admission_by_ratio": [20, 6, 1, 7364, 418, 15.44, 15.60, 15.33, 1.078, 1.026],
    "longest_prefix_first": [0.0447, 0.0631, 0.890, 0.913, 1.077, 0.996],
    "sglang_against_vllm": [0.9996, 1156.9, 8984, 606.6, 1.002, 1.305, 1.080, 17, 0, 14.36, 14.76],
    "token_budget": [0.267, 1.074, 1.017, 0.222, 1.0008],
}  # fmt: skip
CURVES = (
    "static_vs_continuous",
    "static_vs_continuous_code",
    "static_vs_continuous_uniform",
    "static_vs_continuous_mixed",
)


def numbers(findings: dict[str, Finding]) -> list[Any]:
    """The values of findings, in order."""
    return [finding.value for finding in findings.values()]


def test_every_shipped_config_with_claims_is_held() -> None:
    claiming = {name for name in shipped() if load(name, []).claims}
    assert claiming == {*EXACT, *MEASURED, *CURVES}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Finding]]:
    """The findings of a shipped experiment, which is run once."""
    return functools.cache(lambda name: found(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize("name", EXACT)
def test_figures_that_arithmetic_gives(measured: Measured, name: str) -> None:
    assert [list(v) if isinstance(v, tuple) else v for v in numbers(measured(name))] == EXACT[name]


@pytest.mark.parametrize("name", MEASURED)
def test_figures_that_the_pages_quote(measured: Measured, name: str) -> None:
    assert numbers(measured(name)) == [approx(value, rel=NEAR) for value in MEASURED[name]]


@pytest.mark.parametrize("name", [*EXACT, *MEASURED, *CURVES])
def test_the_head_of_each_says_what_is_claimed_where_and_what_the_run_shows(name: str) -> None:
    lines = shipped()[name].read_text().splitlines()
    head = " ".join(line.lstrip("# ") for line in lines[: lines.index("")])
    for words in (f"servesim run {name}", "Claim: ", "What the run shows"):
        assert words in head
    assert "articles on continuous batching" in head or "Inference Cookbook" in head


def test_no_three_requests_can_be_useful_for_less_than_a_third() -> None:
    """The longest works all the time: the claim of 20-30 % is below what any lengths give."""
    longest = 500
    shares = [(a + b + longest) / (3 * longest) for a in (1, 100, 500) for b in (1, 100, 500)]
    assert min(shares) > 1 / 3 > 0.3


def test_ten_in_120_ms_takes_newcomers_of_26_to_33_ms(tmp_path: Path) -> None:
    """By the count of each slot: 1 + floor((120 - first) / newcomer); and by a run at both ends of the range."""

    def done(newcomer: int) -> int:
        return sum(1 + (120 - first) // newcomer for first in (20, 50, 80, 120))

    assert [length for length in range(1, 121) if done(length) == 10] == list(range(26, 34))
    for length in (25, 26, 33, 34):
        requests = [f"{{id: R{i}, input_len: 1, output_len: {n}}}" for i, n in enumerate((20, 50, 80, 120))]
        requests += [f"{{id: N{i}, input_len: 1, output_len: {length}}}" for i in range(20)]
        override = f"load.requests=[{', '.join(requests)}]"
        key = "sweep.case={only: {scheduler: {name: continuous, order: orca}}}"
        runs = outcomes("four_slots", tmp_path, override, "load.repeat=1", key)
        log = runs.log("only")
        assert int((log.sequences["finish_ns"] <= 120_000_000).sum()) == done(length)


def test_the_gains_multiply_to_the_whole_in_either_order(measured: Measured) -> None:
    whole, forward, reverse = numbers(measured("gain_decomposition"))[:3]
    assert forward[-1] == approx(whole, rel=1e-12)
    assert reverse[-1] == approx(whole, rel=1e-12)
    assert forward[0] != approx(reverse[2], rel=1e-3)


def test_scheduling_gains_less_than_its_bound_at_equal_batch_size(measured: Measured) -> None:
    _, forward, reverse, bound_of_7, bound_of_32, *_ = numbers(measured("gain_decomposition"))
    assert 1 < forward[0] < bound_of_7
    assert 1 < reverse[2] < bound_of_32


def test_equal_requests_gain_nothing_from_scheduling_to_the_nanosecond(tmp_path: Path) -> None:
    few = "load.num_prompts=70"
    runs = outcomes("speedup_table", tmp_path, few)
    assert runs.log("equal static").end_ns == runs.log("equal scheduling").end_ns


@pytest.mark.parametrize(
    ("name", "key", "rates", "kept", "rate_gain", "gain"),
    [
        ("static_vs_continuous", "trace", "[1.5, 2, 10, 12]", (1.5, 10), 6.67, 5.08),
        ("static_vs_continuous_code", "trace", "[1, 2, 6, 8, 10]", (1, 6), 6, 4.32),
        ("static_vs_continuous_uniform", "load", "[3, 4, 10, 14, 18]", (3, 10), 3.33, 3.77),
        ("static_vs_continuous_mixed", "load", "[1, 1.5, 18, 24]", (1, 18), 18, 12.07),
    ],
)
def test_knees_and_capacities(
    tmp_path: Path, name: str, key: str, rates: str, kept: tuple[float, float], rate_gain: float, gain: float
) -> None:
    """The figures of the whole sweep, from the rates that they hang on."""
    two = "sweep.scheduler=[{name: static, batch_size: 32, batch_timeout_ms: 100}, continuous]"
    shown = numbers(found(name, tmp_path, two, f"sweep.{key}.request_rate={rates}"))
    assert shown == [*map(approx, kept), approx(rate_gain, rel=NEAR), approx(gain, rel=NEAR)]


@pytest.mark.parametrize("name", [*EXACT, *MEASURED])
def test_the_page_shows_the_table_that_the_run_prints(measured: Measured, name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    section = page.partition(f"    servesim run {name}\n")[2].partition("\n## ")[0]
    assert claims_table(measured(name).values()) in section


def test_the_page_has_every_experiment() -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    assert all(f"    servesim run {name}\n" in page for name in (*EXACT, *MEASURED, *CURVES))


def test_the_table_of_claims_is_100_columns_wide_at_most(measured: Measured) -> None:
    for name in EXACT:
        table = claims_table(measured(name).values())
        assert max(map(len, table.splitlines())) <= 100
        assert table.splitlines()[0].split(" | ")[1:] == [
            text.ljust(width) if width else text
            for text, width in (("claimed", 15), ("simulated", 19), ("why they differ", 0))
        ]
