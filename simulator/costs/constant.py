"""Every iteration takes the same time: for queueing theory, and to look at a schedule alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.clock import ns_from_us
from simulator.costs.base import CostModel, check_number
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import Platform


class Constant(CostModel):
    """The same time, `iteration_us` microseconds, for every iteration. Raises ConfigError for a bad value."""

    name = "constant"

    def __init__(self, platform: Platform, *, iteration_us: float = 10_000.0) -> None:
        faults: list[str] = []
        check_number(faults, "iteration_us", iteration_us, 0.001, 1e12)
        if faults:
            raise ConfigError(faults)
        self._ns = ns_from_us(iteration_us)

    def iteration_ns(self, shape: BatchShape) -> int:
        """The constant, in nanoseconds."""
        return self._ns

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        """The constant, k times."""
        return np.full(k, self._ns, dtype=np.int64)
