"""What the keys of a config mean to each other: combinations that can't be, and keys that would change nothing.

The engine's rules are vLLM's (`vllm/config`, checks of SchedulerConfig and of the KV cache at start-up).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from experiments.build import traced, workload
from experiments.faults import Faults
from experiments.pieces import Pieces
from experiments.schema import Load, Settings, Trace
from experiments.yamltext import shown
from simulator import plugins, schedulers
from simulator.errors import ConfigError, UserError
from simulator.request import Request
from simulator.specs import MemoryPlan, plan_memory
from workloads.arrivals import arrival_faults
from workloads.lengths import length_faults
from workloads.synthetic import synthesize

LIMITS = (
    "max_num_seqs", "max_num_batched_tokens", "max_num_prefill_tokens", "long_prefill_token_threshold",
    "enable_prefix_caching", "async_scheduling",
)  # fmt: skip

# What a memory plan is made of.
_OF_MEMORY = (
    "tensor_parallel_size", "gpu_memory_utilization", "block_size", "max_num_batched_tokens", "max_num_seqs",
    "max_model_len", "num_gpu_blocks_override",
)  # fmt: skip


class Unused(NamedTuple):
    """Why a key changes nothing in a run, and the key that made it so."""

    text: str
    because_of: tuple[str, ...]


def unused_keys(settings: Settings, pieces: Pieces) -> dict[str, Unused]:
    """Every key path that changes nothing in this run."""
    unused: dict[str, Unused] = {}
    obeyed = pieces.scheduler_class.engine_keys
    for key in LIMITS:
        if key not in obeyed:
            why = f"scheduler {settings.scheduler.name} doesn't obey it; {_who_obeys(key)} would"
            unused[f"engine.{key}"] = Unused(why, ("scheduler", "name"))
    if settings.kv.name != "paged":
        why = "radix memory always has one" if settings.kv.name == "radix" else "only paged memory has a prefix cache"
        unused["engine.enable_prefix_caching"] = Unused(why, ("kv", "name"))
    unused |= _covered(settings, pieces)
    if settings.engine.num_gpu_blocks_override is not None:
        override = ("engine", "num_gpu_blocks_override")
        unused["engine.gpu_memory_utilization"] = Unused("num_gpu_blocks_override sets the KV memory", override)
    if settings.load is not None:
        unused |= {f"load.{key}": why for key, why in _unused_of_load(settings.load).items()}
    if settings.trace is not None and settings.trace.request_rate is not None:
        unused["trace.time_scale"] = Unused("request_rate sets the scale", ("trace", "request_rate"))
    if settings.trace is not None:
        unused["seed"] = Unused("nothing about a recorded trace is drawn", ("trace",))
    elif settings.load is not None and not _draws(settings.load):
        unused["seed"] = Unused("nothing about this load is drawn", ("load",))
    return unused


def _covered(settings: Settings, pieces: Pieces) -> dict[str, Unused]:
    """Limits on prefill that can't bind: chunked prefill never takes more than the iteration's tokens."""
    engine = settings.engine
    splits = "long_prefill_token_threshold" in pieces.scheduler_class.engine_keys
    if not splits or not pieces.scheduler_class.__module__.startswith("simulator."):
        return {}
    why = f"no iteration has more than max_num_batched_tokens ({engine.max_num_batched_tokens})"
    return {
        f"engine.{key}": Unused(why, ("engine", "max_num_batched_tokens"))
        for key in ("long_prefill_token_threshold", "max_num_prefill_tokens")
        if (getattr(engine, key) or 0) >= engine.max_num_batched_tokens
    }


def _draws(load: Load) -> bool:
    """Whether anything about a load is random: what is written out or constant isn't."""
    if load.requests is not None:
        return False
    gaps = load.ramp_up_strategy is not None or not math.isinf(load.request_rate)
    constant = isinstance(load.input_len, int) and isinstance(load.output_len, int) and load.priority is None
    return not constant or (gaps and not math.isinf(load.burstiness))


def _unused_of_load(load: Load) -> dict[str, Unused]:
    if load.requests is not None:
        why_not = Unused("the requests are listed", ("load", "requests"))
        return dict.fromkeys(set(Load.model_fields) - {"requests", "repeat"}, why_not)
    unused = {"repeat": Unused("no requests are listed", ("load",))}
    if load.ramp_up_strategy is not None:
        why_not = Unused("the rate follows the ramp", ("load", "ramp_up_strategy"))
        unused |= {"request_rate": why_not, "rescale": why_not}
    elif math.isinf(load.request_rate):
        why_not = Unused("request_rate inf has no gaps", ("load", "request_rate"))
        unused |= {"burstiness": why_not, "rescale": why_not}
    return unused


