"""vLLM pull request 37307: admission that looks at the first chunk only lets long prompts starve each other."""

from __future__ import annotations

from simulator import BlockPool, Limits, Request, RunLog, run
from simulator.costs.roofline import Roofline
from simulator.schedulers.vllm_v1 import VllmV1
from simulator.specs import Platform, get_gpu, get_model


def eight_long_prompts(whole: bool) -> RunLog:
    return run(
        [Request(str(i), i, 100_000, 1000) for i in range(8)],
        scheduler=VllmV1(scheduler_reserve_full_isl=whole),
        cost_model=Roofline(
            Platform(get_model("llama-3.1-8b"), get_gpu("h100")), compute_efficiency=0.6, memory_efficiency=0.8
        ),
        kv=BlockPool(28_126),  # 450,000 tokens: four of these requests, not five
        limits=Limits(max_num_batched_tokens=8192, max_model_len=131_072),
    )


def test_admitting_on_the_first_chunk_alone_collapses() -> None:
    """The fifth prompt never fits: it is preempted and begins again while the decodes wait for its chunks."""
    guarded, greedy = eight_long_prompts(whole=True), eight_long_prompts(whole=False)
    assert guarded.sequences["finished"].all()
    assert greedy.sequences["finished"].all()
    assert int(guarded.sequences["preemptions"].sum()) == 0
    assert int(greedy.sequences["preemptions"].sum()) > 100
    assert int(greedy.sequences["recomputed_tokens"].sum()) > 5_000_000
    assert greedy.end_ns > 3 * guarded.end_ns
    assert tokens_per_s_while_four_decode(guarded) > 5 * tokens_per_s_while_four_decode(greedy)


def tokens_per_s_while_four_decode(log: RunLog) -> float:
    it = log.iterations
    four = it["decode_seqs"] == 4
    return float(4 * four.sum() / ((it["end_ns"] - it["start_ns"])[four].sum() / 1e9))
