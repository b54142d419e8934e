"""The live executor under real schedulers: tokens, pages, and the same decisions as in simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibration.decoder import Decoder, Row, Rows  # noqa: E402
from experiments.live_executor import LiveExecutor, Pages, WallClock, warm_up  # noqa: E402
from simulator import BlockPool, Request, RunLog  # noqa: E402
from simulator.batch import Batch  # noqa: E402
from simulator.cluster import execute  # noqa: E402
from simulator.kv import KvMemory, Reservation  # noqa: E402
from simulator.plan import IterationPlan, Limits  # noqa: E402
from simulator.replay import ReplayExecutor, durations_ns  # noqa: E402
from simulator.request import Sequence  # noqa: E402
from simulator.schedulers.base import Scheduler  # noqa: E402
from simulator.schedulers.chunked import Chunked  # noqa: E402
from simulator.schedulers.continuous import Continuous  # noqa: E402
from simulator.schedulers.dynamic import Dynamic  # noqa: E402
from simulator.schedulers.orca import Orca  # noqa: E402
from simulator.schedulers.sglang import Sglang  # noqa: E402
from simulator.schedulers.static import Static  # noqa: E402
from simulator.schedulers.tgi import Tgi  # noqa: E402
from simulator.schedulers.trtllm import TrtLlm  # noqa: E402
from simulator.schedulers.vllm_v0 import VllmV0  # noqa: E402
from simulator.schedulers.vllm_v1 import VllmV1  # noqa: E402
from simulator.specs import get_model  # noqa: E402

CPU = torch.device("cpu")
SMALL = replace(get_model("tiny"), hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=500)
LIMITS = Limits(max_num_seqs=6, max_num_batched_tokens=40, max_model_len=200)
BLOCKS, BLOCK = 16, 8
SCHEDULERS: dict[str, Callable[[], Scheduler]] = {
    "chunked": Chunked,
    "vllm_v1": VllmV1,
    "vllm_v0": VllmV0,
    "continuous": Continuous,
    "sglang": Sglang,
    "tgi": Tgi,
    "trtllm": TrtLlm,
    "static": partial(Static, batch_size=4, batch_timeout_ms=2),
    "dynamic": partial(Dynamic, batch_size=5, max_queue_delay_ms=1),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads than a busy machine has idle cores make these small layers a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load() -> list[Request]:
    rng = random.Random(2)
    made = [Request(f"r{i}", rng.randrange(8_000_000), rng.randrange(1, 60), rng.randrange(1, 30)) for i in range(14)]
    follow_up = Request("later", 0, 20, 9, after="r3", delay_ns=2_000_000)
    return [*made, follow_up, Request("too long", 5_000_000, 190, 30)]


def decoder(dtype: torch.dtype = torch.float32) -> Decoder:
    longest = replace(SMALL, max_model_len=128)
    return Decoder(longest, device=CPU, dtype=dtype, num_blocks=100, block_size=BLOCK, seed=1)


def live(scheduler: Scheduler, kv: KvMemory, dtype: torch.dtype = torch.float32) -> tuple[RunLog, LiveExecutor]:
    clock = WallClock()
    executor = LiveExecutor(
        decoder(dtype), clock, load(), seed=5, padded=scheduler.holds_slots, counts_blocks=kv.name == "paged"
    )
    log = execute(load(), scheduler=scheduler, executor=executor, kv=kv, limits=LIMITS, environment=clock)
    return log, executor


def check(log: RunLog, executor: LiveExecutor) -> None:
    """Every request has exactly its tokens; who was rejected has none."""
    assert sum(log.sequences["finished"]) == 15
    for request, finished in zip(
        [next(r for r in load() if r.id == name) for name in log.ids], log.sequences["finished"], strict=True
    ):
        assert executor.answered(request) == (request.output_tokens if finished else 0), request.id


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_request_gets_its_tokens_and_the_times_replayed_give_the_identical_log(name: str) -> None:
    log, executor = live(SCHEDULERS[name](), BlockPool(BLOCKS, BLOCK))
    check(log, executor)
    again = execute(
        load(),
        scheduler=SCHEDULERS[name](),
        executor=ReplayExecutor(durations_ns(log)),
        kv=BlockPool(BLOCKS, BLOCK),
        limits=LIMITS,
    )
    assert again.digest == log.digest


def test_with_memory_reserved_whole() -> None:
    log, executor = live(Orca(), Reservation(30, BLOCK, "max", LIMITS.max_model_len))
    check(log, executor)


def test_it_preempts_where_memory_is_short() -> None:
    log, _ = live(Chunked(), BlockPool(BLOCKS, BLOCK))
    assert log.sequences["preemptions"].sum() > 0


def greedy(prompt: list[int], count: int) -> list[int]:
    """The answer to a prompt by whole passes over everything so far."""
    made, tokens = decoder(torch.float64), list(prompt)
    for _ in range(count):
        rows = Rows.build(CPU, BLOCK, [Row(len(tokens), 0, list(range(20)))])
        tokens += made.stack(torch.tensor(tokens), rows).tolist()
    return tokens[len(prompt) :]


@pytest.mark.parametrize("scheduler", [Chunked(), Continuous()], ids=lambda s: s.name)
def test_answers_are_those_of_whole_passes_whatever_was_batched_chunked_or_preempted(scheduler: Scheduler) -> None:
    log, executor = live(scheduler, BlockPool(BLOCKS, BLOCK), torch.float64)
    preempted = [name for name, n in zip(log.ids, log.sequences["preemptions"], strict=True) if n]
    assert preempted
    for request in load()[:8]:
        tokens = executor.tokens(request)
        prompt = tokens[: request.prompt_tokens]
        assert greedy(prompt, request.output_tokens) == tokens[request.prompt_tokens :], request.id


@pytest.mark.parametrize("name", ["chunked", "vllm_v1", "static"])
def test_pages_in_runs_follow_one_another_and_give_the_same_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are the same, so are the answers, with preemption too; and no two sequences share a page."""
    seen = []

    class Checked(Pages):
        def of(self, seq: Sequence, count: int) -> Any:
            pages = super().of(seq, count)
            assert isinstance(pages, range)
            others = [
                page for other in self.holders() if other is not seq for page in super(Checked, self).of(other, 0)
            ]
            assert not set(pages) & set(others)
            seen.append(len(others))
            return pages

    executors = []
    for run in (1, 15):
        monkeypatch.setattr("experiments.live_executor.Pages", Checked if run > 1 else Pages)
        clock = WallClock()
        padded = SCHEDULERS[name]().holds_slots
        made = LiveExecutor(decoder(), clock, load(), seed=5, padded=padded, counts_blocks=not padded, run=run)
        log = execute(load(), scheduler=SCHEDULERS[name](), executor=made, kv=BlockPool(BLOCKS, BLOCK), limits=LIMITS,
                      environment=clock)  # fmt: skip
        check(log, made)
        executors.append(made)
    assert max(seen) > 10
    if name != "static":  # padding decides what a padded batch sees
        for request in load():
            assert executors[0].tokens(request) == executors[1].tokens(request)


