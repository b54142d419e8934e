"""A config file and its overrides to runs: everything validated, every default filled, every source known.

`load` does it all before any clock starts, and raises one ConfigError with every fault of every run.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from experiments.faults import Faults
from experiments.overrides import Draft, draft_of, parse_overrides
from experiments.pieces import Pieces, check_pieces
from experiments.resolved import pinned
from experiments.rules import Unused, check_rules, check_workload, unused_keys, without_unused
from experiments.schema import Claim, Settings, is_word
from experiments.sweep import Combination, expand
from experiments.yamltext import read
from simulator import __version__
from simulator.errors import ConfigError
from simulator.specs import MemoryPlan
from simulator.suggest import did_you_mean

# Keys that say where and how results are kept, not what they are: no part of a run's hash.
_COSMETIC = ("name", "seed", "pins")
_UTILIZATION = "engine.gpu_memory_utilization"  # vLLM takes it beside num_gpu_blocks_override, so it is no fault


class Vain(NamedTuple):
    """A key that was given and changes nothing in a run: as a notice, and as a fault ("" where it is none)."""

    notice: str
    fault: str


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved.

    `label` sets it apart within its sweep. `settings` has every default filled; `effective` is the same as plain nested
    values without the keys that this run doesn't use; `sources` says for each `key.path` who gave it.
    """

    label: str
    settings: Settings
    pieces: Pieces
    memory: MemoryPlan
    effective: dict[str, Any]
    sources: dict[str, str]
    notices: list[str]
    in_vain: dict[str, Vain]

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits over all that can change a result, and the version. Files count by content."""
        pins = self.settings.pins
        content = {k: v for k, v in self.effective.items() if k not in (*_COSMETIC, *pins)}
        for key, value in content.items():
            if isinstance(value, dict):
                content[key] = {k: v for k, v in value.items() if k == "name" or f"{key}.{k}" not in pins}
        text = json.dumps([__version__, content, pins], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """The run's folder below the results folder: `<name>/<hash>-<seed>`."""
        return f"{self.settings.name}/{self.hash}-{self.settings.seed}"


