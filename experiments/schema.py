"""The keys of a config, their types, bounds and defaults. What keys mean to each other is in `experiments.rules`.

Engine keys have the names of vLLM's fields.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from experiments.kinds import (
    NUMBER,
    Bool,
    Burstiness,
    Classes,
    Count,
    CountOrZero,
    Figures,
    Lengths,
    MaxTokens,
    NotNegative,
    Positive,
    Rate,
    RunName,
    is_word,
)

__all__ = [
    "DEFAULT_NAMES",
    "SECTIONS",
    "SHORTHAND",
    "Claim",
    "Listed",
    "Load",
    "Named",
    "Settings",
    "Trace",
    "config_schema",
    "is_word",
]

# A bare word stands for a mapping with one key: `scheduler: chunked` is `scheduler: {name: chunked}`.
SHORTHAND = {"trace": "path", "scheduler": "name", "kv": "name", "cost_model": "name"}
DEFAULT_NAMES = {"scheduler": "chunked", "kv": "paged", "cost_model": "roofline"}
# Sections whose keys stand on their own: a case of a sweep changes some of them and leaves the others.
SECTIONS = ("trace", "load", "engine", "slo")


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(_Keys):
    """A registered or outside class by `name`, its options beside it. A bare word stands for `{name: word}`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field(description="a built-in name, an entry point, or package.module:Attribute")

    @property
    def options(self) -> dict[str, Any]:
        """What is given beside the name."""
        return dict(self.model_extra or {})


NamedOption = Annotated[Named, BeforeValidator(_named)]


class Listed(_Keys):
    """One request of a load that is written out."""

    id: Annotated[str, Field(min_length=1, max_length=80)] = Field(description="its name in tables and pictures")
    arrival_ms: Annotated[float, Field(ge=0, le=1e12), NUMBER] = Field(default=0.0, description="when it arrives, ms")
    input_len: Count = Field(description="prompt tokens")
    output_len: Count = Field(description="output tokens")


class Load(_Keys):
    """A synthetic load, with `vllm bench serve`'s arithmetic for arrivals; or `requests`, which lists every one."""

    num_prompts: Count = Field(default=1000, description="requests")
    request_rate: Rate = Field(default=math.inf, description="requests per second; inf: all at once")
    burstiness: Burstiness = Field(default=1.0, description="shape of the gamma gaps: 1 is Poisson, inf equal gaps")
    rescale: Bool = Field(
        default=True, description="stretch arrivals to end at num_prompts / request_rate, as vLLM does"
    )
    input_len: Lengths = Field(default=1024, description="prompt tokens: a number, or {distribution: parameters}")
    output_len: Lengths = Field(default=128, description="output tokens, likewise")
    ramp_up_strategy: Literal["linear", "exponential"] | None = Field(default=None, description="let the rate grow")
    ramp_up_start_rps: Positive | None = Field(default=None, description="requests per second at the start")
    ramp_up_end_rps: Positive | None = Field(default=None, description="and at the end")
    priority: Classes = Field(default=None, description="[[priority, weight], ...]; smaller is served first")
    requests: Annotated[list[Listed], Field(min_length=1)] | None = Field(
        default=None, description="the requests one by one, [{id, arrival_ms, input_len, output_len}, ...]"
    )
    repeat: Annotated[Count, Field(le=100_000)] = Field(
        default=1, description="how often the list of requests is gone through, at the same arrival times"
    )


class Trace(_Keys):
    """A recorded trace and how to read it."""

    path: str = Field(description="a shipped name (`servesim list traces`) or a file")
    format: str | None = Field(default=None, description="the reader; default: detected")
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None, description="of the arrival column; default: the format's"
    )
    block_size: Count | None = Field(
        default=None, description="prompt tokens per block id, where the trace has ids; default: the format's"
    )
    zero_output: Literal["drop", "keep", "error"] = Field(default="drop", description="requests without output")
    strict: Bool = Field(default=False, description="warnings (rows out of order, totals that differ) are errors, too")
    limit: Count | None = Field(default=None, description="the first requests only")
    window_s: Annotated[tuple[NotNegative, NotNegative], Field(strict=False)] | None = Field(
        default=None, description="[from, to) in seconds after the first arrival"
    )
    time_scale: Positive = Field(default=1.0, description="factor on every gap; below 1 is a heavier load")
    request_rate: Positive | None = Field(default=None, description="scale the gaps to this mean rate per second")


