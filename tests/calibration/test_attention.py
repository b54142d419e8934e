"""Attention over pages against a dense reference in float64."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from calibration.attention import Row, Rows, attend, backend, kernel, page_tokens, working_form  # noqa: E402

CPU = torch.device("cpu")
BLOCK = 16


def scattered(sizes: list[tuple[int, int]], rng: random.Random, block: int = BLOCK) -> tuple[list[Row], int]:
    """Rows of (new, context) whose pages lie anywhere, and how many pages there are."""
    needed = [-(-(new + context) // block) for new, context in sizes]
    pages = list(range(sum(needed) + 3))
    rng.shuffle(pages)
    rows = []
    for (new, context), count in zip(sizes, needed, strict=True):
        rows.append(Row(new, context, [pages.pop() for _ in range(count)]))
    return rows, sum(needed) + 3


def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """The definition, row by row and head by head, in float64."""
    out, start = torch.empty(q.shape, dtype=torch.float64), 0
    group = q.shape[1] // keys.shape[2]
    for new, context, blocks in rows:
        slots = [blocks[t // BLOCK] * BLOCK + t % BLOCK for t in range(context + new)]
        k, v = (pages.flatten(0, 1)[slots].double() for pages in (keys, values))
        for i in range(new):
            for head in range(q.shape[1]):
                seen = context + i + 1
                scores = k[:seen, head // group] @ q[start + i, head].double() / q.shape[2] ** 0.5
                out[start + i, head] = scores.softmax(0) @ v[:seen, head // group]
        start += new
    return out


def random_sizes(rng: random.Random) -> list[tuple[int, int]]:
    chunks = [(rng.choice([2, 5, 16, 33]), rng.choice([0, 0, 3, 16, 40])) for _ in range(rng.randrange(3))]
    decodes = [(1, rng.randrange(60)) for _ in range(rng.randrange(1, 5))]
    sizes = chunks + decodes
    rng.shuffle(sizes)
    return sizes


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_any_mix_of_rows_over_scattered_pages(heads: int, kv_heads: int, dtype: torch.dtype, tolerance: float) -> None:
    rng = random.Random(heads)
    draw = torch.Generator().manual_seed(heads)
    for _ in range(8):
        rows, num_blocks = scattered(random_sizes(rng), rng)
        tokens = sum(row.new_tokens for row in rows)
        q = torch.randn(tokens, heads, 32, generator=draw).to(dtype)
        keys, values = (torch.randn(num_blocks, BLOCK, kv_heads, 32, generator=draw).to(dtype) for _ in range(2))
        got = attend(q, keys, values, Rows.build(CPU, BLOCK, rows))
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), dense(q, keys, values, rows), atol=tolerance, rtol=tolerance)


def test_slots_and_positions_of_rows() -> None:
    rows = Rows.build(CPU, 4, [Row(3, 2, [7, 1]), Row(1, 4, [0, 9]), Row(2, 0, [5, 6])])
    assert rows.positions.tolist() == [2, 3, 4, 4, 0, 1]
    assert rows.slots.tolist() == [30, 31, 4, 36, 20, 21]
    assert rows.starts.tolist() == [0, 3, 4, 6]
    assert rows.used.tolist() == [5, 5, 2]
    assert rows.last.tolist() == [2, 3, 5]
    assert (rows.max_new, rows.max_total) == (3, 5)
    assert rows.table.tolist() == [[7, 1], [0, 9], [5, 5]]  # pages that no token lies in fill up


def test_what_is_not_written_yet_is_not_looked_at() -> None:
    """Stale keys behind a row's last token, and pages of others, don't matter."""
    rows = Rows.build(CPU, BLOCK, [Row(4, 3, [2]), Row(1, 9, [0])])
    q = torch.randn(5, 2, 8)
    keys, values = torch.randn(3, BLOCK, 2, 8), torch.randn(3, BLOCK, 2, 8)
    before = attend(q, keys, values, rows)
    for pages in (keys, values):
        pages[2, 7:] = pages[0, 10:] = pages[1] = 1e4
    torch.testing.assert_close(attend(q, keys, values, rows), before)


def test_the_backend_of_the_processor_is_named() -> None:
    assert backend(CPU, torch.float32) == "sdpa"
    assert page_tokens(CPU, torch.bfloat16, 16) == 16
    named = kernel(CPU, torch.float32, 4, 2, 64, 16)
    assert named.startswith("sdpa (prefill ")
    assert "decode" in named


def flash(keys_may_start: bool, keys_must_start: bool = False, off: float = 0.0) -> Any:
    """What torch documents of varlen_attn with a block table, by the definition."""

    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *, window_size: Any,
        enable_gqa: bool, seqused_k: Any, block_table: Any,
    ) -> Any:  # fmt: skip
        if (cu_seq_k is None) if keys_must_start else (cu_seq_k is not None and not keys_may_start):
            raise RuntimeError("cu_seq_k")
        starts, used = cu_seq_q.tolist(), seqused_k.tolist()
        assert cu_seq_k is None or cu_seq_k.diff().tolist() == used
        assert enable_gqa == (query.shape[1] != key.shape[2])
        assert {cu_seq_q.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
        news = [stop - start for start, stop in itertools.pairwise(starts)]
        assert (max_q, max_k) == (max(news), max(used))
        assert window_size == ((-1, 0) if max_q > 1 else (-1, -1))
        rows = [
            Row(new, total - new, blocks) for new, total, blocks in zip(news, used, block_table.tolist(), strict=True)
        ]
        return (dense(query, key, value, rows) + off).to(query.dtype)

    return varlen_attn


def flash_over_slots(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, dropout: float,
    causal: bool, debug: bool, *, seqused_k: Any,
) -> list[Any]:  # fmt: skip
    """FlashAttention 2's call without a block table: a start and a length of each row's keys."""
    assert {cu_seq_q.dtype, cu_seq_k.dtype, seqused_k.dtype} == {torch.int32}
    assert len(cu_seq_k) == len(cu_seq_q) == len(seqused_k) + 1
    assert (dropout, causal, debug) == (0.0, max_q > 1, False)
    rows, tokens = [], len(key) // BLOCK * BLOCK
    pages = [x[:tokens].view(-1, BLOCK, *x.shape[1:]) for x in (key, value)]
    for (start, stop), first, total in zip(
        itertools.pairwise(cu_seq_q.tolist()), cu_seq_k.tolist(), seqused_k.tolist(), strict=False
    ):
        assert first % BLOCK == 0
        rows.append(Row(stop - start, total - (stop - start), range(first // BLOCK, len(pages[0]))))
    assert max_k == max(row.total for row in rows)
    return [dense(query, pages[0], pages[1], rows).to(query.dtype)]


@pytest.mark.parametrize(
    ("form", "made"),
    [
        ("paged", flash(keys_may_start=False)),
        ("paged_starts", flash(keys_may_start=True, keys_must_start=True)),
        (None, flash(keys_may_start=True, off=0.2)),  # another answer
    ],
)
def test_a_varlen_call_is_taken_the_way_that_gives_what_sdpa_gives(
    form: str | None, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", made)
    assert working_form(CPU, torch.float32, BLOCK) == form


def test_where_varlen_takes_no_block_table_rows_are_read_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash_over_slots)
    assert working_form(CPU, torch.float32, BLOCK) == "runs"


def test_pages_that_follow_one_another_are_not_copied() -> None:
    rows = Rows.build(CPU, 4, [Row(3, 2, range(7, 9)), Row(1, 0, range(2, 3))])
    assert rows.gathered is None
    assert rows.runs.tolist() == [28, 8, 12]
    rows = Rows.build(CPU, 4, [Row(3, 2, [7, 1, 9]), Row(1, 0, range(2, 3))])
    assert rows.gathered is not None
    assert rows.gathered.tolist() == [7, 1, 2]
    assert rows.runs.tolist() == [0, 8, 12]
