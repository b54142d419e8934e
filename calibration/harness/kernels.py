"""Points as calls: a model's operations on a torch device, over buffers that rotate. Standard library and torch only.

Inputs and weights are views of one large buffer of normal random numbers (zeros would draw less power); keys and values
are random pages. Each of a point's calls does the same work on other data, with enough of it in total that none is left
in the cache, where the device asks for that and MAX_SETS allows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from calibration.attention import Row, Rows, attend, kernel, page_tokens, wants_runs
from calibration.decoder import Decoder, Norm, activate, normalise, rotate, write_pages
from calibration.harness.allreduce import Reductions
from calibration.harness.backends import Built, Call, Device, OutOfMemory
from calibration.harness.grid import STACK_LAYERS
from calibration.points import ATTENTION, ELEMENTWISE, WHOLE, Point
from simulator.specs import GIB, ModelSpec

MAX_SETS = 512
ALIGNED = 256  # numbers; so that every view starts where kernels like it
Shape = tuple[int, ...]


class TorchKernels:
    """The operations of one of `tp` ranks; see calibration.harness.backends.Kernels.

    `rotated_bytes`: how much a point's buffer sets hold together at most, where it isn't one set that is larger.
    """

    def __init__(
        self, device: Device, where: torch.device, model: ModelSpec, dtype: str, *, tp: int, seed: int,
        rotated_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.device, self.where, self.model, self.tp, self.seed = device, where, model, tp, seed
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.width = int(self.dtype.itemsize)
        self.heads, self.kv_heads = model.heads // tp, model.kv_heads_per_rank(tp)
        self.vocab = -(-model.vocab // tp)
        self.block_size = page_tokens(where, self.dtype)
        attention = kernel(where, self.dtype, self.heads, self.kv_heads, model.head_dim, self.block_size)
        self._in_runs = wants_runs(where, self.dtype, self.block_size)
        self.engine = f"PyTorch {torch.__version__}, {attention}"
        self._rotated_bytes = min(device.flush_bytes, rotated_bytes or device.flush_bytes)
        self._reductions = Reductions(dtype)
        self._draw = random.Random(seed)
        self._generator = torch.Generator(where).manual_seed(seed)
        self._empty()

    def _empty(self) -> None:
        """Let go of all buffers."""
        nothing = torch.empty(0, device=self.where, dtype=self.dtype)
        self._numbers, self._keys, self._values = nothing, nothing, nothing
        self._decoder: Decoder | None = None

    def build(self, point: Point) -> Built:
        """The calls of a point. Raises OutOfMemory, Unsupported, and what torch raises."""
        if point.op == "linear":
            return self._linear(point)
        if point.op in ELEMENTWISE:
            return self._elementwise(point)
        if point.op in ATTENTION:
            return self._attention(point)
        if point.op in WHOLE:
            return self._whole(point)
        return self._reductions.built(point)

    def _linear(self, point: Point) -> Built:
        m, n, k = point.m, point.n, point.k
        sets, size = self._sets((m, k), (n, k), written=m * n)
        return Built([partial(F.linear, x, weight) for x, weight in sets], size)

    def _elementwise(self, point: Point) -> Built:
        calls: dict[str, Callable[[int], Built]] = {
            "embedding": self._embedding, "norm": self._norm, "rope": self._rope, "activation": self._activation,
            "add": self._add, "kv_write": self._kv_write, "sampling": self._sampling,
        }  # fmt: skip
        return calls[point.op](point.m)

    def _embedding(self, m: int) -> Built:
        table = self._random(self.vocab * self.model.hidden).view(self.vocab, self.model.hidden)
        size = m * self.model.hidden * self.width
        ids = [self._integers(self.vocab, m) for _ in range(self._rounds(size))]
        return Built([partial(F.embedding, i, table) for i in ids], size)

    def _norm(self, m: int) -> Built:
        hidden = self.model.hidden
        scale = torch.ones(hidden, device=self.where, dtype=self.dtype)
        norm = Norm(scale, torch.zeros_like(scale) if self.model.biases == "all" else None)
        sets, size = self._sets((m, hidden), written=m * hidden)
        return Built([partial(normalise, x, norm) for (x,) in sets], size)

    def _rope(self, m: int) -> Built:
        """Queries and keys, the angles looked up by position, as the decoder does."""
        dim, length = self.model.head_dim, self.model.max_model_len
        queries, keys = (m, self.heads, dim), (m, self.kv_heads, dim)
        sets, size = self._sets(queries, keys, written=math.prod(queries) + math.prod(keys))
        angles = self._drawn(2, length, 1, dim // 2)
        places = torch.arange(m, device=self.where) % length

        def call(q: Tensor, k: Tensor) -> Call:
            def rope() -> None:
                cos, sin = angles[0][places], angles[1][places]
                rotate(q, cos, sin)
                rotate(k, cos, sin)

            return rope

        return Built([call(*tensors) for tensors in sets], size)

    def _activation(self, m: int) -> Built:
        gated, out = self.model.gated_mlp, self.model.intermediate // self.tp
        sets, size = self._sets((m, 2 * out if gated else out), written=m * out)
        return Built([partial(activate, x, gated) for (x,) in sets], size)

    def _add(self, m: int) -> Built:
        shape = (m, self.model.hidden)
        sets, size = self._sets(shape, shape, written=math.prod(shape))
        return Built([partial(torch.add, x, y) for x, y in sets], size)

    def _kv_write(self, m: int) -> Built:
        """Keys and values of `m` tokens into places of their own."""
        new = (m, self.kv_heads, self.model.head_dim)
        blocks = -(-m // self.block_size)
        pages = (blocks, self.block_size, *new[1:])
        sets, size = self._sets(new, new, pages, pages)
        slots = torch.randperm(blocks * self.block_size, device=self.where, generator=self._generator)[:m]

        def call(key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> Call:
            def write() -> None:
                write_pages(keys, key, slots)
                write_pages(values, value, slots)

            return write

        return Built([call(*tensors) for tensors in sets], size)

    def _sampling(self, m: int) -> Built:
        sets, size = self._sets((m, self.vocab))
        return Built([partial(torch.argmax, x, dim=-1) for (x,) in sets], size)

    def _attention(self, point: Point) -> Built:
        shape = (point.tokens, self.heads, self.model.head_dim)
        blocks = self._blocks(point)
        kv_bytes = self._kv_bytes(blocks)
        size = math.prod(shape) * self.width + kv_bytes
        sets = self._rounds(size)
        # Where pages are gathered first, the copies; and a mask of the chunk.
        self._reserve(0 if self._in_runs else 2 * kv_bytes + 2 * point.chunk * (point.ctx + point.chunk))
        keys, values = self._pages(sets * blocks)
        queries, places = self._views([shape], sets), self._places(sets * blocks, sets)
        calls = [
            partial(attend, q, keys, values, self._rows(point, mine))
            for (q,), mine in zip(queries, places, strict=True)
        ]
        return Built(calls, size)

    def _whole(self, point: Point) -> Built:
        decoder = self._with_pages(self._blocks(point))
        layers = len(decoder.layers)
        weights = sum(gemm.outputs * gemm.inputs for gemm in self.model.gemms(self.tp)) * self.width
        size = weights + self._kv_bytes(self._blocks(point))
        rows = self._rows(point, self._places(decoder.num_blocks, 1)[0])
        if point.op == "stack":
            ids = self._integers(self.vocab, point.tokens)
            size = layers * size + self.vocab * self.model.hidden * self.width
            return Built([partial(decoder.stack, ids, rows)], size)
        sets = min(self._rounds(size), layers)
        inputs = self._views([(point.tokens, self.model.hidden)], sets)
        calls = [partial(decoder.layer, i, x, rows) for i, (x,) in enumerate(inputs)]
        return Built(calls, size)

    def _rows(self, point: Point, blocks: Sequence[int]) -> Rows:
        """The point's chunks and decode rows, with pages taken from `blocks`."""
        rows, taken = [], 0
        for new, total in _lengths(point):
            pages = -(-total // self.block_size)
            rows.append(Row(new, total - new, blocks[taken : taken + pages]))
            taken += pages
        return Rows.build(self.where, self.block_size, rows)

    def _blocks(self, point: Point) -> int:
        return sum(-(-total // self.block_size) for _, total in _lengths(point))

    def _kv_bytes(self, blocks: int) -> int:
        return 2 * blocks * self.block_size * self.kv_heads * self.model.head_dim * self.width

    def _places(self, blocks: int, sets: int) -> list[Sequence[int]]:
        """All blocks in a random order, dealt to the sets; where rows are read in runs, as ranges in a random order."""
        each = blocks // sets
        starts = range(0, each * sets, each)
        if self._in_runs:
            return [range(start, start + each) for start in self._draw.sample(starts, sets)]
        order = list(range(blocks))
        self._draw.shuffle(order)
        return [order[start : start + each] for start in starts]

    def _pages(self, blocks: int) -> tuple[Tensor, Tensor]:
        """Random key and value pages, at least `blocks`; kept for the next point."""
        if len(self._keys) < blocks:
            self._keys = self._values = self._keys.new_empty(0)
            self._reserve(self._kv_bytes(blocks))
            shape = (blocks, self.block_size, self.kv_heads, self.model.head_dim)
            self._keys, self._values = self._drawn(*shape), self._drawn(*shape)
        return self._keys, self._values

    def _with_pages(self, blocks: int) -> Decoder:
        """The decoder, with at least `blocks` random pages per layer."""
        layers = min(STACK_LAYERS, self.model.layers)
        if self._decoder is None:
            gemms = sum(gemm.outputs * gemm.inputs for gemm in self.model.gemms(self.tp))
            self._reserve((layers * gemms + 2 * self.vocab * self.model.hidden) * self.width)
            self._decoder = Decoder(
                self.model, device=self.where, dtype=self.dtype, layers=layers, num_blocks=0,
                block_size=self.block_size, tp=self.tp, seed=self.seed,
            )  # fmt: skip
        decoder = self._decoder
        if decoder.num_blocks < blocks:
            shape = (blocks, self.block_size, self.kv_heads, self.model.head_dim)
            nothing = self._keys.new_empty(0)
            decoder.layers = [layer._replace(keys=nothing, values=nothing) for layer in decoder.layers]
            decoder.num_blocks = 0
            self._reserve(layers * self._kv_bytes(blocks), keep_decoder=True)
            decoder.layers = [
                layer._replace(keys=self._drawn(*shape), values=self._drawn(*shape)) for layer in decoder.layers
            ]
            decoder.num_blocks = blocks
        return decoder

    def _sets(self, *shapes: Shape, written: int = 0) -> tuple[list[list[Tensor]], int]:
        """(as many sets of tensors of these shapes as it takes, bytes that a call reads).

        What a call writes goes into the same memory every time, so it makes nothing cold.
        """
        size = sum(map(math.prod, shapes)) * self.width
        self._reserve(written * self.width)
        return self._views(shapes, self._rounds(size)), size

    def _rounds(self, size: int) -> int:
        """How many sets of `size` bytes rotate."""
        return max(min(-(-self._rotated_bytes // size), MAX_SETS), 1)

    def _views(self, shapes: Sequence[Shape], sets: int) -> list[list[Tensor]]:
        """Sets of tensors of these shapes, side by side in the random numbers."""
        sizes = [-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes]
        numbers = self._random(sets * sum(sizes))
        found, start = [], 0
        for _ in range(sets):
            tensors = []
            for shape, size in zip(shapes, sizes, strict=True):
                tensors.append(numbers[start : start + math.prod(shape)].view(shape))
                start += size
            found.append(tensors)
        return found

    def _random(self, count: int) -> Tensor:
        """The first `count` of the random numbers; more are drawn where there are fewer."""
        if len(self._numbers) < count:
            self._numbers = self._numbers.new_empty(0)
            self._reserve(count * self.width)
            self._numbers = self._drawn(count)
        return self._numbers[:count]

    def _drawn(self, *shape: int) -> Tensor:
        """Normal numbers of a generator of its own: a capture that fails leaves torch's own unusable."""
        return torch.randn(shape, device=self.where, dtype=self.dtype, generator=self._generator)

    def _integers(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), device=self.where, generator=self._generator)

    def _reserve(self, size: int, *, keep_decoder: bool = False) -> None:
        """Make sure that `size` bytes can be taken, if need be by letting go of buffers. Raises OutOfMemory."""
        if size > self.device.free_bytes():
            decoder = self._decoder
            self._empty()
            self._decoder = decoder if keep_decoder else None
            self.device.release()
        if size > (free := self.device.free_bytes()):
            raise OutOfMemory(f"needs {size / GIB:.1f} GiB, and {free / GIB:.1f} are free")


def _lengths(point: Point) -> list[tuple[int, int]]:
    """(new tokens, all tokens) of each sequence. Of uneven rows the first is the longest, the others share the rest."""
    rows = [(point.chunk, point.ctx + point.chunk)] * point.seqs
    if not point.kv_max:
        return rows + [(1, point.kv_dec)] * point.n_dec
    rest, others = point.n_dec * point.kv_dec - point.kv_max, point.n_dec - 1
    shared, more = divmod(rest, others)
    return [*rows, (1, point.kv_max), *((1, shared + (i < more)) for i in range(others))]