class Engine(_Keys):
    """The engine's limits and memory, under vLLM's names."""

    max_num_seqs: Count = Field(default=256, description="sequences that run at once")
    max_num_batched_tokens: Count = Field(default=2048, description="tokens of one iteration")
    max_num_prefill_tokens: Count | None = Field(default=None, description="prefill tokens of one iteration")
    long_prefill_token_threshold: CountOrZero = Field(
        default=0, description="longest chunk of one prompt per iteration; 0: no cap"
    )
    max_model_len: Count | None = Field(
        default=None, description="longest prompt + output; default: the model's, or what the KV memory holds"
    )
    block_size: Count = Field(default=16, description="tokens per KV block")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), NUMBER] = Field(
        default=0.9, description="share of GPU memory to use"
    )
    num_gpu_blocks_override: Count | None = Field(default=None, description="KV blocks, instead of planning")
    tensor_parallel_size: Count = Field(default=1, description="GPUs that share every layer")
    enable_prefix_caching: Bool = Field(
        default=False, description="keep the KV blocks of prompts findable, as vLLM does by default"
    )
    max_tokens: MaxTokens = Field(
        default="column",
        description="what clients ask for: the trace's column, a number, or oracle (the true length, flagged)",
    )
    async_scheduling: Bool = Field(default=False, description="plan an iteration while the one before it runs")


class Slo(_Keys):
    """Limits in milliseconds that a good request keeps, all of them."""

    ttft: Positive | None = Field(default=None, description="time to first token, ms")
    tpot: Positive | None = Field(default=None, description="time per output token, ms")
    e2el: Positive | None = Field(default=None, description="end to end, ms")


class Claim(_Keys):
    """What a source says about an experiment, and how to measure it. No part of a run: results don't depend on it."""

    what: str = Field(description="what is claimed, in words")
    claimed: str | float = Field(description="the source's number or words")
    measure: NamedOption = Field(description="a name of experiments/claims.py, with its arguments beside it")
    why: str = Field(description="why the two differ, or that they agree")


class Settings(_Keys):
    """One run, whole. Give `trace` or `load`; everything else has a default."""

    name: RunName = Field(default="run", description="names the result folder; default: the config file's name")
    seed: CountOrZero = Field(default=0, description="of everything random")
    model: str = Field(description="a shipped model, or a path to a Hugging Face config.json")
    gpu: str = Field(description="a shipped GPU, a path, or local: the GPU of this machine")
    trace: Annotated[Trace, BeforeValidator(lambda v: {"path": v} if isinstance(v, str) else v)] | None = None
    load: Load | None = None
    engine: Engine = Engine()
    kv: NamedOption = Field(
        default=Named(name=DEFAULT_NAMES["kv"]),
        description="paged, radix, or {name: reserve, rule: max | pow2 | exact}",
    )
    scheduler: NamedOption = Field(
        default=Named(name=DEFAULT_NAMES["scheduler"]), description="`servesim list schedulers`"
    )
    cost_model: NamedOption = Field(
        default=Named(name=DEFAULT_NAMES["cost_model"]), description="`servesim list cost-models`"
    )
    host_overhead_us: Annotated[float, Field(ge=0, le=1e9), NUMBER] = Field(
        default=0.0, description="CPU time per iteration, microseconds"
    )
    slo: Slo = Slo()
    percentiles: Annotated[list[Annotated[float, Field(gt=0, lt=100), NUMBER]], Field(min_length=1, max_length=20)] = (
        Field(default=[50.0, 90.0, 95.0, 99.0], description="of every latency metric")
    )
    fast_forward: Bool = Field(default=True, description="false: step every iteration; same numbers, slower")
    save_detailed: Bool = Field(default=False, description="write the time of every token")
    figures: Figures = Field(
        default=True,
        description="draw figures: true, false, sweep (those of the whole sweep alone), or cost (and the cost model)",
    )
    pins: dict[str, str] = Field(
        default={}, description="SHA-256 of the files that the run depends on; a changed file is refused"
    )


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, `sweep` included."""
    schema = Settings.model_json_schema()
    schema["title"] = "servesim config"
    schema["properties"]["sweep"] = {
        "type": "object",
        "description": "key.path: [values]; the product of all lists is run",
        "properties": {
            "case": {"type": "object", "description": "name: {keys that make this case}", "minProperties": 1}
        },
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    schema["properties"]["claims"] = {"type": "array", "items": Claim.model_json_schema()}
    for key in SHORTHAND:
        schema["properties"][key] = {
            "description": schema["properties"][key].get("description", "a name alone, or with options"),
            "anyOf": [{"type": "string"}, {"$ref": f"#/$defs/{'Named' if key in DEFAULT_NAMES else 'Trace'}"}],
        }
    return dict(_finite(schema))


def _finite(value: Any) -> Any:
    """`value` with infinity as the word that configs have for it: JSON has no number for it."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return "inf" if value == math.inf else value
