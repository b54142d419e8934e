"""The rows of one attention call as index tensors on a device. Standard library and torch only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class Row(NamedTuple):
    """One sequence of a call: `new_tokens` after `context_tokens`, in the pages `blocks`, first to last."""

    new_tokens: int
    context_tokens: int
    blocks: Sequence[int]

    @property
    def total(self) -> int:
        """Tokens that its last new one attends to."""
        return self.context_tokens + self.new_tokens


class Chunk(NamedTuple):
    """A prefill row for sdpa: its tokens are [start:stop], it attends to `total` tokens in `pages`."""

    start: int
    stop: int
    total: int
    pages: Tensor  # [pages], int64
    mask: Tensor | None  # [new, total], True where it looks; None for plain causal


class Decodes(NamedTuple):
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
    runs: Tensor  # [rows + 1], int32: the slot where each row's keys start, in the pages or in those gathered
    gathered: Tensor | None  # [pages], int64: the pages of all rows in order, where a row's don't follow one another
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
        gathered, runs = _runs(rows, block_size)
        ints = torch.cat([nothing, ends]), torch.cat([nothing, used.cumsum(0)]), used, table, runs
        starts, key_starts, used, table, runs = _sent([tensor.int() for tensor in ints], device)
        positions, slots, last, pages = _sent([positions, slots, ends - 1, gathered], device)
        return cls(
            rows=tuple(rows),
            block_size=block_size,
            starts=starts,
            key_starts=key_starts,
            used=used,
            table=table,
            runs=runs,
            gathered=pages if len(pages) else None,
            positions=positions,
            slots=slots,
            last=last,
            max_new=max(row.new_tokens for row in rows),
            max_total=max(row.total for row in rows),
        )

    @cached_property
    def chunks(self) -> list[Chunk]:
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
                found.append(Chunk(start, stop, row.total, pages, mask))
        return found

    @cached_property
    def decodes(self) -> Decodes | None:
        """The rows of one token, for sdpa; likewise."""
        rows = [i for i, row in enumerate(self.rows) if row.new_tokens == 1]
        if not rows:
            return None
        which = torch.tensor(rows, device=self.last.device)
        longest = max(self.rows[i].total for i in rows)
        pages = self.table[which, : -(-longest // self.block_size)].long().flatten()
        mask = torch.arange(longest, device=which.device) < self.used[which, None]
        return Decodes(self.last[which], pages, longest, mask[:, None, None])


def _table(rows: Sequence[Row], block_size: int) -> Tensor:
    """[rows, most pages], int64: each row's pages, the last repeated. By way of an array: large batches have many."""
    counts = [-(-row.total // block_size) for row in rows]
    most, flat = max(counts), array("q")
    for row, count in zip(rows, counts, strict=True):
        flat.extend(row.blocks[:count])
        flat.extend([row.blocks[count - 1]] * (most - count))
    return torch.frombuffer(flat, dtype=torch.int64).view(len(rows), most)


def _runs(rows: Sequence[Row], block_size: int) -> tuple[Tensor, Tensor]:
    """(pages to gather, [rows + 1] slots where each row's keys start); none to gather where all blocks are ranges."""
    counts = [-(-row.total // block_size) for row in rows]
    if all(isinstance(row.blocks, range) for row in rows):
        starts = [row.blocks[0] for row in rows]
        return torch.zeros(0, dtype=torch.int64), torch.tensor([*starts, starts[-1] + counts[-1]]) * block_size
    pages = array("q", [page for row, count in zip(rows, counts, strict=True) for page in row.blocks[:count]])
    starts = list(accumulate(counts, initial=0))
    return torch.frombuffer(pages, dtype=torch.int64), torch.tensor(starts) * block_size


def _sent(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """`tensors`, of one type, on the device; in one copy, as every copy waits for the one before."""
    together, pieces, start = torch.cat([tensor.flatten() for tensor in tensors]).to(device), [], 0
    for tensor in tensors:
        pieces.append(together[start : start + tensor.numel()].view(tensor.shape))
        start += tensor.numel()
    return pieces
