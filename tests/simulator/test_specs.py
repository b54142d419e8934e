from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import CapacityError, ConfigError
from simulator.specs import GIB, GPUS, MODELS, GpuSpec, ModelSpec, Platform, get_gpu, get_model, plan_memory

# Bytes of keys and values per token at 16 bits, from the models' config.json.
KV_BYTES = {
    "llama-2-7b": 524_288, "llama-2-13b": 819_200, "opt-13b": 819_200, "opt-66b": 2_359_296, "opt-175b": 4_718_592,
    "mistral-7b": 131_072, "llama-3-8b": 131_072, "llama-3.1-8b": 131_072, "llama-2-70b": 327_680,
    "llama-3-70b": 327_680, "qwen2.5-72b": 327_680, "llama-3.1-405b": 516_096, "llama-3.2-1b": 32_768,
    "llama-3.2-3b": 114_688, "qwen2.5-0.5b": 12_288, "qwen2.5-1.5b": 28_672, "qwen2.5-3b": 36_864,
    "qwen2.5-7b": 57_344, "qwen2.5-14b": 196_608, "qwen2.5-32b": 262_144, "qwen3-0.6b": 114_688,
    "qwen3-8b": 147_456, "qwen3-14b": 163_840, "qwen3-32b": 262_144, "yi-34b": 245_760, "codellama-34b": 196_608,
}  # fmt: skip

# Parameters in the published checkpoints (the safetensors index of each repository).
PARAMS = {
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-3b": 3_212_749_824, "mistral-7b": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648, "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264, "yi-34b": 34_388_917_248, "codellama-34b": 33_743_970_304,
}  # fmt: skip

