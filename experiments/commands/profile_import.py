"""`servesim profile import`: other projects' kernel timings as profiles."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from calibration.importers.llmservingsim import FORMAT as LLMSERVINGSIM
from calibration.importers.llmservingsim import Source, import_profile, sources
from simulator.errors import ConfigError, UserError
from simulator.names import gpu_named, model_named
from simulator.profile import Profile
from simulator.specs import MODELS, GpuSpec, ModelSpec, check_tensor_parallel, get_gpu, get_model

FORMATS = ("aiconfigurator", "vidur", LLMSERVINGSIM)
NAMELESS = "these tables name none"


def import_tables(given: argparse.Namespace) -> None:
    """Import the folder `given.what`, write the profiles and say what they are. Raises ConfigError."""
    from calibration.importers.folder import formats

    folder = Path(given.what)
    if given.format == LLMSERVINGSIM or (given.format is None and not formats(folder)):
        found = sources(folder)
        if given.format is None and not any((source.folder / "attention.csv").is_file() for source in found):
            raise ConfigError(f"{folder}: no tables of a form known here: {', '.join(FORMATS)}")
        _layers(given, found)
    else:
        _folder(given)


def _folder(given: argparse.Namespace) -> None:
    """Tables that are told apart by their columns: fitted, and validated with what the fit didn't see."""
    from calibration.fit import fit_profile
    from calibration.importers.folder import metadata, read_folder
    from calibration.validate import validate

    faults: list[str] = []
    model, gpu, degree = _model(given.model, None, faults), _gpu(given.gpu, None, faults), given.tp or 1
    if model is None or gpu is None:
        raise ConfigError(faults)
    check_tensor_parallel(model, degree)
    folder = Path(given.what)
    imported = read_folder(folder, model=model, tp=degree, form=given.format)
    said = {
        "device": gpu.name, "dtype": "bfloat16", "engine": given.engine or "kernels one by one",
        "source": given.source or f"tables in {folder.resolve().name}", "licence": given.licence or "not stated",
        **metadata(imported),
    }  # fmt: skip
    name = given.name or (given.out.stem if given.out else f"{gpu.name}_{model.name}_tp{degree}")
    try:
        profile = fit_profile(
            imported.rows, name=name, model=model, tensor_parallel_size=degree, gpu=gpu.name, metadata=said
        )
    except ConfigError as error:
        raise ConfigError([f"{folder}: {fault}" for fault in error.faults]) from None
    report = validate(profile, imported.rows, imported.repeat_floor_pct)
    _save(replace(profile, metadata={**profile.metadata, "held_out": report.summary()}), given.out)
    print(report.text(worst=False))


def _layers(given: argparse.Namespace, found: list[Source]) -> None:
    """LLMServingSim's tables: all points as they are."""
    found = [s for s in found if given.tp is None or s.tensor_parallel_size in (None, given.tp)]
    if not found:
        raise ConfigError(f"{given.what}: no folder tp{given.tp} in it")
    if given.out is not None and len(found) > 1:
        degrees = ", ".join(f"--tp {s.tensor_parallel_size}" for s in found)
        raise ConfigError(f"--out {given.out}: one file for {len(found)} profiles; choose one of {degrees}")
    profiles = [_layer_profile(source, given) for source in found]
    for source, profile in zip(found, profiles, strict=True):
        _save(profile, given.out)
        print(f"  mixed calls: {profile.metadata['mixed_layer_error']}")
        print(f"  uneven decode lengths: {profile.metadata['uneven_lengths']}")
        if source.uneven_lengths and profile.metadata["uneven_lengths"] == "no term":
            print(f"notice: {source.folder}: skew_fit is enabled, but no skew.csv is there: no term", file=sys.stderr)


def _save(profile: Profile, out: Path | None) -> None:
    out = out or Path(f"{profile.name}.json")
    try:
        profile.save(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: can't be written: {error.strerror}") from None
    print(f"{out}: {headline(profile)}")


def headline(profile: Profile) -> str:
    """A profile in one line."""
    meta = profile.metadata
    return f"{meta['model']} on {meta['tensor_parallel_size']} x {meta['gpu']}, {meta['engine']}; {meta['licence']}"


def _layer_profile(source: Source, given: argparse.Namespace) -> Profile:
    faults: list[str] = []
    model, gpu = _model(given.model, source.text("model"), faults), _gpu(given.gpu, source.text("gpu"), faults)
    degree = given.tp or source.tensor_parallel_size
    if degree is None:
        faults.append(f"{source.folder}: which tensor-parallel degree? state --tp N")
    if model is None or gpu is None or degree is None:
        raise ConfigError(faults)
    engine = f"vLLM {source.text('vllm_version')}" if source.text("vllm_version") else "not stated"
    dtype = source.text("variant") or "bf16"
    return import_profile(
        source,
        name=given.name or (given.out.stem if given.out else f"{gpu.name}_{model.name}_tp{degree}"),
        model=model,
        gpu=gpu.name,
        tensor_parallel_size=degree,
        metadata={
            "device": source.text("gpu") or gpu.name,
            "dtype": {"bf16": "bfloat16", "fp16": "float16"}.get(dtype, dtype),
            "engine": given.engine or engine,
            "source": given.source or f"{LLMSERVINGSIM} folder {source.folder.resolve().name}",
            "licence": given.licence or "not stated",
        },
    )


def _model(given: str | None, stated: str | None, faults: list[str]) -> ModelSpec | None:
    try:
        if given is not None:
            return get_model(given) if given in MODELS or Path(given).exists() else model_named(given)
        if stated:
            return model_named(stated)
        faults.append(f"model: {NAMELESS if stated is None else 'meta.yaml names none'}; state --model M")
    except UserError as error:
        faults += [fault if given else f"{fault}; state --model M" for fault in error.faults]
    return None


def _gpu(given: str | None, stated: str | None, faults: list[str]) -> GpuSpec | None:
    try:
        if given is not None:
            return get_gpu(given)
        if stated:
            return gpu_named(stated)
        faults.append(f"gpu: {NAMELESS if stated is None else 'meta.yaml names none'}; state --gpu G")
    except UserError as error:
        faults += [fault if given else f"{fault}; state --gpu G" for fault in error.faults]
    return None