@dataclass(frozen=True)
class Plan:
    """What a config asks for: its runs in order, notices about what it says in vain, and the claims it checks."""

    source: str
    name: str
    runs: list[RunConfig]
    notices: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    @property
    def is_sweep(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1


def shipped() -> dict[str, Path]:
    """Every shipped config by name."""
    folder = Path(str(importlib.resources.files("experiments") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(config: str) -> Path:
    """The file of `config`, a path or a shipped name. Raises ConfigError with the nearest shipped name."""
    names = shipped()
    if config in names:
        return names[config]
    path = Path(config)
    looks_like_path = len(path.parts) > 1 or path.suffix in (".yaml", ".yml", ".json")
    if path.exists() or path.is_symlink() or (looks_like_path and path.stem not in names):
        return path
    hint = did_you_mean(path.stem, names) or f"; shipped are {', '.join(names)}"
    raise ConfigError(f"{config}: neither a file nor a shipped config{hint}")


def load(config: str, override_texts: list[str]) -> Plan:
    """All runs of `config`, a path or a shipped name, under the overrides. Raises ConfigError with all faults."""
    path = find(config)
    draft = draft_of(read(path), path)
    overrides, faults = parse_overrides(override_texts)
    claims, unclear = _claims(draft)
    combinations, notices, wrong = expand(draft, overrides)
    default_name = path.stem if is_word(path.stem) else "run"
    resolved = [_resolve(combination, default_name) for combination in combinations]
    lines = sorted((line for one in resolved for line in one.faults), key=lambda line: line[0])
    faults += [*unclear, *wrong, *(text for _, text in lines), *_faults_in_vain(resolved)]
    if faults:
        raise ConfigError(list(dict.fromkeys(faults)))
    runs = [one.run for one in resolved if one.run is not None]
    notices += [vain.notice for run in runs for vain in run.in_vain.values()]
    notices += [notice for run in runs for notice in run.notices]
    distinct = _distinct(runs, notices)
    if claims and not overrides:  # under overrides a claim may be about what isn't run now, and says so
        from experiments.claims import check_runs

        check_runs(claims, [run.label for run in distinct], str(path))
    return Plan(str(path), distinct[0].settings.name, distinct, list(dict.fromkeys(notices)), claims)


def _claims(draft: Draft) -> tuple[list[Claim], list[str]]:
    """What the config claims, which is no part of a run; measures look at runs, so their module stands above this."""
    if "claims" not in draft.tree:
        return [], []
    from experiments.claims import take_claims

    return take_claims(draft)


def _faults_in_vain(resolved: list[_Resolved]) -> list[str]:
    """A fault for each given key that no run uses; where some do, it is a notice for the others."""
    nowhere = [key for key in resolved[0].in_vain if all(key in one.in_vain for one in resolved)]
    return [one.in_vain[key].fault for one in resolved for key in nowhere if one.in_vain[key].fault]


def _distinct(runs: list[RunConfig], notices: list[str]) -> list[RunConfig]:
    """The runs that differ; a sweep over a key that one of its schedulers doesn't use makes equal ones."""
    first: dict[str, RunConfig] = {}
    for run in runs:
        if (earlier := first.setdefault(run.folder, run)) is not run:
            notices.append(f"sweep: {run.label!r} is the same run as {earlier.label!r}, and left out")
    return list(first.values())


class _Resolved(NamedTuple):
    """A combination, looked at: its run, None where it has faults (line, text)."""

    run: RunConfig | None
    in_vain: dict[str, Vain]
    faults: list[tuple[int, str]]


def _resolve(combination: Combination, default_name: str) -> _Resolved:
    draft = combination.draft
    faults = Faults(draft)
    settings = faults.validate(default_name)
    pieces = check_pieces(draft, settings, faults)
    sound = {
        key: why
        for key, why in unused_keys(settings, pieces).items()
        if faults.sound(key, ".".join(why.because_of), *(("scheduler.name",) if key.startswith("engine.") else ()))
    }
    settings = without_unused(settings.model_copy(update=pieces.replaced), sound)
    memory, notices = check_rules(settings, pieces, faults)
    notices += check_workload(settings, pieces, faults)
    settings = pinned(settings, pieces, faults)
    in_vain = {key: _vain(draft, faults, key, why) for key, why in sound.items() if _matters(draft, key)}
    if faults or memory is None:
        return _Resolved(None, in_vain, faults.lines)
    effective, sources = _effective(draft, settings, pieces, set(sound))
    run = RunConfig(combination.label, settings, pieces, memory, effective, sources, notices, in_vain)
    return _Resolved(run, in_vain, [])


def _matters(draft: Draft, key: str) -> bool:
    """Whether somebody gave `key` a value other than one that says nothing: null, 0, or a factor of one."""
    section, _, name = key.partition(".")
    neutral = (None, 0, 1) if section in ("load", "trace") else (None, 0)
    value = draft.tree[section][name] if name and draft.given(key) else draft.tree.get(section)
    return draft.given(key) and value not in neutral


def _vain(draft: Draft, faults: Faults, key: str, why: Unused) -> Vain:
    """A fault, unless it is the command line that took the meaning from a key of the file, or vLLM has no quarrel."""
    origin, cause = draft.origin(tuple(key.split("."))), draft.nearest(why.because_of)
    from_file = origin is not None and not origin.is_override
    forgiven = key == _UTILIZATION or (from_file and cause is not None and cause.is_override)
    fault = "" if forgiven else faults.describe(tuple(key.split(".")), f"changes nothing: {why.text}")
    return Vain(f"{key} changes nothing: {why.text}", fault)


def _effective(
    draft: Draft, settings: Settings, pieces: Pieces, unused: set[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(plain values in the schema's order without unused keys, the source of each)."""
    effective: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in settings.model_dump().items():
        if (key in ("trace", "load") and value is None) or key in unused:
            continue
        if key in pieces.options:
            value = {"name": value["name"], **pieces.options[key]}
        if not isinstance(value, dict):
            effective[key], sources[key] = value, _source(draft, (key,), pieces)
            continue
        effective[key] = {k: v for k, v in value.items() if f"{key}.{k}" not in unused}
        for inner in effective[key]:
            sources[f"{key}.{inner}"] = _source(draft, (key, inner), pieces)
    return effective, sources


def _source(draft: Draft, path: tuple[str, ...], pieces: Pieces) -> str:
    if (derived := pieces.derived.get(".".join(path))) is not None:
        return f"derived: {derived}"
    if path[0] == "pins":
        return "derived: SHA-256"
    if path == ("name",) and draft.origin(path) is None:
        return "derived: the file's name"
    origin = draft.origin(path)
    return "default" if origin is None else origin.kind