def test_pages_in_use_are_the_pool_s_blocks_at_every_plan() -> None:
    seen = []

    class Watching(LiveExecutor):
        def prepare(self, plan: IterationPlan, batch: Batch, now_ns: int) -> None:
            super().prepare(plan, batch, now_ns)
            seen.append(batch.kv.total - batch.kv.free)

    clock = WallClock()
    made = decoder()
    executor = Watching(made, clock, load(), seed=5, padded=False, counts_blocks=True)
    execute(load(), scheduler=Chunked(), executor=executor, kv=BlockPool(BLOCKS, BLOCK), limits=LIMITS,
            environment=clock)  # fmt: skip
    assert max(seen) > 10


def test_a_pool_that_counts_wrong_is_found() -> None:
    class Leaking(BlockPool):
        def give_back(self, seq: Sequence, in_flight: int = 0) -> None:
            super().give_back(seq, in_flight)
            self.free -= 1

    with pytest.raises(AssertionError, match=r"\d+ blocks in use, but \d+ pages"):
        live(Chunked(), Leaking(60, BLOCK))


def test_a_static_batch_is_a_rectangle() -> None:
    """The tokens computed are those of the padded shape: rows of the longest prompt, then all rows until the last."""
    computed = []

    class Counting(Decoder):
        def stack(self, token_ids: Any, rows: Any) -> Any:
            computed.append((len(token_ids), rows.max_total))
            return super().stack(token_ids, rows)

    clock = WallClock()
    requests = [Request("a", 0, 5, 2), Request("b", 0, 30, 4), Request("c", 0, 9, 1)]
    made = Counting(replace(SMALL, max_model_len=64), device=CPU, dtype=torch.float32, num_blocks=40, block_size=BLOCK)
    executor = LiveExecutor(made, clock, requests, seed=0, padded=True, counts_blocks=True)
    execute(requests, scheduler=Static(batch_size=3), executor=executor, kv=BlockPool(60, BLOCK), limits=LIMITS,
            environment=clock)  # fmt: skip
    assert computed == [(90, 30), (3, 31), (3, 32), (3, 33)]
    assert [executor.answered(request) for request in requests] == [2, 4, 1]


def test_nothing_happens_before_its_time_on_the_wall_clock() -> None:
    clock = WallClock()
    happened: list[tuple[int, int]] = []
    for at_ns in (30_000_000, 10_000_000, 20_000_000):
        clock.timeout(at_ns).callbacks.append(lambda _: happened.append((int(clock.now), clock.elapsed_ns())))
    clock.run()
    assert [due for due, _ in happened] == [10_000_000, 20_000_000, 30_000_000]
    assert all(at >= due for due, at in happened)


def test_warming_up_takes_any_size() -> None:
    made = decoder()
    for prompt_tokens, sequences in ((1, 1), (128, 6)):
        warm_up(made, prompt_tokens, sequences)
    small = Decoder(SMALL, device=CPU, dtype=torch.float32, num_blocks=2, block_size=BLOCK)
    warm_up(small, 500, 4)
