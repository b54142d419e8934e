"""`servesim calibrate`: time kernels on this machine, fit a profile to them, and say how good it is."""

from __future__ import annotations

from collections.abc import Callable

from experiments.commands.parser import Parser
from simulator.errors import ConfigError
from simulator.suggest import did_you_mean


def _measure(arguments: list[str]) -> int:
    from calibration.measure import DESCRIPTION, EXAMPLE, add_options, measure

    parser = Parser("calibrate measure", DESCRIPTION, f"servesim calibrate measure {EXAMPLE}")
    add_options(parser)
    return measure(parser.parse(arguments), ["servesim", "calibrate", "measure", *arguments])


def _fit(arguments: list[str]) -> int:
    from experiments.commands.calibrate_fit import fit

    return fit(arguments)


def _validate(arguments: list[str]) -> int:
    from experiments.commands.calibrate_fit import validate

    return validate(arguments)


# Subcommand: (what runs it, what it does).
ACTIONS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "measure": (_measure, "time a model's kernels on this machine, into a folder"),
    "fit": (_fit, "make a profile of the points in a folder"),
    "validate": (_validate, "say how far a profile lies from the points that were held out"),
}


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit status. Raises ConfigError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("\n".join(["usage: servesim calibrate ACTION ...", "", *_lines()]))
        return 0 if arguments else 2
    if arguments[0] not in ACTIONS:
        hint = did_you_mean(arguments[0], ACTIONS) or f"; actions are {', '.join(ACTIONS)}"
        raise ConfigError(f"servesim calibrate: {arguments[0]}: unknown action{hint}")
    return ACTIONS[arguments[0]][0](arguments[1:])


def _lines() -> list[str]:
    lines = [f"  {name:<10}{text}" for name, (_, text) in ACTIONS.items()]
    example = "example: servesim calibrate measure --model llama-3.1-8b --out mine"
    return [*lines, "", "`servesim calibrate ACTION --help` explains one.", "", example]
