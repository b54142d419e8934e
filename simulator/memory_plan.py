"""How much of a GPU is left for the KV cache, term by term, as vLLM works it out at start-up.

    KV bytes = total x gpu_memory_utilization - weights - activation peak - non-torch - CUDA graphs
    blocks   = floor(KV bytes / (bytes per token x block_size)), one of which is the null block

Every term can be given from a log of the real engine; what isn't given is estimated as each constant below
says.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simulator.errors import CapacityError, ConfigError
from simulator.hf_config import is_number
from simulator.spec_types import GIB, GpuSpec, ModelSpec, check_tensor_parallel

# What the driver, the CUDA context and libraries take outside the framework's allocator. One GPU: accounting
# for it took Llama-2-7B on an A100-80GB from 7449 to 7351 blocks of 8 MiB (vLLM pull request 2031), 0.77 GiB.
# Several GPUs: the log in vLLM pull request 10511 has 1.79 GiB more with two ranks than with one, for the
# communication buffers.
NON_TORCH_GIB = 98 * 8 / 1024
COMMUNICATION_GIB = 1.79
# A sampler holds each row's logits in the model's width, and as float32 logits and probabilities.
SAMPLER_FLOAT32_COPIES = 2


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one rank's GPU, term by term.

    A block holds `block_size` tokens of every layer's keys and values. `estimated` names the terms that were
    worked out here rather than given. With `num_gpu_blocks_override` the terms are shown but the override
    decides, as in vLLM.
    """

    model: str
    gpu: str
    tensor_parallel_size: int
    total_gib: float
    gpu_memory_utilization: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graph_gib: float
    layers: int
    kv_heads_per_rank: int
    head_dim: int
    kv_dtype_bytes: int
    block_size: int
    max_model_len: int
    estimated: tuple[str, ...] = ()
    num_gpu_blocks_override: int | None = None

    @property
    def kv_budget_gib(self) -> float:
        """GiB left for the KV cache by the sum of the terms; may be negative under an override."""
        taken = self.weights_gib + self.activation_gib + self.non_torch_gib + self.cuda_graph_gib
        return self.total_gib * self.gpu_memory_utilization - taken

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes per token on one rank: 2 x layers x kv_heads x head_dim x bytes."""
        return 2 * self.layers * self.kv_heads_per_rank * self.head_dim * self.kv_dtype_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on one rank."""
        return self.kv_bytes_per_token * self.block_size

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks, the null block among them: vLLM's `num_gpu_blocks`."""
        if self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override
        return int(self.kv_budget_gib * GIB // self.block_bytes)

    @property
    def usable_blocks(self) -> int:
        """Blocks that sequences can have: vLLM V1 keeps block 0 as the null block."""
        return self.num_gpu_blocks - 1

    @property
    def kv_tokens(self) -> int:
        """Tokens in all blocks, as vLLM's "GPU KV cache size" counts them."""
        return self.num_gpu_blocks * self.block_size

    @property
    def kv_gib(self) -> float:
        """GiB that the blocks take on one rank."""
        return self.num_gpu_blocks * self.block_bytes / GIB

    @property
    def min_concurrency(self) -> float:
        """Sequences of `max_model_len` tokens that fit at once: vLLM's "maximum concurrency"."""
        return self.kv_tokens / self.max_model_len

    def as_dict(self) -> dict[str, Any]:
        """All terms and all results, for JSON."""
        names = (
            "kv_budget_gib", "kv_bytes_per_token", "block_bytes", "num_gpu_blocks", "usable_blocks",
            "kv_tokens", "kv_gib", "min_concurrency",
        )  # fmt: skip
        return asdict(self) | {"estimated": list(self.estimated)} | {name: getattr(self, name) for name in names}

    def terms(self) -> list[str]:
        """The budget as lines of text, one per term."""
        lines = [
            f"{'total x utilization':<22}{self.total_gib * self.gpu_memory_utilization:>10.3f} GiB"
            f"   = {self.total_gib:.2f} x {self.gpu_memory_utilization:g}"
        ]
        for name in ("weights", "activation", "non_torch", "cuda_graph"):
            how = "   (estimated)" if f"{name}_gib" in self.estimated else "   (given)"
            lines.append(f"{'- ' + name:<22}{getattr(self, name + '_gib'):>10.3f} GiB{how}")
        return [*lines, f"{'= KV cache':<22}{self.kv_budget_gib:>10.3f} GiB"]

    def text(self) -> str:
        """The plan for people, with each formula and its numbers."""
        ranks = self.tensor_parallel_size
        head = f"{self.model} on {ranks} x {self.gpu}" + (", per GPU" if ranks > 1 else "")
        override = self.num_gpu_blocks_override is not None
        blocks_how = "num_gpu_blocks_override" if override else "KV cache / bytes per block, rounded down"
        shape = f"2 x {self.layers} layers x {self.kv_heads_per_rank} kv_heads x {self.head_dim} head_dim"
        rows = [
            ("bytes per token", f"{self.kv_bytes_per_token:,}", f"{shape} x {self.kv_dtype_bytes} bytes"),
            ("bytes per block", f"{self.block_bytes / 2**20:g} MiB", f"{self.block_size} tokens per block"),
            (
                "blocks",
                f"{self.num_gpu_blocks:,}",
                f"{blocks_how}; {self.usable_blocks:,} usable, one is the null block",
            ),
            ("tokens", f"{self.kv_tokens:,}", f"blocks x {self.block_size}; {self.kv_gib:.2f} GiB"),
            (
                "min concurrency",
                f"{self.min_concurrency:.2f}",
                f"tokens / max_model_len {self.max_model_len:,}",
            ),
        ]
        return "\n".join([head, *self.terms(), *(f"{name:<22}{value:>14}   {how}" for name, value, how in rows)])


def plan_memory(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
    max_num_seqs: int = 256,
    max_model_len: int | None = None,
    kv_dtype_bytes: int = 2,
    weights_gib: float | None = None,
    activation_gib: float | None = None,
    non_torch_gib: float | None = None,
    cuda_graph_gib: float | None = None,
    num_gpu_blocks_override: int | None = None,
) -> MemoryPlan:
    """Plan one rank's memory; a term that is given replaces its estimate.

    CUDA graphs default to 0: vLLM captures them after it has sized the cache. Raises ConfigError for a value
    out of range and CapacityError, listing the terms, where not even one block beside the null block is left.
    """
    given = {
        "weights_gib": weights_gib, "activation_gib": activation_gib, "non_torch_gib": non_torch_gib,
        "cuda_graph_gib": cuda_graph_gib,
    }  # fmt: skip
    counts = {
        "block_size": block_size,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "max_model_len": model.max_model_len if max_model_len is None else max_model_len,
        "kv_dtype_bytes": kv_dtype_bytes,
        "num_gpu_blocks_override": 2 if num_gpu_blocks_override is None else num_gpu_blocks_override,
    }  # fmt: skip
    _check(gpu_memory_utilization, given, counts)
    check_tensor_parallel(model, tensor_parallel_size)
    estimates = {
        "weights_gib": model.weight_bytes(tensor_parallel_size) / GIB,
        "activation_gib": activation_bytes(model, tensor_parallel_size, max_num_batched_tokens, max_num_seqs) / GIB,
        "non_torch_gib": NON_TORCH_GIB + (COMMUNICATION_GIB if tensor_parallel_size > 1 else 0.0),
        "cuda_graph_gib": 0.0,
    }
    plan = MemoryPlan(
        model=model.name,
        gpu=gpu.name,
        tensor_parallel_size=tensor_parallel_size,
        total_gib=gpu.memory_gib,
        gpu_memory_utilization=gpu_memory_utilization,
        **{name: estimates[name] if value is None else value for name, value in given.items()},
        layers=model.layers,
        kv_heads_per_rank=model.kv_heads_per_rank(tensor_parallel_size),
        head_dim=model.head_dim,
        kv_dtype_bytes=kv_dtype_bytes,
        block_size=block_size,
        max_model_len=counts["max_model_len"],
        estimated=tuple(name for name, value in given.items() if value is None),
        num_gpu_blocks_override=num_gpu_blocks_override,
    )
    if plan.usable_blocks < 1:
        head = f"{model.name} on {tensor_parallel_size} x {gpu.name} leaves no room for the KV cache:"
        raise CapacityError("\n".join([head, *plan.terms()]))
    return plan


def activation_bytes(model: ModelSpec, tp: int, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Peak of activations in the engine's profiling pass, in bytes on one rank.

    That pass pushes `max_num_batched_tokens` tokens through the model and samples `max_num_seqs` rows. At its
    peak stand, per token, the residual and the hidden state and the MLP's input and output (3 x intermediate
    where gated: gate, up and their product), and per sampled row the logits. So the KV cache shrinks as the
    token budget grows.
    """
    mlp = (3 if model.gated_mlp else 2) * model.intermediate // tp
    per_token = (2 * model.hidden + mlp) * model.dtype_bytes
    per_row = model.vocab * (model.dtype_bytes + SAMPLER_FLOAT32_COPIES * 4)
    return max_num_batched_tokens * per_token + max_num_seqs * per_row


def _check(utilization: float, gib: dict[str, float | None], counts: dict[str, int]) -> None:
    faults = []
    if not is_number(utilization) or not 0 < utilization <= 1:
        faults.append(f"engine.gpu_memory_utilization: {utilization!r} must be above 0 and at most 1")
    for name, value in gib.items():
        if value is not None and (not is_number(value) or value < 0):
            faults.append(f"engine.{name}: {value!r} must be a number of at least 0")
    for name, count in counts.items():
        least = 2 if name == "num_gpu_blocks_override" else 1
        if not isinstance(count, int) or isinstance(count, bool) or count < least:
            faults.append(f"engine.{name}: {count!r} must be a whole number of at least {least}")
    if faults:
        raise ConfigError(faults)
