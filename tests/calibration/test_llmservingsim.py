from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from simulator.profile import load_profile
from simulator.specs import get_model

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "tests" / "data" / "kernels" / "rtx4090_llama-3.1-8b"
METADATA = {"device": "a", "engine": "b", "source": "c", "licence": "d"}


@pytest.fixture
def importer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("calibration.importers.llmservingsim")


def test_import_agrees_with_the_shipped_profile(importer: ModuleType, tmp_path: Path) -> None:
    model = get_model("llama-3.1-8b")
    profile = importer.import_profile(
        MEASURED, name="small", model=model, gpu="rtx-4090", tensor_parallel_size=1, metadata=METADATA
    )
    shipped = load_profile("rtx4090_llama-3.1-8b")
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
    assert profile.metadata["mixed_attention_error"].endswith("of 81 calls")
    profile.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile


def test_fit_finds_the_exponent(importer: ModuleType) -> None:
    grid = importer.GridTable((1, 2), (0, 10), ((3.0, 4.0), (5.0, 9.0)))
    calls = [
        {"prefill_chunk": a, "kv_prefill": b, "n_decode": c, "kv_decode": d, "time_us": (x**1.7 + y**1.7) ** (1 / 1.7)}
        for (a, b, x) in ((1, 0, 3.0), (2, 10, 9.0))
        for (c, d, y) in ((1, 10, 4.0), (2, 0, 5.0))
    ]
    p, errors = importer.fit_power(grid, grid, calls)
    assert p == 1.7
    assert errors.max() < 1e-9


def test_incomplete_grids_lose_their_emptiest_lines(importer: ModuleType) -> None:
    calls = [
        {"prefill_chunk": chunk, "kv_prefill": kv, "time_us": chunk + kv}
        for chunk in (1, 2, 3, 4)
        for kv in (0, 10, 20)
        if chunk != 3 or kv == 10
    ]
    table = importer._complete(importer._prefill_key, calls)
    assert (table.rows, table.columns) == ((1, 2, 4), (0, 10, 20))
    assert table.us[2] == (4.0, 14.0, 24.0)


def test_skew_by_least_squares(importer: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "skew.csv"
    assert importer._skew(path) == {}
    lines = ["regime,t_mean_us,t_max_us,t_skew_us"]
    for regime, alpha in (("pure", 0.25), ("mixed", 0.5), ("odd", -0.5)):
        lines += [f"{regime},{10 * i},{20 * i},{10 * i + alpha * 10 * i}" for i in (1, 2, 5)]
    path.write_text("\n".join(lines) + "\n")
    assert importer._skew(path) == {"pure": 0.25, "mixed": 0.5, "odd": 0.0}


def test_command_writes_a_profile(
    importer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    options = [word for key, value in METADATA.items() for word in (f"--{key}", value)]
    argv = ["x", str(MEASURED), "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--tp", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", argv + options)
    importer.main()
    profile = load_profile(out)
    assert profile.name == "mine"
    assert f"p = {profile.attention.p}" in capsys.readouterr().out
    assert np.isclose(profile.attention.decode.us[0][0], 9.42867)  # 1 row of 64 tokens
