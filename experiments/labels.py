"""What to call runs beside one another, and a line on what was run: from labels, and from the configs where they lie
beside results. Runs that differ get different names, whichever folders they come from.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results import CONFIG, Result, finite
from experiments.yamltext import parse
from simulator.errors import ConfigError

RATES = ("request_rate", "time_scale")  # words of a label, and last parts of keys, that set the rate
# Keys that change what is kept or drawn of a run, not how it goes.
_COSMETIC = ("name", "slo", "percentiles", "fast_forward", "save_detailed", "figures")
_DIGITS = 8  # of a file's SHA-256, where only that tells runs apart
MANY = 2  # more machines or workloads than that are counted in a subtitle, not listed

Settings = dict[str, Any]


def sim_value(result: Result, *keys: str) -> Any:
    """What the `sim` block holds below `keys`; None where it doesn't (vLLM's files have none)."""
    inner: Any = result.get("sim")
    for key in keys:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def settings_of(result: Result) -> Settings:
    """The resolved config beside a result as `key.path: value`, without what changes nothing in a run; else empty."""
    path = Path(result["out_dir"]) / CONFIG if result.get("out_dir") else None
    try:
        return {} if path is None else _settings(path, path.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}


@functools.lru_cache(maxsize=4096)
def _settings(path: Path, _modified_ns: int) -> Settings:
    tree = parse(path.read_text(), str(path)).value
    found: Settings = {}
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if key in _COSMETIC:
            continue
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return found


def differing(settings: Sequence[Settings], apart: Sequence[str] = ()) -> list[str]:
    """The keys in which `settings` differ, beside those whose last part is in `apart`; a file counts by content once.

    That is, its digest under `pins` is left out where its path differs already.
    """
    keys = dict.fromkeys(key for one in settings for key in one if key.rpartition(".")[2] not in apart)
    found = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    return [key for key in found if key.removeprefix("pins.") == key or key.removeprefix("pins.") not in found]


def run_label(result: Result) -> str:
    """What to call a run beside others: its label, else its scheduler, else its back end or file."""
    choices = (result.get("label"), sim_value(result, "scheduler"), result.get("backend"), result.get("name"))
    return str(next(filter(None, choices), "run"))


def line_name(result: Result, apart: Sequence[str] = RATES) -> str:
    """What a run's label says beside the keys `apart`."""
    words = [word for word in run_label(result).split(", ") if word.partition("=")[0] not in apart]
    return ", ".join(words) or str(sim_value(result, "scheduler") or result.get("backend"))


def line_names(results: Sequence[Result], apart: Sequence[str] = RATES) -> list[str]:
    """The line in a figure that each run belongs to: runs of one line differ in the keys `apart` alone.

    Where labels don't tell other runs apart, the keys that differ do.
    """
    return _told_apart([line_name(result, apart) for result in results], results, apart)


def run_labels(results: Sequence[Result]) -> list[str]:
    """The labels of runs, told apart where they are equal: by the keys that differ, by request rate, by number."""
    labels = _told_apart([run_label(result) for result in results], results, ())
    for members in _groups(labels):
        rates = [finite(results[i].get("request_rate")) for i in members]
        if len(set(rates)) > 1:
            for i, rate in zip(members, rates, strict=True):
                labels[i] += " @ all at once" if rate is None else f" @ {rate:.4g}/s"
    for members in _groups(labels):
        for number, i in enumerate(members, start=1):
            labels[i] += f" ({number})"
    return labels


def _groups(names: Sequence[str]) -> list[list[int]]:
    """The places of names that occur more than once."""
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        places.setdefault(name, []).append(i)
    return [members for members in places.values() if len(members) > 1]


def _told_apart(names: list[str], results: Sequence[Result], apart: Sequence[str]) -> list[str]:
    """`names` with the keys that differ between runs of one name, `apart` left aside."""
    told = list(names)
    for members in _groups(names):
        settings = [settings_of(results[i]) for i in members]
        keys = differing(settings, apart)
        for i, one in zip(members, settings, strict=True):
            words = [_word(key, one[key]) for key in keys if key in one]
            told[i] = ", ".join([names[i], *(word for word in words if word not in names[i].split(", "))])
    return told


def _word(key: str, value: Any) -> str:
    """`key = value` as a label has it."""
    section, _, last = key.rpartition(".")
    if key.startswith("pins."):
        return f"{key.removeprefix('pins.')} sha256={str(value)[:_DIGITS]}"
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"{section if last == 'name' else last}={'none' if value is None else text}"


def row_names(results: Sequence[Result], width: int) -> tuple[list[list[str]], str]:
    """(the lines of each run's name, no longer than `width`; what a note has to say of them, else "").

    Rates read `8/s`. Where names are too long, they leave out the keys that all have, which the note lists, and go on
    in a further line; two that differ never read alike.
    """
    names = [re.sub(r"(^|, )request_rate=([0-9.e+]+)(?=,|$)", r"\1\2/s", label) for label in run_labels(results)]
    note = ""
    if max(map(len, names)) > width:
        words = [[_key_and_value(word) for word in name.split(", ")] for name in names]
        keys = [key for key, _ in words[0]]
        if set(keys) - {"name", "rate"} and all([key for key, _ in row] == keys for row in words):
            names = [", ".join(value for _, value in row) for row in words]
            note = f"run: {', '.join(keys)}."
    return [wrapped(name, width) for name in names], note


def _key_and_value(word: str) -> tuple[str, str]:
    """A word of a label as `key=value`; what has no key is a name or a rate."""
    key, _, value = word.partition("=")
    if value and key.isidentifier():
        return key, value
    return ("rate" if re.fullmatch(r"[0-9.e+]+/s", word) else "name"), word


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`, broken after commas and spaces where that is possible."""
    lines = [""]
    for piece in re.findall(rf"\S{{1,{width}}}\s*", text):
        if len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def subtitle(results: Sequence[Result]) -> str:
    """What was run, in a line: model and GPU, workload, and whether times are a lower bound."""
    bounds = _distinct(f"{sim_value(r, 'cost_model')}: lower bound on time" if _is_bound(r) else "" for r in results)
    if len(bounds) > 1:  # some are no bounds
        bounds = [f"{bound} (not for all runs)" for bound in bounds if bound]
    parts = [_few(_distinct(map(_machine, results)), "machines"), _few(_distinct(map(_load, results)), "workloads")]
    return "; ".join(part for part in [*parts, *bounds] if part)


def _is_bound(result: Result) -> bool:
    return bool(sim_value(result, "cost_kind") == "bound")


def _distinct(texts: Any) -> list[str]:
    return list(dict.fromkeys(texts))


def _few(texts: list[str], what: str) -> str:
    return " / ".join(texts) if len(texts) <= MANY else f"{len(texts)} {what}"


def _machine(result: Result) -> str:
    settings = settings_of(result)
    model, gpu = result.get("model_id") or "", _plain(settings.get("gpu"))
    gpus = settings.get("engine.tensor_parallel_size", 1)
    return " on ".join(filter(None, (str(model), f"{gpus} x {gpu}" if gpu and gpus != 1 else gpu)))


def _load(result: Result) -> str:
    settings = settings_of(result)
    name = _plain(settings.get("trace.path"))
    if not name and any(key.startswith("load.") for key in settings):
        name = "listed requests" if settings.get("load.requests") else "synthetic load"
    count = finite(result.get("num_prompts"))
    return ", ".join(filter(None, (name, "" if count is None else f"{count:,} requests")))


def _plain(name: Any) -> str:
    """A shipped name as it is, of a file its own name."""
    return Path(str(name)).name.removesuffix(".yaml") if name else ""
