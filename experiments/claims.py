"""`claims:` in a config: what its source says, measured on the runs, and why the two differ.

A measure is a function of `MEASURES` with its arguments. Claims are no part of a run: results don't depend on them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from experiments import cost_measures, measures
from experiments.faults import Faults
from experiments.measures import Measured
from experiments.overrides import Draft
from experiments.replay import Runs
from experiments.schema import Claim, Named
from simulator.errors import ConfigError
from simulator.suggest import did_you_mean

MEASURES: dict[str, Callable[..., Measured]] = {
    "affine_cost": measures.affine_cost,
    "bound": measures.bound,
    "finished": measures.finished,
    "first_token": measures.first_token,
    "gains": measures.gains,
    "growth": cost_measures.growth,
    "held": measures.held,
    "intensity": cost_measures.intensity,
    "kv": measures.kv,
    "longest_gap": measures.longest_gap,
    "makespan": measures.makespan,
    "metric": measures.metric,
    "ratio": measures.ratio,
    "ridge": cost_measures.ridge,
    "running": measures.running,
    "slots": measures.slots,
    "stable_rate": measures.stable_rate,
    "stable_ratio": measures.stable_ratio,
    "step": measures.step,
    "useful_if": measures.useful_if,
    "works": measures.works,
}
WIDTHS = (26, 15, 19, 31)  # of the table's columns: 100 with three spaces between them
_RUN_ARGUMENTS = ("run", "over", "chain")


class Finding(NamedTuple):
    """A claim beside what the simulation says; `value` is None where it couldn't be measured."""

    what: str
    claimed: str
    simulated: str
    why: str
    value: Any


def take_claims(draft: Draft) -> tuple[list[Claim], list[str]]:
    """(the claims of `draft`, which loses them; a line for whatever is wrong with them)."""
    given = draft.tree.get("claims")
    faults = Faults(draft)
    claims: list[Claim] = []
    if not isinstance(given, list | None):
        faults.add(("claims",), "must be a list of {what, claimed, measure, why}")
        given = None
    for i, entry in enumerate(given or ()):
        claim = faults.parse(Claim, entry, ("claims", i))
        if claim is not None:
            _check_measure(faults, ("claims", i, "measure"), claim.measure)
            claims.append(claim)
    draft.tree.pop("claims", None)
    return claims, [text for _, text in sorted(faults.lines, key=lambda line: line[0])]


def check_runs(claims: Iterable[Claim], labels: Sequence[str], source: str) -> None:
    """Raise ConfigError with a line for each run that a claim is measured on and that isn't among `labels`."""
    lost = [
        f"{source}: claims: {claim.what!r}: no run {name!r}{did_you_mean(name, labels)}"
        for claim in claims
        for key, field in _arguments(MEASURES[claim.measure.name]).model_fields.items()
        if key in _RUN_ARGUMENTS
        for name in _listed(claim.measure.options.get(key, field.default))
        if name not in labels
    ]
    if lost:
        raise ConfigError(lost)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_measure(faults: Faults, at: tuple[str | int, ...], measure: Named) -> None:
    function = MEASURES.get(measure.name)
    if function is None:
        hint = did_you_mean(measure.name, MEASURES) or f"; known are {', '.join(MEASURES)}"
        faults.add((*at, "name"), f"unknown measure{hint}")
        return
    takes = _arguments(function)
    known = {key: value for key, value in measure.options.items() if key in takes.model_fields}
    for key in measure.options.keys() - known.keys():
        hint = did_you_mean(key, takes.model_fields) or f"; it takes {', '.join(takes.model_fields)}"
        faults.add((*at, key), f"unknown argument of {measure.name}{hint}")
    faults.parse(takes, known, at)


def _arguments(function: Callable[..., Measured]) -> type[BaseModel]:
    """What a measure takes beside the runs, as keys of a config."""
    hints = get_type_hints(function)
    _, *parameters = inspect.signature(function).parameters.values()
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is inspect.Parameter.empty else p.default) for p in parameters
    }
    return create_model(function.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


def findings(claims: Iterable[Claim], runs: Runs) -> list[Finding]:
    """Every claim measured; where overrides took away what it is about, its finding says so."""
    found = []
    for claim in claims:
        try:
            value, text = MEASURES[claim.measure.name](runs, **claim.measure.options)
        except (LookupError, ValueError) as error:
            value, text = None, f"not measured: {error.args[0]}"
        claimed = claim.claimed if isinstance(claim.claimed, str) else f"{claim.claimed:g}"
        found.append(Finding(claim.what, claimed, text, claim.why, value))
    return found


def claims_table(found: Iterable[Finding]) -> str:
    """`claimed | simulated | why they differ` as text, wrapped to 100 columns."""
    rule = "-+-".join("-" * width for width in WIDTHS)
    blank = " | ".join(" " * width for width in WIDTHS).rstrip()
    blocks = ["\n".join(_row("claim", "claimed", "simulated", "why they differ"))]
    blocks += ["\n".join(_row(one.what, one.claimed, one.simulated, one.why)) for one in found]
    return f"{blocks[0]}\n{rule}\n" + f"\n{blank}\n".join(blocks[1:])


def _row(*cells: str) -> list[str]:
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    height = max(map(len, columns))
    lines = zip(*(column + [""] * (height - len(column)) for column in columns), strict=True)
    return [" | ".join(cell.ljust(width) for cell, width in zip(line, WIDTHS, strict=True)).rstrip() for line in lines]
