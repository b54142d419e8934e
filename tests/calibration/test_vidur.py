from __future__ import annotations

from pathlib import Path

import pytest

from calibration.importers.folder import formats, metadata, read_folder
from calibration.points import Point
from simulator.errors import ConfigError
from simulator.specs import get_model

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
A100 = KERNELS / "a100_sxm"
MODEL = get_model("llama-3-8b")
SHAPE = "n_embd,n_q_head,n_kv_head,block_size,num_tensor_parallel_workers,max_model_len"
ATTENTION = f"time_stats.attn_prefill.median,time_stats.attn_decode.median,{SHAPE}"
CALL = "batch_size,prefill_chunk_size,kv_cache_size,is_prefill,attention_backend"


def test_layers_come_from_vidur_and_the_rest_from_aiconfigurator() -> None:
    assert formats(A100) == ["vidur", "aiconfigurator"]
    found = read_folder(A100, model=MODEL, tp=1)
    times = {row.point: row.median_us for row in found.rows}
    assert times[Point("linear", m=1, n=6144, k=4096, mode="eager")] == 33.0  # 0.033 ms in the file
    assert times[Point("linear", m=1, n=28672, k=4096, mode="eager")] == 142.0
    assert times[Point("rope", m=1, mode="eager")] == 4.0
    linear = [row.point for row in found.rows if row.point.op == "linear"]
    assert {(p.n, p.k) for p in linear if p.mode == "graph"} == {(51200, 4096), (65536, 4096)}  # near the LM head
    assert {(p.n, p.k) for p in linear if p.mode == "eager"} == {
        (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
    }  # fmt: skip
    assert {row.point.op for row in found.rows} == {
        "linear", "embedding", "norm", "rope", "activation", "add", "prefill", "decode",
    }  # fmt: skip
    assert "caution_clocks" in metadata(found)
    (only,) = {row.point.mode for row in read_folder(A100, model=MODEL, tp=1, form="vidur").rows}
    assert only == "eager"


def write(path: Path, head: str, *lines: str) -> None:
    path.write_text("\n".join([head, *lines]) + "\n")


def test_attention_in_the_profilers_own_columns(tmp_path: Path) -> None:
    shape = "4096,32,8,16,1,8192"
    write(tmp_path / "attention.csv", f"{ATTENTION},{CALL}", f"0.05,,{shape},1,64,128,True,FLASHINFER",
          f",0.02,{shape},8,0,127,False,FLASHINFER", ",9,4096,32,8,16,2,8192,8,0,127,False,FLASHINFER")  # fmt: skip
    rows = read_folder(tmp_path, model=MODEL, tp=1).rows
    assert {row.point: row.median_us for row in rows} == {
        Point("prefill", seqs=1, chunk=64, ctx=128, mode="eager"): 50.0,
        Point("decode", n_dec=8, kv_dec=128, mode="eager"): 20.0,  # its own token is the 128th
    }


def test_backends_do_not_mix(tmp_path: Path) -> None:
    shape = "4096,32,8,16,1,8192"
    write(tmp_path / "attention.csv", f"{ATTENTION},{CALL}", f"0.05,,{shape},1,64,128,True,FLASHINFER",
          f",0.02,{shape},8,0,127,False,FLASH_ATTENTION")  # fmt: skip
    with pytest.raises(ConfigError, match="several attention_backend, keep the rows of one: FLASHINFER, FLASH_ATT"):
        read_folder(tmp_path, model=MODEL, tp=1)


def test_a_batch_of_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "attention.csv", f"{ATTENTION},{CALL}", ",1,4096,32,8,16,1,8192,0,0,127,False,FLASHINFER")
    with pytest.raises(ConfigError, match=r"attention\.csv: batch_size = 0: must be at least 1"):
        read_folder(tmp_path, model=MODEL, tp=1)


def test_all_reduces_of_one_node(tmp_path: Path) -> None:
    head = "time_stats.all_reduce.median,rank,num_workers,size,collective,devices_per_node,max_devices_per_node"
    write(tmp_path / "all_reduce.csv", head, "0.01,0,2,1024,all_reduce,2,4", "0.03,1,2,1024,all_reduce,2,4",
          "0.9,0,2,1024,all_reduce,1,4", "0.5,0,2,1024,send_recv,2,4", "0.5,0,4,1024,all_reduce,4,4")  # fmt: skip
    (row,) = read_folder(tmp_path, model=MODEL, tp=2).rows
    assert row.point == Point("allreduce", bytes=1024, ranks=2, mode="eager")
    assert row.median_us == pytest.approx(20.0)  # of both ranks
    with pytest.raises(ConfigError, match="no rows with num_workers 8, devices_per_node 8"):
        read_folder(tmp_path, model=MODEL, tp=8)


def test_another_model_or_degree_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"linear_ops.csv: no rows with .*num_tensor_parallel_workers 4"):
        read_folder(A100, model=MODEL, tp=4, form="vidur")
    with pytest.raises(ConfigError, match="n_head 32, n_kv_head 32, n_embd 4096, n_expanded_embd 11008"):
        read_folder(A100, model=get_model("llama-2-7b"), tp=1, form="vidur")


def test_a_layer_without_its_linears_is_refused(tmp_path: Path) -> None:
    shape = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,num_tensor_parallel_workers,num_tokens"
    write(tmp_path / "mlp.csv", f"time_stats.attn_pre_proj.median,{shape}", "0.1,32,8,4096,14336,128256,1,1")
    with pytest.raises(ConfigError, match=r"mlp\.csv:1: no times of attn_post_proj, mlp_up_proj, mlp_down_proj"):
        read_folder(tmp_path, model=MODEL, tp=1)
