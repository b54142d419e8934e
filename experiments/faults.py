"""What is wrong with a config, one line each: where it was given, key, value, rule, and the nearest valid choice."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from experiments.overrides import Draft
from experiments.schema import SHORTHAND, Claim, Listed, Settings
from experiments.yamltext import KeyPath, dotted, shown
from simulator.errors import ConfigError, UserError
from simulator.specs import GPUS, MODELS
from simulator.suggest import did_you_mean

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

# What other engines and tools call a key of ours; only for suggestions.
_ALIASES = {
    "chunked_prefill_size": "engine.max_num_batched_tokens",
    "max_prefill_tokens": "engine.max_num_prefill_tokens",
    "max_running_requests": "engine.max_num_seqs",
    "mem_fraction_static": "engine.gpu_memory_utilization",
    "page_size": "engine.block_size",
    "context_length": "engine.max_model_len",
    "tp_size": "engine.tensor_parallel_size",
    "tp": "engine.tensor_parallel_size",
    "qps": "load.request_rate",
    "num_requests": "load.num_prompts",
    "batch_size": "scheduler.batch_size",
    "dataset": "trace.path",
    "goodput": "slo",
}
_LEADING_KEY = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)(?:\[\d+\])?(?: = |: )")


class Faults:
    """Collects the faults of one draft."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.lines: list[tuple[int, str]] = []
        self._broken: set[KeyPath] = set()

    def __bool__(self) -> bool:
        return bool(self.lines)

    def sound(self, *keys: str) -> bool:
        """Whether nothing at, inside or around these `key.path`s is at fault.

        What keys mean to each other is asked of sound ones alone, so that one fault isn't followed by others.
        """
        paths = [tuple(key.split(".")) for key in keys]
        return not any(a[: len(b)] == b[: len(a)] for a in paths for b in self._broken)

    def throw(self) -> None:
        """Raise ConfigError with every fault, in the order of the file, where there is any."""
        if self.lines:
            raise ConfigError([text for _, text in sorted(self.lines, key=lambda entry: entry[0])])

    def add(self, path: KeyPath, rule: str) -> None:
        """The value at `path` breaks `rule`."""
        origin = self.draft.nearest(path)
        self._broken.add(path)
        self.lines.append((origin.line if origin else 0, self.describe(path, rule)))

    def describe(self, path: KeyPath, rule: str) -> str:
        """One line: where, key, value if one was given, rule."""
        origin = self.draft.nearest(path)
        given = self.draft.origin(path) is not None
        key = f"{dotted(path)} = {shown(self._value(path))}" if given else dotted(path)
        if origin is None:
            return f"{self.draft.source}: {key}: {rule}"
        if origin.overrides(dotted(path)):
            return f"{origin.where}: {rule}"
        return f"{origin.where}: {key}: {rule}"

    def _value(self, path: KeyPath) -> Any:
        value: Any = self.draft.tree
        for part in path:
            if isinstance(value, str):  # a shorthand word stands for its one key
                break
            value = value[part]
        return value

    def attempt(self, path: KeyPath, action: Callable[[], T]) -> T | None:
        """What `action` returns; None where it raises UserError, whose lines become faults of `path`.

        A line that begins with a key of its own (`scheduler.batch_size = 0: ...`) is a fault of that key.
        """
        try:
            return action()
        except UserError as error:
            for line in error.faults:
                self.add_line(path, line)
            return None

    def add_line(self, path: KeyPath, line: str) -> None:
        """A fault as somebody else has put it: of the key that it begins with, else of `path`."""
        match = _LEADING_KEY.match(line)
        own = tuple(match[1].split(".")) if match else ()
        origin = self.draft.nearest(own) if own and own[0] in self.draft.tree else None
        if origin is None or match is None:
            self.add(path, line)
            return
        self._broken.add(own)
        if origin.overrides(match[1]):  # which has said key and value already
            rule = line[match.end() :]
            line = rule.partition(": ")[2] or rule if match[0].endswith("= ") else rule
        self.lines.append((origin.line, f"{origin.where}: {line}"))

    def validate(self, default_name: str) -> Settings:
        """The draft as Settings. What is unknown, missing or of the wrong kind becomes a fault, and is left out."""
        tree = {"name": default_name, **self.draft.tree}
        try:
            return Settings.model_validate(tree)
        except ValidationError as error:
            details = error.errors(include_url=False)
        for detail in details:
            self.add(_path(detail), _rule(detail, _path(detail)))
        return _mended(tree, details)

    def parse(self, model: type[Model], value: Any, at: KeyPath = ()) -> Model | None:
        """`value`, which lies at the path `at`, as `model`; None where it isn't one, with its faults collected."""
        try:
            return model.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                path = (*at, *_path(detail))
                self.add(path, _rule(detail, path))
            return None


