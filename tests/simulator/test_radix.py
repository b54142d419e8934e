"""The radix tree and its pool against a tree of single tokens, and what a trial leaves behind: nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Request
from simulator.content import Piece, cut, pieces_of
from simulator.radix import Node, RadixTree
from simulator.radix_pool import RadixPool
from simulator.request import FINISHED, PREFILLING, Sequence

TEXTS = st.text("ab", min_size=1, max_size=9)


def pieces(text: str) -> list[Piece]:
    return [Piece(letter + text[:i], 0, 1) for i, letter in enumerate(text)]


def sequence(prompt: int, hashes: tuple[int, ...] = (), index: int = 0, output: int = 5) -> Sequence:
    return Sequence(Request(str(index), 0, prompt, output, prefix_hashes=hashes), index)


def shown(node: Node) -> dict[object, object]:
    return {key: (child.length, child.users, child.time, shown(child)) for key, child in sorted(node.children.items())}


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=30))
def test_walks_find_what_was_inserted(steps: list[tuple[bool, str]]) -> None:
    tree = RadixTree()
    cached: set[str] = set()  # a text stands for its last token
    for insert, text in steps:
        there = max(n for n in range(len(text) + 1) if n == 0 or text[:n] in cached)
        _, found = (tree.insert if insert else tree.walk)(pieces(text), len(text))
        assert found == there
        if insert:
            cached |= {text[:n] for n in range(1, len(text) + 1)}
        assert tree.evictable == len(cached)


@given(st.lists(TEXTS, min_size=1, max_size=20), st.data())
def test_eviction_spares_whoever_is_locked_and_takes_whole_leaves(texts: list[str], data: st.DataObject) -> None:
    tree = RadixTree()
    for text in texts:
        tree.insert(pieces(text), len(text))
    kept = data.draw(st.lists(st.sampled_from(texts), max_size=3))
    nodes = [tree.walk(pieces(text), len(text))[0] for text in kept]
    for node in nodes:
        tree.lock(node)
    tokens = {text[:n] for text in texts for n in range(1, len(text) + 1)}
    locked = {text[:n] for text in kept for n in range(1, len(text) + 1)}
    assert tree.evictable == len(tokens) - len(locked)
    shortfall = data.draw(st.integers(0, 60))
    before = tree.evictable
    tree.evict(shortfall)
    gone = before - tree.evictable
    assert gone >= min(shortfall, before)
    for text in kept:
        assert tree.walk(pieces(text), len(text))[1] == len(text)
    for node in nodes:
        tree.unlock(node)
    assert tree.evictable == len(tokens) - gone


def test_the_least_recently_used_leaf_goes_first_and_its_parent_in_its_turn() -> None:
    tree = RadixTree()
    for text in ("aaab", "aabb", "bbbb"):
        tree.insert(pieces(text), 4)
    tree.walk(pieces("aaab"), 4)
    tree.evict(1)  # the suffix "bb" of aabb, split off when aabb came in
    assert [tree.walk(pieces(text), 4)[1] for text in ("aabb", "bbbb", "aaab")] == [2, 4, 4]
    tree.walk(pieces("bbbb"), 4)
    tree.evict(3)
    assert [tree.walk(pieces(text), 4)[1] for text in ("aaab", "bbbb")] == [0, 4]


@given(st.lists(TEXTS, min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 4), TEXTS), max_size=12))
def test_a_trial_leaves_nothing_behind(texts: list[str], tried: list[tuple[int, str]]) -> None:
    tree = RadixTree()
    for text in texts:
        tree.insert(pieces(text), len(text))
    tree.lock(tree.walk(pieces(texts[0]), len(texts[0]))[0])
    before = (shown(tree.root), tree.evictable, set(tree._leaves), tree._clock)
    tree.begin_trial()
    locked: list[Node] = []
    for kind, text in tried:
        if kind == 0:
            tree.insert(pieces(text), len(text))
        elif kind == 1:
            tree.evict(len(text))
        elif kind == 2:
            tree.walk(pieces(text), len(text))
        elif kind == 3:
            locked.append(tree.walk(pieces(text), len(text))[0])
            tree.lock(locked[-1])
        elif locked:
            tree.unlock(locked.pop())
    tree.end_trial()
    assert (shown(tree.root), tree.evictable, set(tree._leaves), tree._clock) == before


def test_content_is_the_traces_blocks_then_ones_own_then_the_answer() -> None:
    seq = sequence(20, (7, 8), index=3)
    assert pieces_of(seq)[:2] == [(7, 0, 16), (8, 0, 4)]
    assert pieces_of(seq)[2].name == (3, "answer")
    assert pieces_of(sequence(20, (7,), index=3))[1] == ((3, "prompt"), 0, 4)
    assert cut(pieces_of(seq), 15, 18) == [(7, 15, 1), (8, 0, 2)]


def test_a_turn_begins_with_the_answer_of_the_one_it_continues() -> None:
    pool = RadixPool(100)
    first = sequence(10, index=0, output=5)
    finish(pool, first, 14)
    turn = Sequence(Request("1", 0, 20, 5, continues="0", history_tokens=15), 1)
    turn._earlier = first
    assert pool.admit(turn) == 14


def finish(pool: RadixPool, seq: Sequence, computed: int) -> None:
    """`seq` comes, computes so many tokens and leaves."""
    seq._computed = pool.admit(seq)
    pool.take(seq, computed - seq._computed)
    seq._computed = computed
    seq.state = FINISHED
    pool.give_back(seq)


def test_slots_are_shared_counted_once_and_duplicates_come_free() -> None:
    pool = RadixPool(100)
    one, two = sequence(32, (1, 2), 0), sequence(40, (1, 2, 3), 1)
    for seq in (one, two):  # both at once, so neither finds the other's
        assert pool.admit(seq) == 0
        pool.take(seq, seq.goal)
        seq._computed, seq.state = seq.goal, PREFILLING
    assert (pool.free, pool.evictable) == (28, 0)
    pool.publish(one, 32)
    assert pool.free == 28
    pool.publish(two, 40)
    assert pool.free == 60
    assert (pool.held(one), pool.held(two)) == (0, 8)
    for seq in (one, two):
        seq.state = FINISHED
        pool.give_back(seq)
    assert (pool.free, pool.evictable) == (100, 40)


def test_the_answer_can_be_evicted_without_the_prompt() -> None:
    pool = RadixPool(50)
    finish(pool, sequence(16, (1,), 0, output=20), 30)
    assert pool.make_room(34)
    assert (pool.evictable, pool.admit(sequence(17, (1,), 1))) == (16, 16)


def test_a_preempted_sequence_leaves_nothing_of_its_own() -> None:
    pool = RadixPool(50)
    seq = sequence(16, (1,), 0)
    pool.admit(seq)
    pool.take(seq, 16)
    seq._computed, seq.state = 16, PREFILLING
    pool.give_back(seq)
    assert (pool.free, pool.evictable) == (50, 0)


def test_what_was_tried_out_is_done_by_its_steps() -> None:
    pool = RadixPool(64)
    finish(pool, sequence(16, (1,), 0), 20)
    finish(pool, sequence(32, (2, 3), 1), 36)
    candidate = sequence(30, (2, 4), 2)
    with pool.trial() as memory:
        assert memory.look(candidate, 30) == 16
        assert memory.hold(candidate) == 16
        assert memory.make_room(30)
        shows = (memory.tokens, pool.evictable)
    assert (pool.free, pool.evictable) == (64, 56)
    pool.follow(memory.steps)
    assert (pool.free, pool.evictable) == shows
    assert pool.admit(candidate) == 16


@pytest.mark.parametrize("blocks", [1, 5])
def test_every_slot_is_usable(blocks: int) -> None:
    pool = RadixPool(blocks, 16)
    assert (pool.total, pool.block_size) == (blocks * 16, 1)
