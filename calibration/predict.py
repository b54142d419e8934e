"""What a profile says of one call: of a linear layer, an attention call, a whole layer or a stack of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from calibration.fitting.operations import ALLREDUCE, ELEMENT_BYTES, EMBEDDING
from calibration.points import ATTENTION, WHOLE, Point
from simulator.costs.attention import AttentionTimes
from simulator.costs.reach import EXTRAPOLATED, FALLBACK, FALLBACK_SHARE, INTERPOLATED, Work
from simulator.curves import Curve
from simulator.plan import BatchShape
from simulator.profile import Profile
from simulator.profile_tables import join

# Token operations that aren't a layer's, under our names and those of older profiles.
ONCE = (EMBEDDING, "final_layernorm")


class Prediction(NamedTuple):
    """Microseconds of one call, and whether they lie between measured points (interpolated), beyond them
    (extrapolated), or come from operations that were never timed (fallback)."""

    us: float
    tag: str


class Predictor:
    """Looks up single calls, by the rules that the table cost model adds them up by."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._attention = AttentionTimes(profile.attention, 1.0)
        self._ops = {op.op: (op, Curve(op.axis, op.us)) for op in (*profile.sequence_ops, *profile.token_ops)}
        self._layer_ops = [op for op in profile.token_ops if op.op not in ONCE]
        self._linears = {(op.n, op.k): op.op for op in (*profile.sequence_ops, *profile.token_ops) if op.n}

    def of(self, point: Point) -> Prediction:
        """One call of the point's operation. Raises KeyError for one that the profile doesn't have."""
        if point.op in ATTENTION:
            return self._attend(point)
        if point.op in WHOLE:
            return self._whole(point)
        if point.op == "linear":
            return self._op(self._linears[point.n, point.k], point.m)
        if point.op == ALLREDUCE:
            if point.ranks != self.profile.metadata["tensor_parallel_size"]:
                raise KeyError(f"{ALLREDUCE} over {point.ranks}")
            return self._op(ALLREDUCE, point.bytes / (self.profile.shape["hidden"] * ELEMENT_BYTES))
        return self._op(point.op, point.m)

    def _op(self, name: str, size: float) -> Prediction:
        op, curve = self._ops[name]
        tag = FALLBACK if op.basis == FALLBACK else INTERPOLATED
        return Prediction(curve.at(size), tag if curve.covers(size) else EXTRAPOLATED)

    def _attend(self, point: Point) -> Prediction:
        shape = batch_shape(point)
        outside = any(lookup.outside.any() for lookup in self._attention.lookups(Work.of(shape)))
        return Prediction(self._attention.of(shape), EXTRAPOLATED if outside else INTERPOLATED)

    def _whole(self, point: Point) -> Prediction:
        """A layer, or a stack with its ends and its host's part; eager where launching takes longer."""
        layers, rows = (point.layers, point.seqs + point.n_dec) if point.op == "stack" else (1, 0)
        calls = [(layers * op.count / self.profile.attention.count, self._op(op.op, point.tokens))
                 for op in self._layer_ops]  # fmt: skip
        calls.append((layers, self._attend(point)))
        host = layers * self.profile.per_layer_us
        if rows:
            once = [(op, point.tokens) for op in self.profile.token_ops if op.op in ONCE]
            once += [(op, rows) for op in self.profile.sequence_ops]
            calls += [(op.count, self._op(op.op, size)) for op, size in once]
            host += self.profile.base_us + rows * self.profile.per_sequence_us
        us = sum(count * call.us for count, call in calls) + host
        tag = _worst(us, calls)
        eager = self.profile.eager
        if point.mode == "eager" and eager is not None:
            us = join(us, (eager.base_us if rows else 0.0) + layers * eager.per_layer_us, eager.power)
        return Prediction(us, tag)


def batch_shape(point: Point) -> BatchShape:
    """A point's call as a cost model sees it."""
    chunks = ((point.chunk, point.ctx),) * point.seqs if point.chunk else ()
    return BatchShape(chunks, point.n_dec, point.n_dec * point.kv_dec, point.longest if point.n_dec else 0)


def _worst(us: float, calls: Iterable[tuple[float, Prediction]]) -> str:
    guessed = 0.0
    for count, call in calls:
        if call.tag == EXTRAPOLATED:
            return EXTRAPOLATED
        guessed += count * call.us if call.tag == FALLBACK else 0.0
    return FALLBACK if guessed > FALLBACK_SHARE * us else INTERPOLATED
