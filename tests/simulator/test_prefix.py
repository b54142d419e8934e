"""The prefix cache: what is found, what goes first, what belongs to whom. vLLM's own steps are in tests/golden."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Limits, Request, RunLog, Scheduler, run
from simulator.costs.constant import Constant
from simulator.prefix import CachedPool
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.specs import Platform, get_gpu, get_model

COST = Constant(Platform(get_model("llama-3.1-8b"), get_gpu("a100-80gb")), iteration_us=1)


def serve(*requests: Request, blocks: int = 1000, block_size: int = 16, max_num_seqs: int = 8) -> RunLog:
    return run(
        requests,
        scheduler=VllmV1(),
        cost_model=COST,
        kv=CachedPool(blocks, block_size),
        limits=Limits(max_num_seqs=max_num_seqs),
    )


def cached(log: RunLog) -> list[int]:
    return [int(tokens) for tokens in log.sequences["cached_tokens"]]


def test_a_full_hit_computes_the_last_block_again() -> None:
    """48 tokens are three blocks; a look-up covers at most the first 47 (vLLM: at least one token is computed)."""
    log = serve(Request("a", 0, 48, 2, prefix_hashes=(1, 2, 3)), Request("b", 100_000, 48, 2, prefix_hashes=(1, 2, 3)))
    assert cached(log) == [0, 32]


def test_ids_are_chained() -> None:
    """The same id after another beginning is another content."""
    log = serve(Request("a", 0, 48, 2, prefix_hashes=(1, 2, 3)), Request("b", 100_000, 48, 2, prefix_hashes=(9, 2, 3)))
    assert cached(log) == [0, 0]


def test_a_partial_last_block_shares_nothing() -> None:
    log = serve(
        Request("a", 0, 40, 2, prefix_hashes=(1, 2, 3)), Request("b", 100_000, 60, 2, prefix_hashes=(1, 2, 3, 4))
    )
    assert cached(log) == [0, 32]


@pytest.mark.parametrize(
    ("block_size", "found"), [(16, 512 + 80), (32, 512 + 64), (512, 512), (1024, 0), (24, 504 + 72)]
)
def test_the_traces_block_size_need_not_be_the_pools(block_size: int, found: int) -> None:
    """600 equal tokens in ids of 512: as many whole blocks of the pool as they cover, but the last token's."""
    hashes = (7, 8)
    first, second = (
        Request(name, at, 600, 2, prefix_hashes=hashes, prefix_block_tokens=512)
        for name, at in (("a", 0), ("b", 10**6))
    )
    assert cached(serve(first, second, block_size=block_size)) == [0, found]


def test_one_planned_later_in_the_same_step_hits_already() -> None:
    log = serve(*(Request(name, 0, 48, 2, prefix_hashes=(1, 2, 3)) for name in "ab"))
    assert cached(log) == [0, 32]
    assert log.chunks["iteration"].tolist() == [0, 0]


def test_the_tail_of_a_freed_sequence_goes_first() -> None:
    """Ten usable blocks. a leaves 4 of them cached; b takes 8, so the last 2 of a's go and its first 2 stay."""
    log = serve(
        Request("a", 0, 64, 1, prefix_hashes=(1, 2, 3, 4)),
        Request("b", 100_000, 128, 1, prefix_hashes=tuple(range(11, 19))),
        Request("c", 200_000, 64, 1, prefix_hashes=(1, 2, 3, 4)),
        blocks=11,
    )
    assert cached(log) == [0, 0, 32]


def test_a_preempted_sequence_finds_its_own_blocks_and_that_is_counted_apart() -> None:
    """Two that grow in eight usable blocks: the later one is preempted, and finds the two blocks nobody has taken."""
    log = serve(Request("a", 0, 40, 30), Request("b", 0, 40, 30), blocks=9)
    s = log.sequences
    assert s["preemptions"].tolist() == [0, 1]
    assert cached(log) == [0, 0]
    assert s["reused_tokens"].tolist() == [0, 48]
    assert s["recomputed_tokens"].tolist() == [0, 64 - 48]
    assert s["finished"].tolist() == [1, 1]


