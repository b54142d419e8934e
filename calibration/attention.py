"""Attention over keys and values in pages: one varlen call where torch has one, else scaled_dot_product_attention.

`varlen` is prefill chunks and decode rows in one FlashAttention kernel, as an engine runs them. It has two forms: by
`torch.nn.attention.varlen.varlen_attn` with a block table (torch 2.13 has one, 2.11 none), or, in runs, by the operator
below it, which takes a start and a length for each row: without copies where a row's pages follow one another (its
`blocks` are a range), else all pages are gathered first. `sdpa` gathers the pages of every row: a call per prefill row,
one for all decode rows together, padded to the longest. Neither form of varlen has run on hardware yet.
Standard library and torch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from calibration.rows import Row, Rows

__all__ = ["Row", "Rows", "attend", "backend", "kernel", "page_tokens", "wants_runs", "working_form"]

VARLEN, SDPA = "varlen", "sdpa"
# The forms of varlen; the second paged one tells where each row's keys start as well: FlashAttention 3 refuses that, 2
# may ask for it.
PAGED, RUNS = ("paged", "paged_starts"), "runs"
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128  # of the call that finds out which form works
REFUSALS = (ImportError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)  # of any build
TOLERANCE = 0.03  # of 16-bit numbers of about 1


def attend(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows) -> Tensor:
    """Causal attention of `rows` whose keys and values are in their pages already, those of the new tokens too.

    q: [tokens, heads, head_dim]; pages: [num_blocks, block_size, kv_heads, head_dim], heads a multiple of kv_heads.
    Returns [tokens, heads, head_dim].
    """
    return _attend(q, key_pages, value_pages, rows, _form(q.device, q.dtype, rows.block_size))


def _attend(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows, form: str | None) -> Tensor:
    if form is None:
        return _sdpa(q, key_pages, value_pages, rows)
    # One token sees all before it. Without a mask FlashAttention 2 shares out the keys of a decode call and reads them
    # once for all heads that share them.
    causal = rows.max_new > 1
    if form == RUNS:
        return _over_runs(q, key_pages, value_pages, rows, causal)
    return _paged(q, key_pages, value_pages, rows, causal, key_starts=form == PAGED[1])


def _sdpa(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows) -> Tensor:
    out = torch.empty_like(q)
    for chunk in rows.chunks:
        query = q[None, chunk.start : chunk.stop].transpose(1, 2)
        key, value = (_gathered(pages, chunk.pages, 1, chunk.total) for pages in (key_pages, value_pages))
        gqa = q.shape[1] != key.shape[1]
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=chunk.mask, is_causal=chunk.mask is None, enable_gqa=gqa
        )
        out[chunk.start : chunk.stop] = attended[0].transpose(0, 1)
    if (decodes := rows.decodes) is not None:
        count = len(decodes.where)
        key, value = (_gathered(pages, decodes.pages, count, decodes.longest) for pages in (key_pages, value_pages))
        # Heads that share keys are laid out as queries of one head: no copies, and no need of enable_gqa.
        query = q[decodes.where].view(count, key.shape[1], -1, q.shape[2])
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=decodes.mask)
        out[decodes.where] = attended.flatten(1, 2)
    return out


def _gathered(pages: Tensor, which: Tensor, count: int, tokens: int) -> Tensor:
    """[count, kv_heads, tokens, head_dim] of the pages `which`, equally many for each of `count` rows."""
    picked = pages.index_select(0, which)
    return picked.view(count, -1, *pages.shape[2:])[:, :tokens].transpose(1, 2)


def _paged(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows, causal: bool, *, key_starts: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        q, key_pages, value_pages, rows.starts, rows.key_starts if key_starts else None, rows.max_new, rows.max_total,
        window_size=(-1, 0 if causal else -1), enable_gqa=q.shape[1] != key_pages.shape[2],
        seqused_k=rows.used, block_table=rows.table,
    )  # fmt: skip
    assert isinstance(attended, Tensor), "no log-sum-exp was asked for"
    return attended


def _over_runs(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows, causal: bool) -> Tensor:
    """By the operator that torch's varlen_attn and scaled_dot_product_attention end in."""
    if rows.gathered is not None:
        key_pages, value_pages = (pages.index_select(0, rows.gathered) for pages in (key_pages, value_pages))
    attended: Tensor = torch.ops.aten._flash_attention_forward(
        q, key_pages.flatten(0, 1), value_pages.flatten(0, 1), rows.starts, rows.runs, rows.max_new, rows.max_total,
        0.0, causal, False, seqused_k=rows.used,
    )[0]  # fmt: skip
    return attended


