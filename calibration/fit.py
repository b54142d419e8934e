"""A profile out of timed points: tables where they were timed, closed forms between and beside them.

    linears, norms, ...   piecewise linear in tokens; what was never timed comes from a roofline (basis: fallback)
    prefill               a smooth roofline in query-key pairs and bytes x the residual of a (chunk, context) table
    several prompts       the same x the residual of a (prompts, length) table
    decode                bilinear in (rows, mean context), and alpha for the longest row
    mixed                 a decode table of its own, joined to the prefill by a fitted p-norm
    host                  what whole layers and stacks take beyond the sum of their kernels

Only rows of the split `fit` are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibration.fitting.attention_fit import fit_attention
from calibration.fitting.hosts import fit_host
from calibration.fitting.operations import ALLREDUCE, fit_operations
from calibration.points import FIT, Timed
from simulator.curves import Curve, total
from simulator.errors import ConfigError
from simulator.profile import SHAPE, Profile
from simulator.specs import ModelSpec


def fit_profile(
    rows: Sequence[Timed], *, name: str, model: ModelSpec, tensor_parallel_size: int, gpu: str,
    metadata: Mapping[str, Any],
) -> Profile:  # fmt: skip
    """The profile of `model` on one of `tensor_parallel_size` ranks of `gpu`.

    `metadata` gives device, dtype, engine, source and licence. Raises ConfigError where linear layers, prefill or
    decode weren't timed, with a line for each; MissingError without scipy.
    """
    used = [row for row in rows if row.timed and row.split == FIT]
    timed = {row.point.op for row in used}
    if faults := [f"{op}: no call was timed" for op in ("linear", "prefill", "decode") if op not in timed]:
        raise ConfigError(faults)
    operations = fit_operations(used, model, tensor_parallel_size)
    rest = total([(op.count / model.layers, Curve(op.axis, op.us)) for op in operations.token_ops])
    attention, notes = fit_attention(used, model, tensor_parallel_size, rest)
    reduced = any(op.op == ALLREDUCE for op in operations.token_ops)
    profile = Profile(
        name=name,
        metadata={
            "gpu": gpu, "model": model.name, "dtype": "bfloat16", "tensor_parallel_size": tensor_parallel_size,
            "all_reduce": "included" if reduced else "absent", **metadata, **notes,
            "fallback": ", ".join(operations.fallback) or "none", "missing": ", ".join(operations.missing) or "none",
        },
        shape={key: getattr(model, key) for key in SHAPE},
        token_ops=operations.token_ops,
        sequence_ops=operations.sequence_ops,
        attention=attention,
        base_us=0.0,
        per_sequence_us=0.0,
    )  # fmt: skip
    return _rounded(fit_host(profile, used))


def _rounded(profile: Profile) -> Profile:
    """As its file will hold it: six digits of every number, and checked."""
    return Profile.from_json(_six_digits(profile.to_json()), profile.name)


def _six_digits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _six_digits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_six_digits(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
