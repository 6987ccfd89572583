"""Numbers, moments and texts as people are told them."""

from __future__ import annotations

import datetime as dt
import json
import unicodedata
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from azure_functions_db.core.types import Horizon

NONE = "-"
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def shown(text: str, *, lines: bool = False) -> str:
    r"""Return a text of others as people may be shown it: without secrets, and with its control characters escaped.

    What steers a terminal, hides, turns the direction of reading or (unless ``lines`` are wanted)
    begins a new line is written out, such as ``\x1b``.
    """
    plain = masked(text)
    if plain.isprintable():
        return plain
    return "".join(each if _is_harmless(each) or (lines and each == "\n") else _escaped(each) for each in plain)


def _is_harmless(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return NONE
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    left = round(abs(seconds))
    told: list[str] = []
    for unit, size in _UNITS:
        amount, left = divmod(left, size)
        if amount or told:
            told.append(f"{amount} {unit}" if amount else "")
        if len(told) == 2:
            break
    return ("-" if seconds < 0 else "") + " ".join(part for part in told if part)


def ago(seconds: float | None) -> str:
    """Return how long something is past."""
    return NONE if seconds is None else f"{duration(seconds)} ago"


def number(value: float | None) -> str:
    """Return a whole number with separators."""
    return NONE if value is None else f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """Return a rate in the unit in which it is a number that can be grasped."""
    if per_second is None:
        return NONE
    return f"{per_second:,.1f}/s" if per_second >= 1 or per_second == 0 else f"{per_second * 60:,.1f}/min"


def position(cursor: Any, key: Mapping[str, Any]) -> str:
    """Return a cursor and the key of its row in one line."""
    if cursor is None:
        return NONE
    return " ".join([value(cursor), *(f"{shown(name)}={value(part)}" for name, part in key.items())])


def holders(horizon: Horizon | None) -> str:
    """Return who keeps the late-commit horizon where it is."""
    if horizon is None:
        return NONE
    told = [
        f"session {value(holder.session)} ({value(holder.user or 'unknown user')}, {duration(holder.age_seconds)})"
        for holder in horizon.holders
    ]
    return ", ".join(told) or f"running transactions, {duration(horizon.age_seconds)}"


def value(plain: Any) -> str:
    """Return any value in one line."""
    match plain:
        case None:
            return NONE
        case str():
            return shown(plain)
        case dt.datetime():
            return plain.isoformat(sep=" ", timespec="seconds")
        case dict() | list():
            return shown(json.dumps(plain, ensure_ascii=False))
        case _:
            return shown(str(plain))
