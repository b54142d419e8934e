"""From a name in a config to a class: built in, installed by another package, or in the user's own file.

A name is looked up in the folder's literal table, then among the entry points of the group `servesim.<kind>s`
(`servesim.schedulers`, `servesim.cost_models`, `servesim.readers`); a name with a colon, "pkg.module:Class", is
imported, also from the working directory.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from importlib.metadata import entry_points
from inspect import Parameter
from typing import Any

from simulator.errors import ConfigError
from simulator.suggest import did_you_mean

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def resolve(kind: str, name: str, builtin: Mapping[str, str]) -> type[Any]:
    """The class that `name` stands for. `kind` is "scheduler", "cost_model" or "reader"; `builtin` its table.

    Raises ConfigError where nothing has that name, or what has it can't be imported or is no class.
    """
    label = kind.removesuffix("s")
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{label}: {name!r} must be a name or 'pkg.module:Class'")
    if name in builtin:
        return _load(label, builtin[name])
    if ":" in name:
        with _working_directory_importable():
            return _load(label, name)
    installed = {entry.name: entry.value for entry in entry_points(group=f"servesim.{label}s")}
    if name in installed:
        return _load(label, installed[name])
    known = [*builtin, *sorted(installed)]
    hint = f"{did_you_mean(name, known)}; a class of your own is given as 'pkg.module:Class'"
    raise ConfigError(f"{label}: {name!r} is not one of {', '.join(known)}{hint}")


def bind_options(
    cls: type[Any], given: Mapping[str, Any], skip: Collection[str] = (), where: str = "options"
) -> dict[str, Any]:
    """All options of `cls` with the values `given` and its defaults for the rest, without building it.

    `skip` names parameters that the caller fills in itself; `where` is the config key that faults are put under.
    A class that takes **options gets whatever is given. Raises ConfigError with one line per unknown or missing
    option.
    """
    parameters = [p for p in inspect.signature(cls).parameters.values() if p.name not in skip]
    options = {p.name: p.default for p in parameters if p.kind in _NAMED}
    valid = ", ".join(options) or "none"
    faults = []
    if not any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        faults += [
            f"{where}.{key}: unknown option{did_you_mean(key, options)}; valid options: {valid}"
            for key in given
            if key not in options
        ]
    bound = {**options, **given}
    faults += [
        f"{where}.{key}: missing; {cls.__name__} needs it" for key, value in bound.items() if value is Parameter.empty
    ]
    if faults:
        raise ConfigError(faults)
    return bound


def _load(label: str, target: str) -> type[Any]:
    module_name, _, attribute = target.partition(":")
    try:
        module = import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        why = str(error) or type(error).__name__
        if not isinstance(error, ImportError):
            why = f"{type(error).__name__}: {why}"
        raise ConfigError(f"{label}: Could not import module {module_name!r} ({why})") from error
    found: Any = module
    for part in attribute.split("."):
        owner, found = found, getattr(found, part, None)
        if found is None:
            names = [name for name, value in vars(owner).items() if inspect.isclass(value)]
            hint = did_you_mean(part, names)
            raise ConfigError(f"{label}: Module {module_name!r} has no attribute {attribute!r}{hint}")
    if not inspect.isclass(found):
        raise ConfigError(f"{label}: {target!r} must be a class, not {type(found).__name__}")
    return found


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    """Put the working directory last on the import path for a while, so that it shadows nothing installed."""
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    invalidate_caches()
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)
