"""`servesim profile`: the measured kernel times that the table cost model reads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.commands.parser import Parser, choice, whole
from simulator.errors import ConfigError, UserError
from simulator.names import gpu_named, model_named
from simulator.profile import Axis, AxisTable, GridTable, Profile, load_profile, shipped_profiles
from simulator.specs import MODELS, GpuSpec, ModelSpec, get_gpu, get_model

FORMATS = ("llmservingsim",)


def main(arguments: list[str]) -> int:
    """List, show or import profiles. Returns the exit status."""
    parser = Parser(
        "profile",
        "Kernel times of one model on one GPU, for `cost_model: {name: table, profile: NAME or FILE}`.\n"
        "import takes a folder of timings (dense.csv, per_sequence.csv, attention.csv, perhaps skew.csv, meta.yaml),\n"
        "or one with folders tp1, tp2, ... of these.",
        "servesim profile import --format llmservingsim perf/RTX4090/llama-3.1-8b/tp1 --out mine.json",
    )
    parser.add_argument("action", type=choice(["list", "show", "import"]), metavar="list|show|import")
    parser.add_argument("what", nargs="?", metavar="PROFILE|DIR", help="for show, a name or file; for import, a folder")
    parser.add_argument("--format", type=choice(FORMATS), default=FORMATS[0], metavar="F", help=", ".join(FORMATS))
    parser.add_argument("--model", metavar="M", help="a name, or a Hugging Face config.json (default: meta.yaml's)")
    parser.add_argument("--gpu", metavar="G", help="a name, or a file (default: meta.yaml's)")
    parser.add_argument("--tp", type=whole, metavar="N", help="tensor-parallel degree (default: the folder's)")
    parser.add_argument("--name", metavar="NAME", help="the profile's (default: GPU_MODEL_tpN, or that of --out)")
    parser.add_argument("--source", metavar="TEXT", help="where the timings come from")
    parser.add_argument("--licence", metavar="TEXT", help="under which terms")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what to write (default: NAME.json here)")
    given = parser.parse(arguments)
    if given.action == "list":
        if given.what is not None:
            raise ConfigError(f"servesim profile list: takes no argument, and got {given.what}")
        print("\n".join(f"{name}  {_headline(load_profile(name))}" for name in shipped_profiles()))
        return 0
    if given.what is None:
        needs = "a PROFILE, a name or a file" if given.action == "show" else "a DIR, the folder of timings"
        raise ConfigError(f"servesim profile {given.action}: needs {needs}")
    if given.action == "show":
        print(_shown(load_profile(given.what)))
    else:
        _import(given)
    return 0


def _import(given: argparse.Namespace) -> None:
    from calibration.importers.llmservingsim import sources

    found = [s for s in sources(given.what) if given.tp is None or s.tensor_parallel_size in (None, given.tp)]
    if not found:
        raise ConfigError(f"{given.what}: no folder tp{given.tp} in it")
    if given.out is not None and len(found) > 1:
        degrees = ", ".join(f"--tp {s.tensor_parallel_size}" for s in found)
        raise ConfigError(f"--out {given.out}: one file for {len(found)} profiles; choose one of {degrees}")
    profiles = [_profile(source, given) for source in found]
    for source, profile in zip(found, profiles, strict=True):
        out = given.out or Path(f"{profile.name}.json")
        try:
            profile.save(out)
        except OSError as error:
            raise ConfigError(f"--out {out}: can't be written: {error.strerror}") from None
        print(f"{out}: {_headline(profile)}")
        print(f"  mixed calls: {profile.metadata['mixed_layer_error']}")
        print(f"  uneven decode lengths: {profile.metadata['uneven_lengths']}")
        if source.uneven_lengths and profile.metadata["uneven_lengths"] == "no term":
            print(f"notice: {source.folder}: skew_fit is enabled, but no skew.csv is there: no term", file=sys.stderr)


def _profile(source: object, given: argparse.Namespace) -> Profile:
    from calibration.importers.llmservingsim import Source, import_profile

    assert isinstance(source, Source), "sources() gives Source objects"
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
            "engine": engine,
            "source": given.source or f"{given.format} folder {source.folder.resolve().name}",
            "licence": given.licence or "not stated",
        },
    )


def _model(given: str | None, stated: str, faults: list[str]) -> ModelSpec | None:
    try:
        if given is not None:
            return get_model(given) if given in MODELS or Path(given).exists() else model_named(given)
        if stated:
            return model_named(stated)
        faults.append("model: meta.yaml names none; state --model M")
    except UserError as error:
        faults += [fault if given else f"{fault}; state --model M" for fault in error.faults]
    return None


def _gpu(given: str | None, stated: str, faults: list[str]) -> GpuSpec | None:
    try:
        if given is not None:
            return get_gpu(given)
        if stated:
            return gpu_named(stated)
        faults.append("gpu: meta.yaml names none; state --gpu G")
    except UserError as error:
        faults += [fault if given else f"{fault}; state --gpu G" for fault in error.faults]
    return None


def _headline(profile: Profile) -> str:
    meta = profile.metadata
    return f"{meta['model']} on {meta['tensor_parallel_size']} x {meta['gpu']}, {meta['engine']}; {meta['licence']}"


def _shown(profile: Profile) -> str:
    attention = profile.attention
    lines = [f"{profile.name}: {_headline(profile)}", ""]
    lines += [f"{key}: {value}" for key, value in profile.metadata.items()]
    lines.append("shape: " + ", ".join(f"{key} {value}" for key, value in profile.shape.items()))
    lines.append("")
    for what, ops in (("tokens", profile.token_ops), ("sequences", profile.sequence_ops)):
        lines += [f"{op.op}: {op.count} x, {len(op.axis)} points, {_range(op.axis, what)}" for op in ops]
    lines.append(f"prefill attention: {_grid(attention.prefill, 'tokens in a chunk')}")
    lines.append(f"decode attention: {_grid(attention.decode, 'rows')}")
    if attention.decode_in_mixed is not None:
        lines.append(f"decode in a mixed call: {_grid(attention.decode_in_mixed, 'rows')}")
    lines.append(f"joined to prefill: {_join(attention.p)}")
    lines.append(f"uneven lengths, decode: {_alphas(attention.skew_decode)}")
    lines.append(f"uneven lengths, mixed: {_alphas(attention.skew_mixed)}")
    return "\n".join(lines)


def _range(axis: Axis, what: str) -> str:
    return f"{axis[0]:g} to {axis[-1]:g} {what}"


def _grid(table: GridTable, rows: str) -> str:
    size = f"{len(table.rows)} x {len(table.columns)} points"
    return f"{size}, {_range(table.rows, rows)}, {_range(table.columns, 'tokens before')}"


def _join(power: GridTable | None) -> str:
    if power is None:
        return "added up"
    every = [p for row in power.us for p in row]
    return f"p-norm, p {min(every):g} to {max(every):g} by chunk and rows ({len(every)} cells)"


def _alphas(table: AxisTable) -> str:
    if not any(table.values):
        return "no term"
    return "alpha " + ", ".join(f"{alpha:g} at {n:g}" for n, alpha in zip(table.axis, table.values, strict=True))