def backend(device: torch.device, dtype: torch.dtype, block_size: int = 16) -> str:
    """VARLEN where a CUDA device takes a varlen call with pages of `block_size` tokens in this dtype, else SDPA."""
    return SDPA if _form(device, dtype, block_size) is None else VARLEN


def wants_runs(device: torch.device, dtype: torch.dtype, block_size: int = 16) -> bool:
    """Whether pages of a row that follow one another (a range) spare a copy of them."""
    return _form(device, dtype, block_size) == RUNS


@lru_cache(maxsize=32)
def _form(device: torch.device, dtype: torch.dtype, block_size: int) -> str | None:
    """How to call varlen here, one of PAGED or RUNS; None for sdpa."""
    return working_form(device, dtype, block_size) if device.type == "cuda" else None


def working_form(device: torch.device, dtype: torch.dtype, block_size: int) -> str | None:
    """The first form of varlen that gives what sdpa gives on the processor, None where none does.

    Tried on decode rows alone and beside a chunk, with pages in runs (the later row's first) and anywhere.
    """
    lengths = [(1, 40), (1, 3 * block_size), (1, 0)], [(2, 3), (1, 2 * block_size), (5, 0)]
    places: tuple[list[Sequence[int]], ...]
    places = [range(8, 12), range(4, 8), range(4)], [[11, 2, 5, 7], [9, 0, 3, 1], [4, 6, 8, 10]]
    keys, values = (torch.randn(12, block_size, KV_HEADS, HEAD_DIM).to(dtype) for _ in range(2))
    cases = []
    for sizes, blocks in product(lengths, places):
        rows = [Row(new, context, where) for (new, context), where in zip(sizes, blocks, strict=True)]
        q = torch.randn(sum(row.new_tokens for row in rows), HEADS, HEAD_DIM).to(dtype)
        expected = _sdpa(q.float(), keys.float(), values.float(), Rows.build(torch.device("cpu"), block_size, rows))
        cases.append((q.to(device), Rows.build(device, block_size, rows), expected))
    keys, values = keys.to(device), values.to(device)
    for form in (*PAGED, RUNS):
        with suppress(*REFUSALS):
            found = [(_attend(q, keys, values, built, form).float().cpu(), expected) for q, built, expected in cases]
            if all(torch.allclose(got, wanted, atol=TOLERANCE, rtol=TOLERANCE) for got, wanted in found):
                return form
    return None


def page_tokens(device: torch.device, dtype: torch.dtype, wanted: int = 16) -> int:
    """Tokens per page: `wanted`, or on CUDA the least above it that paged varlen takes (some builds want 256)."""
    if device.type == "cuda":
        for size in sorted({wanted, -(-wanted // 64) * 64, -(-wanted // 256) * 256}):
            if _form(device, dtype, size) in PAGED:
                return size
    return wanted


def kernel(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, block_size: int) -> str:
    """What carries out `attend`, for a report: `varlen` and its form, or `sdpa` and the kernels that torch chooses."""
    if (form := _form(device, dtype, block_size)) is not None:
        over = "runs of pages" if form == RUNS else f"pages of {block_size} tokens"
        return f"{VARLEN} (FlashAttention over {over})"
    key = torch.zeros(1, kv_heads, 32, head_dim, device=device, dtype=dtype)
    chunk = torch.zeros(1, heads, 16, head_dim, device=device, dtype=dtype)
    decode = torch.zeros(1, kv_heads, heads // kv_heads, head_dim, device=device, dtype=dtype)
    mask = torch.ones(1, 1, 1, 32, dtype=torch.bool, device=device)
    gqa = heads != kv_heads
    chosen = (
        ("prefill", torch._fused_sdp_choice(chunk, key, key, attn_mask=mask.expand(1, 1, 16, 32), enable_gqa=gqa)),
        ("decode", torch._fused_sdp_choice(decode, key, key, attn_mask=mask)),
    )
    return f"{SDPA} ({', '.join(f'{what} {SDPBackend(choice).name.lower()}' for what, choice in chosen)})"
