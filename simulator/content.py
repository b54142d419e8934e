"""What a sequence's tokens are, as far as a prefix cache can tell: pieces that are equal where their names are.

Token `start + i` of a name is the same token wherever it occurs. A trace's block ids name the prompt's blocks, a turn
that continues another one starts with that one's tokens, and all else is a sequence's own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from simulator.request import Sequence

ENDLESS = 1 << 62  # length of an answer, which nobody knows


class Piece(NamedTuple):
    """`length` tokens, from token `start` of `name` on."""

    name: Hashable
    start: int
    length: int


def pieces_of(seq: Sequence) -> list[Piece]:
    """The prompt of `seq`, then its answer as an endless last piece. Made once per sequence."""
    content: list[Piece] | None = seq._content
    if content is None:
        content = seq._content = [*_prompt(seq), Piece((seq.index, "answer"), 0, ENDLESS)]
    return content


def cut(pieces: list[Piece], begin: int, end: int) -> list[Piece]:
    """Tokens `begin` to `end` of `pieces`."""
    part: list[Piece] = []
    for name, start, length in pieces:
        low, high = max(begin, 0), min(end, length)
        if low < high:
            part.append(Piece(name, start + low, high - low))
        begin -= length
        end -= length
        if end <= 0:
            break
    return part


def _prompt(seq: Sequence) -> list[Piece]:
    if seq._earlier is not None and seq._history:
        known = cut(pieces_of(seq._earlier), 0, seq._history)
    else:
        known = cut([Piece(name, 0, seq._hash_tokens) for name in seq._hashes], 0, seq.prompt_tokens)
    rest = seq.prompt_tokens - sum(piece.length for piece in known)
    return [*known, Piece((seq.index, "prompt"), 0, rest)] if rest else known
