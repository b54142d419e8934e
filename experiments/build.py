"""From a resolved config to what the simulator takes: requests, limits, KV memory, the machine's numbers."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.schema import Load, Settings, Trace
from simulator.clock import NS_PER_S, ns_from_ms
from simulator.errors import UserError
from simulator.kv import KvMemory, Reservation
from simulator.plan import Limits
from simulator.prefix import CachedPool
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.tokens import Ints
from simulator.usage import Machine
from simulator.waste import reserved_tokens

if TYPE_CHECKING:
    from experiments.config import RunConfig


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, and what is known of where they come from."""

    requests: list[Request]
    info: dict[str, Any]
    request_rate: float  # per second; infinite where all arrive at once


def max_model_len(run: RunConfig) -> int:
    """The longest sequence in tokens: as set, else the model's."""
    return run.settings.engine.max_model_len or run.pieces.platform.model.max_model_len


def limits(run: RunConfig) -> Limits:
    """The engine's limits for `run`."""
    engine = run.settings.engine
    return Limits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_num_prefill_tokens=engine.max_num_prefill_tokens,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        max_model_len=max_model_len(run),
    )


def kv_memory(run: RunConfig) -> KvMemory:
    """Fresh KV memory for `run`; an oracle's where clients are said to know how long their answers get."""
    options = dict(run.pieces.options["kv"])
    if run.settings.kv.name == "reserve":
        options["max_model_len"] = max_model_len(run)
    kind = CachedPool if run.settings.engine.enable_prefix_caching else run.pieces.kv_class
    memory: KvMemory = kind(run.memory.num_gpu_blocks, run.settings.engine.block_size, **options)
    memory.oracle = memory.oracle or run.settings.engine.max_tokens == "oracle"
    return memory


def slots_of(run: RunConfig) -> int:
    """The sequences that `run` has room for: its batch size where it has one, else max_num_seqs."""
    most = run.settings.engine.max_num_seqs
    size = run.pieces.options["scheduler"].get("batch_size")
    return min(size, most) if isinstance(size, int) else most


def reserved_of(run: RunConfig, log: RunLog, requests: list[Request]) -> Ints | None:
    """Tokens that `run` reserves for each of its `requests`, as in `log`; None where it takes memory as it goes."""
    memory = kv_memory(run)
    return reserved_tokens(log, requests, memory) if isinstance(memory, Reservation) else None


def workload(settings: Settings) -> Workload:
    """The requests of `settings`, with `max_tokens` as the engine's key says. Raises TraceError or ConfigError."""
    if settings.trace is not None:
        base = traced(settings.trace)
        if isinstance(base, UserError):
            raise base
    else:
        assert settings.load is not None, "a config without a workload passed validation"
        base = _listed(settings.load) if settings.load.requests else _synthesized(settings.load, settings.seed)
    return replace(base, requests=_with_max_tokens(base.requests, settings.engine.max_tokens))


@functools.lru_cache(maxsize=4)
def traced(trace: Trace) -> Workload | UserError:
    """The requests of a trace, or what is wrong with it or with the way it should be read."""
    from workloads import load_trace

    try:
        loaded = load_trace(
            trace.path,
            format=trace.format,
            unit=trace.unit,
            block_size=trace.block_size,
            zero_output=trace.zero_output,
            strict=trace.strict,
            limit=trace.limit,
            window_s=trace.window_s,
            time_scale=trace.time_scale,
            request_rate=trace.request_rate,
        )
    except UserError as error:
        return error
    rate = loaded.info.request_rate
    return Workload(loaded.requests, loaded.info.as_dict(), math.inf if rate is None else rate)


def _listed(load: Load) -> Workload:
    """The requests that are written out; from the second time through the list their ids get its number."""
    requests = [
        Request(one.id if turn == 1 else f"{one.id}.{turn}", ns_from_ms(one.arrival_ms), one.input_len, one.output_len)
        for turn in range(1, load.repeat + 1)
        for one in load.requests or ()
    ]
    requests.sort(key=lambda request: request.arrival_ns)
    span_ns = requests[-1].arrival_ns - requests[0].arrival_ns
    rate = (len(requests) - 1) * NS_PER_S / span_ns if span_ns else math.inf
    return Workload(requests, {"requests": len(requests), "listed": len(load.requests or ())}, rate)


def _synthesized(load: Load, seed: int) -> Workload:
    from workloads import synthesize

    options = load.model_dump(exclude={"requests", "repeat"})
    info = {key: "inf" if value == math.inf else value for key, value in options.items()}
    return Workload(synthesize(**options, seed=seed), info, load.request_rate)


def _with_max_tokens(requests: list[Request], rule: int | str) -> list[Request]:
    if rule == "column":
        return requests
    if rule == "oracle":
        return [r._replace(max_tokens=r.output_tokens) for r in requests]
    most = int(rule)
    return [r._replace(max_tokens=most, output_tokens=min(r.output_tokens, most)) for r in requests]


def machine(run: RunConfig) -> Machine | None:
    """The numbers that turn a run's token counts into shares of its GPUs; None for a device without figures."""
    model, gpu = run.pieces.platform.model, run.pieces.platform.gpu
    if not gpu.memory_gbps:
        return None
    return Machine(
        params=model.linear_flops_per_token / 2,
        layers=model.layers,
        heads=model.heads,
        head_dim=model.head_dim,
        kv_bytes_per_token=model.kv_bytes_per_token(),
        weight_bytes=(model.linear_flops_per_token + model.lm_head_flops_per_row) / 2 * model.dtype_bytes,
        peak_flops=gpu.bf16_tflops * 1e12,
        bandwidth_bytes_s=gpu.memory_gbps * 1e9,
        gpus=run.settings.engine.tensor_parallel_size,
        row_params=model.lm_head_flops_per_row / 2,
    )
