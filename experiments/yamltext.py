"""YAML text to plain values that remember their lines.

Scalars follow YAML 1.2's core schema, not PyYAML's 1.1: `1e3` is a number, `on`, `off`, `yes` and `no` are words,
`1:30` and dates are text. A repeated key, which PyYAML silently lets win, is a fault, and so are aliases that unfold
without end.
Source of the scalar rules: YAML 1.2.2, section 10.3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import ConfigError

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1 << 20
_MAX_NODES = 100_000

_SCALARS: dict[str, tuple[str, str]] = {  # tag: (pattern, characters it may begin with)
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}
_PREFIX = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_PREFIX + _name, re.compile(rf"^(?:{_pattern})$"), [*_first, ""])


@dataclass(frozen=True)
class Document:
    """A parsed text: `value` (None for an empty one) and the line, from 1, of every key and list element."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read(path: Path) -> Document:
    """The YAML file at `path`. Raises ConfigError, one line, for whatever is no readable YAML text."""
    if path.is_dir():
        raise ConfigError(f"{path}: a folder, where a config file is expected")
    if path.is_symlink() and not path.exists():
        raise ConfigError(f"{path}: a link to {path.readlink()}, which isn't there")
    if not path.exists():
        raise ConfigError(f"{path}: no such file")
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes, which no config is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text (byte {error.start})") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Document:
    """Parse YAML `text`; `source` names it in messages. Raises ConfigError: every repeated key, or the syntax error."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        builder = _Builder(source)
        value = None if node is None else builder.value(node, ())
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{source}:{line}: not text: character {error.character:#04x} isn't allowed") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{source}:{_syntax_error(error)}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    if builder.faults:
        raise ConfigError(builder.faults)
    return Document(value, builder.lines)


def _syntax_error(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = error.problem or error.context or "can't be parsed"
    if "'\\t'" in problem:
        problem = "a tab, where YAML wants spaces for indentation"
    elif isinstance(error, yaml.composer.ComposerError) and "single document" in (error.context or ""):
        problem = "a second document begins here; a config is one document"
    return f"{line}: not valid YAML: {problem}"


class _Builder:
    """Turns composed nodes into values, noting lines and faults on the way."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[str] = []
        self._nodes = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The plain value of `node`, which lies at `path`."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ConfigError(f"{self.source}: unfolds to more than {_MAX_NODES} values (aliases of aliases?)")
        if id(node) in self._open:
            raise ConfigError(f"{self.source}:{_line(node)}: an alias that contains itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (_PREFIX + "seq", _PREFIX + "map"):
            self.faults.append(f"{self.source}:{_line(node)}: the tag {node.tag} means nothing here")
        self._open.add(id(node))
        built: Any
        if isinstance(node, yaml.SequenceNode):
            built = [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        else:
            built = self._mapping(node, path)
        self._open.discard(id(node))
        return built

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = _line(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _PREFIX + "merge":
                for mapping in _merge_sources(value_node):
                    merged = {**self._merge(mapping, path), **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(f"{self.source}:{_line(key_node)}: a key must be a word, not a list or mapping")
                continue
            key = str(key_node.value)
            if key in own:
                self.faults.append(
                    f"{self.source}:{_line(key_node)}: {dotted((*path, key))}: given twice, first on line {own[key]}"
                )
                continue
            own[key] = _line(key_node)
            built[key] = self.value(value_node, (*path, key))
        for key, line in own.items():
            self.lines[(*path, key)] = line
        return {**merged, **built}

    def _merge(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        value = self.value(node, path)
        if not isinstance(value, dict):
            raise ConfigError(f"{self.source}:{_line(node)}: `<<` needs a mapping")
        return value

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        kind, text = node.tag.removeprefix(_PREFIX), str(node.value)
        if kind in ("str", "merge"):
            return text
        if kind in ("null", "bool", "int", "float") and re.fullmatch(_SCALARS[kind][0], text):
            return _convert(kind, text)
        if kind == "float" and re.fullmatch(_SCALARS["int"][0], text):  # `!!float 3`
            return float(text)
        where = f"{self.source}:{_line(node)}: {dotted(path)}".removesuffix(": ")
        self.faults.append(f"{where}: {text!r} is no {node.tag}")
        return text


def _merge_sources(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    else:
        yield node


def _convert(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "float":
        return float(re.sub(r"\.(?=[in])", "", text.lower()))
    if text[:2] in ("0x", "0o"):
        return int(text, 0)
    # Past 4300 digits Python refuses; such a number is too large for every key, and infinity says so.
    return int(text) if len(text) <= 4000 else float("inf")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def shown(value: Any) -> str:
    """A value as YAML would have it, short."""
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    if isinstance(value, str) and re.fullmatch(r"[-+.\d].*|true|false|null|~", value):
        text = json.dumps(value)  # quoted, or it would look like what it isn't
    text = text.replace("\n", "\\n")
    return text if len(text) <= 60 else text[:57] + "..."


def dotted(path: KeyPath) -> str:
    """A key path as people write it: `engine.max_num_seqs`, `sweep.scheduler[0].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
