"""The models and GPUs that can be named. One literal entry each, with its public source."""

from __future__ import annotations

from simulator.spec_types import GpuSpec, ModelSpec


def _llama(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int,
    max_model_len: int, repository: str, tied: bool = False,
) -> ModelSpec:  # fmt: skip
    return ModelSpec(
        name, layers, hidden, heads, kv_heads, hidden // heads, intermediate, vocab, max_model_len, tied,
        source=_hf(repository),
    )  # fmt: skip


def _qwen25(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, repository: str
) -> ModelSpec:
    small = hidden <= 2048  # up to 3B: tied embeddings and an unpadded vocabulary
    return ModelSpec(
        name, layers, hidden, heads, kv_heads, hidden // heads, intermediate, 151936 if small else 152064,
        32768, tied_embeddings=small, biases="qkv", source=_hf(repository),
    )  # fmt: skip


def _qwen3(
    name: str, layers: int, hidden: int, heads: int, intermediate: int, repository: str, tied: bool = False
) -> ModelSpec:
    return ModelSpec(
        name, layers, hidden, heads, 8, 128, intermediate, 151936, 40960, tied, qk_norm=True,
        source=_hf(repository),
    )  # fmt: skip


def _opt(name: str, layers: int, hidden: int, heads: int, source: str) -> ModelSpec:
    return ModelSpec(
        name, layers, hidden, heads, heads, 128, 4 * hidden, 50272, 2048, tied_embeddings=True,
        gated_mlp=False, biases="all", learned_positions=2050, source=source,
    )  # fmt: skip


def _hf(repository: str) -> str:
    return f"config.json of huggingface.co/{repository}"


_MODELS = (
    # name, layers, hidden, heads, kv_heads, intermediate, vocab, max_model_len
    _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, "meta-llama/Llama-2-7b-hf"),
    _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096, "meta-llama/Llama-2-13b-hf"),
    _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000, 4096, "meta-llama/Llama-2-70b-hf"),
    _llama("llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, "meta-llama/Meta-Llama-3-8B"),
    _llama("llama-3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, "meta-llama/Meta-Llama-3-70B"),
    _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072, "meta-llama/Llama-3.1-8B"),
    _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256, 131072, "meta-llama/Llama-3.1-70B"),
    _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256, 131072, "meta-llama/Llama-3.1-405B"),
    _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, "meta-llama/Llama-3.2-1B", tied=True),
    _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, "meta-llama/Llama-3.2-3B", tied=True),
    _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32768, 32768, "mistralai/Mistral-7B-v0.3"),
    _llama("yi-34b", 60, 7168, 56, 8, 20480, 64000, 4096, "01-ai/Yi-34B"),
    _llama("codellama-34b", 48, 8192, 64, 8, 22016, 32000, 16384, "codellama/CodeLlama-34b-hf"),
    # name, layers, hidden, heads, kv_heads, intermediate
    _qwen25("qwen2.5-0.5b", 24, 896, 14, 2, 4864, "Qwen/Qwen2.5-0.5B-Instruct"),
    _qwen25("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, "Qwen/Qwen2.5-1.5B-Instruct"),
    _qwen25("qwen2.5-3b", 36, 2048, 16, 2, 11008, "Qwen/Qwen2.5-3B-Instruct"),
    _qwen25("qwen2.5-7b", 28, 3584, 28, 4, 18944, "Qwen/Qwen2.5-7B-Instruct"),
    _qwen25("qwen2.5-14b", 48, 5120, 40, 8, 13824, "Qwen/Qwen2.5-14B-Instruct"),
    _qwen25("qwen2.5-32b", 64, 5120, 40, 8, 27648, "Qwen/Qwen2.5-32B-Instruct"),
    _qwen25("qwen2.5-72b", 80, 8192, 64, 8, 29568, "Qwen/Qwen2.5-72B-Instruct"),
    # name, layers, hidden, heads, intermediate
    _qwen3("qwen3-0.6b", 28, 1024, 16, 3072, "Qwen/Qwen3-0.6B", tied=True),
    _qwen3("qwen3-8b", 36, 4096, 32, 12288, "Qwen/Qwen3-8B"),
    _qwen3("qwen3-14b", 40, 5120, 40, 17408, "Qwen/Qwen3-14B"),
    _qwen3("qwen3-32b", 64, 5120, 64, 25600, "Qwen/Qwen3-32B"),
    # no checkpoint: small enough for a calibration and a live run on a processor
    ModelSpec("tiny", 2, 256, 4, 2, 64, 704, 2048, 4096, source="made up here; random weights"),
    # name, layers, hidden, heads
    _opt("opt-13b", 40, 5120, 40, _hf("facebook/opt-13b")),
    _opt("opt-66b", 64, 9216, 72, _hf("facebook/opt-66b")),
    _opt("opt-175b", 96, 12288, 96, "OPT, arXiv 2205.01068, table 1"),
)  # fmt: skip

# memory_gib, memory GB/s, dense bf16 TFLOP/s, NVLink and PCIe GB/s per direction.
# memory_gib is the total that CUDA names in public out-of-memory messages and vLLM start-up logs
# ("GPU 0 has a total capacity of ..."); it differs by up to 0.1 between drivers, so for a plan exact to
# the block take the figure from the machine at hand.
_VLLM_LOG = "CUDA total of an 80 GB card (unnamed) in vLLM pull request 10511"
_GPUS = (
    GpuSpec("a100-40gb", 39.39, 1555, 312, 300, 32, "NVIDIA A100 datasheet, 40GB SXM; CUDA total"),
    GpuSpec("a100-80gb", 79.22, 2039, 312, 300, 32, f"NVIDIA A100 datasheet, 80GB SXM; {_VLLM_LOG}"),
    GpuSpec("h100", 79.22, 3350, 989.4, 450, 64, f"NVIDIA Hopper whitepaper, H100 SXM; {_VLLM_LOG}"),
    GpuSpec("h200", 139.81, 4800, 989.4, 450, 64, "NVIDIA H200 datasheet, SXM; CUDA total"),
    GpuSpec("l40s", 44.39, 864, 362.05, 0, 32, "NVIDIA L40S datasheet; CUDA total"),
    GpuSpec("a10g", 22.19, 600, 70, 0, 32, "NVIDIA A10G datasheet; CUDA total"),
    GpuSpec(
        "rtx-4090", 25250627584 / 2**30, 1008, 165.2, 0, 32,
        "NVIDIA Ada GPU architecture whitepaper; CUDA total in casys-kaist/LLMServingSim's RTX4090 run",
    ),
    GpuSpec(
        "rtx-pro-6000", 94.97, 1597, 503.8, 0, 64,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; RTX Blackwell PRO whitepaper; CUDA total",
    ),
    GpuSpec("cpu", 0, 0, 0, 0, 0, "the processor of this machine: no figures, times come from a profile of it"),
)  # fmt: skip

MODELS: dict[str, ModelSpec] = {model.name: model for model in _MODELS}
GPUS: dict[str, GpuSpec] = {gpu.name: gpu for gpu in _GPUS}
