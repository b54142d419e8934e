"""The README's table of config keys, made from the schema. `python tests/docs/config_table.py` prints it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from experiments.schema import Engine, Load, Settings, Slo, Trace

SECTIONS: dict[str, type[BaseModel]] = {"trace": Trace, "load": Load, "engine": Engine, "slo": Slo}


def table() -> str:
    """Markdown, one row per key in the schema's order."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        if name in SECTIONS:
            inner = SECTIONS[name].model_fields
            rows += [_row(f"{name}.{key}", inner[key].default, inner[key].description) for key in inner]
        else:
            rows.append(_row(name, field.default, field.description))
    return "\n".join(rows)


def _row(key: str, default: Any, meaning: str | None) -> str:
    if default is PydanticUndefined:
        shown = "required"
    elif isinstance(default, BaseModel):
        shown = f"`{default.name}`"  # type: ignore[attr-defined]
    else:
        shown = "" if default is None else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    return f"| `{key}` | {shown} | {(meaning or '').replace('|', 'or')} |"


if __name__ == "__main__":
    print(table())
