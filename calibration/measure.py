"""`python3 -m calibration.measure`: time a model's kernels on this machine, into a folder.

Standard library and torch only, so it runs from a bare checkout on a machine that has nothing else (and `--device fake`
without torch). `servesim calibrate measure` is the same with the same options.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from calibration.harness import records
from calibration.harness.backends import BUILTIN, Device, Kernels, open_device
from calibration.harness.environment import checkout, host, versions
from calibration.harness.findings import FALLS, noted
from calibration.harness.grid import Planned, axes_for, plan, plan_hash
from calibration.harness.progress import Progress
from calibration.harness.session import COMPLETE, Session
from calibration.harness.stopping import INTERRUPTED, Watch
from calibration.points import Timed
from simulator.errors import ConfigError, SimError, UserError
from simulator.names import gpu_named
from simulator.specs import GIB, ModelSpec, check_tensor_parallel, get_model
from simulator.suggest import did_you_mean

SCHEMA_VERSION = 1
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SECONDS = {"s": 1, "m": 60, "h": 3600, "": 1}
DESCRIPTION = "Time a model's kernels on this machine; the folder DIR then holds raw.csv, points.csv and meta.json."
EXAMPLE = "--model llama-3.1-8b --budget 5m --out measured"


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one line each, all at once."""

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse. Raises ConfigError; `--help` exits with 0."""
        self._faults: list[str] = []
        known = self._option_string_actions
        for word in arguments:
            name = word.partition("=")[0]
            if name.startswith("-") and name not in known and not re.match(r"--?$|-\.?[0-9]", name):
                self._faults.append(f"{self.prog}: {word}: unknown option{did_you_mean(name, known) or '; see --help'}")
        if self._faults:
            raise ConfigError(self._faults)
        given = self.parse_args(arguments)
        if self._faults:
            raise ConfigError(self._faults)
        return given

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            self._faults.append(f"{self.prog}: {error}")

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError."""
        raise ConfigError([*self._faults, f"{self.prog}: {message}"])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `measure`."""
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="a name of `servesim list models`, or a Hugging Face config.json")
    add("--device", type=_device, default="cuda", metavar="D", help="cuda (default), cpu, or fake: a known formula")
    add("--dtype", type=_dtype, metavar="T", help="bf16 (default), fp16 or fp32 (default on cpu)")
    add("--tp", type=_whole, default=1, metavar="N", help="the shapes of one of N tensor-parallel ranks (default 1)")
    add("--budget", type=_seconds, metavar="TIME", help="stop cleanly after it, such as 5m or 90s (default: no limit)")
    add("--resume", action="store_true", help="go on with the measurement in DIR")
    add("--seed", type=_seed, default=0, metavar="N", help="decides order and data (default 0)")
    add("--out", type=_folder, required=True, metavar="DIR", help="the folder to write")


def measure(given: argparse.Namespace, argv: Sequence[str]) -> int:
    """Measure as the options say. Returns the exit status: 0 (also out of budget), 130 interrupted.

    Raises ConfigError for options that don't fit each other or DIR, MissingError without torch or device.
    """
    model = get_model(given.model)
    try:
        check_tensor_parallel(model, given.tp)
    except ConfigError as error:
        raise ConfigError([fault.replace("engine.tensor_parallel_size:", "--tp") for fault in error.faults]) from None
    with records.alone(given.out):
        return _opened(given, model, argv)


def _opened(given: argparse.Namespace, model: ModelSpec, argv: Sequence[str]) -> int:
    out: Path = given.out
    begun = records.is_measured(out)
    if begun and not given.resume:
        raise ConfigError(f"--out {out}: holds a measurement; go on with it by --resume, or name another folder")
    if given.resume and not begun:
        print(f"notice: --resume: {out} holds no measurement yet; it begins", file=sys.stderr)
    rows, before = records.load(out) if begun else ([], {})
    started = datetime.now(UTC).isoformat(timespec="seconds")
    device = open_device(given.device, seed=given.seed)
    try:
        watch = Watch(device.clock_s, given.budget)
        with watch.signals():
            dtype = DTYPES[given.dtype or ("fp32" if given.device == "cpu" else "bf16")]
            kernels = device.kernels(model, dtype=dtype, tp=given.tp, seed=given.seed)
            planned = plan(
                model, axes=axes_for(device.kind), tp=given.tp, graphs=device.graphs, ranks=device.ranks(given.tp)
            )
            about = _about(given, model, device, kernels, dtype, planned)
            _check_same(out, before, about)
            runs = [*before.get("runs", []), {"started": started, "argv": list(argv)}]
            about |= {"runs": runs, "started": runs[0]["started"], "argv": list(argv)}
            return _run(given, device, kernels, planned, watch, rows, before, about)
    finally:
        device.close()


def _run(
    given: argparse.Namespace,
    device: Device,
    kernels: Kernels,
    planned: list[Planned],
    watch: Watch,
    rows: list[Timed],
    before: dict[str, Any],
    about: dict[str, Any],
) -> int:
    progress = Progress(len(planned), sys.stderr, budget_s=given.budget)
    for line in device.warnings():
        progress.say(f"warning: {line}")
    about["warnings"] = [line for line in before.get("warnings", []) if not line.startswith(FALLS)]
    about |= {key: before[key] for key in ("drifts", "clocks") if key in before}
    files = records.Records(given.out, dtype=about["dtype"], run=len(about["runs"]))
    progress.say(f"{about['device']['name']}: {kernels.engine}; {len(planned)} points")
    session = Session(
        device, kernels, planned, files, seed=given.seed, watch=watch, progress=progress,
        rows=rows, anchor_us=before.get("anchors"), about=about,
    )  # fmt: skip
    try:
        session.save()  # what raw.csv is of, before there is anything in it
        outcome = session.run()
    finally:
        files.close()
    if outcome == INTERRUPTED:
        print(f"interrupted; {len(session.rows)} of {len(planned)} points are kept; --resume goes on", file=sys.stderr)
        return 130
    _report(given.out, outcome, session)
    if not any(row.timed for row in session.rows.values()):
        reasons = ", ".join(session.found()["skipped"]) or "out of budget"
        print(f"{given.out}: no point could be timed: {reasons}", file=sys.stderr)
        return 3
    return 0


def _about(
    given: argparse.Namespace,
    model: ModelSpec,
    device: Device,
    kernels: Kernels,
    dtype: str,
    planned: list[Planned],
) -> dict[str, Any]:
    """What meta.json says before anything is timed."""
    info = device.info()
    about: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "partial",
        "model": asdict(model),
        "tensor_parallel_size": given.tp,
        "device": {"type": device.kind, **info},
        "gpu": _gpu_name(device.kind, info),
        "dtype": dtype,
        "engine": kernels.engine,
        "all_reduce": "included" if any(each.point.op == "allreduce" for each in planned) else "absent",
        "seed": given.seed,
    }
    about["plan_hash"] = plan_hash(planned, **{key: about[key] for key in _SAME}, device_name=info["name"])
    about |= {"versions": versions(), "host": host(), "checkout": checkout()}
    return about


_SAME = ("model", "tensor_parallel_size", "dtype", "engine", "gpu", "seed")


def _check_same(out: Path, before: dict[str, Any], about: dict[str, Any]) -> None:
    """Raise ConfigError where the measurement to go on with is of something else."""
    if not before or before.get("plan_hash") == about["plan_hash"]:
        return
    pairs = {key: (_named(before.get(key)), _named(about[key])) for key in ("device", *_SAME)}
    faults = [f"{key} {there}, not {here}" for key, (there, here) in pairs.items() if there != here]
    what = "; ".join(faults) or "another plan, by another version"
    raise ConfigError(f"--resume: {out} was measured with {what}; name another folder")


def _named(value: Any) -> str:
    """A model or a device by its name, anything else as it is."""
    return str(value.get("name", value) if isinstance(value, dict) else value)


def _gpu_name(kind: str, info: dict[str, Any]) -> str:
    """The name of a shipped GPU where the device is one, else a word made of its own name."""
    if kind != "cuda":
        return kind
    name = str(info["name"])
    try:
        return gpu_named(name, info["memory_bytes"] / GIB).name
    except ConfigError:
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"


def _report(out: Path, outcome: str, session: Session) -> None:
    found = session.found()
    skips = sum(found["skipped"].values())
    ended = "" if outcome == COMPLETE else f"; stopped by the budget, {len(session.planned)} planned: --resume goes on"
    print(f"{out}: {found['points']['timed']} points timed, {skips} skipped, {found['status']}{ended}")
    floor = ", ".join(f"{op} {value:.1f}" for op, value in found["repeat_floor_pct"].items())
    print(f"repeat floor in %: {floor or 'no point was timed twice'}; largest drift {found['drift_pct']:.1f} %")
    for reason, count in {**found["skipped"], **noted(session.rows.values())}.items():
        print(f"{count} {reason}")


def main(arguments: list[str] | None = None) -> int:
    """The bare command: one line per fault and the exit status 2, 3 where something is missing, 130 interrupted."""
    argv = sys.argv[1:] if arguments is None else arguments
    command = "python3 -m calibration.measure"
    parser = _Parser(command, description=DESCRIPTION, epilog=f"example: {command} {EXAMPLE}", allow_abbrev=False)
    add_options(parser)
    try:
        return measure(parser.parse(argv), [*command.split(), *argv])
    except KeyboardInterrupt:
        print("interrupted; what was timed is kept; --resume goes on", file=sys.stderr)
        return 130
    except UserError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return error.exit_status
    except SimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"{error.filename or 'writing the measurement'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        if os.environ.get("SERVESIM_DEBUG"):
            raise
        text = " ".join(str(error).split())
        print(f"defect: {type(error).__name__}: {text} (a bug; SERVESIM_DEBUG=1 shows where)", file=sys.stderr)
        return 1


def _device(text: str) -> str:
    return _one_of(text, BUILTIN)


def _dtype(text: str) -> str:
    return _one_of(text, DTYPES)


def _one_of(text: str, known: dict[str, Any]) -> str:
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(known)}{did_you_mean(text, known)}")
    return text


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty, where a path is expected")
    return Path(text)


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _seed(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 0")
    return int(text)


def _seconds(text: str) -> float:
    """Seconds of `90`, `90s`, `5m`, `1.5h`."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*)(s|m|h|)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} must be a time above 0, such as 5m, 90s or 1h")
    return float(found[1]) * SECONDS[found[2]]


if __name__ == "__main__":
    sys.exit(main())
