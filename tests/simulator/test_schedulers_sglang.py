"""`sglang` beyond its recorded steps: its options, its ratio, its trains of prefills, other memories."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from strategies import IntegerCost

from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.errors import ConfigError
from simulator.kv import KvMemory
from simulator.prefix import CachedPool
from simulator.radix_pool import RadixPool
from simulator.schedulers.sglang import Sglang
from simulator.tokens import token_times


def serve(*requests: Request, kv: KvMemory, scheduler: Sglang | None = None, **options: Any) -> RunLog:
    return run(
        requests,
        scheduler=scheduler or Sglang(),
        cost_model=IntegerCost(),
        kv=kv,
        limits=Limits(max_num_seqs=8, max_model_len=100_000),
        **options,
    )


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(("conservativeness", "start"), [(1.0, 0.7), (0.3, 0.21), (2.0, 1.0)])
def test_the_ratio_falls_to_its_floor_in_600_decodes(conservativeness: float, start: float, fast_forward: bool) -> None:
    """field notes of SGLang: (start - floor) / 600 per decode, floor 0.14 of the start, back at the start when idle."""
    ratios: list[float] = []

    class Watched(Sglang):
        def on_commit(self, *of: Any) -> None:
            super().on_commit(*of)
            ratios.extend([self.ratio] * max(of[2], 1))

    scheduler = Watched(schedule_conservativeness=conservativeness)
    serve(Request("a", 0, 10, 701), kv=RadixPool(1000), scheduler=scheduler, fast_forward=fast_forward)
    assert ratios[0] == pytest.approx(start)
    assert ratios[700] == pytest.approx(0.14 * start)
    if not fast_forward:
        falls = -np.diff(ratios[:601])
        assert falls == pytest.approx(0.86 * start / 600)
        assert ratios[601:701] == pytest.approx([0.14 * start] * 100)
    assert scheduler.ratio == scheduler.start_ratio


def test_nobody_decodes_while_a_long_prompt_is_prefilled_chunk_by_chunk() -> None:
    log = serve(Request("a", 0, 10, 20), Request("b", 2_500, 40_000, 2), kv=RadixPool(60_000))
    prefills = log.iterations["prefill_tokens"].tolist()
    at = prefills.index(8192)
    assert prefills[at : at + 6] == [8192] * 4 + [40_000 - 4 * 8192, 0]
    assert log.iterations["decode_seqs"][at : at + 5].tolist() == [0] * 5
    train_ns = int(log.iterations["end_ns"][at + 4] - log.iterations["start_ns"][at])
    assert max(b - a for a, b in pairwise(token_times(log, 0).tolist())) >= train_ns


def test_mixed_chunks_keep_decodes_going() -> None:
    log = serve(
        Request("a", 0, 10, 20), Request("b", 2_500, 40_000, 2), kv=RadixPool(60_000),
        scheduler=Sglang(enable_mixed_chunk=True),
    )  # fmt: skip
    chunks = log.iterations["prefill_tokens"] > 10
    assert (log.iterations["decode_seqs"][chunks] == 1).all()
    assert log.iterations["prefill_tokens"].max() == 8191  # one token less for the decode beside it


@pytest.mark.parametrize("pool", [RadixPool, CachedPool, BlockPool])
def test_eager_admission_retracts_and_careful_admission_waits(pool: type[BlockPool]) -> None:
    requests = [Request(str(i), 3_000 * i, 20, 80, max_tokens=160) for i in range(12)]
    retracted, most = [], []
    for conservativeness in (0.1, 1.4):
        kv = pool(25, 16)
        log = serve(*requests, kv=kv, scheduler=Sglang(schedule_conservativeness=conservativeness))
        retracted.append(int(log.sequences["preemptions"].sum()))
        most.append(int(log.iterations["slots"].max()))
        assert kv.free == kv.total
    assert retracted[0] > retracted[1] == 0
    assert most[0] > most[1]


@pytest.mark.parametrize(("pool", "found"), [(RadixPool, 39), (CachedPool, 32), (BlockPool, 0)])
def test_either_cache_serves_it(pool: type[BlockPool], found: int) -> None:
    """All but the last of 40 tokens, or two whole blocks of them."""
    log = serve(
        Request("a", 0, 40, 2, prefix_hashes=(1, 2, 3)), Request("b", 50_000, 40, 2, prefix_hashes=(1, 2, 3)),
        kv=pool(40, 16),
    )  # fmt: skip
    assert log.sequences["cached_tokens"].tolist() == [0, found]


def test_what_is_found_again_after_a_retraction_is_counted_apart() -> None:
    """Two prompts that begin alike: the retracted one finds the other's part again."""
    requests = [
        Request(str(i), 3_000 * i, 64, 60, max_tokens=60, prefix_hashes=(1, 2, 10 + i, 20 + i)) for i in range(4)
    ]
    log = serve(*requests, kv=RadixPool(300), scheduler=Sglang(schedule_conservativeness=0.05))
    s = log.sequences
    assert s["cached_tokens"].tolist() == [0, 32, 32, 32]
    again = s["preemptions"] > 0
    assert again.any()
    assert (s["reused_tokens"][again] >= 32).all()
    assert (s["reused_tokens"][~again] == 0).all()


@pytest.mark.parametrize("fast_forward", [True, False])
def test_an_end_that_nobody_foresees_costs_the_overlap_loop_one_more_row(fast_forward: bool) -> None:
    """a stops by EOS, b by length: a's row is computed once more, for nobody."""
    took = {}
    for name, most in (("eos", 9), ("length", 4)):
        log = run(
            [Request("a", 0, 5, 4, max_tokens=most), Request("b", 0, 5, 8, max_tokens=8)],
            scheduler=Sglang(),
            cost_model=IntegerCost(token_ns=10),
            kv=RadixPool(100),
            async_scheduling=True,
            fast_forward=fast_forward,
        )
        took[name] = np.diff(np.stack([log.iterations["start_ns"], log.iterations["end_ns"]]), axis=0)[0].tolist()
        assert log.iterations["decode_seqs"].tolist() == [0, 2, 2, 2, 1, 1, 1, 1]
    assert took["length"] == [1100, *[1020] * 3, *[1010] * 4]
    assert took["eos"] == [1100, *[1020] * 4, *[1010] * 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunked_prefill_size": 0}, "scheduler.chunked_prefill_size = 0: must be at least 1, or -1 for off"),
        ({"max_prefill_tokens": 0}, "scheduler.max_prefill_tokens = 0: must be at least 1"),
        ({"schedule_policy": "lof"}, "scheduler.schedule_policy = lof: must be fcfs or lpm"),
        ({"schedule_conservativeness": 0.0}, "scheduler.schedule_conservativeness = 0.0: must be above 0"),
        (
            {"priority_scheduling_preemption_threshold": -1},
            "scheduler.priority_scheduling_preemption_threshold = -1: must be at least 0",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sglang(**options)
    assert caught.value.faults == [message]
