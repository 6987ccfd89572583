"""What was read from a place that others can write to: checked before anything is built upon it."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any, NoReturn

# Far beyond anything that is written here, and far below where Python itself gives up.
DEEPEST = 50
LARGEST = 2**63
_LONGEST_LABEL = 1000


def parsed_json(content: str | bytes, deepest: int = DEEPEST) -> Any:
    """Return what a JSON text says; `ValueError` for one that cannot be written again, or is nested without end."""
    try:
        value = json.loads(content, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    text = content if isinstance(content, str) else content.decode("latin-1")  # whatever it is, a bracket has its byte
    # Most texts have not even so many brackets, wherever they stand, and are spared the walk.
    if text.count("[") + text.count("{") >= deepest and _is_deeper_than(deepest, value):
        raise ValueError("it is nested too deeply")
    return value


def timestamp(value: object) -> dt.datetime:
    """Return the moment that a text names; `ValueError` without a zone, or where no clock could show it."""
    if not isinstance(value, str):
        raise ValueError("is no timestamp")  # noqa: TRY004 - one error for whatever is wrong
    try:
        moment = dt.datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is no timestamp") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone")
    # At the very ends of the calendar the next second, or another zone, does not exist.
    if moment.year in {dt.MINYEAR, dt.MAXYEAR}:
        raise ValueError("is no timestamp that a clock could show")
    return moment


def is_count(value: object) -> bool:
    """Tell whether the value is a whole number that a counter can have."""
    return type(value) is int and 0 <= value < LARGEST


def is_rate(value: object) -> bool:
    """Tell whether the value is a number that a measurement can have."""
    return type(value) in {int, float} and 0 <= value < LARGEST  # type: ignore[operator]  # told by its type


def is_label(value: object) -> bool:
    """Tell whether the value is a text that can be shown on a line and compared."""
    return isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_LABEL


def shown(value: object) -> str:
    """Return a value for a message, whatever it is and however long."""
    if value is None or type(value) in {str, int, float, bool}:
        told = repr(value)
        return told if len(told) <= 60 else f"{told[:60]}…"
    return f"a {type(value).__name__}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("it has a number beyond what a float can hold")
    return number


def _is_deeper_than(levels: int, value: Any) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels):
        parts = [
            outer.values() if isinstance(outer, dict) else outer for outer in layer if isinstance(outer, dict | list)
        ]
        layer = [inner for part in parts for inner in part]
        if not layer:
            return False
    return True
