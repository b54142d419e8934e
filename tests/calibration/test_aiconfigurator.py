from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calibration.importers.aiconfigurator import gemm
from calibration.importers.folder import formats, metadata, read_folder
from calibration.points import FIT, HOLDOUT, Point, Timed
from simulator.errors import ConfigError
from simulator.specs import get_model

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
H200 = KERNELS / "h200_sxm"
MODEL = get_model("llama-3.1-8b")
OWN = {(6144, 4096), (4096, 4096)}


def rows_of(op: str, rows: list[Timed] | tuple[Timed, ...]) -> dict[Point, Timed]:
    return {row.point: row for row in rows if row.point.op == op}


def test_every_table_becomes_points() -> None:
    found = read_folder(H200, model=MODEL, tp=1)
    assert formats(H200) == ["aiconfigurator"]
    linear, prefill, decode = (rows_of(op, found.rows) for op in ("linear", "prefill", "decode"))
    assert linear[Point("linear", m=1, n=6144, k=4096)].median_us == pytest.approx(15.6, rel=0.2)
    assert (len(prefill), len(decode)) == (119, 152)
    assert Point("prefill", seqs=256, chunk=64) in prefill
    assert Point("decode", n_dec=64, kv_dec=1024) in decode
    assert not rows_of("allreduce", found.rows)  # one rank


def test_linear_layers_that_nobody_timed_have_their_neighbours() -> None:
    shapes = {(p.n, p.k) for p in rows_of("linear", read_folder(H200, model=MODEL, tp=1).rows)}
    assert {(6144, 4096), (4096, 4096)} <= shapes  # qkv and o
    assert {(12288, 4096), (16384, 4096), (51200, 4096), (65536, 4096)} <= shapes  # around gate_up, below the LM head
    assert {(4096, 10240), (4096, 12288), (4096, 16384), (4096, 51200)} <= shapes  # around down
    assert len(shapes) == 10


def test_a_fifth_is_held_out_but_no_corner() -> None:
    rows = read_folder(H200, model=MODEL, tp=1).rows
    own = [row for row in rows if row.point.op != "linear" or (row.point.n, row.point.k) in OWN]
    assert 0.15 < sum(row.split == HOLDOUT for row in own) / len(own) < 0.25
    assert {row.split for row in rows if row not in own} == {FIT}  # neighbours only fill in
    prefill, decode, linear = (rows_of(op, rows) for op in ("prefill", "decode", "linear"))
    assert prefill[Point("prefill", seqs=1, chunk=1)].split == FIT
    assert decode[Point("decode", n_dec=1, kv_dec=2)].split == FIT
    assert decode[Point("decode", n_dec=1, kv_dec=65536)].split == FIT
    for n, k in {(p.n, p.k) for p in linear}:
        ms = [p.m for p in linear if (p.n, p.k) == (n, k)]
        assert linear[Point("linear", m=min(ms), n=n, k=k)].split == FIT
        assert linear[Point("linear", m=max(ms), n=n, k=k)].split == FIT


def test_the_repeat_floor_is_of_the_models_own_layers(tmp_path: Path) -> None:
    floor = read_folder(H200, model=MODEL, tp=1).repeat_floor_pct
    assert floor["linear"] == pytest.approx(2.81, abs=0.01)
    lines = ["n,k,m,a_us,b_us,c_us", "6144,4096,1,10,10,11", "4096,4096,8,20,22,20", "7,7,7,1,2,3"]
    shutil.copytree(H200, tmp_path / "k")
    (tmp_path / "k" / "gemm_bf16_repeats.csv").write_text("\n".join(lines) + "\n")
    assert read_folder(tmp_path / "k", model=MODEL, tp=1).repeat_floor_pct["linear"] == 0.0  # four of six are equal
    (tmp_path / "k" / "gemm_bf16_repeats.csv").write_text("\n".join([lines[0], lines[3]]) + "\n")
    assert not read_folder(tmp_path / "k", model=MODEL, tp=1).repeat_floor_pct


