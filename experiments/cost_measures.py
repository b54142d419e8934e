"""What one iteration of prefill or of decode costs: arithmetic, bytes and time, from a config's own cost model.

FLOPs are those of the linear layers, of the attention's query-key pairs and of the LM head; bytes are those layers'
weights, read once, and keys and values, read and written. Activations aren't counted. An iteration whose FLOPs per
byte lie below the GPU's ridge point (peak FLOP/s / bandwidth) can't be bound by arithmetic (Williams, Waterman,
Patterson: Roofline, CACM 2009).
"""

from __future__ import annotations

from typing import NamedTuple

from experiments.config import RunConfig
from experiments.measures import Measured
from experiments.replay import Runs
from experiments.tables import compact
from simulator.plan import BatchShape

PHASES = ("prefill", "decode")


class Iteration(NamedTuple):
    """One iteration that computes `tokens`: FLOPs, bytes moved, and nanoseconds by the cost model."""

    tokens: int
    flops: float
    moved_bytes: float
    ns: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes


class Peaks(NamedTuple):
    """What all GPUs of a run can do in a second."""

    flops: float
    moved_bytes: float

    @property
    def ridge(self) -> float:
        """FLOPs per byte from which on arithmetic is the bound."""
        return self.flops / self.moved_bytes


def peaks(run: RunConfig) -> Peaks:
    """The peaks of the GPUs of `run`, without efficiencies. Raises LookupError for a device without figures."""
    gpu, gpus = run.pieces.platform.gpu, run.settings.engine.tensor_parallel_size
    if not gpu.memory_gbps:
        raise LookupError(f"{gpu.name} has no peaks")
    return Peaks(gpu.bf16_tflops * 1e12 * gpus, gpu.memory_gbps * 1e9 * gpus)


def iteration(run: RunConfig, phase: str, rows: int, length: int) -> Iteration:
    """`rows` prompts of `length` tokens, or as many rows that decode and attend to `length` each.

    Raises LookupError for an unknown phase or sizes below 1.
    """
    if phase not in PHASES or rows < 1 or length < 1:
        raise LookupError(f"{phase} of {rows} x {length}: must be one of {', '.join(PHASES)}, and at least 1 token")
    model = run.pieces.platform.model
    if phase == "prefill":
        shape = BatchShape(((length, 0),) * rows)
        tokens, pairs = rows * length, rows * (length * (length + 1) // 2)
    else:
        shape = BatchShape((), rows, rows * length, length)
        tokens, pairs = rows, rows * length
    weights = (model.linear_flops_per_token + model.lm_head_flops_per_row) // 2
    flops = model.linear_flops_per_token * tokens + model.attention_flops_per_pair * pairs
    return Iteration(
        tokens=tokens,
        flops=float(flops + model.lm_head_flops_per_row * rows),
        moved_bytes=float(weights * model.dtype_bytes + model.kv_bytes_per_token() * rows * length),
        ns=run.pieces.cost_model().iteration_ns(shape),
    )


def growth(runs: Runs, phase: str, rows: int, length: int, times: int, by: str = "rows", run: str = "") -> Measured:
    """By what factor an iteration takes longer with `times` as many rows, or rows `times` as long (`by`: length)."""
    if by not in ("rows", "length"):
        raise LookupError(f"by {by}: must be rows or length")
    more = (rows * times, length) if by == "rows" else (rows, length * times)
    small, large = (iteration(runs.config(run), phase, *size) for size in ((rows, length), more))
    value = large.ns / small.ns
    return Measured(value, f"{value:.2f}x ({small.ns / 1e6:.3g} -> {large.ns / 1e6:.3g} ms)")


def intensity(runs: Runs, phase: str, rows: int, length: int, run: str = "") -> Measured:
    """FLOPs per byte of an iteration, and which side of the ridge point that is."""
    value = iteration(runs.config(run), phase, rows, length).intensity
    side = "compute" if value > peaks(runs.config(run)).ridge else "bandwidth"
    return Measured(value, f"{compact(value)} FLOP/byte: {side}-bound")


def ridge(runs: Runs, run: str = "") -> Measured:
    """The GPU's ridge point, FLOPs per byte."""
    value = peaks(runs.config(run)).ridge
    return Measured(value, f"{compact(value)} FLOP/byte")
