"""A radix tree of token content, page size 1: the index of SGLang's prefix cache.

Rules as read in SGLang 0.5.23 (`sglang/srt/mem_cache/{unified_radix_cache,unified_tree_core}.py`). A node is a run of
tokens; it is split where a walk ends inside it. Users lock the path to their node. Whole unlocked leaves are evicted,
the least recently used first, until the shortfall is met; a parent becomes a leaf in its turn. A walk or an insert
makes its whole path recent; a split makes the suffix recent too.

Every change can be tried out: between `begin_trial` and `end_trial` the tree keeps what it overwrites, to put it
back.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Any

from simulator.content import Piece, cut

_ABSENT = object()


class Node:
    """A run of tokens below those of its parent. `users` lock it, at least as many as any child of it."""

    __slots__ = ("children", "length", "parent", "pieces", "time", "users")

    def __init__(self, pieces: list[Piece], parent: Node | None, length: int, users: int = 0) -> None:
        self.pieces = pieces
        self.parent = parent
        self.length = length
        self.users = users
        self.time = 0
        self.children: dict[Hashable, Node] = {}  # by the first token of each


class RadixTree:
    """The tree. `evictable` counts the tokens that nobody locks."""

    def __init__(self) -> None:
        self.root = Node([], None, 0)
        self.evictable = 0
        self._clock = 0
        self._leaves: dict[Node, None] = {}  # unlocked
        self._undo: list[tuple[Any, Any, Any]] | None = None

    # ---- what it is asked ------------------------------------------------------------------------------------------

    def walk(self, pieces: list[Piece], tokens: int) -> tuple[Node, int]:
        """Follow the first `tokens` of `pieces` as far as they are there: (the node where that ends, tokens found)."""
        node, found, place, offset = self.root, 0, 0, 0
        while found < tokens and place < len(pieces):
            child = node.children.get(_token(pieces[place], offset))
            if child is None:
                break
            same, place, offset = _common(child.pieces, pieces, place, offset, tokens - found)
            found += same
            node = child if same == child.length else self._split(child, same)
            self._touch(node)
        return node, found

    def insert(self, pieces: list[Piece], tokens: int) -> tuple[Node, int]:
        """The first `tokens` of `pieces` are there from now on: (the node where they end, tokens that were there)."""
        parent, found = self.walk(pieces, tokens)
        if found == tokens:
            return parent, found
        leaf = Node(cut(pieces, found, tokens), parent, tokens - found)
        self.put(parent.children, _token(leaf.pieces[0]), leaf)
        self.drop(self._leaves, parent)
        self.put(self._leaves, leaf, None)
        self.set(self, "evictable", self.evictable + leaf.length)
        self._touch(leaf)
        return leaf, found

    def lock(self, node: Node) -> None:
        """One more user of `node` and all above it."""
        while node.parent is not None:
            if not node.users:
                self.set(self, "evictable", self.evictable - node.length)
                self.drop(self._leaves, node)
            self.set(node, "users", node.users + 1)
            node = node.parent

    def unlock(self, node: Node) -> None:
        """One user fewer."""
        while node.parent is not None:
            self.set(node, "users", node.users - 1)
            if not node.users:
                self.set(self, "evictable", self.evictable + node.length)
                if not node.children:
                    self.put(self._leaves, node, None)
            node = node.parent

    def evict(self, tokens: int) -> None:
        """Whole leaves go until `tokens` are gone, or nothing that could go is left."""
        if tokens <= 0 or not self._leaves:
            return
        heap = [(leaf.time, leaf) for leaf in self._leaves]  # no two times are equal
        heapify(heap)
        while tokens > 0 and heap:
            leaf = heappop(heap)[1]
            tokens -= leaf.length
            parent = leaf.parent
            assert parent is not None, "the root is no leaf"
            self.drop(self._leaves, leaf)
            self.drop(parent.children, _token(leaf.pieces[0]))
            self.set(self, "evictable", self.evictable - leaf.length)
            if not parent.children and not parent.users and parent is not self.root:
                self.put(self._leaves, parent, None)
                heappush(heap, (parent.time, parent))

    # ---- changes, and taking them back -----------------------------------------------------------------------------

    def begin_trial(self) -> None:
        """Whatever changes from here on can be taken back."""
        self._undo = []

    def end_trial(self) -> None:
        """All is again as it was at `begin_trial`."""
        undo, self._undo = self._undo or [], None
        for thing, name, value in reversed(undo):
            if not isinstance(thing, dict):
                setattr(thing, name, value)
            elif value is _ABSENT:
                del thing[name]
            else:
                thing[name] = value

    def set(self, thing: Any, name: str, value: Any) -> None:
        """`thing.name = value`, to be taken back after a trial."""
        if self._undo is not None:
            self._undo.append((thing, name, getattr(thing, name)))
        setattr(thing, name, value)

    def put(self, table: dict[Any, Any], key: Hashable, value: Any) -> None:
        """`table[key] = value`, likewise."""
        if self._undo is not None:
            self._undo.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def drop(self, table: dict[Any, Any], key: Hashable) -> None:
        """`table` without `key`, likewise."""
        value = table.pop(key, _ABSENT)
        if self._undo is not None and value is not _ABSENT:
            self._undo.append((table, key, value))

    def _touch(self, node: Node) -> None:
        self.set(self, "_clock", self._clock + 1)
        self.set(node, "time", self._clock)

    def _split(self, node: Node, length: int) -> Node:
        """`node` keeps what comes after its first `length` tokens; returns the new node of those, above it."""
        parent = node.parent
        assert parent is not None, "the root has no tokens"
        upper = Node(cut(node.pieces, 0, length), parent, length, node.users)
        self.put(parent.children, _token(node.pieces[0]), upper)
        self.set(node, "pieces", cut(node.pieces, length, node.length))
        self.set(node, "length", node.length - length)
        self.set(node, "parent", upper)
        upper.children[_token(node.pieces[0])] = node
        self._touch(node)
        return upper


def _token(piece: Piece, offset: int = 0) -> Hashable:
    return piece.name, piece.start + offset


def _common(edge: list[Piece], pieces: list[Piece], place: int, offset: int, most: int) -> tuple[int, int, int]:
    """How many tokens of `edge`, at most `most`, follow in `pieces` from token `offset` of piece `place` on.

    With the place and offset behind them.
    """
    same = 0
    for name, start, length in edge:
        done = 0
        while done < length:
            if same == most or place == len(pieces):
                return same, place, offset
            other = pieces[place]
            if other.name != name or other.start + offset != start + done:
                return same, place, offset
            step = min(length - done, other.length - offset, most - same)
            done += step
            same += step
            offset += step
            if offset == other.length:
                place, offset = place + 1, 0
    return same, place, offset
