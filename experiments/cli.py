"""`servesim`: finds the command, runs it, and turns what goes wrong into lines and an exit status.

0 done; 1 a defect of ours or of a user's own scheduler; 2 something the user gave is wrong, one line per fault;
3 something is missing on this machine; 130 interrupted. `SERVESIM_DEBUG=1` adds the traceback of a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
import traceback
from importlib import import_module

from experiments.streams import document_alone, lenient_streams
from simulator import __version__
from simulator.errors import ConfigError, SimError, UserError
from simulator.suggest import did_you_mean

# Command: (module with `main(arguments) -> int`, what it does). Modules are imported when their command is used.
COMMANDS = {
    "run": ("experiments.commands.run", "run a config, or every combination of its sweep"),
    "compare": ("experiments.commands.compare", "compare results, ours or those of `vllm bench serve`"),
    "live": ("experiments.commands.live", "run a config on a real decoder, in real time, and measure it"),
    "plot": ("experiments.commands.plot", "draw the figures of results"),
    "trace": ("experiments.commands.trace", "info: what a trace holds, and how it is read"),
    "list": ("experiments.commands.list", "schedulers, cost-models, models, gpus, traces, configs or measured"),
    "config": ("experiments.commands.config", "validate, show, cp, schema or from-run: work with config files"),
    "profile": ("experiments.commands.profile", "list, show or import: measured kernel times for the table cost model"),
    "calibrate": ("experiments.commands.calibrate", "measure, fit, validate: cost models from this machine's kernels"),
    "kv": ("experiments.commands.kv", "explain: the KV memory of a model on a GPU, term by term"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    with lenient_streams():
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with document_alone() if "--json" in arguments else contextlib.nullcontext():
            status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has enough (`| head`); Python would complain again at exit
        with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        if last.filename == argparse.__file__:  # --help
            return int(error.code or 0)
        print(f"servesim: {last.filename}:{last.lineno}: SystemExit: {error.code}: left the program", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("servesim: interrupted; results that were complete are kept", file=sys.stderr)
        return 130
    except UserError as error:
        for fault in error.faults:
            print(_one_line(fault), file=sys.stderr)
        return error.exit_status
    except SimError as error:
        print(f"servesim: {type(error).__name__}: {_one_line(str(error))}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if not where and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = "writing results or figures: "
        print(f"servesim: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except Exception as error:
        if os.environ.get("SERVESIM_DEBUG"):
            traceback.print_exc()
        text = " ".join(str(error).split())
        hint = "a bug in servesim; SERVESIM_DEBUG=1 shows where"
        print(f"servesim: defect: {type(error).__name__}: {text} ({hint})", file=sys.stderr)
        return 1


def _one_line(text: str) -> str:
    """A text of a head and a table as one line."""
    head, *terms = (" ".join(line.split()) for line in text.splitlines() or [""])
    return f"{head} {'; '.join(terms)}".strip()


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 2
    name = arguments[0]
    if name in ("-V", "--version"):
        print(f"servesim {__version__}")
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"servesim: {name}: unknown command{hint}")
    status: int = import_module(COMMANDS[name][0]).main(arguments[1:])
    return status


def _help() -> str:
    lines = [f"  {name:<11}{text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: servesim COMMAND ...",
            "",
            "A discrete-event simulator of LLM serving.",
            "",
            *lines,
            "",
            "`servesim COMMAND --help` explains a command. Try: servesim run quickstart",
        ]
    )