def test_a_turn_finds_the_turn_before_it_and_its_answer() -> None:
    """40 + 25 tokens, of which the last is never computed: 64 in four blocks. The turn after next finds 112 of 119."""
    log = serve(
        Request("one", 0, 40, 25, session="s"),
        Request("two", 0, 100, 20, session="s", after="one", history_tokens=65),
        Request("three", 0, 200, 5, session="s", after="two", history_tokens=120),
    )
    assert cached(log) == [0, 64, 112]


def test_other_sessions_find_only_what_ids_say_they_share() -> None:
    log = serve(
        Request("a1", 0, 40, 25, session="a", prefix_hashes=(1, 2, 3)),
        Request("a2", 0, 100, 20, session="a", after="a1", history_tokens=65),
        Request("b1", 10**6, 40, 25, session="b", prefix_hashes=(1, 2, 4)),
        Request("b2", 0, 100, 20, session="b", after="b1", history_tokens=65),
    )
    assert dict(zip(log.ids, cached(log), strict=True)) == {"a1": 0, "a2": 64, "b1": 32, "b2": 64}


def test_shared_blocks_are_counted_once_and_come_free_with_the_last_user() -> None:
    kv = CachedPool(100, 16)
    run(
        [Request(str(i), i * 1000, 64, 40, prefix_hashes=(1, 2, 3, 4)) for i in range(6)],
        scheduler=VllmV1(),
        cost_model=COST,
        kv=kv,
        limits=Limits(max_num_seqs=8),
    )
    assert kv.free == kv.total


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Prompts that share beginnings, some of them turns of sessions."""
    requests: list[Request] = []
    for i in range(draw(st.integers(1, 12))):
        prompt, output = draw(st.integers(1, 90)), draw(st.integers(1, 40))
        at_ns = draw(st.integers(0, 40_000))
        earlier = draw(st.sampled_from(requests)) if requests and draw(st.booleans()) else None
        if earlier is not None and draw(st.booleans()):
            history = earlier.prompt_tokens + earlier.output_tokens
            requests.append(
                Request(str(i), 0, history + prompt, output, after=earlier.id, history_tokens=history, delay_ns=at_ns)
            )
        else:
            hashes = tuple(draw(st.integers(0, 1)) for _ in range(-(-prompt // 16)))
            requests.append(Request(str(i), at_ns, prompt, output, prefix_hashes=hashes, priority=i % 2))
    return requests


@given(
    workloads(),
    st.integers(6, 40),
    st.sampled_from([4, 16, 20]),
    st.sampled_from([16, 40, 300]),
    st.sampled_from([lambda: VllmV1(), lambda: VllmV1("priority"), lambda: Continuous(), lambda: Continuous("orca")]),
    st.booleans(),
)
def test_invariants_4_and_7_hold_with_a_prefix_cache(
    requests: list[Request],
    blocks: int,
    block_size: int,
    tokens: int,
    scheduler: Callable[[], Scheduler],
    asynchronous: bool,
) -> None:
    """Stepping and fast-forward agree, every block comes back, and tokens are computed or found, each once."""
    logs = []
    for fast_forward in (True, False):
        kv = CachedPool(blocks, block_size)
        log = run(
            requests,
            scheduler=scheduler(),
            cost_model=COST,
            kv=kv,
            limits=Limits(max_num_seqs=5, max_num_batched_tokens=tokens),
            fast_forward=fast_forward,
            async_scheduling=asynchronous,
        )
        assert kv.free == kv.total == len(kv._queue)
        assert not kv._users
        assert not kv._blocks
        logs.append(log)
    assert logs[0].digest == logs[1].digest
    s, done = logs[0].sequences, logs[0].sequences["finished"] == 1
    assert bool((logs[0].iterations["kv_blocks"] <= blocks - 1).all())
    prefilled = np.bincount(logs[0].chunks["sequence"], logs[0].chunks["tokens"], minlength=len(done))
    found = s["cached_tokens"] + s["reused_tokens"]
    assert bool((s["emitted_tokens"] == s["output_tokens"])[done].all())
    first_time = (s["prompt_tokens"] <= prefilled + found)[done]
    assert bool(first_time.all())
    assert bool((s["cached_tokens"] < s["prompt_tokens"])[done].all())
