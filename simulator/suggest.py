"""The end of a fault line: the nearest valid choice, where one is near."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: object, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the choice nearest to `given`, or the empty string where none is near."""
    by_folded = {choice.casefold(): choice for choice in choices}
    near = get_close_matches(str(given).casefold(), by_folded, n=1, cutoff=0.5)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""
