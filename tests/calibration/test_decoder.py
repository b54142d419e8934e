"""The real decoder: chunks and decode steps give what one whole pass gives, whatever the model's shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from calibration.decoder import Decoder, Row, Rows  # noqa: E402
from simulator.specs import get_model  # noqa: E402

CPU = torch.device("cpu")
TINY = replace(get_model("tiny"), hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=300)
MODELS = {
    "grouped heads, gated": TINY,
    "one group, ungated": replace(TINY, kv_heads=4, gated_mlp=False),
    "biases, norms of q and k": replace(TINY, biases="qkv", qk_norm=True, tied_embeddings=True),
    "learned positions, LayerNorm": replace(TINY, biases="all", gated_mlp=False, learned_positions=4096),
}


def decoder(model_name: str, dtype: torch.dtype = torch.float32, tp: int = 1) -> Decoder:
    return Decoder(MODELS[model_name], device=CPU, dtype=dtype, num_blocks=12, tp=tp, seed=3)


def logits(made: Decoder, ids: list[list[int]], rows: list[Row]) -> torch.Tensor:
    flat = torch.tensor([token for one in ids for token in one])
    return made.logits(flat, Rows.build(CPU, 16, rows))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_chunks_and_decode_steps_give_what_one_pass_gives(model: str, dtype: torch.dtype, tolerance: float) -> None:
    made = decoder(model, dtype)
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(300, (count,), generator=draw).tolist() for count in (50, 37))
    whole = logits(made, [a, b], [Row(50, 0, [0, 1, 2, 3]), Row(37, 0, [4, 5, 6])])
    pages_a, pages_b = [11, 7, 9, 8], [10, 6, 5]
    logits(made, [a[:20]], [Row(20, 0, pages_a)])
    logits(made, [a[20:48], b[:30]], [Row(28, 20, pages_a), Row(30, 0, pages_b)])
    logits(made, [a[48:49], b[30:36]], [Row(1, 48, pages_a), Row(6, 30, pages_b)])
    pieces = logits(made, [a[49:], b[36:]], [Row(1, 49, pages_a), Row(1, 36, pages_b)])
    torch.testing.assert_close(pieces, whole, atol=tolerance, rtol=tolerance)


def test_positions_matter() -> None:
    """The same tokens in another order give another answer: keys are rotated by their place."""
    made = decoder("grouped heads, gated")
    first = logits(made, [[1, 2, 3, 9]], [Row(4, 0, [0])])
    second = logits(made, [[2, 1, 3, 9]], [Row(4, 0, [1])])
    assert not torch.allclose(first, second, atol=1e-3)


def test_sampling_is_greedy_and_one_token_per_row() -> None:
    made = decoder("grouped heads, gated")
    rows = Rows.build(CPU, 16, [Row(3, 0, [0]), Row(1, 0, [1])])
    ids = torch.tensor([5, 6, 7, 8])
    assert made.stack(ids, rows).tolist() == made.logits(ids, rows).argmax(1).tolist()


def test_one_of_two_ranks_has_half_of_everything() -> None:
    made = decoder("grouped heads, gated", tp=2)
    layer = made.layers[0]
    assert (made.heads, made.kv_heads, made.vocab) == (2, 1, 150)
    assert layer.qkv.weight.shape == (4 * 16, 64)
    assert layer.o.weight.shape == (64, 2 * 16)
    assert layer.up.weight.shape == (96, 64)
    assert layer.down.weight.shape == (64, 48)
    assert layer.keys.shape == (12, 16, 1, 16)
    assert logits(made, [[1, 2]], [Row(2, 0, [0])]).shape == (1, 150)


def test_the_same_seed_gives_the_same_weights() -> None:
    one, other = decoder("grouped heads, gated"), decoder("grouped heads, gated")
    assert torch.equal(one.layers[1].down.weight, other.layers[1].down.weight)
    assert not torch.equal(one.layers[0].down.weight, one.layers[1].down.weight)
