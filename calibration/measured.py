"""A folder that `servesim calibrate measure` wrote: its points, what they are of, and the profile made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from calibration.fit import fit_profile
from calibration.points import Timed, load_points
from simulator.errors import ConfigError
from simulator.hf_config import read_json
from simulator.json_checks import MOST, Check
from simulator.profile import SHAPE, Profile
from simulator.specs import GIB, GPUS, GpuSpec, ModelSpec

SCHEMA_VERSION = 1
NEEDED = ("model", "tensor_parallel_size", "device", "gpu", "dtype", "engine", "repeat_floor_pct")
NO_ENGINE = "kernels timed one by one; no engine, no host between them"


@dataclass(frozen=True)
class Measured:
    """`rows` are all points, skipped ones too; `meta` is meta.json."""

    folder: Path
    rows: Sequence[Timed]
    meta: dict[str, Any]
    model: ModelSpec
    tensor_parallel_size: int
    gpu: str
    repeat_floor_pct: dict[str, float]

    @property
    def unfinished(self) -> str:
        """Why the points aren't all that they should be, "" where they are."""
        reasons = {
            "partial": "the measurement didn't end: only points so far",
            "drifted": "the device's speed drifted by more than 3 % while it was timed",
            "unstable": "the device's speed drifted by more than 10 % while it was timed",
        }
        return reasons.get(str(self.meta.get("status")), "")


def load_measured(folder: str | Path) -> Measured:
    """Read points.csv and meta.json. Raises ConfigError with a line per fault."""
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    path = root / "meta.json"
    meta = read_json(path)
    if meta.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema_version: {meta.get('schema_version')!r} must be {SCHEMA_VERSION}")
    check = Check(str(path))
    check.mapping(meta, "", NEEDED, more=True)
    shape = _shape(check, meta.get("model"))
    for key in ("gpu", "dtype", "engine"):
        check.text(meta.get(key), key)
    degree = check.whole(meta.get("tensor_parallel_size"), "tensor_parallel_size")
    device = check.mapping(meta.get("device"), "device", ("name",), more=True)
    check.text(device.get("name"), "device.name")
    check.number(device.get("memory_bytes"), "device.memory_bytes", 0, 1e15)
    floors = check.mapping(meta.get("repeat_floor_pct"), "repeat_floor_pct", (), more=True)
    given = {
        op: check.number(floor, f"repeat_floor_pct.{op}", 0, 1e6) for op, floor in floors.items() if floor is not None
    }
    check.raise_faults()
    model = ModelSpec(**shape)
    return Measured(root, load_points(root / "points.csv"), meta, model, degree, meta["gpu"], given)


def _shape(check: Check, value: object) -> dict[str, Any]:
    """The fields of a ModelSpec."""
    needed = ("name", *SHAPE, "max_model_len")
    optional = [field.name for field in fields(ModelSpec) if field.name not in needed]
    shape = check.mapping(value, "model", needed, optional=optional)
    check.text(shape.get("name"), "model.name")
    for key in (*SHAPE, "max_model_len", "dtype_bytes"):
        check.whole(shape.get(key), f"model.{key}")
    check.number(shape.get("learned_positions"), "model.learned_positions", 0, MOST)
    for key in ("tied_embeddings", "gated_mlp", "qk_norm"):
        if not isinstance(shape.get(key, False), bool):
            check.fault(f"model.{key}", f"{shape[key]!r} must be true or false")
    check.choice(shape.get("biases"), "model.biases", ("none", "qkv", "attention", "all"))
    return shape


def fitted(measured: Measured, name: str) -> Profile:
    """The profile that the fit makes of the points it may see. Raises ConfigError."""
    meta = measured.meta
    metadata = {
        "device": str(meta["device"]["name"]),
        "dtype": str(meta["dtype"]),
        "engine": str(meta["engine"]),
        "source": f"servesim calibrate measure, seed {meta.get('seed')}, plan {meta.get('plan_hash')}",
        "licence": "the measurer's own",
        "measured": f"{meta.get('started')} to {meta.get('ended')}, {meta.get('status')}",
        "host": NO_ENGINE,
    }
    try:
        return fit_profile(
            measured.rows, name=name, model=measured.model, tensor_parallel_size=measured.tensor_parallel_size,
            gpu=measured.gpu, metadata=metadata,
        )  # fmt: skip
    except ConfigError as error:
        raise ConfigError([f"{measured.folder}: {fault}" for fault in error.faults]) from None


def gpu_spec(measured: Measured) -> GpuSpec | None:
    """A device that isn't shipped, by the best figures reached while it was timed; None for one that is.

    Bytes per second are those of weights that one token reads, FLOP/s those of the fastest linear layer: below the
    vendor's figures, and named so. Links aren't measured: 0.
    """
    if measured.gpu in GPUS:
        return None
    linear = [row for row in measured.rows if row.timed and row.point.op == "linear"]
    if not linear:
        return None
    flops = max(2.0 * row.point.m * row.point.n * row.point.k / row.median_us for row in linear) / 1e6
    width = measured.model.dtype_bytes
    moved = max(width * row.point.n * row.point.k / row.median_us for row in linear if row.point.m <= 64) / 1e3
    memory = float(measured.meta["device"].get("memory_bytes") or 0) / GIB
    if memory <= 0:
        return None
    source = "the best reached in a calibration, not the vendor's figures; links not measured"
    return GpuSpec(measured.gpu, round(memory, 2), round(moved, 1), round(flops, 2), 0, 0, source)


def save_gpu(spec: GpuSpec, path: Path) -> None:
    """Write what `simulator.specs.get_gpu` reads."""
    write(path, lambda out: out.write_text(json.dumps(asdict(spec), indent=1) + "\n", encoding="utf-8"))


def write(path: Path, save: Callable[[Path], object]) -> None:
    """Let `save` write a file next to `path`, then put it in its place. Raises ConfigError if that can't be done."""
    partial = path.with_name(path.name + ".partial")
    try:
        save(partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from None
