"""Claims: what is wrong with them is said before anything runs; what can't be measured is said in their table."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from shipped import found, outcomes

from experiments.claims import MEASURES, WIDTHS, Finding, claims_table
from experiments.cli import main
from experiments.config import load
from simulator.errors import ConfigError

BASE = """
model: llama-3.1-8b
gpu: a100-80gb
figures: false
load: {requests: [{id: A, input_len: 4, output_len: 6}, {id: B, input_len: 2, output_len: 3}]}
engine: {max_num_seqs: 2}
cost_model: {name: constant, iteration_us: 10000}
sweep:
  case: {static: {scheduler: {name: static, batch_size: 2}}, continuous: {scheduler: {name: continuous, order: orca}}}
claims:
"""
GOOD = "  - {what: useful, claimed: 1, measure: {name: slots, run: static}, why: w}\n"


def config(folder: Path, claims: str) -> str:
    path = folder / "c.yaml"
    path.write_text(BASE + claims)
    return str(path)


def faults(folder: Path, claims: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(config(folder, claims), [])
    return [fault.replace(f"{folder}/", "") for fault in caught.value.faults]


def claim(measure: str) -> str:
    return f"  - {{what: x, claimed: 1, why: w, measure: {measure}}}\n"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (claim("{name: slot}"), "c.yaml:11: claims[0].measure.name = slot: unknown measure; did you mean 'slots'?"),
        (
            claim("{name: slots, run: static, prt: useful}"),
            "c.yaml:11: claims[0].measure.prt = useful: unknown argument of slots; did you mean 'part'?",
        ),
        (
            claim("{name: step, run: static, event: ends}"),
            "c.yaml:11: claims[0].measure.request: is required, and missing",
        ),
        (claim("{name: bound, run: static, batch: many}"), "claims[0].measure.batch = many: "),
        (claim("{name: slots, run: statik}"), "c.yaml: claims: 'x': no run 'statik'; did you mean 'static'?"),
        (claim("{name: slots}"), "c.yaml: claims: 'x': no run ''"),
        (
            claim("{name: gains, chain: [static, continous], parts: [all]}"),
            "c.yaml: claims: 'x': no run 'continous'; did you mean 'continuous'?",
        ),
        ("  - {wat: x, claimed: 1, why: w, measure: slots}\n", "claims[0].wat = x: unknown key; did you mean"),
        ("  - {what: x, why: w, measure: slots}\n", "claims[0].claimed: is required, and missing"),
        ("  what: x\n", "must be a list of {what, claimed, measure, why}"),
        ("  - x\n", "claims[0] = x: must be a mapping of keys"),
    ],
)
def test_a_faulty_claim_is_refused_before_anything_runs(tmp_path: Path, claims: str, expected: str) -> None:
    assert any(expected in fault for fault in faults(tmp_path, claims)), faults(tmp_path, claims)


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path, claim("{name: slot}") + claim("{name: step, evnt: ends}"))) == 4


def test_claims_are_no_part_of_a_run(tmp_path: Path) -> None:
    with_claims, without = (load(config(tmp_path, text), []).runs[0].hash for text in (GOOD, "  []\n"))
    assert with_claims == without


def test_overrides_may_take_away_what_a_claim_is_about(tmp_path: Path) -> None:
    path = config(tmp_path, GOOD + GOOD.replace("useful", "other").replace("static", "continuous"))
    both = found(path, tmp_path, "sweep.case.static=null")
    assert both["useful"].value is None
    assert both["useful"].simulated == "not measured: no run 'static' here"
    assert both["other"].value == pytest.approx(9 / 12)


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("{name: metric, run: static, of: sim.nothing}", "the result of static has no number sim.nothing"),
        ("{name: slots, run: static, part: useless}", "no part 'useless' of the time"),
        ("{name: step, run: static, request: Z, event: ends}", "no request 'Z' in this run"),
        ("{name: step, run: static, request: A, event: sings}", "event sings: must be joins or ends"),
        ("{name: kv, run: static, of: some}", "of some: must be taken or all"),
        ("{name: affine_cost, run: static, seconds: {A: 1, B: 2}}", "three times determine such a cost"),
        ("{name: gains, chain: [static, continuous], parts: [a, b]}", "2 runs have 1 steps between them"),
        ("{name: stable_rate, line: statik}", "no runs of 'statik' here; did you mean 'static'?"),
        ("{name: growth, run: static, phase: prefil, rows: 1, length: 1, times: 2}", "must be one of prefill, decode"),
        ("{name: growth, run: static, phase: decode, rows: 1, length: 1, times: 2, by: age}", "must be rows or length"),
        ("{name: bound, run: static, batch: 0}", "a batch of at least 1"),
    ],
)
def test_what_cannot_be_measured_says_why(tmp_path: Path, measure: str, said: str) -> None:
    (finding,) = found(config(tmp_path, claim(measure)), tmp_path).values()
    assert finding.value is None
    assert said in finding.simulated


def test_every_measure_says_what_it_measures_and_takes_runs_first() -> None:
    for name, measure in MEASURES.items():
        assert measure.__name__ == name
        assert measure.__doc__
        assert next(iter(inspect.signature(measure).parameters)) == "runs"


def test_a_log_asked_for_later_is_the_run_on_disk(tmp_path: Path) -> None:
    """A result that was there already has no log; the run made again has its digest."""
    path = config(tmp_path, GOOD)
    outcomes(path, tmp_path)
    again = outcomes(path, tmp_path)
    for label in again.labels:
        assert again.log(label).digest == again.result(label)["sim"]["digest"]
        assert again.log(label) is again.log(label)
    assert again.slots("static") == 2


def test_the_table_wraps_every_column() -> None:
    table = claims_table([Finding("a " * 40, "b " * 40, "c " * 40, "d " * 40, 1)])
    assert max(map(len, table.splitlines())) == sum(WIDTHS) + 9 == 100
    assert all(table.count(letter) >= 40 for letter in "abcd")


def test_run_ends_with_the_table_and_gives_it_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, GOOD)
    assert main(["run", path, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    for text in (
        "claim  ",
        "| claimed  ",
        "| simulated",
        "| why they differ",
        "70.8 %",
        "slot 1 |[",
        "% of the whole run",
    ):
        assert text in printed
    assert main(["run", path, "--out", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["claims"] == [
        {"what": "useful", "claimed": "1", "simulated": "70.8 %", "why": "w", "value": pytest.approx(85 / 120)}
    ]
