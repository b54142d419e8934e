"""What a model and a GPU are to this simulator: shapes and vendor figures. Standard library only.

A tensor-parallel rank holds 1/tp of the attention heads, of the MLP and of the vocabulary; norms are on every
rank, and key-value heads are replicated once there are fewer of them than ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.hf_config import is_number, model_fields, read_json
from simulator.suggest import did_you_mean

GIB = 1 << 30


class Gemm(NamedTuple):
    """A linear layer of a decoder layer on one rank: y[tokens, outputs] = x[tokens, inputs] W."""

    name: str
    outputs: int
    inputs: int


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder-only transformer with full attention.

    `biases` says which linear layers have them: none, qkv, attention (q, k, v, o) or all (norms too, as OPT
    has). `learned_positions` counts the rows of a table of learned positions (0: rotary). `dtype_bytes` is
    the width of a weight and of an activation. `source` names the public page the figures are from.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_model_len: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    biases: str = "none"
    qk_norm: bool = False
    learned_positions: int = 0
    dtype_bytes: int = 2
    source: str = ""

    @classmethod
    def from_hf_config(cls, path: str | Path) -> ModelSpec:
        """Read a Hugging Face config.json, or the folder that holds one. Raises ConfigError, all faults at
        once.

        Weights are taken to be held in 16 bits, as engines load them, whatever `torch_dtype` says.
        """
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        name = file.resolve().parent.name if file.name == "config.json" else file.stem
        return cls(name=name, source=str(file), **model_fields(read_json(file), str(file)))

    def gemms(self, tp: int = 1) -> tuple[Gemm, ...]:
        """The linear layers of one decoder layer on one of `tp` ranks."""
        q = self.heads // tp * self.head_dim
        kv = self.kv_heads_per_rank(tp) * self.head_dim
        up = self.intermediate // tp
        return (
            Gemm("qkv", q + 2 * kv, self.hidden),
            Gemm("o", self.hidden, q),
            Gemm("gate_up" if self.gated_mlp else "up", up * (2 if self.gated_mlp else 1), self.hidden),
            Gemm("down", self.hidden, up),
        )

    def kv_heads_per_rank(self, tp: int = 1) -> int:
        """Key-value heads that one rank keeps: at least one, so they are replicated where kv_heads < tp."""
        return max(self.kv_heads // tp, 1)

    @property
    def num_params(self) -> int:
        """Parameters of the checkpoint, a tied LM head counted once."""
        return self._params_per_rank(1)

    def weight_bytes(self, tp: int = 1) -> int:
        """Bytes of weights on one of `tp` ranks."""
        return self._params_per_rank(tp) * self.dtype_bytes

    def _params_per_rank(self, tp: int) -> int:
        gemms = self.gemms(tp)
        biased = {"none": 0, "qkv": 1, "attention": 2, "all": 4}[self.biases]
        norm = self.hidden * (2 if self.biases == "all" else 1)  # LayerNorm has a shift beside its scale
        layer = sum(g.outputs * g.inputs for g in gemms) + sum(g.outputs for g in gemms[:biased])
        layer += 2 * norm + (2 * self.head_dim if self.qk_norm else 0)
        tables = (1 if self.tied_embeddings else 2) * (-(-self.vocab // tp) * self.hidden)
        return self.layers * layer + norm + tables + self.learned_positions * self.hidden

    def kv_bytes_per_token(self, tp: int = 1, kv_dtype_bytes: int = 2) -> int:
        """Bytes of keys and values per token on one rank: 2 x layers x kv_heads x head_dim x bytes."""
        return 2 * self.layers * self.kv_heads_per_rank(tp) * self.head_dim * kv_dtype_bytes

    @property
    def linear_flops_per_token(self) -> int:
        """FLOPs of all decoder layers' linear layers for one token: two per weight, all ranks together."""
        return 2 * self.layers * sum(g.outputs * g.inputs for g in self.gemms())

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs of all layers' attention for one query-key pair: per head dimension 2 for QK^T, 2 for PV."""
        return 4 * self.layers * self.heads * self.head_dim

    @property
    def lm_head_flops_per_row(self) -> int:
        """FLOPs of the LM head for one sampled row."""
        return 2 * self.hidden * self.vocab

    def flops_per_token(self, context_tokens: int = 0) -> int:
        """FLOPs to compute one token that attends to `context_tokens` and isn't sampled from."""
        return self.linear_flops_per_token + self.attention_flops_per_pair * context_tokens


@dataclass(frozen=True)
class GpuSpec:
    """A GPU by its vendor's figures.

    `memory_gib` is what CUDA reports as total to a process, which is less than the label says and moves by
    about 0.1 with the driver. `bf16_tflops` is dense, with float32 accumulation: datasheets print twice that
    "with sparsity". Links are per direction, half of the "bidirectional" figure; `nvlink_gbps` is 0 where
    there is none, `pcie_gbps` where it isn't known.
    """

    name: str
    memory_gib: float
    memory_gbps: float
    bf16_tflops: float
    nvlink_gbps: float
    pcie_gbps: float
    source: str = ""

    @classmethod
    def from_json(cls, path: str | Path) -> GpuSpec:
        """Read a JSON object with this class's fields as keys. Raises ConfigError with all its faults."""
        data = read_json(Path(path))
        kinds = {f.name: str if f.type == "str" else float for f in fields(cls)}
        faults = [f"{path}: {key}: unknown key{did_you_mean(key, kinds)}" for key in data if key not in kinds]
        for key, kind in kinds.items():
            value = data.get(key)
            if value is None:
                if key != "source":
                    faults.append(f"{path}: {key}: missing")
            elif kind is str:
                if not isinstance(value, str):
                    faults.append(f"{path}: {key}: {value!r} must be a string")
            elif not is_number(value) or not (value > 0 or (key in ("nvlink_gbps", "pcie_gbps") and value == 0)):
                faults.append(f"{path}: {key}: {value!r} must be a number above 0")
        if faults:
            raise ConfigError(faults)
        return cls(**{"source": str(path), **data})

    @property
    def memory_bytes(self) -> int:
        """Total memory in bytes."""
        return round(self.memory_gib * GIB)

    @property
    def link_gbps(self) -> float:
        """GB/s per direction between GPUs of one server: NVLink where there is one, else PCIe."""
        return self.nvlink_gbps or self.pcie_gbps

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity at which the roofline turns from bandwidth-bound to compute-bound."""
        return self.bf16_tflops * 1e3 / self.memory_gbps


@dataclass(frozen=True)
class Platform:
    """A model on `tensor_parallel_size` GPUs of one kind: what a cost model is built from.

    Raises ConfigError where the model can't be cut into that many ranks.
    """

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        check_tensor_parallel(self.model, self.tensor_parallel_size)


def check_tensor_parallel(model: ModelSpec, tp: int) -> None:
    """Raise ConfigError unless heads and MLP divide by `tp` and key-value heads divide or replicate."""
    where = f"engine.tensor_parallel_size: {tp!r}"
    if not isinstance(tp, int) or isinstance(tp, bool) or tp < 1:
        raise ConfigError(f"{where} must be a whole number of at least 1")
    sizes = {"heads": model.heads, "intermediate": model.intermediate}
    faults = [f"{where} doesn't divide the {size} {name} of {model.name}" for name, size in sizes.items() if size % tp]
    if model.kv_heads % tp and tp % model.kv_heads:
        faults.append(f"{where} neither divides nor is a multiple of the {model.kv_heads} kv_heads of {model.name}")
    if faults:
        raise ConfigError(faults)
