"""A Hugging Face config.json as the fields of a ModelSpec, or a refusal that names what isn't modelled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeGuard

from simulator.errors import ConfigError
from simulator.suggest import did_you_mean

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "opt")

# Keys whose presence (with a true value) means an architecture that these formulas would get wrong.
_NOT_MODELLED = {
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "quantization_config": "quantised weights",
    "mlp_bias": "biases in a gated MLP",
    "vision_config": "multimodal input",
    "text_config": "multimodal input",
}

# ModelSpec field -> key in config.json.
_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "max_model_len": "max_position_embeddings",
}


def is_number(value: object) -> TypeGuard[float]:
    """True for an int or float that is finite as a float; JSON's true and NaN are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigError where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: isn't UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}: isn't JSON: {error.msg}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"{path}: isn't JSON: {str(error).partition(';')[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold a JSON object, not {type(data).__name__}")
    return data


def model_fields(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The ModelSpec fields, all but name and source, of a config.json. Raises ConfigError."""
    faults = [f"{where}: {reason}" for reason in _refusals(config)]
    if faults:
        raise ConfigError(faults)
    family = config["model_type"]
    keys = _KEYS | ({"intermediate": "ffn_dim"} if family == "opt" else {})
    fields: dict[str, Any] = {name: _whole(config, key, where, faults) for name, key in keys.items()}
    fields["kv_heads"] = _whole(config, "num_key_value_heads", where, faults, fields["heads"])
    derived_head_dim = fields["hidden"] // fields["heads"] if fields["heads"] else 0
    fields["head_dim"] = _whole(config, "head_dim", where, faults, derived_head_dim)
    if fields["heads"] % (fields["kv_heads"] or 1):
        faults.append(f"{where}: num_key_value_heads: {fields['kv_heads']} doesn't divide the {fields['heads']} heads")
    if faults:
        raise ConfigError(faults)
    return fields | _family_fields(family, config, fields)


def _refusals(config: dict[str, Any]) -> list[str]:
    reasons = [
        f"{key}: {what}: not modelled" for key, what in _NOT_MODELLED.items() if config.get(key) not in (None, False, 0)
    ]
    family = config.get("model_type")
    if family not in FAMILIES:
        nearest = did_you_mean(family, FAMILIES)
        reasons.append(f"model_type: {family!r}: not modelled; modelled: {', '.join(FAMILIES)}{nearest}")
    elif config.get("sliding_window") and config.get("use_sliding_window", family not in ("qwen2", "qwen3")):
        reasons.append(f"sliding_window: {config['sliding_window']}: sliding-window attention: not modelled")
    elif family == "opt" and config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        reasons.append("word_embed_proj_dim: embeddings of another width than hidden_size: not modelled")
    return reasons


def _whole(config: dict[str, Any], key: str, where: str, faults: list[str], default: int = 0) -> int:
    value = config.get(key)
    if value is None and default:
        return default
    if value is None:
        faults.append(f"{where}: {key}: missing")
    elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
        faults.append(f"{where}: {key}: {value!r} must be a whole number above 0")
    else:
        return value
    return default


def _family_fields(family: str, config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """What the families differ in, as in their modelling code in Hugging Face's transformers."""
    tied = bool(config.get("tie_word_embeddings", family == "opt"))
    if family == "opt":  # positions start at an offset of 2
        return {
            "tied_embeddings": tied,
            "gated_mlp": False,
            "biases": "all",
            "learned_positions": fields["max_model_len"] + 2,
        }
    attention = "attention" if config.get("attention_bias") else "none"
    biases = "qkv" if family == "qwen2" else attention
    return {"tied_embeddings": tied, "biases": biases, "qk_norm": family == "qwen3"}
