"""The device that a live run is measured on: found, described, and asked whether a run fits."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calibration.harness.backends.cpu import keep_memory, threads
from calibration.harness.environment import available_memory_bytes, cpu_name
from experiments.local_gpu import local_gpu
from simulator.errors import ConfigError, MissingError, UserError
from simulator.memory_plan import activation_bytes
from simulator.specs import GIB, ModelSpec

if TYPE_CHECKING:
    from calibration.decoder import Decoder
    from experiments.live import Sizes

DEVICES = ("cuda", "cpu")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DTYPE_NAMES = (*DTYPES, *DTYPES.values())
SPARING = 0.9
DEFAULT_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}  # processors compute in 16 bits by way of 32


class LiveDevice:
    """A CUDA device, or the processor. `dtype` is a name of DTYPE_NAMES, None for the device's default.

    Raises MissingError where torch or a CUDA device is missing.
    """

    def __init__(self, kind: str, dtype: str | None = None) -> None:
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            raise MissingError(
                "servesim live needs torch, which isn't installed: pip install -e '.[calibrate]' in a clone"
            ) from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise MissingError("servesim live: no CUDA device on this machine; --device cpu runs on the processor")
        self.kind = kind
        self.dtype_name = DEFAULT_DTYPE[kind] if dtype is None else DTYPES.get(dtype, dtype)
        self._torch = torch
        self._device = torch.device(kind)
        self._dtype = getattr(torch, self.dtype_name)
        if kind == "cpu":
            torch.set_num_threads(threads())  # as its kernels are timed
            keep_memory()
        self.name = torch.cuda.get_device_name() if kind == "cuda" else cpu_name()

    def facts(self) -> dict[str, Any]:
        """What a result says of the device."""
        return {
            "device": self.kind,
            "device_name": self.name,
            "dtype": self.dtype_name,
            "torch": self._torch.__version__,
            "threads": self._torch.get_num_threads(),
        }

    def notices(self, gpu: str) -> list[str]:
        """A line where the config's `gpu` isn't what runs."""
        here = self.kind
        if self.kind == "cuda":
            here = self.name
            with suppress(UserError):
                here = local_gpu().name
        return [] if here == gpu else [f"gpu = {gpu}, but this was measured on {self.name} ({here})"]

    def page_tokens(self, block_size: int) -> int:
        """Tokens per page: the config's, or the least above it that the attention kernel takes."""
        from calibration.attention import page_tokens

        return page_tokens(self._device, self._dtype, block_size)

    def wants_runs(self, page_tokens: int) -> bool:
        """Whether the attention kernel is quicker over pages that follow one another."""
        from calibration.attention import wants_runs

        return wants_runs(self._device, self._dtype, page_tokens)

    def free_bytes(self) -> int:
        """Memory that may be taken."""
        return int(self._torch.cuda.mem_get_info(self._device)[0]) if self.kind == "cuda" else available_memory_bytes()

    def _needs_bytes(self, model: ModelSpec, size: Sizes) -> tuple[int, int, int]:
        """Of weights, pages and activations."""
        width: int = self._dtype.itemsize
        pages = size.pages * size.page_tokens * model.kv_bytes_per_token(1, width)
        rest = activation_bytes(model, 1, size.tokens, size.rows) * width // model.dtype_bytes
        return model.num_params * width, pages, rest

    def fits(self, model: ModelSpec, size: Sizes) -> bool:
        """Whether the decoder of a run fits, with room to spare."""
        return sum(self._needs_bytes(model, size)) <= SPARING * self.free_bytes()

    def check_memory(self, title: str, model: ModelSpec, size: Sizes) -> None:
        """Raise ConfigError where it doesn't."""
        weights, pages, rest = self._needs_bytes(model, size)
        free = self.free_bytes()
        if weights + pages + rest > free:
            raise ConfigError(
                f"{title}: weights of {weights / GIB:.1f} GiB, {size.pages:,} pages of {size.page_tokens} tokens"
                f" ({pages / GIB:.1f} GiB) and about {rest / GIB:.1f} GiB of activations don't fit the"
                f" {free / GIB:.1f} GiB that {self.name} has free; engine.num_gpu_blocks_override sets the pages,"
                " of padded batches scheduler.batch_size"
            )

    def decoder(self, title: str, model: ModelSpec, size: Sizes, seed: int) -> Decoder:
        """A decoder for a run, warmed up."""
        from calibration.decoder import Decoder
        from experiments.live_executor import warm_up

        positions = size.longest if model.learned_positions else 0
        with self.memory_named(title):
            made = Decoder(
                replace(model, max_model_len=size.longest, learned_positions=positions),
                device=self._device,
                dtype=self._dtype,
                num_blocks=size.pages,
                block_size=size.page_tokens,
                seed=seed,
            )
            warm_up(made, min(size.tokens, size.longest), size.rows)
        return made

    def backend(self, decoder: Decoder) -> str:
        """What carries out attention, in words."""
        from calibration.attention import kernel

        heads = decoder.heads, decoder.kv_heads, decoder.head_dim
        return kernel(self._device, self._dtype, *heads, decoder.block_size)

    @contextmanager
    def memory_named(self, title: str) -> Iterator[None]:
        """Within it, running out of device memory is a line."""
        try:
            yield
        except self._torch.OutOfMemoryError:
            raise ConfigError(
                f"{title}: {self.name} ran out of memory; lower engine.num_gpu_blocks_override or"
                " engine.max_num_batched_tokens"
            ) from None
