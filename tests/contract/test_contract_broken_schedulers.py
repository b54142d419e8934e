"""Each way to break a scheduler's contract is caught, and said in words."""

from __future__ import annotations

import random
from typing import Any

import pytest
from strategies import IntegerCost

from simulator import BlockPool, run
from simulator.errors import PolicyError
from simulator.plan import IterationPlan, Limits, Slice
from simulator.request import DECODING, PREFILLING, Request, Sequence
from simulator.schedulers.base import Scheduler, View
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.static import Static
from simulator.testing import check_scheduler


class ImpureQueue(Chunked):
    def plan(self, view: View) -> IterationPlan:
        for seq in view.waiting:
            seq.priority += 1
        return super().plan(view)


class ImpureCounter(Chunked):
    """Decodes every other time that it is asked."""

    asked = 0

    def plan(self, view: View) -> IterationPlan:
        self.asked += 1
        plan = super().plan(view)
        return plan._replace(decode=None) if self.asked % 2 and plan.prefill else plan


class DependsOnHowOftenItIsAsked(Chunked):
    """Two questions in a row have the same answer, but every answer depends on how many there were."""

    asked = 0
    decode_stable = False

    def plan(self, view: View) -> IterationPlan:
        self.asked += 1
        plan = super().plan(view)
        late = (self.asked - 1) // 2 % 3 == 2
        return plan._replace(prefill=plan.prefill[:1]) if late and len(plan.prefill) > 1 else plan


class NotAPlan(Scheduler):
    def plan(self, view: View) -> Any:
        return list(view.waiting)


class TooManyTokens(Continuous):
    """Sends a long prompt alone without declaring `whole_prompts`."""

    whole_prompts = False


class TooManySequences(Scheduler):
    def plan(self, view: View) -> IterationPlan:
        budget = view.limits.max_num_batched_tokens - len(view.decoding)
        waiting = list(view.waiting)[: max(0, budget)]
        return IterationPlan([Slice(seq, 1) for seq in waiting], view.decoding)


class TooManyBlocks(Chunked):
    """Never preempts."""

    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        return plan._replace(decode=view.decoding, preempt=()) if plan.preempt else plan


class UnknownSequence(Chunked):
    def plan(self, view: View) -> IterationPlan:
        ghost = Sequence(Request("ghost", 0, 3, 3), 0)
        return IterationPlan([Slice(ghost, 1)])


class UnknownPrefill(Chunked):
    """A sequence of some other engine, half way through its prompt."""

    def plan(self, view: View) -> IterationPlan:
        ghost = Sequence(Request("ghost", 0, 3, 3), 0)
        ghost.state = PREFILLING
        return super().plan(view)._replace(prefill=[Slice(ghost, 1)])


class SequenceTwice(Chunked):
    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        twice = [Slice(seq, 1) for seq, tokens in plan.prefill if tokens == 1]
        return plan._replace(prefill=[*plan.prefill, *twice])


class DecodesTwice(Chunked):
    def plan(self, view: View) -> IterationPlan:
        rows = [seq for seq in view.running if seq.state == DECODING]
        return IterationPlan(decode=[*rows, *rows]) if rows else super().plan(view)


class DecodesTheDead(Static):
    """Goes on with rows whose last token is out."""

    def plan(self, view: View) -> IterationPlan:
        return super().plan(view)._replace(decode=list(view.running))


class FractionOfAToken(Chunked):
    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        return plan._replace(prefill=[Slice(seq, tokens / 1) for seq, tokens in plan.prefill])  # type: ignore[arg-type]


class NoToken(Chunked):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan([Slice(seq, 0) for seq in view.waiting])


class MoreThanThePrompt(Scheduler):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan([Slice(seq, seq.remaining + 1) for seq in list(view.waiting)[:1]])


class PreemptsTwice(Chunked):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan(preempt=[*view.running] * 2) if view.num_running else super().plan(view)


class PreemptsTheWaiting(Chunked):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan(preempt=list(view.waiting))


class PreemptsAndDecodes(Chunked):
    def plan(self, view: View) -> IterationPlan:
        rows = [seq for seq in view.running if seq.state == DECODING]
        return IterationPlan(decode=rows, preempt=rows) if rows else super().plan(view)


class WaitsForThePast(Chunked):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan(wait_until_ns=view.now_ns)


class WaitsForAFraction(Chunked):
    """Half a nanosecond from now is now again, for ever."""

    work_conserving = False

    def plan(self, view: View) -> IterationPlan:
        return IterationPlan(wait_until_ns=view.now_ns + 0.5)  # type: ignore[arg-type]


class AlwaysLater(Chunked):
    work_conserving = False

    def plan(self, view: View) -> IterationPlan:
        return IterationPlan(wait_until_ns=view.now_ns + 1) if len(view.waiting) else super().plan(view)


class NeverStarts(Scheduler):
    def plan(self, view: View) -> IterationPlan:
        return IterationPlan()


class ForgetsToDecode(Chunked):
    work_conserving = False

    def plan(self, view: View) -> IterationPlan:
        return super().plan(view)._replace(decode=None)


class PreemptsForEver(Chunked):
    """Throws every prompt away before it is through."""

    def plan(self, view: View) -> IterationPlan:
        if view.num_running:
            return IterationPlan(preempt=list(view.running))
        return IterationPlan([Slice(seq, max(1, min(8, seq.remaining - 1))) for seq in list(view.waiting)[:1]])