def _who_obeys(key: str) -> str:
    classes = {name: plugins.resolve("schedulers", name, schedulers.BUILTIN) for name in schedulers.BUILTIN}
    return ", ".join(name for name, cls in classes.items() if key in cls.engine_keys)


def without_unused(settings: Settings, unused: dict[str, Unused]) -> Settings:
    """`settings` with every unused key at its default, so that it can't matter."""
    changed: dict[str, Any] = {}
    for path in unused:
        section, _, key = path.partition(".")
        if not key:
            changed[section] = Settings.model_fields[section].default
            continue
        part = changed.get(section, getattr(settings, section))
        changed[section] = part.model_copy(update={key: type(part).model_fields[key].default})
    return settings.model_copy(update=changed)


def check_rules(settings: Settings, pieces: Pieces, faults: Faults) -> tuple[MemoryPlan | None, list[str]]:
    """(the memory plan, notices). Every broken rule becomes a fault that states both values.

    A rule between keys is asked where each of them is sound by itself.
    """
    trace, load = settings.trace, settings.load
    if load is not None:
        _check_load(load, faults)
    if trace is not None and load is not None:
        faults.add(("load",), "trace and load exclude each other; trace=null or load=null drops one")
    if trace is None and load is None and faults.sound("trace", "load"):
        faults.add(("trace",), "trace or load is required, and both are missing")
    if trace is not None and trace.window_s is not None and trace.window_s[0] >= trace.window_s[1]:
        faults.add(("trace", "window_s"), "must be [from, to) with from below to")
    if settings.figures == "cost" and faults.sound("gpu") and not pieces.platform.gpu.memory_gbps:
        faults.add(("figures",), f"{pieces.platform.gpu.name} has no figures to hold times against; true draws the run")
    notices = _check_limits(settings, pieces, faults)
    memory, more = _check_memory(settings, pieces, faults)
    return memory, notices + more


def check_workload(settings: Settings, pieces: Pieces, faults: Faults) -> list[str]:
    """Notices about what the keys do to the requests. What is wrong with a trace becomes a fault."""
    if not faults.sound("trace", "load", "engine.max_tokens", "engine.max_model_len", "scheduler"):
        return []
    if settings.trace is None:
        load = settings.load
        return _idle_keys(settings, pieces, hashes=False, classes=load is not None and load.priority is not None)
    found = traced(settings.trace)
    if isinstance(found, ConfigError):
        for line in found.faults:
            faults.add_line(("trace",), f"trace.{line}" if line.split(" ")[0] in Trace.model_fields else line)
    elif isinstance(found, UserError):
        origin = faults.draft.nearest(("trace", "path"))
        faults.lines += [(origin.line if origin else 0, line) for line in found.faults]
    if isinstance(found, UserError):
        return []
    requests = workload(settings).requests
    hashes = any(r.prefix_hashes or r.history_tokens for r in requests)
    idle = _idle_keys(settings, pieces, hashes=hashes, classes=len({r.priority for r in requests}) > 1)
    return idle + _too_long(requests, settings, pieces)


def _too_long(requests: list[Request], settings: Settings, pieces: Pieces) -> list[str]:
    longest = settings.engine.max_model_len or pieces.platform.model.max_model_len
    long = sum(request.prompt_tokens + request.output_tokens > longest for request in requests)
    if not long:
        return []
    whose = "max_model_len" if settings.engine.max_model_len else f"what {pieces.platform.model.name} takes"
    return [f"{long} of {len(requests)} requests are longer than {whose} ({longest} tokens): rejected on arrival"]


def _idle_keys(settings: Settings, pieces: Pieces, *, hashes: bool, classes: bool) -> list[str]:
    """Notices for keys whose effect depends on what the requests hold."""
    notices = []
    if settings.engine.enable_prefix_caching and not hashes:
        notices.append(
            "engine.enable_prefix_caching changes nothing unless a request is preempted: no request has prefix hashes"
        )
    options = pieces.options["scheduler"]
    if not classes:
        by = "policy" if options.get("policy") == "priority" else "enable_priority_scheduling"
        if options.get(by):
            notices.append(f"scheduler.{by} = {shown(options[by])}: all requests have the same priority")
    return notices


def _check_load(load: Load, faults: Faults) -> None:
    ids = Counter(one.id for one in load.requests or ())
    for name in [name for name, times in ids.items() if times > 1]:
        faults.add(("load", "requests"), f"two requests have the id {name}")
    ramp = (load.ramp_up_strategy, load.ramp_up_start_rps, load.ramp_up_end_rps)
    if not faults.sound("load.ramp_up_strategy", "load.ramp_up_start_rps", "load.ramp_up_end_rps"):
        ramp = (None, None, None)
    lines = arrival_faults(load.num_prompts, load.request_rate, load.burstiness, ramp)
    lines += length_faults(load.input_len, "input_len") + length_faults(load.output_len, "output_len")
    for line in lines:
        faults.add_line(("load",), f"load.{line}")
    faults.attempt(
        ("load", "priority"),
        lambda: synthesize(num_prompts=1, request_rate=1.0, input_len=1, output_len=1, priority=load.priority),
    )


