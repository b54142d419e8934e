from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costs_samples import profile_document, smooth_document

from simulator.curves import Curve, Grid
from simulator.errors import ConfigError
from simulator.profile import METADATA, Profile, load_profile, shipped_profiles
from simulator.specs import get_gpu, get_model


def test_round_trip(tmp_path: Path) -> None:
    document = profile_document()
    profile = Profile.from_json(document, "x.json")
    assert profile.to_json() == document
    profile.save(tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile
    assert json.loads((tmp_path / "p.json").read_text()) == document


def test_tables_of_exponents_and_alphas_survive_the_round_trip() -> None:
    powers = {"chunk_tokens": [16, 64], "sequences": [1, 8], "p": [[2.0, 1.5], [0.9, 1.0]]}
    alphas = {"sequences": [2, 64], "alpha": [0.5, 0.1]}
    document = profile_document(join={"rule": "p_norm", "p": powers}, skew={"decode": alphas, "mixed": 0.25})
    assert Profile.from_json(document, "x.json").to_json() == document


def test_sum_rule_needs_no_mixed_table() -> None:
    profile = Profile.from_json(profile_document(decode_in_mixed=None, join={"rule": "sum"}), "x.json")
    assert profile.attention.p is None
    assert profile.attention.decode_in_mixed is None
    assert Profile.from_json(profile.to_json(), "x.json") == profile


def test_what_was_fitted_survives_the_round_trip() -> None:
    document = smooth_document()
    assert Profile.from_json(document, "x.json").to_json() == document


def changed(path: str, value: Any, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """The small profile with one value replaced, or removed where `value` is ...; path parts joined by dots."""
    document = document or profile_document()
    *parents, last = path.split(".")
    at: Any = document
    for part in parents:
        at = at[int(part) if part.isdigit() else part]
    key = int(last) if last.isdigit() else last
    if value is ...:
        del at[key]
    else:
        at[key] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("schema_version", 2, "schema_version: 2 must be 1"),
        ("schema_version", ..., "schema_version: None must be 1"),
        ("name", 5, "name: 5 must be a string"),
        ("shape.hidden", ..., "shape.hidden: missing"),
        ("shape.hidden", 0, "shape.hidden: 0 must be a whole number"),
        ("metadata.source", "", "metadata.source: '' must be a string"),
        ("metadata.licence", ..., "metadata.licence: missing"),
        ("metadata.all_reduce", "yes", "metadata.all_reduce: 'yes' must be one of included, absent"),
        ("metadata.tensor_parallel_size", True, "metadata.tensor_parallel_size: True must be a whole number"),
        ("token_ops", [], "token_ops: must be a list"),
        ("token_ops", {}, "token_ops: must be a list"),
        ("token_ops.0", 7, "token_ops[0]: must be an object"),
        ("token_ops.1.us.1", float("nan"), "token_ops[1].us: nan is not a finite number"),
        ("token_ops.1.us.1", 0, "token_ops[1].us: 0 must be above 0"),
        ("token_ops.1.us", [1.0], "token_ops[1].us: has 1 times for 3 points"),
        ("token_ops.1.tokens", [1, 1, 2], "token_ops[1].tokens: must rise from point to point: 1 follows 1"),
        ("token_ops.1.tokens.0", -1, "token_ops[1].tokens: -1 must be at least 1"),
        ("token_ops.1.token", [1], "token_ops[1].token: unknown key; did you mean 'tokens'?"),
        ("attention.decode.us", [[1, 1, 1]], "attention.decode.us: has 1 rows for 4 sequences"),
        ("attention.decode.us.2", [1, 1], "attention.decode.us[2]: has 2 times for 3 points"),
        ("attention.join.rule", "max", "attention.join.rule: 'max' must be one of sum, p_norm"),
        ("attention.join.p", 0.1, "attention.join.p: 0.1 must be a number from 0.25 to 100"),
        ("attention.join.p", {"p": [[1]]}, "attention.join.p.chunk_tokens: missing"),
        (
            "attention.join.p",
            {"chunk_tokens": [1, 2], "sequences": [1], "p": [[1]]},
            "attention.join.p.p: has 1 rows for 2 chunk_tokens",
        ),
        (
            "attention.join.p",
            {"chunk_tokens": [1], "sequences": [1, 2], "p": [[1]]},
            "attention.join.p.p[0]: has 1 numbers for 2 points",
        ),
        (
            "attention.join.p",
            {"chunk_tokens": [1], "sequences": [1, 2], "p": [[1, 0]]},
            "attention.join.p.p[0][1]: 0 must be a number from 0.25",
        ),
        (
            "attention.skew.decode",
            {"sequences": [1, 2], "alpha": [0.1]},
            "attention.skew.decode.alpha: has 1 numbers for 2 points",
        ),
        (
            "attention.skew.decode",
            {"sequences": [2, 1], "alpha": [0.1, 0.2]},
            "attention.skew.decode.sequences: must rise",
        ),
        ("attention.skew.decode", {"alphas": 1}, "attention.skew.decode.alphas: unknown key"),
        ("attention.join.p", ..., "attention.join.p: missing"),
        ("attention.skew.mixed", 1.5, "attention.skew.mixed: 1.5 must be a number from 0 to 1"),
        ("attention.count", 1.5, "attention.count: 1.5 must be a whole number"),
        ("host.base_us", -1, "host.base_us: -1 must be a number"),
        ("host.per_layer_us", -1, "host.per_layer_us: -1 must be a number"),
        ("host.eager", {"base_us": 1, "per_layer_us": 2}, "host.eager.power: missing"),
        (
            "host.eager",
            {"base_us": 1, "per_layer_us": 2, "power": 0.5},
            "host.eager.power: 0.5 must be a number",
        ),
        ("host.eagre", 1, "host.eagre: unknown key; did you mean 'eager'?"),
        ("token_ops.1.basis", "guessed", "token_ops[1].basis: 'guessed' must be one of measured, fallback"),
        ("token_ops.1.n", 8, "token_ops[1]: n and k come together"),
        ("attention.prefill.roofline", 3, "attention.prefill.roofline: must be an object"),
        ("attention.prefill.roofline", {"floor_us": 0}, "attention.prefill.roofline.us_per_pair: missing"),
        ("attention.prefill.roofline", {"floor_us": 0}, "attention.prefill.roofline.floor_us: 0 must be a number from"),
        ("attention.prefill.several", {}, "attention.prefill.several: needs a roofline beside it"),
        ("attention.prefill.several", {"prompts": [1]}, "attention.prefill.several.chunk_tokens: missing"),
        ("attention.decode.total_tokens", 0, "attention.decode.total_tokens: 0 must be a number from 1"),
        ("attention.decode.roofline", {}, "attention.decode.roofline: unknown key"),
        ("token_ops.1.count", None, "token_ops[1].count: is null"),
        ("token_ops.0", None, "token_ops[0]: is null, where a value is needed"),
        ("token_ops.1.op", "gemm", "token_ops[1].op: 'gemm' is there twice"),
        ("attention.prefill.chunk_tokens.0", 0, "attention.prefill.chunk_tokens: 0 must be at least 1"),
        ("attention.prefill.context_tokens.1", 1e-9, "attention.prefill.context_tokens: must rise"),
        ("attention.count", 10**6, "attention.count: 1000000 must be a whole number from 1 to 100000"),
        ("attention", ..., "attention: missing"),
        ("extra", 1, "extra: unknown key"),
    ],
)
def test_refuses_with_file_and_key(path: str, value: Any, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Profile.from_json(changed(path, value), "mine.json")
    assert any(line.startswith(f"mine.json: {fault}") for line in caught.value.faults), caught.value.faults


# Keys that may be absent, for which null says the same; the last has to be there.
NULLABLE = {"eager", "per_layer_us", "basis", "roofline", "several", "total_tokens", "decode_in_mixed"}


def places(value: Any, path: str = "") -> Iterator[str]:
    """The path of everything in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield f"{path}{key}"
        yield from places(inner, f"{path}{key}.")


@pytest.mark.parametrize("path", sorted(places(smooth_document())))
@pytest.mark.parametrize("value", [None, 10**400, 1e300, float("nan")], ids=["null", "vast", "huge", "nan"])
def test_no_null_or_number_out_of_range_is_taken_for_a_value(path: str, value: Any) -> None:
    *_, key = parts = path.split(".")
    if (value is None and key in NULLABLE) or (parts[0] == "metadata" and parts[1:] and key not in METADATA):
        return
    with pytest.raises(ConfigError):
        Profile.from_json(changed(path, value, smooth_document()), "mine.json")


@pytest.mark.parametrize("name", ["decode_in_mixed", "prefill.several"])
def test_a_null_for_what_may_be_absent_is_absence(name: str) -> None:
    profile = Profile.from_json(changed(f"attention.{name}", None, smooth_document()), "mine.json")
    assert getattr(profile.attention, name.rpartition(".")[2]) is None


def test_all_faults_at_once() -> None:
    document = changed("attention.decode.us.0.0", float("inf")) | {"shape": {}, "host": 3}
    with pytest.raises(ConfigError) as caught:
        Profile.from_json(document, "mine.json")
    assert len(caught.value.faults) == 7 + 1 + 1
    with pytest.raises(ConfigError, match="schema_version"):
        Profile.from_json([], "mine.json")


def test_unknown_name_lists_what_is_shipped() -> None:
    with pytest.raises(ConfigError, match=r"^profile: .*did you mean 'rtx4090_llama-3\.1-8b'"):
        load_profile("rtx4090-llama-3.1-8b")


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_say_what_they_are(name: str) -> None:
    profile = load_profile(name)
    model, gpu = get_model(profile.metadata["model"]), get_gpu(profile.metadata["gpu"])
    assert profile.name == name
    assert profile.shape == {key: getattr(model, key) for key in profile.shape}
    assert profile.attention.count == model.layers
    assert max(gpu.name.split("-"), key=len) in profile.metadata["device"].lower()
    assert any(source in profile.metadata["source"] for source in ("LLMServingSim", "aiconfigurator", "vidur"))


def test_what_is_shipped() -> None:
    wanted = {
        "rtx4090_llama-3.1-8b", "rtxpro6000_llama-3.1-8b_tp1", "rtxpro6000_llama-3.1-8b_tp2", "h200_llama-3.1-8b",
        "a100-80gb_llama-3.1-8b",
    }  # fmt: skip
    assert wanted <= set(shipped_profiles())


@pytest.mark.parametrize("name", shipped_profiles())
def test_leave_one_out_error_of_token_operations(name: str) -> None:
    """Each inner point from its two neighbours: what interpolation can't know about the kernels between them."""
    profile = load_profile(name)
    errors = {}
    for op in profile.token_ops:
        for i in range(1, len(op.axis) - 1):
            without = Curve(op.axis[:i] + op.axis[i + 1 :], op.us[:i] + op.us[i + 1 :])
            errors.setdefault(op.op, []).append(abs(without.at(op.axis[i]) / op.us[i] - 1))
    linears = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "qkv", "o", "gate_up", "down"}
    timed = linears & {op.op for op in profile.token_ops if op.basis == "measured"}
    assert len(timed) >= 2
    for op in timed:
        assert np.median(errors[op]) < 0.04, op
        assert np.percentile(errors[op], 90) < 0.16, op


@pytest.mark.parametrize("name", shipped_profiles())
def test_leave_one_out_error_of_decode_attention(name: str) -> None:
    decode = load_profile(name).attention.decode
    errors = []
    for i in range(1, len(decode.rows) - 1):
        without = Grid(decode.rows[:i] + decode.rows[i + 1 :], decode.columns, decode.us[:i] + decode.us[i + 1 :])
        errors += [
            abs(without.row(decode.rows[i]).at(kv) / us - 1)
            for kv, us in zip(decode.columns, decode.us[i], strict=True)
        ]
    assert np.median(errors) < 0.08
    assert np.percentile(errors, 90) < 0.5  # batches double from row to row: a coarse grid when one is gone
