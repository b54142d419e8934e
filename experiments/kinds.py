"""The kinds of values that a config holds: numbers, rates, names, each with its rule in words.

Strict: `true` is no number, `"8"` is no number, `1e3` is 1000.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_COUNT = 10**9
MIN_BURSTINESS = 1e-3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def _broken(rule: str) -> PydanticCustomError:
    return PydanticCustomError("rule", "{rule}", {"rule": rule})


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise _broken("must be a whole number")
    if isinstance(value, float):
        if math.isinf(value):
            raise _broken(f"must be a whole number of at most {MAX_COUNT}")
        if not value.is_integer():
            raise _broken("must be a whole number")
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _broken("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _broken("must be a finite number")
    return number


def _boolean(value: Any, rule: str = "must be true or false") -> Any:
    words = {"on": True, "yes": True, "off": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if not isinstance(value, bool):
        raise _broken(rule)
    return value


def _rate(value: Any) -> float:
    if value == "inf" or value == math.inf:
        return math.inf
    number = float(_number(value))
    if number <= 0:
        raise _broken("must be above 0, or inf for all at once")
    return number


def _burstiness(value: Any) -> float:
    if value == "inf" or value == math.inf:
        return math.inf
    number = float(_number(value))
    if number <= 0:
        raise _broken("must be above 0 (1 is Poisson), or inf for equal gaps")
    if number < MIN_BURSTINESS:
        raise _broken(f"must be at least {MIN_BURSTINESS:g}: below, gaps are too small for a float")
    return number


def _max_tokens(value: Any) -> int | str:
    if value in ("column", "oracle"):
        return str(value)
    if isinstance(value, str):
        raise _broken("must be column, oracle or a number of tokens")
    number = int(_whole(value))
    if not 1 <= number <= MAX_COUNT:
        raise _broken("must be column, oracle or a number of at least 1 token")
    return number


def _lengths(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _figures(value: Any) -> bool | str:
    return value if value in ("sweep", "cost") else bool(_boolean(value, "must be true, false, sweep or cost"))


def is_word(text: str) -> bool:
    """Whether `text` may name a run."""
    return bool(_NAME.fullmatch(text))


def _run_name(value: Any) -> str:
    if not isinstance(value, str) or not is_word(value):
        raise _broken("must be a word of letters, digits, '.', '_' and '-', as it names a folder")
    return value


WHOLE = BeforeValidator(_whole)
NUMBER = BeforeValidator(_number)
Count = Annotated[int, Field(ge=1, le=MAX_COUNT), WHOLE]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT), WHOLE]
Positive = Annotated[float, Field(gt=0), NUMBER]
NotNegative = Annotated[float, Field(ge=0), NUMBER]
Bool = Annotated[bool, BeforeValidator(lambda value: _boolean(value))]
Figures = Annotated[bool | str, PlainValidator(_figures), WithJsonSchema({"enum": [True, False, "sweep", "cost"]})]
_RATE_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "inf"}]}
Rate = Annotated[float, PlainValidator(_rate), WithJsonSchema(_RATE_SCHEMA)]
Burstiness = Annotated[float, PlainValidator(_burstiness), WithJsonSchema(_RATE_SCHEMA)]
MaxTokens = Annotated[
    int | str,
    PlainValidator(_max_tokens),
    WithJsonSchema({"anyOf": [{"enum": ["column", "oracle"]}, {"type": "integer", "minimum": 1}]}),
]
Classes = Annotated[Any, WithJsonSchema({"type": ["array", "null"], "items": {"type": "array"}})]
Lengths = Annotated[
    Any,
    BeforeValidator(_lengths),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "object", "maxProperties": 1}]}),
]
RunName = Annotated[str, PlainValidator(_run_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"})]