# KV shapes of models that can't be planned whole here (mixture of experts); their cache is ordinary.
QWEN3_235B = ModelSpec("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 12288, 151936, 40960)


def gpu(memory_gib: float) -> GpuSpec:
    return GpuSpec("card", memory_gib, 1000, 100, 0, 32)


@pytest.mark.parametrize(("name", "kv_bytes"), KV_BYTES.items())
def test_kv_bytes_per_token(name: str, kv_bytes: int) -> None:
    assert get_model(name).kv_bytes_per_token() == kv_bytes


@pytest.mark.parametrize(("name", "params"), PARAMS.items())
def test_num_params_equal_the_published_checkpoints(name: str, params: int) -> None:
    assert get_model(name).num_params == params


def test_opt_params_are_what_the_names_say() -> None:
    billions = {name: round(MODELS[name].num_params / 1e9, 1) for name in ("opt-13b", "opt-66b", "opt-175b")}
    assert billions == {"opt-13b": 12.9, "opt-66b": 65.7, "opt-175b": 174.6}


def test_required_names_and_sources() -> None:
    assert {"a100-40gb", "a100-80gb", "h100", "h200", "l40s", "a10g", "rtx-4090", "rtx-pro-6000"} <= set(GPUS)
    assert all(spec.source for spec in (*MODELS.values(), *GPUS.values()))


def test_dense_not_sparse_and_ridge() -> None:
    assert GPUS["h100"].bf16_tflops == 989.4  # the datasheet's 1,979 is with sparsity
    assert GPUS["a100-80gb"].ridge_flops_per_byte == pytest.approx(153.0, abs=0.1)
    assert GPUS["l40s"].link_gbps == GPUS["l40s"].pcie_gbps
    assert GPUS["h100"].link_gbps == 450


def test_tensor_parallel_shards_weights_and_replicates_kv_heads() -> None:
    assert QWEN3_235B.kv_bytes_per_token(4) == QWEN3_235B.kv_bytes_per_token(8) == 48_128
    llama = get_model("llama-3-8b")
    assert llama.weight_bytes() / GIB == pytest.approx(14.96, abs=0.005)  # vLLM pull request 10511
    assert llama.weight_bytes(2) / GIB == pytest.approx(7.48, abs=0.005)
    assert sum(g.outputs * g.inputs for g in llama.gemms(2)) * 2 == sum(g.outputs * g.inputs for g in llama.gemms())


def test_flops_per_token() -> None:
    llama = get_model("llama-2-7b")
    layers = llama.num_params - 2 * 32000 * 4096 - 65 * 4096  # without embeddings, LM head and norms
    assert llama.flops_per_token() == 2 * layers
    assert llama.flops_per_token(100) - llama.flops_per_token() == 4 * 100 * 4096 * 32
    assert llama.lm_head_flops_per_row == 2 * 32000 * 4096


@pytest.mark.parametrize("tp", [0, 3, -1, True, 1.5])
def test_platform_refuses_a_degree_that_does_not_divide(tp: int) -> None:
    with pytest.raises(ConfigError, match=r"engine\.tensor_parallel_size"):
        Platform(get_model("llama-3.1-8b"), get_gpu("h100"), tp)


def test_platform_refuses_kv_heads_that_neither_divide_nor_replicate() -> None:
    model = replace(get_model("llama-3.1-8b"), heads=12, kv_heads=6, intermediate=12)
    with pytest.raises(ConfigError, match="kv_heads"):
        Platform(model, get_gpu("h100"), 4)


# Memory plans of real engines: public issues and pull requests of vLLM, with the terms they print.


def test_plan_llama_3_8b_of_vllm_pull_request_10511() -> None:
    plan = plan_memory(
        get_model("llama-3-8b"), gpu(79.22), weights_gib=14.96, non_torch_gib=1.79, activation_gib=1.26
    )  # fmt: skip
    assert plan.kv_budget_gib == pytest.approx(53.288, abs=5e-4)
    assert plan.num_gpu_blocks == 27_283
    assert plan.kv_tokens == 436_528
    assert plan.block_bytes == 2 << 20
    assert plan.estimated == ("cuda_graph_gib",)


@pytest.mark.parametrize(
    ("model", "tp", "blocks", "tokens", "gib"),
    [
        ("llama-2-7b", 1, 7351, 117_616, 57.43),
        ("llama-2-7b", 1, 7449, 119_184, 58.20),
        ("llama-2-70b", 4, 20_865, 333_840, 25.47),
        ("llama-2-70b", 4, 31_615, 505_840, 38.59),
        ("llama-3-70b", 8, 378, 6_048, 0.23),
        ("llama-3-8b", 1, 13_078, 209_248, 25.54),
    ],
)
def test_blocks_to_tokens_and_gib(model: str, tp: int, blocks: int, tokens: int, gib: float) -> None:
    plan = plan_memory(get_model(model), gpu(80), tensor_parallel_size=tp, num_gpu_blocks_override=blocks)
    assert (plan.kv_tokens, round(plan.kv_gib, 2)) == (tokens, gib)


@pytest.mark.parametrize(("blocks", "length", "concurrency"), [(10_533, 4096, 41.14), (33_660, 4096, 131.48)])
def test_min_concurrency_as_logged(blocks: int, length: int, concurrency: float) -> None:
    plan = plan_memory(get_model("qwen2.5-3b"), gpu(15), num_gpu_blocks_override=blocks, max_model_len=length)
    assert round(plan.min_concurrency, 2) == concurrency


def test_override_counts_the_null_block() -> None:
    plan = plan_memory(get_model("llama-3-8b"), gpu(80), num_gpu_blocks_override=50)
    assert (plan.num_gpu_blocks, plan.usable_blocks) == (50, 49)


def test_opt_13b_in_12_gib_holds_15_7k_slots() -> None:
    model = get_model("opt-13b")
    assert round(12 * GIB / model.kv_bytes_per_token()) == 15_729  # PagedAttention, table 1: 15.7K
    assert 2048 * model.kv_bytes_per_token() / GIB == 1.5625


def test_qwen3_235b_per_rank_tokens() -> None:
    assert int(8.11 * GIB / QWEN3_235B.kv_bytes_per_token(4)) == 180_935


def test_negative_budget_lists_the_terms() -> None:
    terms = {"weights_gib": 5.20, "non_torch_gib": 0.03, "activation_gib": 1.42}  # vLLM issue 13882
    with pytest.raises(CapacityError) as caught:
        plan_memory(get_model("qwen2.5-7b"), gpu(8.0), gpu_memory_utilization=0.7, **terms)
    text = str(caught.value)
    assert all(number in text for number in ("5.600", "5.200", "0.030", "1.420", "-1.050"))


def test_override_needs_no_room() -> None:
    plan = plan_memory(get_model("llama-2-70b"), gpu(8.0), num_gpu_blocks_override=100)
    assert plan.kv_budget_gib < 0
    assert plan.usable_blocks == 99


def test_estimates_come_close_to_a_measured_server() -> None:
    # vLLM 0.19 with Llama-3.1-8B on an RTX 4090: 2,588 blocks (casys-kaist/LLMServingSim, RTX4090 run).
    plan = plan_memory(get_model("llama-3.1-8b"), get_gpu("rtx-4090"))
    assert plan.num_gpu_blocks == pytest.approx(2588, rel=0.03)


def test_activation_grows_with_the_token_budget() -> None:
    budgets = [
        plan_memory(get_model("llama-3.1-8b"), get_gpu("h100"), max_num_batched_tokens=tokens).num_gpu_blocks
        for tokens in (512, 2048, 8192, 32768)
    ]
    assert budgets == sorted(budgets, reverse=True)
    assert len(set(budgets)) == 4


def test_tensor_parallel_plan_shows_per_rank_figures() -> None:
    plan = plan_memory(get_model("llama-3.1-70b"), get_gpu("h100"), tensor_parallel_size=8)
    assert plan.kv_heads_per_rank == 1
    assert plan.kv_bytes_per_token == 40_960
    assert "8 x h100, per GPU" in plan.text()


def test_text_and_dict_show_the_same_numbers() -> None:
    plan = plan_memory(get_model("qwen2.5-7b"), get_gpu("a100-80gb"), max_model_len=32768)
    text, data = plan.text(), plan.as_dict()
    assert "2 x 28 layers x 4 kv_heads x 128 head_dim x 2 bytes" in text
    assert data["kv_bytes_per_token"] == 57_344
    for number in ("kv_bytes_per_token", "num_gpu_blocks", "kv_tokens", "usable_blocks"):
        assert f"{data[number]:,}" in text
    assert f"{data['min_concurrency']:.2f}" in text
    assert json.loads(json.dumps(data)) == data
    override = plan_memory(get_model("qwen2.5-7b"), get_gpu("a100-80gb"), num_gpu_blocks_override=50)
    assert "num_gpu_blocks_override" in override.text()


def test_plan_reports_all_faults_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(
            get_model("llama-3.1-8b"), get_gpu("h100"), gpu_memory_utilization=1.5, block_size=0,
            num_gpu_blocks_override=1, cuda_graph_gib=float("nan"), max_num_seqs=True,
        )  # fmt: skip
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "engine.gpu_memory_utilization", "engine.cuda_graph_gib", "engine.block_size", "engine.max_num_seqs",
        "engine.num_gpu_blocks_override",
    ]  # fmt: skip


