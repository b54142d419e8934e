"""What `meta.json` of a measured run says about its engine, and vLLM's defaults for what it doesn't say.

The defaults are those of vLLM V1 (`vllm/config`, `vllm/engine/arg_utils.py`), by version where they changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.measured import META, Fields, is_count, is_number
from simulator.errors import ConfigError, UserError
from simulator.names import gpu_named, model_named
from simulator.specs import GIB, MODELS, GpuSpec, ModelSpec, get_gpu, get_model, plan_memory

ASSUMED_VERSION = (0, 19)
ASYNC_SINCE = (0, 16)
FULL_ISL_SINCE = (0, 19)
# Where a key may stand, the engine's own resolution before what it was asked for. "" is the top of the file.
_PLACES = (
    "resolved_config.scheduler_config",
    "resolved_config.cache_config",
    "resolved_config.parallel_config",
    "resolved_config.model_config",
    "kv_cache",
    "engine_kwargs",
    "",
)


@dataclass
class Facts:
    """Values and, for each, who gave it; `notices` are sentences about what had to be assumed."""

    meta: Fields
    where: Path
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def look(self, key: str, good: Callable[[Any], bool]) -> Any:
        """The first value of `key` that isn't null; None where there is none. One that isn't `good` is a fault.

        Where another place says something else, a notice tells which of the two is used.
        """
        found = list(self._all(key))
        if not found:
            return None
        name, value = found[0]
        if not good(value):
            self.faults.append(f"{self.where}: {name} = {value!r}: makes no sense")
            return None
        self.sources[key] = f"{META}: {name}"
        for other, said in found[1:]:
            notice = f"{name} = {_yaml(value)} is used; {other} = {_yaml(said)} says otherwise"
            if _plain(said) != _plain(value) and "auto" not in (said, value) and notice not in self.notices:
                self.notices.append(notice)
        return value

    def _all(self, key: str) -> Iterator[tuple[str, Any]]:
        """Every place that says something of `key`, with what it says."""
        for place in _PLACES:
            at: Any = self.meta
            for part in filter(None, place.split(".")):
                at = at.get(part) if isinstance(at, dict) else None
            value = at.get(key) if isinstance(at, dict) else None
            if value is not None:
                yield f"{place}.{key}".lstrip("."), value

    def take(self, key: str, good: Callable[[Any], bool], default: Any) -> Any:
        """The same, or `default`, which is vLLM's and stated in a notice."""
        value = self.look(key, good)
        if value is None:
            value, self.sources[key] = default, f"default of {self.engine}"
            self.notices.append(f"{key} isn't in {META}: {_yaml(value)}, the default of {self.engine}")
        self.values[key] = value
        return value

    @property
    def version(self) -> tuple[int, ...]:
        """Of vLLM; the assumed one where none is stated."""
        numbers = re.match(r"v?(\d+)\.(\d+)", str(self.meta.get("vllm_version") or ""))
        return (int(numbers[1]), int(numbers[2])) if numbers else ASSUMED_VERSION

    @property
    def engine(self) -> str:
        """The engine and its version as text."""
        return f"vLLM {'.'.join(map(str, self.version))}"


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 < value <= 1


def _is_count_or_zero(value: Any) -> bool:
    return value == 0 or is_count(value)


def engine_facts(meta: Fields, where: Path) -> Facts:
    """The engine's knobs from a parsed `meta.json`; `where` names it in faults."""
    facts = Facts(meta, where)
    if not meta.get("vllm_version"):
        facts.notices.append(f"vllm_version isn't in {META}: taken as {facts.engine}")
    elif facts.version[:2] != ASSUMED_VERSION:
        rules = ".".join(map(str, ASSUMED_VERSION))
        facts.notices.append(f"a run of {facts.engine}: scheduled by the rules of {rules}, which is what vllm_v1 knows")
    _refuse(facts)
    facts.take("max_num_seqs", is_count, 256)
    facts.take("max_num_batched_tokens", is_count, 2048)
    if (length := facts.look("max_model_len", is_count)) is not None:
        facts.values["max_model_len"] = length
    else:
        facts.notices.append(f"max_model_len isn't in {META}: the model's")
    if threshold := facts.look("long_prefill_token_threshold", _is_count_or_zero):
        facts.values["long_prefill_token_threshold"] = threshold
    facts.take("block_size", is_count, 16)
    if (degree := facts.look("tensor_parallel_size", is_count)) is not None:
        facts.values["tensor_parallel_size"] = degree
    facts.take("enable_prefix_caching", _is_bool, True)
    facts.take("async_scheduling", _is_bool, facts.version >= ASYNC_SINCE)
    facts.values["policy"] = facts.look("policy", lambda value: value in ("fcfs", "priority")) or "fcfs"
    full = facts.look("scheduler_reserve_full_isl", _is_bool)
    facts.values["scheduler_reserve_full_isl"] = facts.version >= FULL_ISL_SINCE if full is None else full
    return facts


