"""The keys of a config, their types, bounds and defaults. What keys mean to each other is in `experiments.rules`.

Engine keys have the names of vLLM's fields. Models are strict: `true` is no number, `"8"` is no number, `1e3` is 1000.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

MAX_COUNT = 10**9
# A bare word stands for a mapping with one key: `scheduler: chunked` is `scheduler: {name: chunked}`.
SHORTHAND = {"trace": "path", "scheduler": "name", "kv": "name", "cost_model": "name"}
DEFAULT_NAMES = {"scheduler": "chunked", "kv": "paged", "cost_model": "roofline"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _broken(rule: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _broken("must be a whole number")
    if isinstance(value, float):
        if math.isinf(value):
            raise _broken(f"must be a whole number of at most {MAX_COUNT}")
        if not value.is_integer():
            raise _broken("must be a whole number")
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _broken("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _broken("must be a finite number")
    return number


def _boolean(value: Any, rule: str = "must be true or false") -> Any:
    words = {"on": True, "yes": True, "off": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise _broken(rule)
    return value


def _rate(value: Any) -> float:
    if value == "inf" or value == math.inf:
        return math.inf
    number = float(_number(value))
    if number <= 0:
        raise _broken("must be above 0, or inf for all at once")
    return number


def _burstiness(value: Any) -> float:
    if value == "inf" or value == math.inf:
        return math.inf
    number = float(_number(value))
    if number <= 0:
        raise _broken("must be above 0 (1 is Poisson), or inf for equal gaps")
    return number


def _max_tokens(value: Any) -> int | str:
    if value in ("column", "oracle"):
        return str(value)
    if isinstance(value, str):
        raise _broken("must be column, oracle or a number of tokens")
    number = int(_whole(value))
    if not 1 <= number <= MAX_COUNT:
        raise _broken("must be column, oracle or a number of at least 1 token")
    return number


def _lengths(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _figures(value: Any) -> bool | str:
    return "sweep" if value == "sweep" else bool(_boolean(value, "must be true, false or sweep"))


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _run_name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _broken("must be a word of letters, digits, '.', '_' and '-', as it names a folder")
    return value


_WHOLE = BeforeValidator(_whole)
_NUMBER = BeforeValidator(_number)
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), _WHOLE]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT), _WHOLE]
Positive = Annotated[float, Field(gt=0), _NUMBER]
NotNegative = Annotated[float, Field(ge=0), _NUMBER]
Bool = Annotated[bool, BeforeValidator(lambda value: _boolean(value))]
Figures = Annotated[bool | str, PlainValidator(_figures), WithJsonSchema({"enum": [True, False, "sweep"]})]
_RATE_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}
Rate = Annotated[float, PlainValidator(_rate), WithJsonSchema(_RATE_SCHEMA)]
Burstiness = Annotated[float, PlainValidator(_burstiness), WithJsonSchema(_RATE_SCHEMA)]
MaxTokens = Annotated[
    int | str,
    PlainValidator(_max_tokens),
    WithJsonSchema({"anyOf": [{"enum": ["column", "oracle"]}, {"type": "integer", "minimum": 1}]}),
]
Classes = Annotated[Any, WithJsonSchema({"type": ["array", "null"], "items": {"type": "array"}})]
Lengths = Annotated[
    Any,
    BeforeValidator(_lengths),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "object", "maxProperties": 1}]}),
]
RunName = Annotated[str, PlainValidator(_run_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})]


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


class Load(_Keys):
    """A synthetic load, with `vllm bench serve`'s arithmetic for arrivals."""

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
    strict: Bool = Field(default=False, description="a faulty row is an error instead of dropped and counted")
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
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), _NUMBER] = Field(
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
        default=Named(name=DEFAULT_NAMES["kv"]), description="paged, or {name: reserve, rule: max | pow2 | exact}"
    )
    scheduler: NamedOption = Field(
        default=Named(name=DEFAULT_NAMES["scheduler"]), description="`servesim list schedulers`"
    )
    cost_model: NamedOption = Field(
        default=Named(name=DEFAULT_NAMES["cost_model"]), description="`servesim list cost-models`"
    )
    host_overhead_us: Annotated[float, Field(ge=0, le=1e9), _NUMBER] = Field(
        default=0.0, description="CPU time per iteration, microseconds"
    )
    slo: Slo = Slo()
    percentiles: Annotated[list[Annotated[float, Field(gt=0, lt=100), _NUMBER]], Field(min_length=1, max_length=20)] = (
        Field(default=[50.0, 90.0, 95.0, 99.0], description="of every latency metric")
    )
    fast_forward: Bool = Field(default=True, description="false: step every iteration; same numbers, slower")
    save_detailed: Bool = Field(default=False, description="write the time of every token")
    figures: Figures = Field(
        default=True, description="draw figures: true, false, or sweep (those of the whole sweep alone)"
    )
    pins: dict[str, str] = Field(
        default={}, description="SHA-256 of the files that the run depends on; a changed file is refused"
    )


def is_word(text: str) -> bool:
    """Whether `text` may name a run."""
    return bool(_NAME.fullmatch(text))


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, `sweep` included."""
    schema = Settings.model_json_schema()
    schema["title"] = "servesim config"
    schema["properties"]["sweep"] = {
        "type": "object",
        "description": "key.path: [values]; the product of all lists is run",
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    for key in SHORTHAND:
        schema["properties"][key] = {
            "description": schema["properties"][key].get("description", "a name alone, or with options"),
            "anyOf": [{"type": "string"}, {"$ref": f"#/$defs/{'Named' if key in DEFAULT_NAMES else 'Trace'}"}],
        }
    return schema
