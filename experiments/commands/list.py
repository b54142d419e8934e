"""`servesim list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from experiments.commands.parser import Parser, choice

Rows = list[tuple[str, str]]


def _classes(table: str) -> Rows:
    builtin: dict[str, str] = import_module(table).BUILTIN
    rows = []
    for name, target in builtin.items():
        module, _, attribute = target.partition(":")
        summary = (getattr(import_module(module), attribute).__doc__ or "").split("\n")[0]
        rows.append((name, summary))
    return rows


def _models() -> Rows:
    from simulator.specs import MODELS

    return [
        (
            name,
            f"{m.num_params / 1e9:.2f} B parameters, {m.layers} layers, {m.kv_heads} kv_heads, "
            f"{m.kv_bytes_per_token() / 1024:g} KiB of KV per token, {m.max_model_len} tokens at most",
        )
        for name, m in MODELS.items()
    ]


def _gpus() -> Rows:
    from simulator.specs import GPUS

    return [
        (
            name,
            f"{g.memory_gib:.1f} GiB, {g.memory_gbps:g} GB/s, {g.bf16_tflops:g} dense bf16 TFLOP/s"
            if g.memory_gbps
            else g.source,
        )
        for name, g in GPUS.items()
    ]


def _traces() -> Rows:
    from workloads import SHIPPED

    return [(name, f"{trace.description}; {trace.licence}") for name, trace in SHIPPED.items()]


def _measured() -> Rows:
    from experiments.measured import REQUESTS, engine_name, load_meta, read_jsonl, shipped_runs

    rows = []
    for name, folder in shipped_runs().items():
        meta = load_meta(folder)
        what = f"{engine_name(meta)}, {meta['model']}, {meta['hardware']['device_name']}"
        rows.append((name, f"{what}, {len(read_jsonl(folder / REQUESTS, []))} requests"))
    return rows


def _configs() -> Rows:
    from experiments.config import shipped

    return [(name, path.read_text().split("\n")[0].lstrip("# ")) for name, path in shipped().items()]


KINDS: dict[str, Callable[[], Rows]] = {
    "schedulers": lambda: _classes("simulator.schedulers"),
    "cost-models": lambda: _classes("simulator.costs"),
    "models": _models,
    "gpus": _gpus,
    "traces": _traces,
    "configs": _configs,
    "measured": _measured,
}


def main(arguments: list[str]) -> int:
    """Print one kind of thing, a line each. Returns the exit status."""
    parser = Parser("list", "List what there is to choose from.", "servesim list schedulers")
    parser.add_argument("kind", type=choice(KINDS), metavar="|".join(KINDS), help="what to list")
    rows = KINDS[parser.parse(arguments).kind]()
    width = max(len(name) for name, _ in rows)
    for name, about in rows:
        print(f"{name:<{width}}  {about}")
    return 0
