"""Shares of a run's time by what it rests on: columns against one shape at a time, and what is said about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs_samples import COEFFICIENTS, PLATFORM, smooth_document
from numpy.typing import NDArray

from simulator.cluster import run
from simulator.costs.base import CostModel
from simulator.costs.linear import Linear
from simulator.costs.table import Table
from simulator.kv import BlockPool
from simulator.plan import BatchShape, Limits
from simulator.recorder import RunLog
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.static import Static
from simulator.support import cost_support, work_of


class Asked(Table):
    """Keeps what it was asked about, in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(PLATFORM, profile=str(path))
        self.shapes: list[BatchShape] = []

    def iteration_ns(self, shape: BatchShape) -> int:
        self.shapes.append(shape)
        return super().iteration_ns(shape)

    def decode_run_ns(self, shape: BatchShape, k: int) -> NDArray[np.int64]:
        self.shapes += [shape.later(step) for step in range(k)]
        return super().decode_run_ns(shape, k)


def asked(tmp_path: Path, **rope: Any) -> Asked:
    document = smooth_document()
    document["attention"]["skew"] = {"decode": 0.0, "mixed": 0.0}  # a log has no longest context
    document["token_ops"][-1] |= rope
    (tmp_path / "p.json").write_text(json.dumps(document))
    return Asked(tmp_path / "p.json")


def serve(cost: CostModel, *requests: tuple[int, int], scheduler: Scheduler | None = None, budget: int = 512) -> RunLog:
    return run(
        [Request(str(i), i * 1000, prompt, output) for i, (prompt, output) in enumerate(requests)],
        scheduler=scheduler or Chunked(),
        cost_model=cost,
        kv=BlockPool(4000),
        limits=Limits(max_num_seqs=80, max_num_batched_tokens=budget),
        fast_forward=False,
    )


MANY = [(40 + 37 * i % 900, 3 + i % 60) for i in range(120)]


@pytest.mark.parametrize("us", [[0.01, 0.09], [2.0, 9.0], [90.0, 400.0]])
@pytest.mark.parametrize("budget", [300, 3000])
def test_columns_agree_with_one_shape_at_a_time(tmp_path: Path, us: list[float], budget: int) -> None:
    cost = asked(tmp_path, us=us)
    log = serve(cost, *MANY, (12, 1), budget=budget)
    took = log.iterations["end_ns"] - log.iterations["start_ns"]
    wanted: dict[str, int] = {}
    plain = Table(PLATFORM, profile=str(tmp_path / "p.json"))
    for shape, ns in zip(cost.shapes, took.tolist(), strict=True):
        tag = plain.tag(shape)
        wanted[tag] = wanted.get(tag, 0) + ns
    found = cost_support(log, cost)
    assert found is not None
    assert len(wanted) > 1
    for tag in ("interpolated", "extrapolated", "fallback"):
        assert found[tag] == pytest.approx(wanted.get(tag, 0) / took.sum())


def test_names_the_axis_and_how_far_it_was_left(tmp_path: Path) -> None:
    cost = asked(tmp_path, us=[0.01, 0.02])
    found = cost_support(serve(cost, (4000, 2), budget=4096), cost)
    assert found is not None
    assert found["axes"]["tokens"] == {"share": found["extrapolated"], "farthest": 4000, "measured": [1, 2048]}
    assert found["axes"]["prefill chunk"]["measured"] == [16, 1024]
    assert found["extrapolated"] > 0.5
    (note,) = found["notes"]
    assert "of the busy time is extrapolated (" in note
    assert "tokens 4,000, measured 1 to 2,048" in note


def test_a_padded_rectangle_counts_with_its_padding(tmp_path: Path) -> None:
    """Prompts of 400 and 100 fill two rows of 400; the short answer's row is held until the long one ends."""
    cost = asked(tmp_path)
    log = serve(cost, (400, 6), (100, 2), scheduler=Static(2))
    work = work_of(log)
    assert (work.prefill_seqs[0], work.prefill_tokens[0]) == (2, 800)
    assert cost.shapes[0].prefill == ((400, 0), (400, 0))
    assert work.decode_seqs.tolist() == [0, 2, 2, 2, 2, 2]


def test_says_which_operations_were_never_timed(tmp_path: Path) -> None:
    cost = asked(tmp_path, us=[90.0, 400.0])
    found = cost_support(serve(cost, (300, 30)), cost)
    assert found is not None
    assert found["operations"]["rope"] > 0.1
    assert found["fallback"] > 0.9
    assert any("into operations never timed (rope" in note for note in found["notes"])


def test_cost_models_without_measured_points_have_none() -> None:
    cost = Linear(PLATFORM, **COEFFICIENTS)
    assert cost_support(serve(cost, (100, 5)), cost) is None


def test_no_word_where_all_is_measured(tmp_path: Path) -> None:
    cost = asked(tmp_path, us=[0.01, 0.02])
    found = cost_support(serve(cost, (300, 30)), cost)
    assert found is not None
    assert found["interpolated"] == 1
    assert found["notes"] == []
