"""`servesim trace info`: what a trace holds, how it was read, and what was dropped."""

from __future__ import annotations

import json

from experiments.commands.parser import Parser, choice, whole

UNITS = ("s", "ms", "us", "ns")
ZERO_OUTPUT = ("drop", "keep", "error")


def main(arguments: list[str]) -> int:
    """Read a trace and say what is in it. Returns the exit status."""
    parser = Parser("trace", "Read a trace and say what is in it.", "servesim trace info azure-2023-conv --json")
    parser.add_argument("action", type=choice(["info"]), metavar="info")
    parser.add_argument("file", help="a file, or a name of `servesim list traces`")
    parser.add_argument("--format", metavar="F", help="the reader (default: detected)")
    parser.add_argument("--unit", type=choice(UNITS), metavar="|".join(UNITS), help="of the arrival column")
    parser.add_argument("--block-size", type=whole, metavar="N", help="tokens per prefix-hash block")
    parser.add_argument(
        "--zero-output", type=choice(ZERO_OUTPUT), default="drop", metavar="|".join(ZERO_OUTPUT),
        help="requests without output (default: drop)",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="a warning is an error, too")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    given = parser.parse(arguments)

    from workloads import load_trace

    info = load_trace(
        given.file,
        format=given.format,
        unit=given.unit,
        block_size=given.block_size,
        zero_output=given.zero_output,
        strict=given.strict,
    ).info
    print(json.dumps(info.as_dict(), indent=2) if given.json else info.text())
    return 0
