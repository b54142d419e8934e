"""Attention over keys and values in pages: one varlen call where torch has one, else scaled_dot_product_attention.

`varlen` is `torch.nn.attention.varlen.varlen_attn` with a block table: prefill chunks and decode rows in one kernel,
as an engine runs them. `sdpa` gathers the pages of every row first: a call per prefill row, one for all decode rows
together, padded to the longest. The varlen branch has not run on hardware yet. Standard library and torch only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

VARLEN, SDPA = "varlen", "sdpa"


class Row(NamedTuple):
    """One sequence of a call: `new_tokens` after `context_tokens`, in the pages `blocks`, first to last."""

    new_tokens: int
    context_tokens: int
    blocks: Sequence[int]

    @property
    def total(self) -> int:
        """Tokens that its last new one attends to."""
        return self.context_tokens + self.new_tokens


class _Chunk(NamedTuple):
    """A prefill row for sdpa: its tokens are [start:stop], it attends to `total` tokens in `pages`."""

    start: int
    stop: int
    total: int
    pages: Tensor  # [pages], int64
    mask: Tensor | None  # [new, total], True where it looks; None for plain causal


class _Decodes(NamedTuple):
    """All decode rows for sdpa, padded to the `longest`."""

    where: Tensor  # [rows], int64: their tokens
    pages: Tensor  # [rows x pages], int64
    longest: int
    mask: Tensor  # [rows, 1, 1, longest], True where they look


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one call, tokens back to back, as index tensors on the device; made once, used in every layer."""

    rows: tuple[Row, ...]
    block_size: int
    starts: Tensor  # [rows + 1], int32: where each row's tokens begin
    key_starts: Tensor  # [rows + 1], int32: the same of the tokens that each attends to
    used: Tensor  # [rows], int32: how many those are
    table: Tensor  # [rows, most pages], int32
    positions: Tensor  # [tokens], int64
    slots: Tensor  # [tokens], int64: where their keys and values go, page x block_size + place
    last: Tensor  # [rows], int64: the token of each row that is sampled from
    max_new: int
    max_total: int

    @classmethod
    def build(cls, device: torch.device, block_size: int, rows: Sequence[Row]) -> Rows:
        """Index tensors for `rows`, at least one, each of at least one new token and with pages for all its tokens."""
        new = torch.tensor([row.new_tokens for row in rows])
        context = torch.tensor([row.context_tokens for row in rows])
        table = _table(rows, block_size)
        ends = new.cumsum(0)
        row_of = torch.repeat_interleave(torch.arange(len(rows)), new)
        positions = torch.arange(len(row_of)) - (ends - new - context)[row_of]
        slots = table[row_of, positions // block_size] * block_size + positions % block_size
        used, nothing = new + context, torch.zeros(1, dtype=torch.int64)
        ints = torch.cat([nothing, ends]), torch.cat([nothing, used.cumsum(0)]), used, table
        starts, key_starts, used, table = _sent([tensor.int() for tensor in ints], device)
        positions, slots, last = _sent([positions, slots, ends - 1], device)
        return cls(
            rows=tuple(rows),
            block_size=block_size,
            starts=starts,
            key_starts=key_starts,
            used=used,
            table=table,
            positions=positions,
            slots=slots,
            last=last,
            max_new=max(row.new_tokens for row in rows),
            max_total=max(row.total for row in rows),
        )

    @cached_property
    def chunks(self) -> list[_Chunk]:
        """The rows of several tokens, for sdpa. Made at the first call, so call once before a CUDA graph captures."""
        found, stop = [], 0
        for i, row in enumerate(self.rows):
            start, stop = stop, stop + row.new_tokens
            if row.new_tokens > 1:
                pages = self.table[i, : -(-row.total // self.block_size)].long()
                mask = None
                if row.context_tokens:  # as torch.nn.attention.bias.causal_lower_right
                    mask = torch.ones(row.new_tokens, row.total, dtype=torch.bool, device=pages.device)
                    mask = mask.tril(row.context_tokens)
                found.append(_Chunk(start, stop, row.total, pages, mask))
        return found

    @cached_property
    def decodes(self) -> _Decodes | None:
        """The rows of one token, for sdpa; likewise."""
        rows = [i for i, row in enumerate(self.rows) if row.new_tokens == 1]
        if not rows:
            return None
        which = torch.tensor(rows, device=self.last.device)
        longest = max(self.rows[i].total for i in rows)
        pages = self.table[which, : -(-longest // self.block_size)].long().flatten()
        mask = torch.arange(longest, device=which.device) < self.used[which, None]
        return _Decodes(self.last[which], pages, longest, mask[:, None, None])


def _table(rows: Sequence[Row], block_size: int) -> Tensor:
    """[rows, most pages], int64: each row's pages, the last repeated. By way of an array: large batches have many."""
    counts = [-(-row.total // block_size) for row in rows]
    most, flat = max(counts), array("q")
    for row, count in zip(rows, counts, strict=True):
        flat.extend(row.blocks[:count])
        flat.extend([row.blocks[count - 1]] * (most - count))
    return torch.frombuffer(flat, dtype=torch.int64).view(len(rows), most)


def _sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """`tensors`, of one type, on the device; in one copy, as every copy waits for the one before."""
    together, pieces, start = torch.cat([tensor.flatten() for tensor in tensors]).to(device), [], 0
    for tensor in tensors:
        pieces.append(together[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    return pieces


def attend(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows) -> Tensor:
    """Causal attention of `rows` whose keys and values are in their pages already, those of the new tokens too.

    q: [tokens, heads, head_dim]; pages: [num_blocks, block_size, kv_heads, head_dim], heads a multiple of kv_heads.
    Returns [tokens, heads, head_dim].
    """
    form = _form(q.device, q.dtype, rows.block_size)
    if form is None:
        return _sdpa(q, key_pages, value_pages, rows)
    return _varlen(q, key_pages, value_pages, rows, form)


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


def _varlen(q: Tensor, key_pages: Tensor, value_pages: Tensor, rows: Rows, key_starts: bool) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        q, key_pages, value_pages, rows.starts, rows.key_starts if key_starts else None, rows.max_new, rows.max_total,
        window_size=(-1, 0), enable_gqa=q.shape[1] != key_pages.shape[2],
        seqused_k=rows.used, block_table=rows.table,
    )  # fmt: skip
    assert isinstance(attended, Tensor), "no log-sum-exp was asked for"
    return attended


def backend(device: torch.device, dtype: torch.dtype, block_size: int = 16) -> str:
    """VARLEN where a CUDA device takes a varlen call with pages of `block_size` tokens in this dtype, else SDPA."""
    return SDPA if _form(device, dtype, block_size) is None else VARLEN


@lru_cache(maxsize=32)
def _form(device: torch.device, dtype: torch.dtype, block_size: int) -> bool | None:
    """How to call varlen here, see `working_form`; None for sdpa."""
    return working_form(device, dtype, block_size) if device.type == "cuda" else None


def working_form(device: torch.device, dtype: torch.dtype, block_size: int) -> bool | None:
    """Whether varlen takes the starts of the keys beside the block table: the first way that gives what sdpa gives.

    FlashAttention 3 refuses them, 2 may ask for them. None where neither way works.
    """
    rows = Rows.build(device, block_size, [Row(2, 3, range(5)), Row(1, 4, range(5, 10))])
    q = torch.randn(3, 2, 64, device=device, dtype=dtype)
    pages = torch.randn(10, block_size, 1, 64, device=device, dtype=dtype)
    expected = _sdpa(q, pages, pages, rows)
    for key_starts in (False, True):
        try:
            if torch.allclose(_varlen(q, pages, pages, rows, key_starts), expected, atol=0.03, rtol=0.03):
                return key_starts
        except (ImportError, RuntimeError, TypeError, ValueError):  # whatever a build of torch refuses it with
            continue
    return None


def page_tokens(device: torch.device, dtype: torch.dtype, wanted: int = 16) -> int:
    """Tokens per page: `wanted`, or on CUDA the least above it that varlen takes (some builds want 256 or more)."""
    if device.type == "cuda":
        for size in sorted({wanted, -(-wanted // 64) * 64, -(-wanted // 256) * 256}):
            if backend(device, dtype, size) == VARLEN:
                return size
    return wanted


def kernel(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, block_size: int) -> str:
    """What carries out `attend`, in words, for a report: `varlen`, or `sdpa` with the kernels that torch chooses."""
    if backend(device, dtype, block_size) == VARLEN:
        return VARLEN
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
