"""The things a config names, looked up: model, GPU, scheduler, cost model, KV memory, and the files among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from experiments.faults import Faults
from experiments.overrides import Draft
from experiments.schema import DEFAULT_NAMES, Named, Settings, Trace
from experiments.yamltext import KeyPath
from simulator import costs, plugins, schedulers
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

    def cost_model(self) -> Any:
        """A fresh cost model for this platform. Raises ConfigError, likewise."""
        return self.cost_class(self.platform, **self.options["cost_model"])


def check_pieces(draft: Draft, settings: Settings | None, faults: Faults) -> Pieces | None:
    """Look everything up, even where other keys are at fault already; None where something can't be found."""
    finder = _Finder(draft, faults)
    model = finder.spec("model", MODELS, get_model)
    gpu = finder.spec("gpu", GPUS, _gpu_getter(finder))
    finder.trace(settings)
    finder.lengths(settings)
    found = {
        "scheduler": finder.named("scheduler", schedulers.BUILTIN, set()),
        "cost_model": finder.named("cost_model", costs.BUILTIN, {"platform"}),
        "kv": finder.kv(),
    }
    if settings is None or faults or model is None or gpu is None or any(f is None for f in found.values()):
        return None
    platform = faults.attempt(
        ("engine", "tensor_parallel_size"),
        lambda: Platform(model, gpu, settings.engine.tensor_parallel_size),
    )
    if platform is None:
        return None
    classes = {key: pair[0] for key, pair in found.items() if pair}
    options = {key: pair[1] for key, pair in found.items() if pair}
    pieces = Pieces(
        platform, classes["scheduler"], classes["cost_model"], classes["kv"], options,
        finder.files, finder.replaced, finder.derived,
    )  # fmt: skip
    _try_to_build(("scheduler",), pieces.scheduler, faults)
    _try_to_build(("cost_model",), pieces.cost_model, faults)
    return pieces


def _try_to_build(path: KeyPath, build: Callable[[], object], faults: Faults) -> None:
    try:
        faults.attempt(path, build)
    except Exception as error:  # an outside constructor may raise anything
        faults.add(path, f"can't be built: {type(error).__name__}: {error}")


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

    def trace(self, settings: Settings | None) -> None:
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
            if settings is not None and isinstance(settings.trace, Trace):
                self.replaced["trace"] = settings.trace.model_copy(update={"path": str(file)})
        else:
            hint = did_you_mean(path, SHIPPED) or f"; shipped are {', '.join(SHIPPED)}"
            self.faults.add(("trace", "path"), f"neither a file nor a shipped trace{hint}")
        name = given.get("format") if isinstance(given, dict) else None
        if isinstance(name, str):
            self.faults.attempt(("trace", "format"), lambda: readers.reader_class(name))

    def lengths(self, settings: Settings | None) -> None:
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
        if replaced and settings is not None and settings.load is not None:
            self.replaced["load"] = settings.load.model_copy(update=replaced)

    def named(self, key: str, builtin: dict[str, str], skip: set[str]) -> tuple[type, dict[str, Any]] | None:
        """(class, all its options) of `{name: ..., option: ...}`; None where that can't be had."""
        given = self._named(key)
        if given is None:
            return None
        found = self.faults.attempt((key, "name"), lambda: plugins.resolve(f"{key}s", given.name, builtin))
        if found is None:
            return None
        if not callable(getattr(found, _QUESTION[key], None)):
            self.faults.add((key, "name"), f"must be a class with the method {_QUESTION[key]}")
            return None
        return self._bound(key, found, given, skip)

    def kv(self) -> tuple[type, dict[str, Any]] | None:
        """The same for the KV memory."""
        given = self._named("kv")
        if given is None:
            return None
        if given.name not in KV_MEMORIES:
            hint = did_you_mean(given.name, KV_MEMORIES)
            self.faults.add(("kv", "name"), f"must be one of {', '.join(KV_MEMORIES)}{hint}")
            return None
        return self._bound("kv", KV_MEMORIES[given.name], given, _KV_GIVEN)

    def _named(self, key: str) -> Named | None:
        value = self.draft.tree.get(key, DEFAULT_NAMES[key])
        try:
            return Named.model_validate({"name": value} if isinstance(value, str) else value)
        except ValidationError:
            return None  # the schema reports it

    def _bound(self, key: str, cls: type, given: Named, skip: set[str]) -> tuple[type, dict[str, Any]] | None:
        given_options = dict(given.options)
        before = len(self.faults.lines)
        for name, value in given_options.items():
            if name in FILE_OPTIONS and isinstance(value, str) and (file := self.file((key, name), value)):
                given_options[name] = str(file)
                self.files[f"{key}.{name}"] = file
            given_options[name] = self._typed(cls, (key, name), given_options[name])
        options = self.faults.attempt((key,), lambda: plugins.bind_options(cls, given_options, skip=skip, where=key))
        return None if options is None or len(self.faults.lines) > before else (cls, options)

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


def _type_rule(hint: Any, error: ValidationError) -> str:
    if isinstance(hint, type):
        words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
        return f"must be {words.get(hint.__name__, hint.__name__)}"
    return "; ".join(dict.fromkeys(d["msg"] for d in error.errors(include_url=False)))