def _mended(tree: dict[str, Any], details: list[ErrorDetails]) -> Settings:
    """Settings from what of `tree` isn't at fault, for the checks that are left; nothing runs with them."""
    tree = copy.deepcopy(tree)
    needed = {"model": next(iter(MODELS)), "gpu": next(iter(GPUS))}
    while True:
        lost = [_leave_out(tree, _path(d)[:-1] if d["type"] == "missing" else _path(d)) for d in details]
        if not any(lost) and needed.keys() <= tree.keys():
            return Settings.model_validate(needed)
        tree = {**needed, **tree}
        try:
            return Settings.model_validate(tree)
        except ValidationError as error:
            details = error.errors(include_url=False)


def _leave_out(tree: dict[str, Any], path: KeyPath) -> bool:
    """Take what lies at `path` out of `tree`, a list whole; whether there was anything."""
    at: Any = tree
    for depth, part in enumerate(path):
        inner = at.get(part)
        last = depth == len(path) - 1 or isinstance(path[depth + 1], int)
        if last or not isinstance(inner, dict):
            return at.pop(part, at) is not at
        at = inner
    return False


def _path(detail: ErrorDetails) -> KeyPath:
    return tuple(detail["loc"])


def _rule(detail: ErrorDetails, path: KeyPath) -> str:
    kind, ctx = detail["type"], detail.get("ctx", {})
    match kind:
        case "missing":
            return "is required, and missing"
        case "extra_forbidden":
            return f"unknown key{_nearest_key(path)}"
        case "greater_than_equal":
            return f"must be at least {ctx['ge']:.12g}"
        case "greater_than":
            return f"must be above {ctx['gt']:.12g}"
        case "less_than_equal":
            return f"must be at most {ctx['le']:.12g}"
        case "less_than":
            return f"must be below {ctx['lt']:.12g}"
        case "literal_error":
            choices = re.findall(r"'([^']*)'", str(ctx["expected"]))
            return f"must be one of {', '.join(choices)}{did_you_mean(detail['input'], choices)}"
        case "string_type":
            return "must be text"
        case "list_type":
            return "must be a list"
        case "tuple_type":
            return "must be [from, to), two numbers"
        case "model_type" | "dict_type" | "model_attributes_type":
            word = f", or {SHORTHAND[str(path[-1])]}'s value alone" if path and path[-1] in SHORTHAND else ""
            return f"must be a mapping of keys{word}"
        case "too_short" | "too_long":
            bound = f"at least {ctx['min_length']}" if kind == "too_short" else f"at most {ctx['max_length']}"
            return f"must hold {bound} values"
        case _:
            return detail["msg"]


def _nearest_key(path: KeyPath) -> str:
    last = str(path[-1])
    if last in _ALIASES:
        return f"; did you mean {_ALIASES[last]!r}?"
    around = [part for part in path if isinstance(part, str)]  # without the numbers of a list's elements
    siblings = [key for key in known_keys(inside=True) if key.split(".")[:-1] == around[:-1]]
    if hint := did_you_mean(".".join(around), siblings):
        return hint
    everywhere = {key.split(".")[-1]: key for key in known_keys()}
    if last in everywhere:
        return f"; did you mean {everywhere[last]!r}?"
    return f"; known are {', '.join(key.split('.')[-1] for key in siblings)}" if siblings else ""


def known_keys(inside: bool = False) -> list[str]:
    """Every key of a config by its path, `sweep` included; with `inside` those of a list's elements too."""
    keys = ["sweep", "claims", *_keys(Settings, "")]
    lists = [f"claims.{name}" for name in Claim.model_fields] + _keys(Listed, "load.requests.")
    return keys + lists if inside else keys


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    keys: list[str] = []
    for name, info in model.model_fields.items():
        keys.append(prefix + name)
        inner = _model_in(info.annotation)
        if inner is not None and not prefix:
            keys += _keys(inner, f"{name}.")
    return keys


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        if (found := _model_in(inner)) is not None:
            return found
    return None
