"""A run's results on disk and back; also reads measured runs: of `vllm bench serve`, of SGLang, of a server's log.

A folder is complete once `meta.json` is there, which is written last and lists every file with its size and SHA-256:
neither an interrupted write nor a result that was changed afterwards looks complete. It also says what code made the
result and which figures belong to it, for `outdated`: whether a result can stand for running it again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from experiments.measured import find_run, from_sglang, is_measured, is_number, is_sglang, load_measured
from experiments.provenance import code_sha256, sha256
from experiments.records import Result, RunContext, iterations_csv, requests_csv, result_fields
from simulator import __version__
from simulator.errors import ConfigError
from simulator.metrics import LATENCIES
from simulator.recorder import RunLog

__all__ = [
    "Result",
    "RunContext",
    "finite",
    "is_complete",
    "is_live",
    "keep_figures",
    "load_result",
    "load_results",
    "naming",
    "outdated",
    "write_result",
]

CONFIG, RESULT, REQUESTS, ITERATIONS, META = (
    "config.resolved.yaml",
    "result.json",
    "requests.csv",
    "iterations.csv",
    "meta.json",
)
# Fields of vLLM's result file that must be numbers (or null) where they are present.
TOTALS = (
    "num_prompts", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
    "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests",
)  # fmt: skip
# The arrays of `--save-detailed`, one value per request; without it vLLM keeps the last two.
NUMBERS = ("input_lens", "output_lens", "start_times", "ttfts", "latencies")
ARRAYS = (*NUMBERS, "itls", "errors", "queue_times")
REQUIRED = ("duration", "completed", "request_throughput", "output_throughput")
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)  # what a junk meta.json raises


def write_result(
    out_dir: Path | str,
    log: RunLog,
    context: RunContext,
    modules: Mapping[str, str] | None = None,
    fields: Result | None = None,
) -> Result:
    """Write the run's folder and return `name`, `out_dir` and the fields of `result.json`.

    `modules` are the SHA-256 of the user's modules that the run drew on, by path. `fields` is what `result.json` shall
    hold where that isn't of this log alone, but of several. Other files in the folder stay. Each
    file appears whole or not at all.
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / META).unlink(missing_ok=True)
    now = datetime.now().astimezone()
    fields = result_fields(log, context, now) if fields is None else fields
    files = {
        CONFIG: _write(folder / CONFIG, context.config_yaml),
        REQUESTS: _write(folder / REQUESTS, requests_csv(log)),
        ITERATIONS: _write(folder / ITERATIONS, iterations_csv(log)),
        RESULT: _write(folder / RESULT, json.dumps(fields, allow_nan=False)),
    }
    meta = {
        "date": now.isoformat(timespec="seconds"),
        "wall_s": context.wall_s,
        "servesim": __version__,
        "commit": _commit(),
        "code": code_sha256(),
        "modules": dict(modules or {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": dict(context.versions),
        "files": files,
    }
    _write(folder / META, json.dumps(meta, indent=1))
    return {"name": context.name, "out_dir": str(folder), **fields}


def keep_figures(out_dir: Path | str, figures: Iterable[Path]) -> None:
    """Note in `meta.json` that the run's figures are drawn: from now on the run isn't done without them."""
    folder = Path(out_dir)
    meta = json.loads((folder / META).read_text())
    listed = {one.name: {"bytes": one.stat().st_size, "sha256": sha256(one)} for one in figures}
    _write(folder / META, json.dumps({**meta, "figures": listed}, indent=1))


def is_complete(out_dir: Path | str) -> bool:
    """Whether a run's folder holds everything that `write_result` put there, as it was."""
    folder = Path(out_dir)
    try:
        return _holds(folder, json.loads((folder / META).read_text())["files"])
    except _UNREADABLE:
        return False


def outdated(out_dir: Path | str, *, figures: bool) -> str | None:
    """Why the result in a run's folder can't stand for running it again, in a few words; None where it can.

    It can't where its files aren't as they were, where another version of this program's code or of the user's modules
    made it, or where its `figures` are wanted and not there.
    """
    folder = Path(out_dir)
    try:
        meta = json.loads((folder / META).read_text())
        if not _holds(folder, meta["files"]):
            return "its files aren't as they were written"
        if meta["code"] != code_sha256():
            return "servesim's code has changed since"
        if changed := [path for path, known in meta["modules"].items() if not _is(Path(path), known)]:
            return f"{', '.join(changed)} changed since"
        if figures and not ("figures" in meta and _holds(folder, meta["figures"])):
            return "its figures are missing"
    except _UNREADABLE:
        return "it is incomplete"
    return None


def _holds(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether these files are there as `meta.json` lists them; sizes first, as they cost nothing."""
    listed = [(folder / name, entry["bytes"], entry["sha256"]) for name, entry in files.items()]
    sizes = all(path.is_file() and path.stat().st_size == size for path, size, _ in listed)
    return sizes and all(_is(path, known) for path, _, known in listed)


def _is(path: Path, known: str) -> bool:
    try:
        return sha256(path) == known
    except OSError:
        return False


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Within it, an OSError that doesn't say where, as that of a full disk, says `path`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def load_result(path: Path | str) -> Result:
    """A run's folder, its `result.json`, or a measured run, as `write_result` returned it.

    A measured run is a result file of vLLM or SGLang, or a folder as `experiments.measured` describes. `out_dir` is
    None where no tables of ours lie beside it. Raises ConfigError with all that is wrong.
    """
    given = find_run(path)
    if is_measured(given):
        return {"name": given.resolve().name, "out_dir": None, **load_measured(given)}
    if given.is_dir():
        if not (given / RESULT).is_file():
            raise ConfigError(f"{given}: no {RESULT} in this folder")
        if not is_complete(given):
            raise ConfigError(f"{given}: incomplete, as its run was interrupted, or changed since; run it again")
    file = given / RESULT if given.is_dir() else given
    fields = _parsed(file)
    fields = _checked(file, from_sglang(fields) if is_sglang(fields) else fields)
    folder = file.parent if file.name == RESULT and (file.parent / REQUESTS).is_file() else None
    name = folder.name if folder else file.stem
    return {"name": name, "out_dir": str(folder) if folder else None, **fields}


def load_results(paths: Iterable[Path | str]) -> list[Result]:
    """`load_result` of each path; a folder of folders stands for all complete runs below it, in order of path.

    Raises ConfigError with every fault of every path.
    """
    results, faults = [], []
    for path in map(Path, paths):
        alone = (path / RESULT).is_file() or is_measured(path) or not path.is_dir()
        inner = [] if alone else sorted(path.rglob(RESULT))
        for one in [file.parent for file in inner if is_complete(file.parent)] or [path]:
            try:
                results.append(load_result(one))
            except ConfigError as error:
                faults += error.faults
    if faults:
        raise ConfigError(faults)
    return results


def is_live(result: Result) -> bool:
    """Whether a result of ours was measured by `servesim live`."""
    sim = result.get("sim")
    return isinstance(sim, dict) and sim.get("executor") == "live"


def finite(value: Any) -> float | int | None:
    """`value` where it is a finite number, else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if number else None


def _parsed(file: Path) -> Result:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text file") from None
    try:
        fields = json.loads(text, parse_constant=lambda _: None)  # NaN, Infinity
    except json.JSONDecodeError as error:
        hint = "; a file with several results (--append-result) must be split" if "Extra" in error.msg else ""
        raise ConfigError(f"{file}:{error.lineno}: not JSON: {error.msg}{hint}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not a result: nested too deeply") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{file}: not a result: holds a {type(fields).__name__}, not an object")
    return fields


def _checked(file: Path, fields: Result) -> Result:
    missing = [name for name in REQUIRED if name not in fields]
    if missing:
        raise ConfigError(f"{file}: not a result of `servesim run` or `vllm bench serve`: lacks {', '.join(missing)}")
    faults = []
    for name, value in fields.items():
        numeric = name in TOTALS or (name.endswith("_ms") and any(f"_{m}_" in name for m in LATENCIES))
        if numeric and value is not None and finite(value) is None:
            faults.append(f"{file}: {name} = {_short(value)}: must be a number or null")
    rate = fields.get("request_rate")
    if rate is not None and rate != "inf" and finite(rate) is None:
        faults.append(f'{file}: request_rate = {_short(rate)}: must be a number or "inf"')
    faults += _array_faults(file, fields)
    if not isinstance(fields.get("sim", {}), dict):
        faults.append(f"{file}: sim = {_short(fields['sim'])}: must be an object")
    if faults:
        raise ConfigError(faults)
    return fields


def _array_faults(file: Path, fields: Result) -> list[str]:
    """What is wrong with the arrays of `--save-detailed`: numbers, as many as there are requests."""
    faults = []
    arrays = {name: fields[name] for name in ARRAYS if fields.get(name) is not None}
    for name, values in arrays.items():
        if not isinstance(values, list):
            faults.append(f"{file}: {name} = {_short(values)}: must be a list")
        elif name in NUMBERS and (bad := [i for i, value in enumerate(values) if not is_number(value)]):
            faults.append(f"{file}: {name}[{bad[0]}] = {_short(values[bad[0]])}: must be a finite number")
    counts = {name: len(values) for name, values in arrays.items() if isinstance(values, list)}
    if len(set(counts.values())) > 1:
        faults.append(f"{file}: arrays of unequal length: {', '.join(f'{n} {count}' for n, count in counts.items())}")
    return faults


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _write(path: Path, text: str) -> dict[str, Any]:
    """Write `path` in one step and return what `meta.json` says of it."""
    data = text.encode()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            unfinished.write_bytes(data)
            os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _commit() -> str | None:
    """The commit of the source tree that this module runs from, None outside a checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
