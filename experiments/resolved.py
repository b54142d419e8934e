"""`config.resolved.yaml`: a run with every default filled in, and behind each value who gave it.

Running that file gives the same run, bit for bit, or a message about what has changed: the files that a run depends on
(trace, model, GPU, profile, a scheduler's source) are pinned by SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.faults import Faults
from experiments.pieces import Pieces
from experiments.schema import Settings
from experiments.yamltext import parse
from simulator import __version__
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from experiments.config import RunConfig


def pinned(settings: Settings, pieces: Pieces, faults: Faults) -> Settings:
    """`settings` with the digest of every file the run depends on; a pin that no longer holds is a fault."""
    digests: dict[str, str] = {}
    for key, path in {**pieces.files, **_sources(pieces)}.items():
        try:
            digests[key] = _sha256(path, path.stat().st_mtime_ns)
        except OSError as error:
            faults.add(tuple(key.split(".")), f"{path} can't be read: {error.strerror}")
    for key, digest in settings.pins.items():
        if not faults.sound(key):
            continue
        if key not in digests:
            faults.add(("pins", key), "this run depends on no such file")
        elif digests[key] != digest:
            faults.add(("pins", key), f"the file has changed: its SHA-256 is now {digests[key]}")
    return settings.model_copy(update={"pins": digests})


def _sources(pieces: Pieces) -> dict[str, Path]:
    """The source files of schedulers and cost models from outside this package."""
    found = {}
    for key, cls in (("scheduler.name", pieces.scheduler_class), ("cost_model.name", pieces.cost_class)):
        source = None if cls.__module__.startswith("simulator.") else inspect.getsourcefile(cls)
        if source is not None:
            found[key] = Path(source)
    return found


@functools.lru_cache(maxsize=256)
def _sha256(path: Path, _modified_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolved_text(run: RunConfig, note: str = "Running this file gives the same run, bit for bit.") -> str:
    """The resolved config of `run` as YAML, with a `note` on what it is good for."""
    lines = [
        f"# Resolved by servesim {__version__}. Behind each value stands who gave it.",
        f"# {note}",
    ]
    for key, value in run.effective.items():
        if not isinstance(value, Mapping):
            lines.append(_line(key, value, run.sources[key]))
            continue
        lines.append(f"{key}:" if value else f"{key}: {{}}")
        lines += ["  " + _line(inner, v, run.sources[f"{key}.{inner}"]) for inner, v in value.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, source: str) -> str:
    return f"{_plain(key)}: {_plain(value)}  # {source}"


def _plain(value: Any) -> str:
    """`value` as YAML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_plain(k)}: {_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    if isinstance(value, float):
        return repr(value).replace("inf", ".inf")
    if isinstance(value, str) and _reads_back(value):
        return value
    return json.dumps(value)


def _reads_back(text: str) -> bool:
    try:
        return bool(parse(f"[{text}]", "").value == [text])
    except ConfigError:
        return False
