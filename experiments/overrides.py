"""A config while it is being put together: plain values, and for each where it was given.

File, sweep and command line write into one `Draft`, later ones over earlier ones, so every fault and every line of the
resolved config can name its source.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.schema import DEFAULT_NAMES, SHORTHAND
from experiments.yamltext import Document, KeyPath, dotted, parse, shown
from simulator.errors import ConfigError


@dataclass(frozen=True)
class Origin:
    """Where a value was given: `kind` is file, sweep or override, `where` opens a message about it."""

    kind: str
    where: str
    line: int = 0
    folder: Path = Path()

    @property
    def is_override(self) -> bool:
        """Whether the command line gave it."""
        return self.kind == "override"

    def overrides(self, key: str) -> bool:
        """Whether it is the override of just this `key.path`."""
        return self.is_override and self.where.removeprefix("override ").partition("=")[0].strip() == key


@dataclass
class Draft:
    """Nested plain values and the origin of every key that was given."""

    source: str
    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, Origin] = field(default_factory=dict)

    def copy(self) -> Draft:
        """An independent copy."""
        return Draft(self.source, copy.deepcopy(self.tree), dict(self.origins))

    def put(self, path: KeyPath, value: Any, origins: dict[KeyPath, Origin]) -> None:
        """Set `value` at `path`, replacing what was there; `origins` are relative to `path`, () for itself.

        Raises ConfigError where `path` leads through something that has no keys.
        """
        at: Any = self.tree
        for depth, part in enumerate(path):
            if isinstance(at, list):
                if not isinstance(part, int) or part >= len(at):
                    raise ConfigError(f"{dotted(path[:depth])} has the elements 0 to {len(at) - 1}, and not {part}")
            elif not isinstance(at, dict):
                raise ConfigError(f"{dotted(path[:depth])} = {shown(at)} has no keys")
            if depth == len(path) - 1:
                break
            if isinstance(at, dict) and isinstance(at.get(part), str) and part in SHORTHAND:
                at[part] = {SHORTHAND[part]: at[part]}
            if isinstance(at, dict) and at.get(part) is None:
                at[part] = {"name": DEFAULT_NAMES[part]} if part in DEFAULT_NAMES else {}
                if () in origins:
                    self.origins[path[: depth + 1]] = origins[()]
            at = at[part]
        at[path[-1]] = copy.deepcopy(value)
        for stale in [p for p in self.origins if p[: len(path)] == path]:
            del self.origins[stale]
        for relative, origin in origins.items():
            self.origins[path + relative] = origin

    def under(self, path: KeyPath) -> dict[KeyPath, Origin]:
        """The origins at and below `path`, relative to it."""
        return {p[len(path) :]: o for p, o in self.origins.items() if p[: len(path)] == path}

    def origin(self, path: KeyPath) -> Origin | None:
        """Who gave the value at `path`; None where nobody did. A shorthand word is the origin of its one key."""
        if path in self.origins:
            return self.origins[path]
        key = str(path[0])
        if len(path) == 2 and SHORTHAND.get(key) == path[1] and isinstance(self.tree.get(key), str):
            return self.origins.get(path[:-1])
        return None

    def given(self, key: str) -> bool:
        """Whether somebody gave the value of this `key.path`."""
        return self.origin(tuple(key.split("."))) is not None

    def nearest(self, path: KeyPath) -> Origin | None:
        """The origin of `path`, or of the closest mapping around it."""
        for end in range(len(path), 0, -1):
            if (origin := self.origin(path[:end])) is not None:
                return origin
        return None


def draft_of(document: Document, path: Path) -> Draft:
    """The draft of a config file's document. Raises ConfigError where it isn't a mapping of keys."""
    if document.value is None:
        raise ConfigError(f"{path}: empty; a config needs at least model, gpu and trace or load")
    if not isinstance(document.value, dict):
        kind = "a list" if isinstance(document.value, list) else f"the value {shown(document.value)}"
        raise ConfigError(f"{path}:1: {kind}, where a mapping of keys is expected")
    folder = path.resolve().parent
    origins = {p: Origin("file", f"{path}:{line}", line, folder) for p, line in document.lines.items()}
    return Draft(str(path), document.value, origins)


@dataclass(frozen=True)
class Override:
    """One `key.path=value` of the command line."""

    text: str
    keys: tuple[str, ...]
    value: Any

    @property
    def origin(self) -> Origin:
        """Where it was given."""
        return Origin("override", f"override {self.text}", folder=Path.cwd())

    def origins(self, value: Any, path: KeyPath = ()) -> dict[KeyPath, Origin]:
        """This override as the origin of `value` and of all that lies in it."""
        found = {path: self.origin}
        items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            found |= self.origins(inner, (*path, key))
        return found


def parse_overrides(texts: list[str]) -> tuple[list[Override], list[str]]:
    """(`key.path=value` with a YAML value, each; a line per text that isn't one)."""
    overrides: list[Override] = []
    faults: list[str] = []
    first: dict[tuple[str, ...], str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        keys = tuple(re.sub(r"\[(\d+)\]", r".\1", key.strip()).split("."))
        if not equals or not all(keys):
            faults.append(f"override {text}: must be key.path=value, as in engine.max_num_seqs=64")
            continue
        if (earlier := first.setdefault(keys, text)) is not text:
            faults.append(f"override {text}: {key} is given twice, first as {earlier}")
        try:
            overrides.append(Override(text, keys, parse(value, f"override {text}").value))
        except ConfigError as error:
            faults += error.faults
    return overrides, faults


def apply(draft: Draft, override: Override) -> None:
    """Write `override` into `draft`. Raises ConfigError where its path leads nowhere."""
    path = _sweep_path(draft, override.keys) if override.keys[0] == "sweep" else _indexed(draft, override.keys)
    try:
        draft.put(path, override.value, override.origins(override.value))
    except ConfigError as error:
        raise ConfigError([f"{override.origin.where}: {fault}" for fault in error.faults]) from None


def _indexed(draft: Draft, keys: tuple[str, ...]) -> KeyPath:
    """`keys` as a path: a number that leads into a list is a place in it, `load.requests.0.id`."""
    at: Any = draft.tree
    path: list[str | int] = []
    for key in keys:
        inside = isinstance(at, list) and key.isdigit()
        path.append(int(key) if inside else key)
        at = at.get(key) if isinstance(at, dict) else at[int(key)] if inside and int(key) < len(at) else None
    return tuple(path)


def _sweep_path(draft: Draft, keys: tuple[str, ...]) -> KeyPath:
    """Axes have dots in their names: `sweep.load.request_rate=[1]` sets one, `sweep.scheduler.0.name=x` changes one."""
    axes = draft.tree.get("sweep")
    for end in range(len(keys), 1, -1):
        axis = ".".join(keys[1:end])
        if isinstance(axes, dict) and axis in axes:
            return ("sweep", axis, *(int(key) if key.isdigit() else key for key in keys[end:]))
    return ("sweep", ".".join(keys[1:])) if len(keys) > 1 else ("sweep",)
