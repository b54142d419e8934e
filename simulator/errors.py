"""The errors this project raises on purpose. Anything else that escapes is a defect of ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_FAULTS = 20


class SimError(Exception):
    """Base of every error raised on purpose; `exit_status` is what the command line returns for it."""

    exit_status = 1


class UserError(SimError):
    """Something the user gave is wrong. `faults` holds one line per fault: all of them, not the first."""

    exit_status = 2

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))


class ConfigError(UserError):
    """A config, an override or an option is wrong."""


class TraceError(UserError):
    """A trace can't be read as what it claims to be."""


class CapacityError(UserError):
    """Model and limits don't fit the memory; the message lists the terms."""


class MissingError(SimError):
    """A thing the command needs is not on this machine (torch, CUDA); the message says what to install."""

    exit_status = 3


class PolicyError(SimError):
    """A scheduler or a cost model broke its contract; names it, the rule, the value, the time, the iteration."""


def raise_faults(path: Path, faults: list[str]) -> None:
    """Raise ConfigError with the first MAX_FAULTS faults and the number of others, where there are any."""
    if faults:
        more = len(faults) - MAX_FAULTS
        raise ConfigError(faults[:MAX_FAULTS] + ([f"{path}: and {more} more"] if more > 0 else []))
