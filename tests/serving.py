"""One short call for hand-made runs."""

from __future__ import annotations

from typing import Any

from strategies import IntegerCost

from simulator import BlockPool, Request, RunLog, Scheduler, run
from simulator.costs.base import CostModel
from simulator.kv import KvMemory
from simulator.plan import Limits


def serve(
    scheduler: Scheduler,
    *requests: Request,
    cost: CostModel | None = None,
    kv: KvMemory | None = None,
    asynchronous: bool = False,
    fast_forward: bool = True,
    host_overhead_ns: int = 0,
    **bounds: Any,
) -> RunLog:
    """An iteration takes 1,000 ns and there is room for everything, unless said otherwise."""
    return run(
        requests,
        scheduler=scheduler,
        cost_model=cost or IntegerCost(1_000),
        kv=kv or BlockPool(10_000),
        limits=Limits(**bounds),
        host_overhead_ns=host_overhead_ns,
        fast_forward=fast_forward,
        async_scheduling=asynchronous,
    )
