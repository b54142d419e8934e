"""`servesim profile`: the measured kernel times that the table cost model reads."""

from __future__ import annotations

import sys
from pathlib import Path

from calibration.report import Report
from experiments.commands.parser import Parser, choice, whole
from experiments.commands.profile_import import FORMATS, headline, import_tables
from simulator.errors import ConfigError
from simulator.hf_config import read_json
from simulator.profile import SHIPPED, Axis, AxisTable, GridTable, OpTable, Profile, load_profile, shipped_profiles
from simulator.profile_tables import MEASURED

REPORTS = SHIPPED / "reports"
NONE_OF_OURS = "notice: all from public tables; `servesim calibrate measure` has run on no GPU yet"
IMPORTS = ("format", "model", "gpu", "tp", "name", "engine", "source", "licence", "out")  # options of import


def main(arguments: list[str]) -> int:
    """List, show or import profiles. Returns the exit status."""
    parser = Parser(
        "profile",
        "Kernel times of one model on one GPU, for `cost_model: {name: table, profile: NAME or FILE}`.\n"
        "import takes a folder of timings. Tables of aiconfigurator and of vidur are told apart by their columns,\n"
        "whatever the files are called; both may be in one folder. LLMServingSim's are dense.csv, per_sequence.csv,\n"
        "attention.csv, perhaps skew.csv, meta.yaml, or folders tp1, tp2, ... of these.",
        "servesim profile import a100_sxm --model llama-3.1-8b --gpu a100-80gb --out mine.json",
    )
    parser.add_argument("action", type=choice(["list", "show", "import"]), metavar="list|show|import")
    parser.add_argument("what", nargs="?", metavar="PROFILE|DIR", help="for show, a name or file; for import, a folder")
    parser.add_argument("--format", type=choice(FORMATS), metavar="F", help=f"{', '.join(FORMATS)} (default: detected)")
    parser.add_argument("--model", metavar="M", help="a name, or a Hugging Face config.json (default: meta.yaml's)")
    parser.add_argument("--gpu", metavar="G", help="a name, or a file (default: meta.yaml's)")
    parser.add_argument("--tp", type=whole, metavar="N", help="tensor-parallel degree (default: the folder's)")
    parser.add_argument("--name", metavar="NAME", help="the profile's (default: GPU_MODEL_tpN, or that of --out)")
    parser.add_argument("--engine", metavar="TEXT", help="whose kernels were timed")
    parser.add_argument("--source", metavar="TEXT", help="where the timings come from")
    parser.add_argument("--licence", metavar="TEXT", help="under which terms")
    parser.add_argument("--out", type=Path, metavar="FILE", help="what to write (default: NAME.json here)")
    given = parser.parse(arguments)
    if given.action != "import" and (idle := [name for name in IMPORTS if getattr(given, name) is not None]):
        raise ConfigError([f"servesim profile {given.action}: --{name}: is for import only" for name in idle])
    if given.action == "list":
        if given.what is not None:
            raise ConfigError(f"servesim profile list: takes no argument, and got {given.what}")
        print("\n".join(f"{name}  {headline(load_profile(name))}" for name in shipped_profiles()))
        print(NONE_OF_OURS, file=sys.stderr)
        return 0
    if given.what is None:
        needs = "a PROFILE, a name or a file" if given.action == "show" else "a DIR, the folder of timings"
        raise ConfigError(f"servesim profile {given.action}: needs {needs}")
    if given.action == "show":
        profile = load_profile(given.what)
        print(_shown(profile))
        if given.what in shipped_profiles():
            print(f"\n{_report(profile.name)}")
    else:
        import_tables(given)
    return 0


def _shown(profile: Profile) -> str:
    attention = profile.attention
    lines = [f"{profile.name}: {headline(profile)}", ""]
    lines += [f"{key}: {value}" for key, value in profile.metadata.items()]
    lines.append("shape: " + ", ".join(f"{key} {value}" for key, value in profile.shape.items()))
    lines.append("")
    for what, ops in (("tokens", profile.token_ops), ("sequences", profile.sequence_ops)):
        lines += [f"{op.op}: {op.count} x, {_points(op)}, {_range(op.axis, what)}" for op in ops]
    roofline = "" if attention.roofline is None else ", times a smooth roofline"
    lines.append(f"prefill attention: {_grid(attention.prefill, 'tokens in a chunk')}{roofline}")
    if attention.several is not None:
        size = f"{len(attention.several.rows)} x {len(attention.several.columns)} points"
        reach = f"{_range(attention.several.rows, 'prompts')}, {_range(attention.several.columns, 'tokens each')}"
        lines.append(f"several prompts in a call: {size}, {reach}")
    lines.append(f"decode attention: {_grid(attention.decode, 'rows')}")
    if attention.decode_in_mixed is not None:
        lines.append(f"decode in a mixed call: {_grid(attention.decode_in_mixed, 'rows')}")
    lines.append(f"joined to prefill: {_join(attention.p)}")
    lines.append(f"uneven lengths, decode: {_alphas(attention.skew_decode)}")
    lines.append(f"uneven lengths, mixed: {_alphas(attention.skew_mixed)}")
    terms = f"{profile.base_us:g} us, {profile.per_layer_us:g} a layer, {profile.per_sequence_us:g} a sequence"
    lines.append(f"between kernels, per iteration: {terms}")
    return "\n".join(lines)


def _report(name: str) -> str:
    """What the package says about a shipped profile's errors."""
    path = REPORTS / f"{name}.json"
    if not path.is_file():
        return "no validation report"
    return "held-out errors\n" + Report.from_json(read_json(path)).text(worst=False)


def _points(op: OpTable) -> str:
    return f"{len(op.axis)} points" if op.basis == MEASURED else "never timed: a roofline"


def _range(axis: Axis, what: str) -> str:
    if len(axis) == 1:
        return f"{axis[0]:g} {what}"
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
