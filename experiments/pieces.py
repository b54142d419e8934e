"""The things a config names, looked up: model, GPU, scheduler, cost model, KV memory, and the files among them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from experiments.faults import Faults
from experiments.overrides import Draft
from experiments.schema import DEFAULT_NAMES, Named, Settings, Trace
from experiments.yamltext import KeyPath
from simulator import costs, plugins, schedulers
from simulator.costs.table import AUTO, Table
from simulator.errors import ConfigError
from simulator.kv import BlockPool, Reservation
from simulator.radix_pool import RadixPool
from simulator.schedulers.base import Scheduler
from simulator.specs import GPUS, MODELS, GpuSpec, Platform, get_gpu, get_model
from simulator.suggest import did_you_mean

KV_MEMORIES: dict[str, type] = {"paged": BlockPool, "reserve": Reservation, "radix": RadixPool}
# What the program itself passes to these constructors; the rest are options.
_KV_GIVEN = {"num_gpu_blocks", "block_size", "max_model_len"}
# Options that may name a file, looked for beside the config first and pinned by its content.
FILE_OPTIONS = {"profile", "collectives"}
# The one question each of these answers: what a class must have to be one.
_QUESTION = {"scheduler": "plan", "cost_model": "iteration_ns"}
COST_MODEL = (
    "a cost model is built as __init__(self, platform, **options), and has the attributes name (text) and is_bound"
    " (whether its times are a lower bound)"
)


@dataclass
class Pieces:
    """What the names in a config stand for.

    `options` has every option of scheduler, cost model and KV memory, defaults filled in. `files` are the files the run
    depends on, by key path. `replaced` are settings whose value had to change (paths made absolute), `derived` says
    why.
    """

    platform: Platform
    scheduler_class: type[Scheduler]
    cost_class: type
    kv_class: type
    options: dict[str, dict[str, Any]]
    files: dict[str, Path] = field(default_factory=dict)
    replaced: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)

    def scheduler(self) -> Scheduler:
        """A fresh scheduler. Raises ConfigError where its options are out of range."""
        return self.scheduler_class(**self.options["scheduler"])

    @property
    def lacks_profile(self) -> bool:
        """Whether times shall come from a profile of a device without figures, and none is given.

        None is shipped, as every machine's processor is another. A live run needs no times; others raise on use.
        """
        unfound = self.cost_class is Table and self.options["cost_model"]["profile"] == AUTO
        return unfound and not self.platform.gpu.memory_gbps

    def cost_model(self) -> Any:
        """A fresh cost model for this platform. Raises ConfigError, likewise."""
        if self.lacks_profile:
            model, gpu = self.platform.model.name, self.platform.gpu.name
            raise ConfigError(
                f"cost_model.profile: none is shipped for {gpu}; `servesim calibrate measure --model {model} --device"
                f" {gpu} --out DIR` and `servesim calibrate fit DIR` make one: cost_model.profile=DIR/profile.json"
            )
        return self.cost_class(self.platform, **self.options["cost_model"])


def check_pieces(draft: Draft, settings: Settings, faults: Faults) -> Pieces:
    """Look everything up and try to build it. In place of what is at fault stands a default, for the other checks."""
    finder = _Finder(draft, faults)
    model = finder.spec("model", MODELS, get_model) or next(iter(MODELS.values()))
    gpu = finder.spec("gpu", GPUS, _gpu_getter(finder)) or next(iter(GPUS.values()))
    finder.trace(settings)
    finder.lengths(settings)
    found = {
        "scheduler": finder.named("scheduler", schedulers.BUILTIN, set()),
        "cost_model": finder.named("cost_model", costs.BUILTIN, {"platform"}),
        "kv": finder.kv(),
    }
    ranks = settings.engine.tensor_parallel_size if faults.sound("model", "engine.tensor_parallel_size") else 1
    platform = faults.attempt(("engine", "tensor_parallel_size"), lambda: Platform(model, gpu, ranks))
    classes = {key: cls for key, (cls, _) in found.items()}
    options = {key: bound for key, (_, bound) in found.items()}
    pieces = Pieces(
        platform or Platform(model, gpu), classes["scheduler"], classes["cost_model"], classes["kv"], options,
        finder.files, finder.replaced, finder.derived,
    )  # fmt: skip
    _try_to_build("scheduler", pieces.scheduler, pieces, faults)
    if pieces.lacks_profile:
        return pieces
    # Measured times belong to one platform: whether they fit can be asked where that is known.
    if faults.sound("model", "gpu", "engine.tensor_parallel_size") or not any(
        f"cost_model.{name}" in finder.files for name in FILE_OPTIONS
    ):
        _try_to_build("cost_model", pieces.cost_model, pieces, faults)
    return pieces


def _try_to_build(key: str, build: Callable[[], object], pieces: Pieces, faults: Faults) -> None:
    """Build, and where a constructor refuses an option, try again without it: it may have more to say."""
    options = pieces.options[key]
    while Parameter.empty not in options.values():
        before = len(faults.lines)
        refused = {name for name in options if not faults.sound(f"{key}.{name}")}
        try:
            faults.attempt((key,), build)
        except Exception as error:  # an outside constructor may raise anything
            faults.add((key,), f"can't be built: {type(error).__name__}: {error}")
        refused = {name for name in options if not faults.sound(f"{key}.{name}")} - refused
        if len(faults.lines) == before or not refused or not faults.sound(f"{key}.name"):
            return
        cls = pieces.scheduler_class if key == "scheduler" else pieces.cost_class
        defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
        options |= {name: defaults[name] for name in refused if name in defaults}


def _gpu_getter(finder: _Finder) -> Callable[[str], GpuSpec]:
    def get(name: str) -> GpuSpec:
        if name != "local":
            return get_gpu(name)
        from experiments.local_gpu import local_gpu

        spec = local_gpu()
        finder.replaced["gpu"] = spec.name
        finder.derived["gpu"] = "the GPU of this machine"
        return spec

    return get


class _Finder:
    """Looks names up in one draft; what isn't found becomes a fault."""

    def __init__(self, draft: Draft, faults: Faults) -> None:
        self.draft = draft
        self.faults = faults
        self.files: dict[str, Path] = {}
        self.replaced: dict[str, Any] = {}
        self.derived: dict[str, str] = {}

    def file(self, path: KeyPath, text: str) -> Path | None:
        """The file that `text`, given at `path`, names: beside the config first, then in the working directory."""
        origin = self.draft.origin(path)
        for folder in (origin.folder if origin else Path(), Path.cwd()):
            candidate = Path(os.path.normpath(folder.absolute() / Path(text).expanduser()))
            if candidate.is_file():
                return candidate
        return None

    def spec(self, key: str, known: dict[str, Any], get: Callable[[str], Any]) -> Any | None:
        """The model or GPU that the config names; None where it isn't a name, which the schema reports."""
        name = self.draft.tree.get(key)
        if not isinstance(name, str):
            return None
        if name not in known and name != "local" and (file := self.file((key,), name)) is not None:
            self.files[key] = file
            self.replaced[key] = name = str(file)
        return self.faults.attempt((key,), lambda: get(name))

    def trace(self, settings: Settings) -> None:
        """Find the trace's file, shipped or given."""
        from workloads import readers
        from workloads.shipped import SHIPPED, shipped_path

        given = self.draft.tree.get("trace")
        path = given if isinstance(given, str) else given.get("path") if isinstance(given, dict) else None
        if not isinstance(path, str):
            return
        if (known := shipped_path(path)) is not None:
            self.files["trace.path"] = Path(known)
        elif (file := self.file(("trace", "path"), path)) is not None:
            self.files["trace.path"] = file
            if isinstance(settings.trace, Trace):
                self.replaced["trace"] = settings.trace.model_copy(update={"path": str(file)})
        else:
            hint = did_you_mean(path, SHIPPED) or f"; shipped are {', '.join(SHIPPED)}"
            self.faults.add(("trace", "path"), f"neither a file nor a shipped trace{hint}")
        name = given.get("format") if isinstance(given, dict) else None
        if isinstance(name, str):
            self.faults.attempt(("trace", "format"), lambda: readers.reader_class(name))

    def lengths(self, settings: Settings) -> None:
        """Find the files that lengths of a synthetic load are drawn from."""
        from workloads.shipped import SHIPPED, shipped_path

        load = self.draft.tree.get("load")
        replaced = {}
        for key in ("input_len", "output_len"):
            spec = load.get(key) if isinstance(load, dict) else None
            source = spec.get("empirical") if isinstance(spec, dict) and len(spec) == 1 else None
            if not isinstance(source, str):
                continue
            if (known := shipped_path(source)) is not None:
                self.files[f"load.{key}"] = Path(known)
            elif (file := self.file(("load", key), source)) is not None:
                self.files[f"load.{key}"] = file
                replaced[key] = {"empirical": str(file)}
            else:
                hint = did_you_mean(source, SHIPPED) or f"; shipped are {', '.join(SHIPPED)}"
                self.faults.add(("load", key, "empirical"), f"neither a file nor a shipped trace{hint}")
        if replaced and settings.load is not None:
            self.replaced["load"] = settings.load.model_copy(update=replaced)

    def named(self, key: str, builtin: dict[str, str], skip: set[str]) -> tuple[type, dict[str, Any]]:
        """(class, all its options) of `{name: ..., option: ...}`; of the default where that can't be had."""
        given = self._named(key)
        found = given and self.faults.attempt((key, "name"), lambda: plugins.resolve(f"{key}s", given.name, builtin))
        if given and found:
            if not callable(getattr(found, _QUESTION[key], None)):
                self.faults.add((key, "name"), f"must be a class with the method {_QUESTION[key]}")
            elif key == "cost_model" and not _takes_platform(found):
                self.faults.add((key, "name"), COST_MODEL)
            else:
                return self._bound(key, found, given, skip)
        default = Named(name=DEFAULT_NAMES[key])
        return self._bound(key, plugins.resolve(f"{key}s", default.name, builtin), default, skip)

    def kv(self) -> tuple[type, dict[str, Any]]:
        """The same for the KV memory."""
        default = Named(name=DEFAULT_NAMES["kv"])
        given = self._named("kv") or default
        if given.name not in KV_MEMORIES:
            hint = did_you_mean(given.name, KV_MEMORIES)
            self.faults.add(("kv", "name"), f"must be one of {', '.join(KV_MEMORIES)}{hint}")
            given = default
        return self._bound("kv", KV_MEMORIES[given.name], given, _KV_GIVEN)

    def _named(self, key: str) -> Named | None:
        value = self.draft.tree.get(key, DEFAULT_NAMES[key])
        try:
            return Named.model_validate({"name": value} if isinstance(value, str) else value)
        except ValidationError:
            return None  # the schema reports it

    def _bound(self, key: str, cls: type, given: Named, skip: set[str]) -> tuple[type, dict[str, Any]]:
        given_options = dict(given.options)
        for name, value in given_options.items():
            if name in FILE_OPTIONS and isinstance(value, str) and (file := self.file((key, name), value)):
                given_options[name] = str(file)
                self.files[f"{key}.{name}"] = file
            given_options[name] = self._typed(cls, (key, name), given_options[name])
        options = self.faults.attempt((key,), lambda: plugins.bind_options(cls, given_options, skip=skip, where=key))
        bound = {p.name: p.default for p in inspect.signature(cls).parameters.values() if p.name not in skip}
        if options is None:  # what it needs stays missing
            options = {name: given_options.get(name, default) for name, default in bound.items()}
        broken = {name for name in options if name in bound and not self.faults.sound(f"{key}.{name}")}
        return cls, {name: bound[name] if name in broken else value for name, value in options.items()}

    def _typed(self, cls: type, path: tuple[str, str], value: Any) -> Any:
        """`value` as the constructor's annotation wants it: 1e3 is a whole number, true is none."""
        try:
            hint = get_type_hints(cls.__init__)[path[1]]  # type: ignore[misc]
            adapter = TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))
        except Exception:  # an unknown option, or an annotation of an outside class that is no type
            return value
        whole = isinstance(value, float) and value.is_integer() and hint in (int, int | None)
        try:
            return adapter.validate_python(int(value) if whole else value)
        except ValidationError as error:
            self.faults.add(path, _type_rule(hint, error))
            return value


def _takes_platform(cls: type) -> bool:
    first = next(iter(inspect.signature(cls).parameters.values()), None)
    return first is not None and (first.name == "platform" or first.kind is Parameter.VAR_POSITIONAL)


def _type_rule(hint: Any, error: ValidationError) -> str:
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
        return f"must be one of {', '.join(choices)}{did_you_mean(error.errors()[0]['input'], choices)}"
    if isinstance(hint, type):
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
        return f"must be {words.get(hint.__name__, hint.__name__)}"
    return "; ".join(dict.fromkeys(d["msg"] for d in error.errors(include_url=False)))
