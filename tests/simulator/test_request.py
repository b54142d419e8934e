from __future__ import annotations

import pytest

from simulator.decodeset import DecodeSet
from simulator.request import DECODING, FINISHING, PREFILLING, WAITING, Request, Sequence


def test_defaults_of_a_request() -> None:
    request = Request("a", 5, 10, 3)
    assert (request.max_tokens, request.priority, request.session, request.after, request.delay_ns) == (
        None,
        0,
        None,
        None,
        0,
    )
    assert request.prefix_hashes == ()
    with pytest.raises(AttributeError):
        request.prompt_tokens = 7  # type: ignore[misc]


def test_a_new_sequence_waits_with_all_to_compute() -> None:
    seq = Sequence(Request("a", 5, 10, 3, 8, 2, "s"), 4)
    assert (seq.index, seq.id, seq.arrival_ns, seq.max_tokens, seq.priority, seq.session) == (4, "a", 5, 8, 2, "s")
    assert (seq.state, seq.computed, seq.remaining, seq.emitted) == (WAITING, 0, 10, 0)
    assert (seq.scheduled_ns, seq.first_token_ns, seq.finish_ns, seq.released_ns) == (-1, -1, -1, -1)
    assert repr(seq) == "Sequence('a', waiting, computed=0, emitted=0)"


def test_the_true_length_is_no_public_attribute() -> None:
    seq = Sequence(Request("a", 0, 10, 333), 0)
    public = [getattr(seq, name) for name in dir(seq) if not name.startswith("_")]
    assert 333 not in public


def test_computed_and_emitted_follow_the_decode_set() -> None:
    seq, decoding = Sequence(Request("a", 0, 10, 5), 0), DecodeSet(16)
    seq.state, seq._computed = PREFILLING, 7
    assert (seq.computed, seq.remaining, seq.emitted) == (7, 3, 0)
    seq._computed, seq.state = 10, DECODING
    decoding.add(seq, 4)
    assert (seq.computed, seq.remaining, seq.emitted) == (10, 0, 1)
    decoding.advance(2)
    assert (seq.computed, seq.emitted) == (12, 3)
    assert decoding.advance(2) == [seq]
    seq.state, seq.goal = FINISHING, 15
    assert (seq.computed, seq.remaining, seq.emitted) == (14, 0, 5)