# Names and files.


@pytest.mark.parametrize(
    ("given", "nearest"), [("llama3.1-8b", "llama-3.1-8b"), ("meta-llama/Llama-3.1-8B", "llama-3.1-8b")]
)
def test_unknown_model_has_a_suggestion(given: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^model: .*did you mean '{nearest}'"):
        get_model(given)


def test_unknown_gpu_has_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'rtx-4090'"):
        get_gpu("RTX4090")
    with pytest.raises(ConfigError, match="neither a file nor one of"):
        get_gpu("")


HF = {
    "llama-3.1-8b": {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
    },
    "mistral-7b": {
        "model_type": "mistral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32768,
        "max_position_embeddings": 32768,
        "sliding_window": None,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "sliding_window": 131072,
        "use_sliding_window": False,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "attention_bias": False,
    },
    "opt-13b": {
        "model_type": "opt",
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "ffn_dim": 20480,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "word_embed_proj_dim": 5120,
    },
}


def write(folder: Path, data: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", HF)
def test_hf_config_equals_the_table(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, HF[name])
    read = get_model(str(path))
    assert replace(read, source="") == replace(get_model(name), source="")
    assert read.source == str(path)
    assert ModelSpec.from_hf_config(path.parent) == read


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_local_experts": 8}, "num_local_experts: mixture of experts: not modelled"),
        ({"kv_lora_rank": 512}, r"kv_lora_rank: multi-head latent attention \(MLA\): not modelled"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding-window attention: not modelled"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, "sliding-window attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantised weights: not modelled"),
        ({"model_type": "deepseek_v3"}, "model_type: 'deepseek_v3': not modelled"),
        ({"model_type": "qwen"}, "did you mean 'qwen2'|did you mean 'qwen3'"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"hidden_size": "4096"}, "hidden_size: '4096' must be a whole number"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5 doesn't divide"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
    ],
)
def test_hf_config_refuses_by_name(change: dict[str, object], words: str, tmp_path: Path) -> None:
    path = write(tmp_path, HF["llama-3.1-8b"] | change)
    with pytest.raises(ConfigError, match=words) as caught:
        get_model(str(path))
    assert all(fault.startswith(str(path)) for fault in caught.value.faults)


def test_hf_attention_bias_counts(tmp_path: Path) -> None:
    plain = get_model(str(write(tmp_path / "a", HF["llama-3.1-8b"])))
    biased = get_model(str(write(tmp_path / "b", HF["llama-3.1-8b"] | {"attention_bias": True})))
    assert biased.num_params - plain.num_params == 32 * (4096 + 2 * 1024 + 4096)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "must hold a JSON object"),
        (b"{", "line 1: isn't JSON"),
        (b"\xff", "isn't UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_files(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        get_model(str(path))


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: can't be read"):
        ModelSpec.from_hf_config(tmp_path)


def test_gpu_from_json(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    fields = {
        "name": "mine",
        "memory_gib": 40,
        "memory_gbps": 1000.0,
        "bf16_tflops": 100,
        "nvlink_gbps": 0,
        "pcie_gbps": 32,
    }
    path.write_text(json.dumps(fields))
    mine = get_gpu(str(path))
    assert mine == GpuSpec(**fields, source=str(path))
    assert mine.memory_bytes == 40 * GIB
    path.write_text(json.dumps({**fields, "memory_gbps": -1, "bf16_tflop": 3, "pcie_gbps": None, "source": 4}))
    with pytest.raises(ConfigError) as caught:
        get_gpu(str(path))
    assert len(caught.value.faults) == 4
    assert "did you mean 'bf16_tflops'" in str(caught.value)
