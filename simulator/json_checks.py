"""Reading a JSON document that may be wrong anywhere, and saying everything that is."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

from simulator.errors import ConfigError
from simulator.hf_config import is_number
from simulator.suggest import did_you_mean

Numbers = tuple[float, ...]


class Check:
    """Collects faults as `file: key: what is wrong`; each method returns something harmless for a wrong
    value.

    A value of None counts as missing, which `mapping` has reported; the others then stay silent.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.faults: list[str] = []

    def fault(self, key: str, text: str) -> None:
        """Note one fault."""
        self.faults.append(f"{self.where}: {key}: {text}")

    def raise_faults(self) -> None:
        """Raise ConfigError with all faults, if there are any."""
        if self.faults:
            raise ConfigError(self.faults)

    def mapping(
        self, value: object, key: str, known: Collection[str], more: bool = False, optional: Collection[str] = ()
    ) -> dict[str, Any]:
        """A JSON object with the `known` keys, perhaps `optional` ones, and others only where `more` are allowed."""
        if not isinstance(value, dict):
            if value is not None:
                self.fault(key, "must be an object")
            return {}
        dot = f"{key}." if key else ""
        for name in known:
            if name not in value:
                self.fault(f"{dot}{name}", "missing")
        if not more:
            for name in value:
                if name not in known and name not in optional:
                    self.fault(f"{dot}{name}", f"unknown key{did_you_mean(name, [*known, *optional])}")
        return value

    def items(self, value: object, key: str) -> list[Any]:
        """A JSON list with something in it."""
        if isinstance(value, list) and value:
            return value
        if value is not None:
            self.fault(key, "must be a list that isn't empty")
        return []

    def text(self, value: object, key: str) -> str:
        """A string that isn't empty."""
        if isinstance(value, str) and value:
            return value
        if value is not None:
            self.fault(key, f"{value!r} must be a string that isn't empty")
        return ""

    def choice(self, value: object, key: str, choices: Collection[str]) -> None:
        """One of `choices`."""
        if value is not None and value not in choices:
            self.fault(key, f"{value!r} must be one of {', '.join(choices)}{did_you_mean(value, choices)}")

    def number(self, value: object, key: str, low: float, high: float) -> float:
        """A finite number from `low` to `high`."""
        if is_number(value) and low <= value <= high:
            return value
        if value is not None:
            self.fault(key, f"{value!r} must be a number from {low:g} to {high:g}")
        return low

    def whole(self, value: object, key: str) -> int:
        """A whole number of at least 1."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        if value is not None:
            self.fault(key, f"{value!r} must be a whole number of at least 1")
        return 1

    def axis(self, value: object, key: str) -> Numbers:
        """Numbers of at least 0 that rise from point to point."""
        xs = self._numbers(value, key)
        if xs and xs[0] < 0:
            self.fault(key, f"{xs[0]:g} must be at least 0")
        for a, b in pairwise(xs):
            if b <= a:
                self.fault(key, f"must rise from point to point: {b:g} follows {a:g}")
                break
        return xs

    def times(self, value: object, key: str, points: int) -> Numbers:
        """Numbers above 0, one for each of `points` (0: their axis is itself at fault)."""
        xs = self._numbers(value, key)
        if xs and points and len(xs) != points:
            self.fault(key, f"has {len(xs)} times for {points} points")
        if xs and min(xs) <= 0:
            self.fault(key, f"{min(xs):g} must be above 0")
        return xs

    def _numbers(self, value: object, key: str) -> Numbers:
        items = self.items(value, key)
        bad = [item for item in items if not is_number(item)]
        if bad:
            self.fault(key, f"{bad[0]!r} is not a finite number")
            return ()
        return tuple(items)
