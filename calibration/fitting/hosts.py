"""What a whole layer or a stack of layers takes beyond the sum of its kernels: the host's part of a step.

In a CUDA graph (or on a device without launches): base + per sequence + per layer, a profile's `host`, as an engine's
decode steps see it; and per token and layer, the operation `unattributed`: results of one kernel that the next has to
fetch, memory that is new to each call. Launched one by one: base + per layer again, joined to the kernels by a p-norm,
since launching runs ahead of a device that is busy; recorded beside it as `eager`. Never below 0: a layer whose kernels
find each other's results in a cache is faster than their sum, and a step that is predicted too long is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from calibration.fitting.forms import Column, least_squares
from calibration.points import WHOLE, Point, Timed
from calibration.predict import Predictor
from simulator.profile import EagerHost, OpTable, Profile
from simulator.profile_tables import join

UNATTRIBUTED = "unattributed"
POWERS = (1.0, 20.0)
# Residuals beyond 1 % of a step count less and less (scipy's soft_l1): they are a kernel's that lies between points.
CLOSE = 0.01


def fit_host(profile: Profile, rows: Sequence[Timed]) -> Profile:
    """`profile`, which has no host part yet, with that of the timed layers and stacks among `rows`, if any."""
    predicted = Predictor(profile).of
    whole = [row for row in rows if row.point.op in WHOLE]
    steady = [row for row in whole if row.point.mode != "eager"]
    eager = [row for row in whole if row.point.mode == "eager"]
    if steady:
        times = np.array([[row.median_us, predicted(row.point).us] for row in steady])
        base, per_sequence, per_layer, per_token = _steady(steady, times)
        ratio = float(np.median(times[:, 0] / times[:, 1]))
        note = f"measured / sum of kernels {ratio:.3f} in the median, {len(steady)} layers and stacks"
        profile = replace(
            profile, base_us=base, per_sequence_us=per_sequence, per_layer_us=per_layer,
            token_ops=(*profile.token_ops, *_unattributed(profile, per_token)),
            metadata={**profile.metadata, "whole_step": note},
        )  # fmt: skip
    return replace(profile, eager=_eager(profile, eager)) if eager else profile


def _unattributed(profile: Profile, per_token_us: float) -> Iterator[OpTable]:
    if per_token_us:
        most = max(op.axis[-1] for op in profile.token_ops)
        yield OpTable(UNATTRIBUTED, profile.attention.count, (1, most), (per_token_us, per_token_us * most))


def _steady(rows: Sequence[Timed], times: Column) -> tuple[float, float, float, float]:
    """(base, per sequence, per layer, per token of a layer) by least relative squares; 0 for what wasn't timed."""
    measured, kernels = times.T
    stack = np.array([row.point.op == "stack" for row in rows], dtype=np.float64)
    sequences = np.array([row.point.seqs + row.point.n_dec for row in rows])
    layers = np.array([_layers(row.point) for row in rows])
    tokens = np.array([row.point.tokens for row in rows])
    terms = np.array([stack, stack * sequences, layers, layers * tokens]).T / measured[:, None]
    short = (measured - kernels) / measured
    found = least_squares()(
        lambda x: terms @ x - short, np.full(4, 1e-3), bounds=(0, np.inf), loss="soft_l1", f_scale=CLOSE,
        x_scale=1 / np.maximum(np.abs(terms).max(axis=0), 1e-9),
    )  # fmt: skip
    base, per_sequence, per_layer, per_token = np.where(terms.any(axis=0), found.x, 0.0).tolist()
    return round(base, 3), round(per_sequence, 3), round(per_layer, 3), round(per_token, 5)


def _eager(profile: Profile, rows: Sequence[Timed]) -> EagerHost:
    at = Predictor(profile).of
    kernels = np.array([at(replace(row.point, mode="graph")).us for row in rows])
    measured = np.array([row.median_us for row in rows])
    layers = np.array([_layers(row.point) for row in rows])
    stack = np.array([row.point.op == "stack" for row in rows])

    def off(theta: Column) -> Column:
        launches = stack * theta[0] + layers * theta[1]
        joined = [join(a, b, theta[2]) for a, b in zip(kernels, launches, strict=True)]
        error: Column = np.log(np.array(joined) / measured)
        return error

    longest = float((measured / layers).max())
    found = [
        least_squares()(
            off, [longest / 20, longest / 10, power], bounds=([0, 0, POWERS[0]], [10 * longest, longest, POWERS[1]]),
            loss="soft_l1", f_scale=CLOSE, x_scale=[longest, longest, 1.0],
        )
        for power in (1.1, 3.0)
    ]  # fmt: skip
    base, per_layer, power = min(found, key=lambda fit: fit.cost).x.tolist()
    return EagerHost(base, per_layer, power)


def _layers(point: Point) -> int:
    return max(point.layers, 1)
