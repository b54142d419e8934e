from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from calibration.importers.llmservingsim import Source, import_profile, sources
from simulator.errors import MAX_FAULTS, ConfigError
from simulator.profile import Profile, constant_alpha, load_profile
from simulator.specs import get_model

KERNELS = Path(__file__).parents[1] / "data" / "kernels"
RTX4090 = KERNELS / "rtx4090_llama-3.1-8b"
RTXPRO6000 = KERNELS / "rtxpro6000_llama-3.1-8b"
METADATA = {"device": "a", "dtype": "bfloat16", "engine": "b", "source": "c", "licence": "d"}


def imported(folder: Path, gpu: str = "rtx-4090") -> Profile:
    (source,) = sources(folder)
    return import_profile(
        source, name="small", model=get_model("llama-3.1-8b"), gpu=gpu, tensor_parallel_size=1, metadata=METADATA
    )


def test_import_agrees_with_the_shipped_profile(tmp_path: Path) -> None:
    profile, shipped = imported(RTX4090), load_profile("rtx4090_llama-3.1-8b")
    assert profile.shape == shipped.shape
    for small, whole in zip(
        profile.token_ops + profile.sequence_ops, shipped.token_ops + shipped.sequence_ops, strict=True
    ):
        assert (small.op, small.count) == (whole.op, whole.count)
        times = dict(zip(whole.axis, whole.us, strict=True))
        assert [times[x] for x in small.axis] == list(small.us)
    for part in ("prefill", "decode", "decode_in_mixed"):
        small, whole = getattr(profile.attention, part), getattr(shipped.attention, part)
        assert len(small.rows) == len(small.columns) == 3
        for row, us in zip(small.rows, small.us, strict=True):
            measured = dict(zip(whole.columns, whole.us[whole.rows.index(row)], strict=True))
            assert [measured[column] for column in small.columns] == list(us)
    assert profile.metadata["mixed_layer_error"].endswith("of a layer, 81 calls")
    profile.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


def test_incomplete_grids_lose_their_emptiest_lines(tmp_path: Path) -> None:
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", "0,0,1,16,3", "0,0,2,16,4"]
    for chunk in (1, 2, 3, 4):
        lines += [f"{chunk},{kv},0,0,{chunk + kv}" for kv in (0, 10, 20) if chunk != 3 or kv == 10]
    shutil.copytree(RTX4090, tmp_path / "k")
    (tmp_path / "k" / "attention.csv").write_text("\n".join(lines) + "\n")
    attention = imported(tmp_path / "k").attention
    assert (attention.prefill.rows, attention.prefill.columns) == ((1, 2, 4), (0, 10, 20))
    assert attention.prefill.us[2] == (4.0, 14.0, 24.0)
    assert attention.decode.us == ((3.0,), (4.0,))
    assert attention.p is attention.decode_in_mixed is None  # no mixed calls: added up


def test_the_term_for_uneven_lengths_is_there_where_the_metadata_says_so(tmp_path: Path) -> None:
    with_term = imported(RTXPRO6000 / "tp1", "rtx-pro-6000")
    assert with_term.attention.skew_decode.axis == (4, 64, 256)
    assert 0.005 < with_term.attention.skew_decode.values[2] < with_term.attention.skew_decode.values[1] < 0.15
    assert with_term.attention.skew_mixed.values[0] > 0.4
    assert with_term.metadata["uneven_lengths"] == "skew.csv"
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    meta = (tmp_path / "k" / "meta.yaml").read_text()
    for changed in (meta.replace("skew_fit:\n  enabled: true", "skew_fit:\n  enabled: false"), "model: x\n", None):
        (tmp_path / "k" / "meta.yaml").unlink()
        if changed is not None:
            (tmp_path / "k" / "meta.yaml").write_text(changed)
        else:
            (tmp_path / "k" / "meta.yaml").mkdir()
        without = imported(tmp_path / "k" / "tp1", "rtx-pro-6000")
        assert without.attention.skew_decode == without.attention.skew_mixed == constant_alpha(0.0)
        assert without.metadata["uneven_lengths"] == "no term"
        if changed is None:
            break


def test_alpha_by_least_squares(tmp_path: Path) -> None:
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    lines = ["regime,n,t_mean_us,t_max_us,t_skew_us"]
    for regime, n, alpha in (("pure", 2, 0.25), ("pure", 8, 0.125), ("mixed", 2, 0.5), ("mixed", 4, -0.5)):
        lines += [f"{regime},{n},{10 * i},{20 * i},{10 * i + alpha * 10 * i}" for i in (1, 2, 5)]
    (tmp_path / "k" / "tp1" / "skew.csv").write_text("\n".join([*lines, "mixed,8,10,10,10"]) + "\n")
    attention = imported(tmp_path / "k" / "tp1", "rtx-pro-6000").attention
    assert (attention.skew_decode.axis, attention.skew_decode.values) == ((2, 8), (0.25, 0.125))
    assert (attention.skew_mixed.axis, attention.skew_mixed.values) == ((2, 4, 8), (0.5, 0.0, 0.0))


