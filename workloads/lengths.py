"""How long prompts and answers are: a number, a distribution, or lengths taken from a file.

    512                                        every request
    {uniform: [100, 1000]}                     whole numbers from 100 to 1000, both included
    {lognormal: {mean: 300, cv: 1.2, max: 8192}}     or sigma (of the logarithm) in place of cv; max is optional
    {exponential: {mean: 200, max: 4096}}
    {choice: [[128, 3], [2048, 1]]}            lengths with their weights; `mix` is the same
    {empirical: azure-2023-conv}               drawn, with replacement, from a trace, a lengths file or a list

Draws of the two continuous distributions are rounded half up, to 1 at the least and `max` at the most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from workloads.readers.values import MAX_TOKENS

Draws = NDArray[np.int64]
KINDS = ("uniform", "lognormal", "exponential", "choice", "mix", "empirical")


def draw_lengths(spec: Any, n: int, rng: np.random.Generator, *, key: str = "lengths", column: str = "output") -> Draws:
    """`n` lengths in tokens. `key` names the spec in faults; `column` (input, output) is what `empirical` takes.

    Raises ConfigError with all faults of the spec, TraceError where an empirical file can't be read.
    """
    faults = length_faults(spec, key)
    if faults:
        raise ConfigError(faults)
    if isinstance(spec, int):
        return np.full(n, spec, np.int64)
    ((kind, what),) = spec.items()
    if kind == "uniform":
        return rng.integers(what[0], what[1], size=n, endpoint=True)
    if kind in ("choice", "mix"):
        lengths, weights = zip(*what, strict=True)
        share = np.array(weights, float)
        return rng.choice(np.array(lengths, np.int64), size=n, p=share / share.sum())
    if kind == "empirical":
        return rng.choice(_empirical(what, column), size=n)
    return _continuous(kind, what, n, rng)


def length_faults(spec: Any, key: str) -> list[str]:
    """What is wrong with a spec, one line each, naming `key`; files aren't opened."""
    if not isinstance(spec, Mapping):
        return (
            [] if _tokens(spec) else [f"{key} = {spec}: a whole number of tokens from 1, or one of {', '.join(KINDS)}"]
        )
    if len(spec) != 1:
        return [f"{key}: exactly one of {', '.join(KINDS)}, not {len(spec)} ({', '.join(map(str, spec)) or 'none'})"]
    ((kind, what),) = spec.items()
    if kind not in KINDS:
        near = get_close_matches(str(kind), KINDS, n=1, cutoff=0.0)[0]
        return [f"{key}.{kind}: no such distribution; did you mean {near}? (known: {', '.join(KINDS)})"]
    return _CHECKS[kind](what, f"{key}.{kind}")


def _uniform_faults(what: Any, key: str) -> list[str]:
    if _pair(what) and all(map(_tokens, what)) and what[0] <= what[1]:
        return []
    return [f"{key} = {what}: [lowest, highest], whole tokens from 1, lowest first"]


def _choice_faults(what: Any, key: str) -> list[str]:
    if not isinstance(what, Sequence) or isinstance(what, str) or not what:
        return [f"{key} = {what}: a list of [length, weight] pairs"]
    faults = [
        f"{key}[{i}] = {pair}: [length, weight], whole tokens from 1 and a finite weight of 0 or more"
        for i, pair in enumerate(what)
        if not (_pair(pair) and _tokens(pair[0]) and _number(pair[1]) and pair[1] >= 0)
    ]
    if not faults and not sum(pair[1] for pair in what):
        faults = [f"{key}: the weights sum to 0"]
    return faults


def _continuous_faults(what: Any, key: str, spreads: tuple[str, ...]) -> list[str]:
    if not isinstance(what, Mapping):
        return [f"{key} = {what}: a mapping with mean{' and one of ' + ', '.join(spreads) if spreads else ''}"]
    known = ("mean", "max", *spreads)
    faults = [f"{key}.{name}: unknown; one of {', '.join(known)}" for name in what if name not in known]
    if not (_number(what.get("mean")) and 1 <= what["mean"] <= MAX_TOKENS):
        faults.append(f"{key}.mean = {what.get('mean')}: tokens, at least 1")
    given = [name for name in spreads if name in what]
    if spreads and len(given) != 1:
        faults.append(f"{key}: exactly one of {', '.join(spreads)}")
    faults += [
        f"{key}.{name} = {what[name]}: a finite number above 0"
        for name in given
        if not (_number(what[name]) and what[name] > 0)
    ]
    if "max" in what and not _tokens(what["max"]):
        faults.append(f"{key}.max = {what['max']}: a whole number of tokens from 1")
    return faults


def _empirical_faults(what: Any, key: str) -> list[str]:
    if isinstance(what, str) and what:
        return []
    if isinstance(what, Sequence) and what and all(map(_tokens, what)):
        return []
    return [f"{key} = {what}: a file, a shipped trace's name, or a list of whole tokens from 1"]


_CHECKS: dict[str, Callable[[Any, str], list[str]]] = {
    "uniform": _uniform_faults,
    "choice": _choice_faults,
    "mix": _choice_faults,
    "empirical": _empirical_faults,
    "lognormal": lambda what, key: _continuous_faults(what, key, ("sigma", "cv")),
    "exponential": lambda what, key: _continuous_faults(what, key, ()),
}


def _continuous(kind: str, what: Mapping[str, float], n: int, rng: np.random.Generator) -> Draws:
    mean = float(what["mean"])
    if kind == "exponential":
        draws = rng.exponential(mean, size=n)
    else:
        # mean = exp(mu + sigma^2 / 2) and cv^2 = exp(sigma^2) - 1
        sigma = float(what["sigma"]) if "sigma" in what else math.sqrt(math.log1p(float(what["cv"]) ** 2))
        draws = rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, size=n)
    return np.clip(np.floor(draws + 0.5), 1, what.get("max", MAX_TOKENS)).astype(np.int64)


def _empirical(what: str | Sequence[int], column: str) -> Draws:
    if not isinstance(what, str):
        return np.array(what, np.int64)
    from workloads.lengths_file import read_lengths  # not needed without a file

    return read_lengths(what, column)


def _tokens(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _pair(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
