"""`sweep:` in a config: lists of values whose product is run, each run with a readable label of its own."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from experiments.overrides import Draft, Origin, Override, apply
from experiments.yamltext import KeyPath
from simulator.errors import ConfigError

MAX_RUNS = 10_000


@dataclass(frozen=True)
class Axis:
    """One swept key and its values, with the origin of each."""

    key: str
    values: list[Any]
    origins: list[dict[KeyPath, Origin]]

    @property
    def path(self) -> KeyPath:
        """The key as a path."""
        return tuple(self.key.split("."))


@dataclass(frozen=True)
class Combination:
    """One run to be: its draft, and its label, "" for a config without a sweep."""

    draft: Draft
    label: str


def expand(draft: Draft, overrides: list[Override]) -> tuple[list[Combination], list[str]]:
    """(every combination in stated order, notices). Overrides win over file and sweep.

    An override of a swept key takes the place of its axis; one below it (`scheduler.policy`) holds for all its values.
    Raises ConfigError with every fault of the sweep and of the overrides.
    """
    faults: list[str] = []
    base = draft.copy()
    _apply_all(base, [o for o in overrides if o.keys[0] == "sweep"], faults)
    plain = [o for o in overrides if o.keys[0] != "sweep"]
    axes, notices = _axes(base, faults), []
    base.tree.pop("sweep", None)
    for override in plain:
        for axis in [a for a in axes if a.path[: len(override.keys)] == override.keys]:
            axes.remove(axis)
            notices.append(f"{override.origin.where}: takes the place of sweep.{axis.key}")
    for axis in axes:
        if base.origin(axis.path) is not None:
            notices.append(f"{_where(base.nearest(axis.path))}: {axis.key}: sweep.{axis.key} takes its place")
    if math.prod(len(axis.values) for axis in axes) > MAX_RUNS:
        faults.append(f"{_where(draft.origin(('sweep',)))}: sweep: more than {MAX_RUNS} runs")
    if faults:
        raise ConfigError(faults)
    combinations = []
    for choice in itertools.product(*(range(len(axis.values)) for axis in axes)):
        one = base.copy()
        for axis, i in zip(axes, choice, strict=True):
            one.put(axis.path, axis.values[i], axis.origins[i])
        _apply_all(one, plain, faults)
        words = [_labels(axis)[i] for axis, i in zip(axes, choice, strict=True) if len(axis.values) > 1]
        combinations.append(Combination(one, ", ".join(words)))
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    return combinations, notices


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
        faults.append(f"{_where(draft.nearest(('sweep',)))}: sweep = {sweep!r}: must be a mapping key.path: [values]")
        return []
    axes: list[Axis] = []
    for key, values in sweep.items():
        where = _where(draft.nearest(("sweep", key)))
        if values is None:
            continue
        if not isinstance(values, list) or not values:
            faults.append(f"{where}: sweep.{key} = {values!r}: must be a list of at least one value")
        elif key in ("name", "sweep", "pins") or key.startswith(("sweep.", "pins.")):
            faults.append(f"{where}: sweep.{key}: can't be swept")
        elif any(values[i] == v and type(values[i]) is type(v) for j, v in enumerate(values) for i in range(j)):
            faults.append(f"{where}: sweep.{key}: holds the same value twice")
        else:
            origins = [_swept(draft.under(("sweep", key, i))) for i in range(len(values))]
            axes.append(Axis(key, values, origins))
    for inner, outer in itertools.permutations(axes, 2):
        if inner.path[: len(outer.path)] == outer.path:
            faults.append(
                f"{_where(draft.nearest(('sweep', inner.key)))}: sweep.{inner.key}: lies in sweep.{outer.key}"
            )
    return axes


def _swept(origins: dict[KeyPath, Origin]) -> dict[KeyPath, Origin]:
    return {path: o if o.is_override else Origin("sweep", o.where, o.line, o.folder) for path, o in origins.items()}


def _where(origin: Origin | None) -> str:
    return origin.where if origin else "sweep"


def _labels(axis: Axis) -> list[str]:
    """One readable, unique word per value: `chunked`, `static batch_size=8`, `request_rate=4`."""
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
