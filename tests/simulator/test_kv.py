from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import BlockPool, Request, Reservation
from simulator.decodeset import DecodeSet
from simulator.errors import ConfigError
from simulator.request import DECODING, PREFILLING, Sequence


def sequence(prompt: int, output: int = 5, max_tokens: int | None = None, index: int = 0) -> Sequence:
    seq = Sequence(Request(str(index), 0, prompt, output, max_tokens), index)
    seq.admission = index
    return seq


def decode_set(contexts: list[int], block_size: int, left: int = 10_000) -> DecodeSet:
    decoding = DecodeSet(block_size)
    for index, context in enumerate(contexts):
        seq = sequence(context, left + 1, index=index)
        seq._computed, seq.state = context, DECODING
        decoding.add(seq, left)
    return decoding


def test_the_null_block_is_never_usable() -> None:
    pool = BlockPool(50, 16)
    assert (pool.total, pool.free) == (49, 49)
    assert pool.misfit(Request("a", 0, 49 * 16, 1)) == ""
    assert pool.misfit(Request("a", 0, 49 * 16, 2)) == "exceeds_kv_capacity"
    assert Reservation(50).total == 50


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockPool(1), r"no KV block is usable \(0 after the null block\)"),
        (lambda: BlockPool(10, 0), "engine.block_size = 0: must be at least 1 token"),
        (lambda: Reservation(0), "no KV block is usable"),
        (lambda: Reservation(5, rule="best"), "kv.rule = best: must be max, pow2 or exact"),  # type: ignore[arg-type]
    ],
)
def test_memory_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@given(st.integers(0, 100), st.integers(1, 100), st.sampled_from([1, 5, 16]))
def test_room_in_the_last_block_is_used_first(have: int, new: int, block_size: int) -> None:
    """Against taking blocks token by token."""
    pool, seq = BlockPool(1_000, block_size), sequence(have + new)
    seq.state = PREFILLING
    pool.take(seq, have)
    seq._computed = have
    blocks, room = pool.held(seq), pool.held(seq) * block_size - have
    for _ in range(new):
        if room == 0:
            blocks, room = blocks + 1, block_size
        room -= 1
    assert pool.need(seq, new) == pool.whole_need(seq) == blocks - pool.held(seq)
    pool.take(seq, new)
    seq._computed = have + new
    assert pool.total - pool.free == pool.held(seq) == blocks
    pool.give_back(seq)
    assert pool.free == pool.total


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=12),
    st.integers(0, 120),
    st.integers(0, 200),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 5),
)
def test_decode_steps_against_a_loop(contexts: list[int], free: int, most: int, block_size: int, ran: int) -> None:
    """How far the free blocks last, and what each iteration takes, one token at a time."""
    pool, decoding = BlockPool(10_000, block_size), decode_set(contexts, block_size)
    decoding.advance(ran)
    contexts = [c + ran for c in contexts]
    pool.free = free
    steps, left, taken = 0, free, []
    while steps < most:
        need = sum((c + steps) % block_size == 0 for c in contexts)
        if need > left:
            break
        left -= need
        taken.append(need)
        steps += 1
    assert pool.decode_steps(decoding, most) == steps
    assert pool.take_run(decoding, steps) == taken
    assert pool.free == left


def test_decode_need_is_the_sum_of_the_rows() -> None:
    pool, decoding = BlockPool(100, 4), DecodeSet(4)
    rows = [sequence(context, index=context) for context in (3, 4, 5, 8)]
    for seq in rows:
        seq._computed, seq.state = seq.prompt_tokens, DECODING
        decoding.add(seq, 4)
    assert [pool.row_need(seq) for seq in rows] == [0, 1, 0, 1]
    assert pool.decode_need(decoding) == 2


@pytest.mark.parametrize(
    ("rule", "max_tokens", "blocks", "oracle"),
    [
        ("max", None, 10, False),  # 100 tokens of the longest sequence
        ("max", 7, 10, False),
        ("exact", 21, 5, False),  # 20 + 21 = 41
        ("exact", 20, 4, False),
        ("exact", None, 3, True),  # 20 + 5 true tokens
        ("pow2", 21, 6, False),  # 20 + 32 = 52
        ("pow2", 32, 6, False),
        ("pow2", 33, 9, False),  # 20 + 64 = 84
        ("pow2", 65, 10, False),  # 20 + 128, but no sequence is longer than 100
        ("pow2", None, 3, True),  # 20 + 8
    ],
)
def test_reservation_rules(rule: Any, max_tokens: int | None, blocks: int, oracle: bool) -> None:
    kv, seq = Reservation(25, 10, rule, max_model_len=100), sequence(20, 5, max_tokens)
    assert kv.need(seq, 1) == kv.whole_need(seq) == blocks
    kv.take(seq, 1)
    assert (kv.held(seq), kv.free) == (blocks, 25 - blocks)
    assert kv.oracle is oracle
    seq._computed, seq.state = 20, DECODING
    decoding = DecodeSet(10)
    decoding.add(seq, 4)
    assert kv.need(seq, 5) == kv.decode_need(decoding) == kv.row_need(seq) == 0
    assert kv.decode_steps(decoding, 77) == 77
    assert kv.take_run(decoding, 3) == [0, 0, 0]
    kv.give_back(seq)
    assert (kv.held(seq), kv.free) == (0, 25)


def test_a_reservation_larger_than_the_memory_is_a_misfit() -> None:
    kv = Reservation(4, 10, "exact", max_model_len=100)
    assert kv.misfit(Request("a", 0, 20, 5, max_tokens=20)) == ""
    assert kv.misfit(Request("a", 0, 20, 5, max_tokens=21)) == "exceeds_kv_capacity"