def test_which_degree_a_folder_holds(tmp_path: Path) -> None:
    assert [s.tensor_parallel_size for s in sources(RTXPRO6000)] == [1]
    assert [s.tensor_parallel_size for s in sources(RTXPRO6000 / "tp1")] == [1]
    assert sources(RTX4090)[0].tensor_parallel_size is None  # neither its name nor a meta.yaml says
    shutil.copytree(RTXPRO6000 / "tp1", tmp_path / "m" / "tp4")
    shutil.copytree(RTXPRO6000 / "tp1", tmp_path / "m" / "tp2")
    assert [s.tensor_parallel_size for s in sources(tmp_path / "m")] == [2, 4]
    shutil.copytree(RTXPRO6000 / "tp1", tmp_path / "plain")
    (tmp_path / "plain" / "meta.yaml").write_text("tp_degrees: [2]\n")
    assert sources(tmp_path / "plain")[0].tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("attention.csv", None, "attention.csv: can't be read: No such file"),
        ("dense.csv", "", "dense.csv:1: lacks the columns tokens, time_us, layer"),
        ("dense.csv", "layer,tokens,time_us\n", "dense.csv: holds no rows"),
        ("dense.csv", "layer,tokens,time_us\na,1,nan\n", "dense.csv:2: time_us = nan: must be a number above 0"),
        ("dense.csv", "layer,tokens,time_us\na,1,0\n", "dense.csv:2: time_us = 0: must be a number above 0"),
        (
            "dense.csv",
            "layer,tokens,time_us\na,-1,1\n",
            "dense.csv:2: tokens = -1: must be a whole number of at least 0",
        ),
        ("dense.csv", "layer,tokens,time_us\n,1,1\n", "dense.csv:2: layer: is empty"),
        ("per_sequence.csv", "layer,sequences\na,1\n", "per_sequence.csv:1: lacks the columns time_us"),
        ("skew.csv", "n,t_mean_us\n1,1\n", "skew.csv:1: lacks the columns t_max_us, t_skew_us, regime"),
        (
            "attention.csv",
            "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,5\n",
            "attention.csv: no decode calls in it",
        ),
    ],
)
def test_faults_name_file_line_and_column(tmp_path: Path, file: str, text: str | None, fault: str) -> None:
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    path = tmp_path / "k" / "tp1" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path / "k" / "tp1")
    assert len(caught.value.faults) == 1
    assert fault in caught.value.faults[0]


def test_many_faults_are_cut_short(tmp_path: Path) -> None:
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    (tmp_path / "k" / "tp1" / "dense.csv").write_text("layer,tokens,time_us\n" + "a,x,y\n" * 50)
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path / "k" / "tp1")
    assert len(caught.value.faults) == MAX_FAULTS + 1
    assert caught.value.faults[-1].endswith("and 80 more")


def test_folders_of_another_form(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        sources(tmp_path / "none")
    shutil.copytree(RTXPRO6000, tmp_path / "k")
    (tmp_path / "k" / "tp1" / "moe.csv").write_text("x\n")
    with pytest.raises(ConfigError, match="mixture of experts: not modelled"):
        sources(tmp_path / "k")
    for broken, fault in (("a: [", "can't be read as YAML"), ("- 1\n", "must hold keys and values")):
        (tmp_path / "k" / "tp1" / "moe.csv").unlink(missing_ok=True)
        (tmp_path / "k" / "meta.yaml").write_text(broken)
        with pytest.raises(ConfigError, match=fault):
            sources(tmp_path / "k")


def test_a_source_without_metadata() -> None:
    source = Source(RTX4090, None)
    assert source.text("model") == ""
    assert not source.uneven_lengths
    assert np.isclose(imported(RTX4090).attention.decode.us[0][0], 9.42867)  # 1 row of 64 tokens


@pytest.mark.parametrize(
    ("file", "layer"), [("dense.csv", "down_proj"), ("dense.csv", "act_fn"), ("per_sequence.csv", "lm_head")]
)
def test_a_table_without_a_layer_is_refused(tmp_path: Path, file: str, layer: str) -> None:
    """An iteration without it would be too short, and nothing would say so."""
    folder = tmp_path / "tp1"
    shutil.copytree(RTX4090, folder)
    path = folder / file
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(layer)))
    with pytest.raises(ConfigError, match=f"{file}: no layer '{layer}'"):
        imported(folder)


def test_two_times_for_one_point_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tp1"
    shutil.copytree(RTX4090, folder)
    path = folder / "dense.csv"
    first = path.read_text().splitlines()[1]
    layer, tokens, _ = first.split(",")
    path.write_text(path.read_text() + f"{layer},{tokens},99999\n")
    with pytest.raises(ConfigError, match=f"{layer} at {tokens} tokens has two times"):
        imported(folder)


def test_the_only_model_in_a_folder_is_found(tmp_path: Path) -> None:
    shutil.copytree(RTX4090, tmp_path / "gpu" / "one-model" / "tp1")
    (source,) = sources(tmp_path / "gpu")
    assert (source.folder.name, source.tensor_parallel_size) == ("tp1", 1)
    shutil.copytree(RTX4090, tmp_path / "gpu" / "other-model" / "tp2")
    with pytest.raises(ConfigError, match=r"holds several models, name one: .*one-model, .*other-model"):
        sources(tmp_path / "gpu")