def test_all_reduces_of_two_ranks_are_the_fastest_and_in_bytes(tmp_path: Path) -> None:
    shutil.copy(H200 / "collectives.csv", tmp_path)
    rows = rows_of("allreduce", read_folder(tmp_path, model=MODEL, tp=2).rows)
    assert {point.ranks for point in rows} == {2}
    assert min(point.bytes for point in rows) == 512  # 256 elements of 2 bytes
    with pytest.raises(ConfigError, match=r"hold nothing of llama-3\.1-8b on 1 ranks"):
        read_folder(tmp_path, model=MODEL, tp=1)


def test_duplicates_become_their_median(tmp_path: Path) -> None:
    path = tmp_path / "any name.csv"
    path.write_text("m,n,k,latency_us\n" + "".join(f"1,6144,4096,{us}\n" for us in (9, 1, 4)))
    (row,) = read_folder(tmp_path, model=MODEL, tp=1).rows
    assert (row.median_us, row.samples, row.split) == (4.0, 3, FIT)


def test_how_it_was_timed_is_said() -> None:
    found = read_folder(H200, model=MODEL, tp=1)
    said = metadata(found)
    assert said["host"] == "no whole step was timed: nothing between kernels"
    assert "vllm_flash_attn_fa3" in said["timed_decode"]
    assert "27 %" in said["caution_l2"]
    assert "clock" in said["caution_clocks"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("1,6144,4096,0", "gemm.csv:3: latency_us = 0: must be a number above 0"),
        ("1,6144,-1,5", "gemm.csv:3: k = -1: must be a whole number of at least 1"),
        ("0,6144,4096,5", "gemm.csv:3: m = 0: must be a whole number of at least 1"),
        ("1.5,6144,4096,5", "gemm.csv:3: m = 1.5: must be a whole number of at least 1"),
        ("1e400,6144,4096,5", "gemm.csv:3: m = 1e400: must be a whole number of at least 1"),
        ("1,6144,4096,nan", "gemm.csv:3: latency_us = nan: must be a number above 0"),
        ("1,6144,4096", "gemm.csv:3: latency_us = None: must be a number above 0"),
        ("x,6144,4096,5", "gemm.csv:3: m = x: must be a whole number of at least 1"),
    ],
)
def test_faults_name_file_line_and_column(line: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text(f"m,n,k,latency_us\n1,6144,4096,5\n{line}\n")
    with pytest.raises(ConfigError, match=fault):
        read_folder(tmp_path, model=MODEL, tp=1)


def test_the_faults_of_all_tables_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("m,n,k,latency_us\n1,1,1,0\n")
    (tmp_path / "b.csv").write_text(
        "batch_size,kv_len,num_heads,num_kv_heads,head_dim,kernel,latency_us\n1,2,3,4,5,fa,1\n"
    )
    with pytest.raises(ConfigError) as error:
        read_folder(tmp_path, model=MODEL, tp=1)
    assert [fault.split(": ", 1)[1] for fault in error.value.faults] == [
        "latency_us = 0: must be a number above 0",
        "no rows with num_heads 32, num_kv_heads 8, head_dim 128",
    ]


def test_a_folder_of_nothing_known(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    assert formats(tmp_path) == []
    with pytest.raises(ConfigError, match="no table with the columns of vidur or aiconfigurator"):
        read_folder(tmp_path, model=MODEL, tp=1)
    with pytest.raises(ConfigError, match="none: no such folder"):
        read_folder(tmp_path / "none", model=MODEL, tp=1)
    with pytest.raises(ConfigError, match=r"columns of vidur$"):
        read_folder(H200, model=MODEL, tp=1, form="vidur")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('m,n,k,latency_us\n1,"2,3,4\n', ": isn't a CSV file: unexpected end of data"),
        ("m,n,k,latency_us\n1,2,3,4,5\n", ":2: has more cells than the first line has names"),
        ("m,n,k,latency_us,m\n1,2,3,4,5\n", ":1: has more than one column m"),
    ],
)
def test_tables_that_would_be_read_as_something_else(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        gemm(path, get_model("tiny"), 1)
    assert caught.value.faults == [f"{path}{fault}"]
