"""Reading a JSON document that may be wrong anywhere, and saying everything that is."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

from simulator.errors import ConfigError
from simulator.hf_config import is_number
from simulator.suggest import did_you_mean

Numbers = tuple[float, ...]
MOST = 10**9  # of sizes and of microseconds: sums and slopes of such stay numbers
CLOSEST = 1e-6  # of two points of an axis


class Check:
    """Collects faults as `file: key: what is wrong`; each method returns something harmless for a wrong
    value.

    A value of None counts as missing, which `mapping` and `items` have reported; the others then stay silent.
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
        """A JSON object with the `known` keys, perhaps `optional` ones, and others only where `more` are allowed.

        A null is a value only for a key that is also `optional`: it then stands for nothing.
        """
        if not isinstance(value, dict):
            if value is not None:
                self.fault(key, "must be an object")
            return {}
        dot = f"{key}." if key else ""
        for name in known:
            if name not in value:
                self.fault(f"{dot}{name}", "missing")
            elif value[name] is None and name not in optional:
                self.fault(f"{dot}{name}", "is null, where a value is needed")
        if not more:
            for name in value:
                if name not in known and name not in optional:
                    self.fault(f"{dot}{name}", f"unknown key{did_you_mean(name, [*known, *optional])}")
        return {name: inner for name, inner in value.items() if inner is not None or name not in optional}

    def items(self, value: object, key: str) -> list[Any]:
        """A JSON list with something in it, none of it null."""
        items = self._list(value, key)
        for i, item in enumerate(items):
            if item is None:
                self.fault(f"{key}[{i}]", "is null, where a value is needed")
        return items

    def _list(self, value: object, key: str) -> list[Any]:
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

    def whole(self, value: object, key: str, most: int = MOST) -> int:
        """A whole number from 1 to `most`."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        if value is not None:
            self.fault(key, f"{value!r} must be a whole number from 1 to {most:g}")
        return 1

    def axis(self, value: object, key: str, least: int = 1) -> Numbers:
        """Numbers from `least` to MOST that rise from point to point."""
        xs = self._numbers(value, key)
        if xs and xs[0] < least:
            self.fault(key, f"{xs[0]:g} must be at least {least}")
        if xs and max(xs) > MOST:
            self.fault(key, f"{max(xs):g} must be at most {MOST:g}")
        for a, b in pairwise(xs):
            if b - a < CLOSEST:
                self.fault(key, f"must rise from point to point: {b:g} follows {a:g}")
                break
        return xs

    def times(self, value: object, key: str, points: int) -> Numbers:
        """Numbers above 0 and up to MOST, one for each of `points` (0: their axis is itself at fault)."""
        xs = self._numbers(value, key)
        if xs and points and len(xs) != points:
            self.fault(key, f"has {len(xs)} times for {points} points")
        if xs and min(xs) <= 0:
            self.fault(key, f"{min(xs):g} must be above 0")
        if xs and max(xs) > MOST:
            self.fault(key, f"{max(xs):g} must be at most {MOST:g}")
        return xs

    def _numbers(self, value: object, key: str) -> Numbers:
        items = self._list(value, key)
        bad = [item for item in items if not is_number(item)]
        if bad:
            self.fault(key, f"{bad[0]!r} is not a finite number")
            return ()
        return tuple(items)
