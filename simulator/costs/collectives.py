"""What tensor parallelism adds: two all-reduces per decoder layer, after attention's output projection and the MLP.

Each sums `hidden` activations per token over the p ranks (Megatron-LM, arXiv 1909.08053). How long that takes comes
from a measured table, or from a link's bandwidth B, a latency per call and the bytes S that an algorithm moves:

    ring       2 (p-1)/p S / B     reduce-scatter, then all-gather (NCCL's default for large messages)
    tree       2 S / B             reduce up, broadcast down, pipelined (NCCL's double binary tree)
    one_shot   (p-1) S / B         each rank reads all others' buffers (vLLM's custom all-reduce for small messages)
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from simulator.costs.base import check_number
from simulator.curves import Curve
from simulator.errors import ConfigError
from simulator.specs import Platform
from simulator.suggest import did_you_mean

ALGORITHMS = ("ring", "tree", "one_shot")
# The form of a measured table: sizes are in elements, times per call in microseconds.
COLUMNS = ("op_name", "kind", "num_gpus", "message_size", "elem_bytes", "latency_us")
NOTHING = Curve([0.0], [0.0])


@dataclass(frozen=True)
class Link:
    """How ranks talk: options of a cost model. `gbps` is in GB/s per direction, None for the GPU's own link.

    `latency_us` is what a call takes before its first byte. `table`, the path of a measured table, replaces the rest.
    """

    gbps: float | None = None
    efficiency: float = 1.0
    latency_us: float = 0.0
    algorithm: str = "ring"
    table: str | None = None

    def faults(self) -> list[str]:
        """What is wrong with the values, a line each."""
        faults: list[str] = []
        if self.gbps is not None:
            check_number(faults, "link_gbps", self.gbps, 0, 1e6, above=True)
        check_number(faults, "link_efficiency", self.efficiency, 0, 1, above=True)
        check_number(faults, "allreduce_latency_us", self.latency_us, 0, 1e6)
        if self.algorithm not in ALGORITHMS:
            hint = did_you_mean(self.algorithm, ALGORITHMS)
            faults.append(f"cost_model.allreduce: {self.algorithm!r} must be one of {', '.join(ALGORITHMS)}{hint}")
        if self.table is not None and self != Link(table=self.table):
            others = "link_gbps, link_efficiency, allreduce_latency_us and allreduce"
            faults.append(f"cost_model.collectives: {self.table}: a measured table leaves nothing to {others}")
        return faults


def allreduce_curve(platform: Platform, link: Link) -> Curve:
    """Nanoseconds of all the all-reduces of one iteration by its tokens; 0 on one GPU. Raises ConfigError."""
    ranks, model = platform.tensor_parallel_size, platform.model
    if ranks == 1:
        return NOTHING
    calls, token_bytes = 2 * model.layers, model.hidden * model.dtype_bytes
    if link.table is not None:
        points = measured(Path(link.table), ranks)
        return Curve([size / token_bytes for size in points], [us * 1000.0 * calls for us in points.values()])
    if not (link.gbps or platform.gpu.link_gbps):
        raise ConfigError(
            f"cost_model: no figure for the link between {platform.gpu.name}; state link_gbps or collectives"
        )
    moved = {"ring": 2 * (ranks - 1) / ranks, "tree": 2.0, "one_shot": ranks - 1.0}[link.algorithm]
    bytes_per_ns = (link.gbps or platform.gpu.link_gbps) * link.efficiency  # GB/s is bytes per nanosecond
    fixed, per_token = calls * link.latency_us * 1000.0, calls * moved * token_bytes / bytes_per_ns
    return Curve([0.0, 1.0], [fixed, fixed + per_token])


def measured(path: Path, ranks: int) -> dict[float, float]:
    """{bytes: microseconds} of an all-reduce over `ranks` GPUs, by size, from a CSV with COLUMNS.

    Where several implementations (`kind`) were timed, the fastest at each size. Raises ConfigError, a line per fault.
    """
    kinds: dict[str, dict[float, float]] = {}
    counts: set[int] = set()
    faults: list[str] = []
    for line, row in _rows(path):
        try:
            gpus, size = int(row["num_gpus"]), float(row["message_size"]) * float(row["elem_bytes"])
            us = float(row["latency_us"])
            if not (0 < size < 1e15 and 0 < us < 1e12):
                raise ValueError
        except (TypeError, ValueError):
            faults.append(f"{path}:{line}: num_gpus, message_size, elem_bytes and latency_us must be numbers above 0")
            continue
        if row["op_name"] == "all_reduce":
            counts.add(gpus)
            if gpus == ranks:
                kinds.setdefault(row["kind"], {})[size] = us
    if faults:
        raise ConfigError(faults)
    if not kinds:
        have = ", ".join(map(str, sorted(counts))) or "no number of"
        raise ConfigError(f"cost_model.collectives: {path}: no all_reduce over {ranks} GPUs; it has {have} GPUs")
    curves = [Curve(sorted(points), [points[x] for x in sorted(points)]) for points in kinds.values()]
    sizes = sorted({size for points in kinds.values() for size in points})
    return {x: min(curve.at(x) for curve in curves if curve.covers(x)) for x in sizes}


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    where = f"cost_model.collectives: {path}"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(f"{where}: lacks the columns {', '.join(missing)}")
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{where}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise ConfigError(f"{where}: isn't a CSV file") from None