def _check_limits(settings: Settings, pieces: Pieces, faults: Faults) -> list[str]:
    engine, obeyed = settings.engine, pieces.scheduler_class.engine_keys
    named = faults.sound("scheduler.name")
    slots = named and "max_num_seqs" in obeyed and faults.sound("engine.max_num_seqs")
    both = slots and "max_num_batched_tokens" in obeyed and faults.sound("engine.max_num_batched_tokens")
    if both and engine.max_num_batched_tokens < engine.max_num_seqs:
        faults.add(
            _given(faults, "max_num_batched_tokens", "max_num_seqs"),
            f"max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least max_num_seqs"
            f" ({engine.max_num_seqs})",
        )
    caches = named and faults.sound("kv.name") and getattr(pieces.kv_class, "caches", False)
    if caches and "enable_prefix_caching" not in obeyed:
        name = settings.scheduler.name
        faults.add(
            ("kv", "name"),
            f"scheduler {name} doesn't look into a prefix cache; {_who_obeys('enable_prefix_caching')} would",
        )
    model = pieces.platform.model
    known = faults.sound("model", "engine.max_model_len")
    if known and engine.max_model_len is not None and engine.max_model_len > model.max_model_len:
        faults.add(
            ("engine", "max_model_len"), f"must be at most the {model.max_model_len} tokens that {model.name} takes"
        )
    longest = engine.max_model_len or model.max_model_len
    if known and engine.long_prefill_token_threshold > longest:
        faults.add(("engine", "long_prefill_token_threshold"), f"must be at most max_model_len ({longest}), as in vLLM")
    options = pieces.options["scheduler"]
    batch_size = options.get("batch_size")
    if not (slots and faults.sound("scheduler.batch_size") and isinstance(batch_size, int)):
        return []
    if batch_size > engine.max_num_seqs and faults.draft.origin(("scheduler", "batch_size")) is None:
        options["batch_size"] = engine.max_num_seqs
        pieces.derived["scheduler.batch_size"] = "engine.max_num_seqs"
        return [f"scheduler.batch_size is max_num_seqs ({engine.max_num_seqs}), below its default of {batch_size}"]
    if batch_size > engine.max_num_seqs:
        faults.add(
            ("scheduler", "batch_size"),
            f"batch_size ({batch_size}) must be at most engine.max_num_seqs ({engine.max_num_seqs})",
        )
    return []


def _given(faults: Faults, *keys: str) -> tuple[str, str]:
    """The first of these engine keys that somebody gave: a fault between two is told where it was made."""
    given = [key for key in keys if faults.draft.origin(("engine", key)) is not None]
    return ("engine", (given or list(keys))[0])


def _check_memory(settings: Settings, pieces: Pieces, faults: Faults) -> tuple[MemoryPlan | None, list[str]]:
    engine, platform = settings.engine, pieces.platform
    if not faults.sound("model", "gpu", *(f"engine.{key}" for key in _OF_MEMORY)):
        return None, []
    try:
        plan = plan_memory(
            platform.model,
            platform.gpu,
            tensor_parallel_size=engine.tensor_parallel_size,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            block_size=engine.block_size,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            max_model_len=engine.max_model_len,
            num_gpu_blocks_override=engine.num_gpu_blocks_override,
        )
    except UserError as error:
        overridden = engine.num_gpu_blocks_override is not None
        key = "num_gpu_blocks_override" if overridden else "gpu_memory_utilization"
        for fault in error.faults:
            head, *terms = (" ".join(line.split()) for line in fault.splitlines())
            faults.add(("engine", key), " ".join([head, "; ".join(terms)]).strip())
        return None, []
    if not faults.sound("kv"):
        return plan, []
    paged = settings.kv.name == "paged"
    blocks = plan.usable_blocks if paged else plan.num_gpu_blocks
    room = blocks * engine.block_size
    holds = f"the {room} tokens that the KV memory holds ({blocks} usable blocks of {engine.block_size})"
    if engine.max_model_len is not None and engine.max_model_len > room:
        faults.add(("engine", "max_model_len"), f"must be at most {holds}")
    elif engine.max_model_len is None and platform.model.max_model_len > room:
        longest = f"{platform.model.name} takes {platform.model.max_model_len} tokens, more than {holds}"
        if not paged and pieces.options["kv"].get("rule") == "max":
            faults.add(("engine", "max_model_len"), f"{longest}; set max_model_len")
        else:
            return plan, [f"{longest}: longer requests are rejected on arrival"]
    return plan, []
