"""An argument parser whose mistakes are one line with the nearest choice, instead of a page of usage."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from simulator.errors import ConfigError, UserError
from simulator.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse, with faults as ConfigError. `example` closes the help."""

    def __init__(self, command: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"servesim {command}",
            description=description,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError for what argparse found wrong."""
        head, required, names = message.partition("arguments are required: ")
        if required:  # argparse counts those that may be absent, too
            optional = [str(a.metavar or a.dest) for a in self._actions if a.nargs in ("*", "?")]
            names = ", ".join(name for name in names.split(", ") if name not in optional)
        raise ConfigError(f"{self.prog}: {head}{required}{names}")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse, with options and positional arguments in any order.

        Raises ConfigError with the faults of all values; `--help` exits with 0.
        """
        options = [option for action in self._actions for option in action.option_strings]
        faults = [
            f"{self.prog}: {word}: unknown option{did_you_mean(name, options) or '; see --help'}"
            for word in arguments
            if (name := word.partition("=")[0]).startswith("-")
            and name not in options
            and not re.fullmatch(r"-|--|-\.?\d.*", name)
        ]
        if faults:
            raise ConfigError(faults)
        for action in self._actions:
            if action.nargs != 0:
                action.type = _collecting(action, f"{self.prog}: argument {_name(action)}", faults)
        try:
            given = self.parse_intermixed_args(arguments)
        except ConfigError as error:
            faults += error.faults
        if faults:
            raise ConfigError(list(dict.fromkeys(faults)))
        return given


def _name(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def _collecting(action: argparse.Action, what: str, faults: list[str]) -> Callable[[str], Any]:
    """The type of `action`, with what it refuses added to `faults`, so that the other values are looked at as well."""
    check: Any = action.type or str

    def convert(text: str) -> Any:
        if check is Path and not text:
            faults.append(f"{what}: is empty, where a path is expected")
            return None
        try:
            return check(text)
        except argparse.ArgumentTypeError as error:
            faults.append(f"{what}: {error}")
        except UserError as error:
            faults.extend(f"{what}: {fault}" for fault in error.faults)
        return None

    return convert


def choice(choices: Iterable[str]) -> Callable[[str], str]:
    """An argument type: one of `choices`, or the fault that names the nearest."""
    known = list(choices)

    def check(text: str) -> str:
        if text not in known:
            hint = did_you_mean(text, known)
            raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(known)}{hint}")
        return text

    return check


def whole(text: str) -> int:
    """An argument type: a whole number of at least 1."""
    if not re.fullmatch(r"\+?[0-9]{1,12}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def share(text: str) -> float:
    """An argument type: a number above 0 and at most 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0 and at most 1")
    return number
