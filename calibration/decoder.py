"""A real decoder: a model's own shapes, random weights, keys and values in pages. Standard library and torch only.

It computes one tensor-parallel rank: with `tp` above 1 the sums over ranks are left out. Nothing in `layer` and
`stack` waits for the device, so that either can be captured in a CUDA graph (after one call, as any kernel).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from calibration.attention import Row, Rows, attend
from simulator.spec_types import ModelSpec

__all__ = ["Decoder", "Row", "Rows", "activate", "normalise", "rotate", "write_pages"]

ROPE_BASE = 10_000.0
EPSILON = 1e-5
# Linear layers that have a bias, by ModelSpec.biases, of qkv, o, (gate_)up, down.
_BIASED = {"none": 0, "qkv": 1, "attention": 2, "all": 4}


class Norm(NamedTuple):
    """A norm's scale and, of a LayerNorm, its shift: [hidden] or [head_dim]."""

    scale: Tensor
    shift: Tensor | None = None


class Linear(NamedTuple):
    """y = x W^T + b: weight [outputs, inputs], bias [outputs]."""

    weight: Tensor
    bias: Tensor | None = None


class Layer(NamedTuple):
    """The weights of a decoder layer on one rank, and its pages: [num_blocks, block_size, kv_heads, head_dim]."""

    attention_norm: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    o: Linear
    mlp_norm: Norm
    up: Linear  # gate and up in one, where the MLP is gated
    down: Linear
    keys: Tensor
    values: Tensor


class Decoder:
    """`layers` decoder layers (default: the model's), embedding and LM head, with room for `num_blocks` pages.

    `vocab`, `heads` and `kv_heads` are the rank's. Raises what torch raises where memory doesn't suffice.
    """

    def __init__(
        self,
        model: ModelSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        layers: int | None = None,
        num_blocks: int,
        block_size: int = 16,
        tp: int = 1,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.device, self.dtype = device, dtype
        self.num_blocks, self.block_size = num_blocks, block_size
        self.heads, self.kv_heads, self.head_dim = model.heads // tp, model.kv_heads_per_rank(tp), model.head_dim
        self.vocab = -(-model.vocab // tp)
        self._tp = tp
        self._random = torch.Generator(device).manual_seed(seed)
        self.embedding = self._drawn(self.vocab, model.hidden, scale=1.0)
        self.head = self.embedding if model.tied_embeddings else self._drawn(self.vocab, model.hidden)
        self.positions = self._drawn(model.learned_positions, model.hidden) if model.learned_positions else None
        self.layers = [self._layer() for _ in range(model.layers if layers is None else layers)]
        self.final_norm = self._norm(model.hidden)
        self.cos, self.sin = self._angles()

    @torch.inference_mode()
    def layer(self, i: int, x: Tensor, rows: Rows) -> Tensor:
        """Layer `i` of `x`, [tokens, hidden]; keys and values of `rows` go into their pages. Returns the same shape."""
        layer = self.layers[i]
        tokens = len(x)
        qkv = F.linear(normalise(x, layer.attention_norm), *layer.qkv)
        qkv = qkv.view(tokens, -1, self.head_dim)
        q, k, v = qkv[:, : self.heads], qkv[:, self.heads : -self.kv_heads], qkv[:, -self.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = normalise(q, layer.q_norm), normalise(k, layer.k_norm)
        if self.positions is None:
            cos, sin = self.cos[rows.positions], self.sin[rows.positions]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        write_pages(layer.keys, k, rows.slots)
        write_pages(layer.values, v, rows.slots)
        x = x + F.linear(attend(q, layer.keys, layer.values, rows).view(tokens, -1), *layer.o)
        up = F.linear(normalise(x, layer.mlp_norm), *layer.up)
        return x + F.linear(activate(up, self.model.gated_mlp), *layer.down)

    @torch.inference_mode()
    def stack(self, token_ids: Tensor, rows: Rows) -> Tensor:
        """All layers, then the LM head and greedy sampling of each row's last token.

        token_ids: [tokens], below `vocab`. Returns the next token of each row, [rows], int64.
        """
        return self.logits(token_ids, rows).argmax(dim=-1)

    @torch.inference_mode()
    def logits(self, token_ids: Tensor, rows: Rows) -> Tensor:
        """The LM head's output for each row's last token, [rows, vocab]."""
        x = F.embedding(token_ids, self.embedding)
        if self.positions is not None:
            x = x + F.embedding(rows.positions, self.positions)
        for i in range(len(self.layers)):
            x = self.layer(i, x, rows)
        return F.linear(normalise(x[rows.last], self.final_norm), self.head)

    def _layer(self) -> Layer:
        model = self.model
        biased = _BIASED[model.biases]
        qkv, o, up, down = (
            Linear(
                self._drawn(gemm.outputs, gemm.inputs),
                self._drawn(gemm.outputs, scale=0.02) if i < biased else None,
            )
            for i, gemm in enumerate(model.gemms(self._tp))
        )
        q_norm, k_norm = (self._norm(model.head_dim) if model.qk_norm else None for _ in range(2))
        shape = (self.num_blocks, self.block_size, self.kv_heads, self.head_dim)
        keys, values = (torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in range(2))
        hidden = model.hidden
        return Layer(self._norm(hidden), qkv, q_norm, k_norm, o, self._norm(hidden), up, down, keys, values)

    def _drawn(self, *shape: int, scale: float | None = None) -> Tensor:
        """Normal numbers times `scale`; by default such that a linear layer keeps the size of what it is given."""
        drawn = torch.randn(shape, device=self.device, dtype=self.dtype, generator=self._random)
        return drawn.mul_(shape[-1] ** -0.5 if scale is None else scale)

    def _norm(self, size: int) -> Norm:
        scale = torch.ones(size, device=self.device, dtype=self.dtype)
        return Norm(scale, torch.zeros_like(scale) if self.model.biases == "all" else None)

    def _angles(self) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines, [max_model_len, 1, head_dim / 2]."""
        powers = torch.arange(0, self.head_dim, 2, device=self.device, dtype=torch.float32) / self.head_dim
        places = torch.arange(self.model.max_model_len, device=self.device, dtype=torch.float32)
        angles = torch.outer(places, ROPE_BASE**-powers)[:, None]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def normalise(x: Tensor, norm: Norm) -> Tensor:
    """RMSNorm over the last dimension; LayerNorm where there is a shift."""
    if norm.shift is None:
        return F.rms_norm(x, norm.scale.shape, norm.scale, EPSILON)
    return F.layer_norm(x, norm.scale.shape, norm.scale, norm.shift, EPSILON)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al., arXiv 2104.09864), halves apart as in Llama.

    x: [tokens, heads, head_dim]; cos and sin: [tokens, 1, head_dim / 2]. Returns a new tensor like x.
    """
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def write_pages(pages: Tensor, new: Tensor, slots: Tensor) -> None:
    """Put `new`, [tokens, kv_heads, head_dim], into `pages` at `slots`, [tokens]."""
    pages.view(-1, *pages.shape[2:]).index_copy_(0, slots, new)


def activate(up: Tensor, gated: bool) -> Tensor:
    """SiLU(gate) x up of [tokens, 2 x intermediate] where the MLP is gated, else ReLU of [tokens, intermediate]."""
    if not gated:
        return F.relu(up)
    gate, up = up.chunk(2, dim=-1)
    return F.silu(gate) * up