def _refuse(facts: Facts) -> None:
    """What this simulator doesn't model becomes a fault, what it models only in part a notice."""
    for key, what in (("data_parallel_size", "data parallelism"), ("pipeline_parallel_size", "pipeline parallelism")):
        if (facts.look(key, is_count) or 1) > 1:
            facts.faults.append(f"{facts.where}: {key}: {what}: not modelled")
    if quantization := facts.look("quantization", lambda value: isinstance(value, str)):
        facts.faults.append(f"{facts.where}: quantization = {quantization}: quantised weights: not modelled")
    if facts.look("enable_chunked_prefill", _is_bool) is False:
        facts.faults.append(f"{facts.where}: enable_chunked_prefill = false: not modelled by the scheduler vllm_v1")
    if facts.look("speculative_config", lambda _: True) is not None or _speculative(facts.meta):
        facts.faults.append(f"{facts.where}: speculative_config: speculative decoding: not modelled")
    for key, usual in (("dtype", ("auto", "bfloat16", "float16", "half")), ("kv_cache_dtype", ("auto", "bfloat16"))):
        kind = facts.look(key, lambda value: isinstance(value, str))
        if kind is not None and _plain(kind) not in usual:
            facts.notices.append(f"{key} is {kind}: the kernel times of a profile are those of its own type")
    if facts.look("enforce_eager", _is_bool):
        facts.notices.append("enforce_eager is on: launches that CUDA graphs would hide aren't in the cost model")


def _speculative(meta: Fields) -> bool:
    resolved = meta.get("resolved_config")
    return isinstance(resolved, dict) and resolved.get("speculative_config") is not None


def model_of(facts: Facts, given: str | None) -> ModelSpec:
    """The model as `given` (a name, or a Hugging Face config.json), else as stated. Raises ConfigError."""
    if given is not None:
        return get_model(given) if given in MODELS or Path(given).exists() else model_named(given)
    stated = facts.look("model", lambda value: isinstance(value, str))
    if not stated:
        raise ConfigError(f"{facts.where}: model: isn't stated; give --model M")
    try:
        return model_named(stated)
    except UserError as error:
        raise ConfigError([f"{facts.where}: {fault}; give --model M" for fault in error.faults]) from None


def gpu_of(facts: Facts, given: str | None, fallback: str) -> GpuSpec:
    """The GPU as `given`, else as the driver called it, else `fallback` with a notice; its memory as measured."""
    hardware = facts.meta.get("hardware")
    hardware = hardware if isinstance(hardware, dict) else {}
    total: Any = hardware.get("device_total_memory_bytes")
    gib = total / GIB if is_number(total) and total > 0 else None
    device = hardware.get("device_name")
    if given is not None:
        spec = get_gpu(given)
    elif isinstance(device, str) and device:
        try:
            spec = gpu_named(device, gib)
        except UserError as error:
            raise ConfigError([f"{facts.where}: {fault}; give --gpu G" for fault in error.faults]) from None
    else:
        facts.notices.append(f"hardware.device_name isn't in {META}: the profile's GPU, {fallback}")
        spec = get_gpu(fallback)
    return spec if gib is None else replace(spec, memory_gib=gib)


def kv_blocks(facts: Facts, model: ModelSpec, gpu: GpuSpec) -> int:
    """`num_gpu_blocks` as the engine had it, else as planned here, with a notice. Raises CapacityError."""
    blocks = facts.look("num_gpu_blocks", is_count) or facts.look("num_gpu_blocks_override", is_count)
    tokens = facts.look("num_kv_tokens", is_count)
    if blocks is None and tokens is not None:
        blocks = tokens // facts.values["block_size"]
        facts.sources["num_gpu_blocks"] = f"{facts.sources['num_kv_tokens']} / block_size"
    if blocks is not None:
        source = facts.sources.get("num_gpu_blocks") or facts.sources["num_gpu_blocks_override"]
        facts.sources["num_gpu_blocks_override"] = source
        return int(blocks)
    utilization = facts.take("gpu_memory_utilization", _is_share, 0.9)
    dtype = facts.look("kv_cache_dtype", lambda value: isinstance(value, str)) or "auto"
    plan = plan_memory(
        model,
        gpu,
        tensor_parallel_size=facts.values.get("tensor_parallel_size", 1),
        gpu_memory_utilization=utilization,
        block_size=facts.values["block_size"],
        max_num_batched_tokens=facts.values["max_num_batched_tokens"],
        max_num_seqs=facts.values["max_num_seqs"],
        max_model_len=facts.values.get("max_model_len"),
        kv_dtype_bytes=1 if "fp8" in dtype else model.dtype_bytes,
    )
    how = f"planned from {gpu.memory_gib:.2f} GiB x {utilization:g}"
    facts.sources["num_gpu_blocks_override"] = how
    blocks_are = f"the KV blocks aren't in {META}: {plan.num_gpu_blocks}, {how}"
    facts.notices.append(f"{blocks_are} (`servesim kv explain` shows the terms)")
    return plan.num_gpu_blocks
