"""What a result was made by: this program's own code, and the modules of a user's scheduler or cost model."""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
_OWN = ("simulator", "workloads", "calibration", "experiments")
_INSTALLED = {"site-packages", "dist-packages"}


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file's content. Raises OSError."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.cache
def code_sha256() -> str:
    """SHA-256 over what this program's results depend on: its sources, its data on machines, numpy and simpy.

    Traces and profiles that a config names are pinned by their content, so only the simulator's data is in it.
    """
    digest = hashlib.sha256(f"numpy {version('numpy')}, simpy {version('simpy')}".encode())
    for package, pattern in (("simulator", "*"), ("workloads", "*.py"), ("experiments", "*.py")):
        for path in sorted((ROOT / package).rglob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"\n{path.relative_to(ROOT).as_posix()} {sha256(path)}".encode())
    return digest.hexdigest()


def user_modules(classes: Iterable[type]) -> dict[str, str]:
    """The SHA-256, by path, of every imported file that those of `classes` from outside this program may draw on.

    That is their own packages, and all that is neither Python's nor installed nor ours: what a class uses of it can't
    be told, as `from limits import N` leaves no trace. Empty where no class is from outside.
    """
    packages = {cls.__module__.partition(".")[0] for cls in classes} - {*_OWN}
    found = {}
    for name, module in sys.modules.copy().items() if packages else ():
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        package = name.partition(".")[0]
        if not isinstance(file, str) or package in {*_OWN, "__main__"} - packages:
            continue
        path = Path(file).resolve()
        if path.is_file() and (package in packages or not _is_installed(path)):
            found[str(path)] = sha256(path)
    return dict(sorted(found.items()))


def _is_installed(path: Path) -> bool:
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    return not _INSTALLED.isdisjoint(path.parts) or not standard.isdisjoint(path.parents)
