"""Every built-in scheduler, with several sets of options, keeps the contract."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from simulator.schedulers import BUILTIN
from simulator.schedulers.base import Scheduler
from simulator.testing import check_scheduler

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "static": [
        {},
        {"batch_size": 3, "batch_timeout_ms": 0.05, "respond_at": "token"},
        {"batch_size": 2, "batch_timeout_ms": 0, "policy": "priority"},
    ],
    "dynamic": [
        {},
        {"batch_size": 3, "max_queue_delay_ms": 0.05, "policy": "sjf"},
        {"batch_size": 5, "respond_at": "token"},
    ],
    "continuous": [
        {},
        {"policy": "priority"},
        {"order": "orca"},
        {"order": "orca", "policy": "sjf"},
    ],
    "chunked": [{}, {"policy": "priority"}, {"policy": "sjf"}],
    "vllm_v1": [{}, {"policy": "priority"}, {"scheduler_reserve_full_isl": False}, {"watermark": 0.1}],
    "sglang": [
        {},
        {"chunked_prefill_size": 20, "schedule_conservativeness": 0.2},
        {"chunked_prefill_size": -1, "max_prefill_tokens": 60, "schedule_conservativeness": 1.4},
        {"chunked_prefill_size": 12, "enable_mixed_chunk": True, "schedule_conservativeness": 0.1},
        {"schedule_policy": "lpm"},
        {"enable_priority_scheduling": True, "priority_scheduling_preemption_threshold": 0},
        {
            "enable_priority_scheduling": True,
            "schedule_low_priority_values_first": True,
            "priority_scheduling_preemption_threshold": 1,
            "chunked_prefill_size": 30,
            "enable_mixed_chunk": True,
        },
    ],
    "vllm_v0": [{}, {"watermark": 0.2, "policy": "priority"}],
    "orca": [{}],
    "faster_transformer": [{}, {"batch_size": 3, "max_queue_delay_ms": 0.05, "policy": "sjf"}, {"respond_at": "token"}],
    "tgi": [
        {},
        {"waiting_served_ratio": 1.2, "max_waiting_tokens": 3, "max_batch_prefill_tokens": 40},
        {"waiting_served_ratio": 0, "max_waiting_tokens": 0},
        {"waiting_served_ratio": 3, "max_waiting_tokens": 7, "max_batch_total_tokens": 300},
    ],
    "trtllm": [{}, {"capacity": "max_utilization"}],
}


def builtin(name: str) -> type[Scheduler]:
    module, attribute = BUILTIN[name].split(":")
    found: type[Scheduler] = getattr(import_module(module), attribute)
    return found


def test_every_built_in_scheduler_is_listed() -> None:
    assert OPTIONS.keys() == BUILTIN.keys()
    assert all(builtin(name).name == name for name in BUILTIN)


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(name, options, id=f"{name}-{i}") for name in OPTIONS for i, options in enumerate(OPTIONS[name])],
)
def test_scheduler_contract(name: str, options: dict[str, Any]) -> None:
    check_scheduler(lambda: builtin(name)(**options), examples=40)
