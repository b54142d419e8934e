from __future__ import annotations

from pathlib import Path

import pytest
from costs_samples import PLATFORM, TWO_GPUS

from simulator.costs.collectives import Link, allreduce_curve, measured
from simulator.costs.roofline import Roofline
from simulator.costs.table import Table
from simulator.errors import ConfigError
from simulator.plan import BatchShape
from simulator.specs import Platform, get_gpu, get_model

H200 = Path(__file__).parents[1] / "data" / "kernels" / "h200_sxm" / "collectives.csv"
FOUR = Platform(get_model("llama-3.1-70b"), get_gpu("h100"), 4)
TOKEN_BYTES = 8192 * 2


def test_one_gpu_has_none() -> None:
    assert allreduce_curve(PLATFORM, Link(latency_us=10)).at(2048) == 0
    assert Table(PLATFORM, allreduce_latency_us=10).iteration_ns(BatchShape((), 8, 800, 100)) == Table(
        PLATFORM
    ).iteration_ns(BatchShape((), 8, 800, 100))


@pytest.mark.parametrize(("algorithm", "moved"), [("ring", 1.5), ("tree", 2.0), ("one_shot", 3.0)])
def test_links_by_hand(algorithm: str, moved: float) -> None:
    curve = allreduce_curve(FOUR, Link(gbps=100, efficiency=0.5, latency_us=5, algorithm=algorithm))
    for tokens in (1, 7, 2048, 100_000):
        each = 5000 + moved * tokens * TOKEN_BYTES / 50
        assert curve.at(tokens) == pytest.approx(2 * 80 * each)


def test_the_gpus_own_link_is_the_default() -> None:
    assert allreduce_curve(FOUR, Link()).at(10) == pytest.approx(2 * 80 * 1.5 * 10 * TOKEN_BYTES / 450)


def test_measured_table_takes_the_fastest_at_its_sizes() -> None:
    points = measured(H200, 2)
    assert points[1048576 * 2] == 12.4445  # vLLM's own in a graph; NCCL took 26.84, the same outside of one 20.37
    assert points[16777216 * 2] == 139.11  # NCCL
    assert points[256 * 2] == 4.40896
    curve = allreduce_curve(Platform(get_model("llama-3.1-70b"), get_gpu("h200"), 2), Link(table=str(H200)))
    assert curve.at(1048576 * 2 / TOKEN_BYTES) == pytest.approx(160 * 12_444.5)
    assert curve.at(0.001) == pytest.approx(160 * 4408.96)  # below the smallest size its time holds
    beyond = 2 * 16777216 * 2 / TOKEN_BYTES
    assert 1.9 < curve.at(beyond) / (160 * 139_110) < 2.1  # above the largest its last slope goes on


def test_it_is_paid_twice_per_layer_by_both_cost_models() -> None:
    shape = BatchShape(((64, 0),), 16, 16 * 500, 700)
    one_call = measured_us(80 * 4096 * 2)
    for model in (Table, Roofline):
        slow = model(TWO_GPUS, collectives=str(H200)).iteration_ns(shape)
        none = model(TWO_GPUS, link_gbps=1e6).iteration_ns(shape)
        assert slow - none == pytest.approx(2 * 32 * one_call * 1e3, rel=1e-3)


def measured_us(size: float) -> float:
    """By hand, between the two sizes around it."""
    points = measured(H200, 2)
    low = max(x for x in points if x <= size)
    high = min(x for x in points if x >= size)
    return points[low] + (points[high] - points[low]) * (size - low) / (high - low)


def test_a_given_link_is_no_bound() -> None:
    assert Roofline(TWO_GPUS).is_bound
    assert not Roofline(TWO_GPUS, link_gbps=20).is_bound
    assert not Roofline(TWO_GPUS, collectives=str(H200)).is_bound


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"link_gbps": 0}, "cost_model.link_gbps: 0 must be a number above 0"),
        ({"link_efficiency": 1.5}, "cost_model.link_efficiency: 1.5 must be"),
        ({"allreduce": "rings"}, "cost_model.allreduce: 'rings' must be one of ring, tree, one_shot; did you mean"),
        ({"collectives": str(H200), "link_gbps": 20}, "a measured table leaves nothing to link_gbps"),
        ({"collectives": "no.csv"}, "cost_model.collectives: no.csv: can't be read: No such file"),
    ],
)
def test_refuses(options: dict[str, object], fault: str) -> None:
    for model in (Table, Roofline):
        with pytest.raises(ConfigError) as caught:
            model(TWO_GPUS, **options)
        assert len(caught.value.faults) == 1
        assert fault in caught.value.faults[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "lacks the columns op_name, kind"),
        ("op_name,kind\nall_reduce,nccl\n", "lacks the columns num_gpus"),
        ("HEAD\nall_reduce,nccl,2,8,2,-1\n", ":2: num_gpus, message_size"),
        ("HEAD\nall_reduce,nccl,2,8,2,nan\n", ":2: num_gpus, message_size"),
        ("HEAD\nall_reduce,nccl,2,8\n", ":2: num_gpus, message_size"),
        ("HEAD\nall_reduce,nccl,8,8,2,9\n", "no all_reduce over 2 GPUs; it has 8 GPUs"),
        ("HEAD\nall_gather,nccl,2,8,2,9\n", "no all_reduce over 2 GPUs; it has no number of GPUs"),
    ],
)
def test_refuses_bad_tables(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "c.csv"
    path.write_text(text.replace("HEAD", "op_name,kind,num_gpus,message_size,elem_bytes,latency_us"))
    with pytest.raises(ConfigError) as caught:
        Table(TWO_GPUS, collectives=str(path))
    assert fault in str(caught.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="isn't a CSV file"):
        Table(TWO_GPUS, collectives=str(path))


def test_a_device_without_a_figure_for_its_link_needs_one() -> None:
    platform = Platform(get_model("tiny"), get_gpu("cpu"), 2)
    with pytest.raises(ConfigError, match="no figure for the link between cpu; state link_gbps or collectives"):
        allreduce_curve(platform, Link())
    assert allreduce_curve(platform, Link(gbps=1)).at(1) > 0
