"""`servesim calibrate fit` and `validate`: from points to a profile, and how good it is."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.commands.parser import Parser
from simulator.errors import ConfigError
from simulator.profile import SHAPE, Profile, load_profile

if TYPE_CHECKING:
    from calibration.measured import Measured

PROFILE, REPORT, ERRORS, FIGURE, GPU = (
    "profile.json", "report.md", "errors.csv", "measured_vs_predicted.png", "gpu.json",
)  # fmt: skip


def fit(arguments: list[str]) -> int:
    """Fit a profile to a measured folder. Returns the exit status."""
    from calibration.measured import fitted, gpu_spec, load_measured, save_gpu, write
    from calibration.validate import validate

    parser = Parser(
        "calibrate fit",
        "Makes a profile of the points in DIR, without those held out, for `cost_model: {name: table, profile: FILE}`.",
        "servesim calibrate fit mine",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `calibrate measure` wrote")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"what to write (default: DIR/{PROFILE})")
    parser.add_argument("--name", metavar="NAME", help="the profile's (default: GPU_MODEL_tpN)")
    given = parser.parse(arguments)
    measured = load_measured(given.folder)
    _warn(given.folder, measured.unfinished)
    name = given.name or f"{measured.gpu}_{measured.model.name}_tp{measured.tensor_parallel_size}"
    profile = fitted(measured, name)
    out = given.out or given.folder / PROFILE
    report = validate(profile, measured.rows, measured.repeat_floor_pct)
    write(out, replace(profile, metadata={**profile.metadata, "held_out": report.summary()}).save)
    print(f"{out}: {report.what}; {report.points['fit']:,} points fitted")
    for region in report.totals():
        print(f"  {region.operation}: median error {region.median_pct:.1f} % of {region.points} held out")
    spec = gpu_spec(measured)
    if spec is not None:
        save_gpu(spec, given.folder / GPU)
        print(f"{given.folder / GPU}: {spec.name}, by the best figures reached")
    print(f"next: servesim calibrate validate {given.folder}" + (f" --profile {out}" if given.out else ""))
    return 0


def validate(arguments: list[str]) -> int:
    """Compare a profile with a measured folder. Returns the exit status: 1 where `--strict` finds a gate missed."""
    from calibration.measured import load_measured, write
    from calibration.predict import Predictor
    from calibration.report import save_errors
    from calibration.validate import check, summarise, unknown
    from experiments.calibration_plots import write_measured_vs_predicted

    parser = Parser(
        "calibrate validate",
        f"Prints how far a profile lies from the held-out points of DIR, and writes {REPORT}, {ERRORS} and "
        f"{FIGURE} there.",
        "servesim calibrate validate mine --strict",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `calibrate measure` wrote")
    parser.add_argument("--profile", metavar="P", help=f"a name or a file (default: DIR/{PROFILE})")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a gate is missed")
    given = parser.parse(arguments)
    measured = load_measured(given.folder)
    profile = _profile(measured, given.profile)
    _warn(given.folder, measured.unfinished)
    checked = check(Predictor(profile).of, measured.rows)
    report = summarise(profile, checked, measured.repeat_floor_pct, unknown(measured.rows, checked))
    report = replace(report, note=f"Caution: {measured.unfinished}." if measured.unfinished else "")
    print(report.text())
    write(given.folder / REPORT, lambda path: path.write_text(report.markdown(), encoding="utf-8"))
    write(given.folder / ERRORS, lambda path: save_errors(path, checked))
    figures = write_measured_vs_predicted(given.folder / FIGURE, checked, _title(profile), report.what)
    files = [given.folder / REPORT, given.folder / ERRORS, *figures]
    print("\n" + "\n".join(str(path) for path in files))
    if given.strict:
        for miss in report.misses():
            print(f"{given.folder}: {miss}", file=sys.stderr)
        return 1 if report.misses() else 0
    return 0


def _profile(measured: Measured, given: str | None) -> Profile:
    """The profile asked for, of the same model and degree as the points."""
    path = measured.folder / PROFILE
    if given is None and not path.is_file():
        fit = f"servesim calibrate fit {measured.folder}"
        raise ConfigError(f"{path}: not there; make it with `{fit}`, or state --profile P")
    profile = load_profile(given or path)
    pairs = [(key, profile.shape[key], getattr(measured.model, key)) for key in SHAPE]
    pairs.append(("tensor_parallel_size", profile.metadata["tensor_parallel_size"], measured.tensor_parallel_size))
    if faults := [f"{profile.name}: {key} {of} against {timed} in {measured.folder}" for key, of, timed in pairs
                  if of != timed]:  # fmt: skip
        raise ConfigError(faults)
    if profile.metadata["gpu"] != measured.gpu:
        print(
            f"warning: {profile.name}: of {profile.metadata['gpu']}, {measured.folder} of {measured.gpu}",
            file=sys.stderr,
        )
    return profile


def _title(profile: Profile) -> str:
    return f"{profile.name}: measured against predicted, {profile.metadata['dtype']}"


def _warn(folder: Path, unfinished: str) -> None:
    if unfinished:
        print(f"warning: {folder}: {unfinished}", file=sys.stderr)