class PeeksAtTheOrder(Chunked):
    """Shortest job first without saying that it is an oracle."""

    def __init__(self) -> None:
        super().__init__("sjf")
        self.oracle = False


class PeeksInThePlan(Chunked):
    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        return plan._replace(prefill=[s for s in plan.prefill if s.sequence._output_tokens % 2] or plan.prefill)


class UnstableDecode(Chunked):
    """Only the older half decodes in odd microseconds, whatever `decode_stable` says."""

    def plan(self, view: View) -> IterationPlan:
        rows = [seq for seq in view.running if seq.state == DECODING]
        if view.now_ns // 1_000 % 2 and len(rows) > 1:
            return IterationPlan(decode=rows[: len(rows) // 2]) if view.kv.free > len(rows) else super().plan(view)
        return super().plan(view)


class ClaimsToBeBusy(Static):
    work_conserving = True


class RandomPlan(Chunked):
    decode_stable = False

    def __init__(self) -> None:
        super().__init__()
        self.seed = random.random()

    def plan(self, view: View) -> IterationPlan:
        plan = super().plan(view)
        few = random.Random(f"{self.seed}/{view.now_ns}").random() < 0.5
        return plan._replace(prefill=plan.prefill[:1]) if few else plan


@pytest.mark.parametrize(
    ("scheduler", "error", "message"),
    [
        (ImpureQueue, AssertionError, r"isn't pure: at t=\d+ ns it changed waiting"),
        (ImpureCounter, AssertionError, "isn't pure: asked twice"),
        (DependsOnHowOftenItIsAsked, AssertionError, "two runs differ: iterations"),
        (RandomPlan, AssertionError, "two runs differ"),
        (NotAPlan, AssertionError, "must return an IterationPlan"),
        (
            TooManyTokens,
            PolicyError,
            r"continuous at t=\d+ ns, iteration \d+: tokens of an iteration \(limit \d+\)",
        ),
        (TooManySequences, PolicyError, r"max_num_seqs \(limit \d+\): planned \d+"),
        (TooManyBlocks, PolicyError, r"KV blocks \(limit \d+\): planned \d+"),
        (UnknownSequence, PolicyError, r"neither waits nor prefills: planned Sequence\('ghost', waiting"),
        (UnknownPrefill, PolicyError, r"neither waits nor prefills: planned Sequence\('ghost', prefilling"),
        (SequenceTwice, PolicyError, r"slices per sequence \(limit 1\): planned 2"),
        (DecodesTwice, PolicyError, r"decode rows per sequence \(limit 1\)"),
        (DecodesTheDead, PolicyError, "decode of a sequence that doesn't decode: planned Sequence"),
        (FractionOfAToken, PolicyError, r"tokens to prefill of '\d+' \(limit \d+\): planned \d+\.0"),
        (NoToken, PolicyError, r"tokens to prefill of '\d+' \(limit \d+\): planned 0"),
        (MoreThanThePrompt, PolicyError, r"tokens to prefill of '\d+' \(limit \d+\)"),
        (PreemptsTwice, PolicyError, r"preemptions per sequence \(limit 1\)"),
        (PreemptsTheWaiting, PolicyError, "preemption of a sequence that doesn't run"),
        (PreemptsAndDecodes, PolicyError, "decode of a sequence that doesn't decode"),
        (WaitsForThePast, PolicyError, "wait_until_ns must be later than now"),
        (WaitsForAFraction, PolicyError, "wait_until_ns"),
        (AlwaysLater, AssertionError, r"1001 empty plans in a row, \d+ wait"),
        (
            NeverStarts,
            PolicyError,
            r"NeverStarts at t=\d+ ns, iteration 0: nothing is planned, .* but \d+ wait and 0 run .*; first .*: Seq",
        ),
        (ForgetsToDecode, PolicyError, r"\d+ wait and \d+ run"),
        (PreemptsForEver, PolicyError, r"tokens computed without one coming out \(limit \d+\)"),
        (PeeksAtTheOrder, AssertionError, "an undeclared oracle: plans with"),
        (PeeksInThePlan, AssertionError, "an undeclared oracle: plans with"),
        (UnstableDecode, AssertionError, "claims decode_stable, but fast-forward isn't stepping: iterations"),
        (ClaimsToBeBusy, AssertionError, r"claims work_conserving, but is idle at t=\d+ ns while"),
    ],
)
def test_broken_scheduler_is_caught(scheduler: type[Scheduler], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        check_scheduler(scheduler, examples=200)
    (note,) = caught.value.__notes__
    assert note.startswith("example ")
    assert "Limits(" in note


def test_preempted_prompt_planned_again_counts_against_the_slots() -> None:
    """A plan may preempt a prompt and start it again; that takes a slot like any admission."""

    class SwapsAndAdmits(Scheduler):
        def plan(self, view: View) -> IterationPlan:
            waiting = list(view.waiting)
            victims = [seq for seq in view.running if seq.state == PREFILLING]
            if victims and waiting:
                return IterationPlan([Slice(victims[0], 1), Slice(waiting[0], 1)], preempt=victims)
            return IterationPlan([Slice(seq, 1) for seq in (victims or waiting)[:1]], view.decoding)

    requests = [Request("a", 0, 5, 5), Request("b", 0, 5, 5)]
    with pytest.raises(PolicyError, match=r"iteration 1: max_num_seqs \(limit 1\): planned 2"):
        run(requests, scheduler=SwapsAndAdmits(), cost_model=IntegerCost(), kv=BlockPool(100), limits=Limits(1, 16))
