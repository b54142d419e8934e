"""`sweep:` in a config: lists of values whose product is run, each run with a readable label of its own.

The axis `case` names variants that change several keys together: `case: {small: {engine: {max_num_seqs: 4}}}`. A case
replaces what it names: single keys of `schema.SECTIONS`, everything else whole.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from experiments.overrides import Draft, Origin, Override, apply
from experiments.schema import SECTIONS
from experiments.yamltext import KeyPath, shown
from simulator.errors import ConfigError

MAX_RUNS = 10_000


CASE = "case"
_NEVER_SWEPT = ("name", "sweep", "pins", "claims")


@dataclass(frozen=True)
class Axis:
    """One swept key and its values, with the origin of each; of the axis `case`, the names of the cases as well."""

    key: str
    values: list[Any]
    origins: list[dict[KeyPath, Origin]]
    names: tuple[str, ...] = ()

    @property
    def path(self) -> KeyPath:
        """The key as a path."""
        return tuple(self.key.split("."))

    def paths(self) -> set[KeyPath]:
        """Every key that its values set."""
        return {path for value in self.values for path in _case_paths(value)} if self.names else {self.path}

    def put(self, draft: Draft, i: int) -> None:
        """Write the `i`-th value into `draft`. Raises ConfigError where a case leads through what has no keys."""
        if not self.names:
            draft.put(self.path, self.values[i], self.origins[i])
            return
        for path in _case_paths(self.values[i]):
            value = self.values[i]
            for part in path:
                value = value[part]
            draft.put(path, value, {p[len(path) :]: o for p, o in self.origins[i].items() if p[: len(path)] == path})


def _case_paths(case: dict[str, Any]) -> list[KeyPath]:
    """What a case replaces: single keys of sections, and other keys whole."""
    paths: list[KeyPath] = []
    for key, value in case.items():
        inner = key in SECTIONS and isinstance(value, dict)
        paths += [(key, name) for name in value] if inner else [(key,)]
    return paths


@dataclass(frozen=True)
class Combination:
    """One run to be: its draft, and its label, "" for a config without a sweep."""

    draft: Draft
    label: str


def expand(draft: Draft, overrides: list[Override]) -> tuple[list[Combination], list[str], list[str]]:
    """(every combination in stated order, notices, faults of sweep and overrides). Overrides win over file and sweep.

    An override of a swept key takes the place of its axis; one below it (`scheduler.policy`) holds for all its values.
    What is at fault is left out of the combinations, so that the rest can be checked.
    """
    faults: list[str] = []
    base = draft.copy()
    _apply_all(base, [o for o in overrides if o.keys[0] == "sweep"], faults)
    plain = [o for o in overrides if o.keys[0] != "sweep"]
    axes, notices = _axes(base, faults), []
    base.tree.pop("sweep", None)
    for override in plain:
        for axis in [a for a in axes if not a.names and a.path[: len(override.keys)] == override.keys]:
            axes.remove(axis)
            notices.append(f"{override.origin.where}: takes the place of sweep.{axis.key}")
    for axis in axes:
        if not axis.names and base.origin(axis.path) is not None:
            notices.append(f"{_where(base.nearest(axis.path))}: {axis.key}: sweep.{axis.key} takes its place")
    if math.prod(len(axis.values) for axis in axes) > MAX_RUNS:
        faults.append(f"{_where(draft.origin(('sweep',)))}: sweep: more than {MAX_RUNS} runs")
        axes = [Axis(a.key, a.values[:1], a.origins[:1], a.names[:1]) for a in axes]
    combinations = []
    for choice in itertools.product(*(range(len(axis.values)) for axis in axes)):
        one = base.copy()
        for axis, i in zip(axes, choice, strict=True):
            try:
                axis.put(one, i)
            except ConfigError as error:
                faults += [f"{_where(axis.origins[i].get(()))}: {fault}" for fault in error.faults]
        _apply_all(one, plain, faults)
        words = [_labels(axis)[i] for axis, i in zip(axes, choice, strict=True) if len(axis.values) > 1 or axis.names]
        combinations.append(Combination(one, ", ".join(words)))
    return combinations, notices, faults


def _apply_all(draft: Draft, overrides: list[Override], faults: list[str]) -> None:
    for override in overrides:
        try:
            apply(draft, override)
        except ConfigError as error:
            faults += error.faults


def _axes(draft: Draft, faults: list[str]) -> list[Axis]:
    sweep = draft.tree.get("sweep")
    if sweep is None:
        return []
    if not isinstance(sweep, dict):
        where = _where(draft.nearest(("sweep",)))
        faults.append(f"{where}: sweep = {shown(sweep)}: must be a mapping key.path: [values]")
        return []
    axes: list[Axis] = []
    for key, values in sweep.items():
        where = _where(draft.nearest(("sweep", key)))
        if values is None:
            continue
        if key == CASE:
            axes += _cases(draft, values, faults)
        elif not isinstance(values, list) or not values:
            faults.append(f"{where}: sweep.{key} = {shown(values)}: must be a list of at least one value")
        elif key in _NEVER_SWEPT or key.startswith(("sweep.", "pins.")):
            faults.append(f"{where}: sweep.{key}: can't be swept")
        elif any(values[i] == v and type(values[i]) is type(v) for j, v in enumerate(values) for i in range(j)):
            faults.append(f"{where}: sweep.{key}: holds the same value twice")
        else:
            origins = [_swept(draft.under(("sweep", key, i))) for i in range(len(values))]
            axes.append(Axis(key, values, origins))
    for inner, outer in itertools.permutations(axes, 2):
        pairs = itertools.product(inner.paths(), outer.paths())
        if any(path[: len(around)] == around for path, around in pairs):
            faults.append(
                f"{_where(draft.nearest(('sweep', inner.key)))}: sweep.{inner.key}: lies in sweep.{outer.key}"
            )
    return axes


def _cases(draft: Draft, cases: Any, faults: list[str]) -> list[Axis]:
    """The axis `case`, of one variant or more; none where it is at fault."""
    before = len(faults)
    if isinstance(cases, dict):
        cases = {name: keys for name, keys in cases.items() if keys is not None}  # `sweep.case.NAME=null` drops one
    if not isinstance(cases, dict) or not cases:
        faults.append(f"{_where(draft.nearest(('sweep', CASE)))}: sweep.case = {cases!r}: must be a mapping name: keys")
        return []
    for name, keys in cases.items():
        where = _where(draft.nearest(("sweep", CASE, name)))
        if not re.fullmatch(r"[^,=]+", str(name)):
            faults.append(f"{where}: sweep.case: {name}: a name has no comma and no equals sign, as labels have")
        elif not isinstance(keys, dict) or not keys:
            faults.append(f"{where}: sweep.case.{name} = {shown(keys)}: must be a mapping of at least one key")
        else:
            faults += [f"{where}: sweep.case.{name}.{key}: a case can't set it" for key in _NEVER_SWEPT if key in keys]
    if len(faults) > before:
        return []
    origins = [_swept(draft.under(("sweep", CASE, name))) for name in cases]
    return [Axis(CASE, list(cases.values()), origins, tuple(map(str, cases)))]


def _swept(origins: dict[KeyPath, Origin]) -> dict[KeyPath, Origin]:
    return {path: o if o.is_override else Origin("sweep", o.where, o.line, o.folder) for path, o in origins.items()}


def _where(origin: Origin | None) -> str:
    return origin.where if origin else "sweep"


def _labels(axis: Axis) -> list[str]:
    """One readable, unique word per value: `chunked`, `static batch_size=8`, `request_rate=4`; of cases their names."""
    if axis.names:
        return list(axis.names)
    names = [v["name"] if isinstance(v, dict) and isinstance(v.get("name"), str) else None for v in axis.values]
    last = str(axis.path[-1])
    if all(name is None for name in names):
        if all(isinstance(v, str) for v in axis.values) and len(axis.path) == 1:
            return [str(v) for v in axis.values]
        return [f"{last}={_text(v)}" for v in axis.values]
    words = [str(name or _text(v)) for name, v in zip(names, axis.values, strict=True)]
    repeated = {word for word, count in Counter(words).items() if count > 1}
    return [
        word if word not in repeated or not isinstance(value, dict) else _with_options(word, value)
        for word, value in zip(words, axis.values, strict=True)
    ]


def _with_options(word: str, value: dict[str, Any]) -> str:
    return " ".join([word, *(f"{k}={_text(v)}" for k, v in value.items() if k != "name")])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
