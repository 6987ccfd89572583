"""Cursor values as JSON and back, and any value in a JSON-safe form."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from azure_functions_db.core.errors import CursorSerializationError

if TYPE_CHECKING:
    from azure_functions_db.core.types import CursorPart, CursorValue, JsonScalar

_PLAIN = {str: "text", int: "integer", float: "float", bool: "boolean", type(None): "null"}
_PLAIN_KINDS = frozenset(_PLAIN.values())
_UNCHANGED = frozenset({str, int, bool, type(None)})


def datetime_text(value: dt.datetime) -> str:
    """Return ISO 8601 with microseconds and offset; UTC is written ``Z``."""
    text = value.isoformat(timespec="microseconds")
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# A datetime is a date too: it has to be asked for first.
_TAGGED: dict[type, tuple[str, Callable[[Any], str], Callable[[str], CursorPart]]] = {
    dt.datetime: ("timestamp", datetime_text, dt.datetime.fromisoformat),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", dt.time.isoformat, dt.time.fromisoformat),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
    bytes: ("bytes", _base64, _from_base64),
}
_READERS = {kind: read for kind, _, read in _TAGGED.values()}


def serialize_part(value: CursorPart) -> Any:
    """Return a cursor or key value in the JSON form that `deserialize_part` reads back."""
    kind, plain = _encoded(value)
    return plain if kind in _PLAIN_KINDS else {"type": kind, "value": plain}


def deserialize_part(written: Any) -> CursorPart:
    """Return the value that `serialize_part` wrote, of the same type."""
    match written:
        case None | str() | int() | float() | bool():
            return written
        case {"type": str() as kind, "value": str() as text}:
            return _decoded(kind, text)
        case _:
            raise CursorSerializationError(f"A checkpoint holds a value of an unknown form: {type(written).__name__}")


def serialize_position(cursor: CursorPart, key: Mapping[str, CursorPart]) -> dict[str, Any]:
    """Return a position (a cursor and the key of its row) in a checkpoint's JSON form."""
    kind, plain = _encoded(cursor)
    tiebreaker = {name: serialize_part(value) for name, value in key.items()}
    return {"kind": f"{kind}+pk" if key else kind, "value": plain, "tiebreaker": tiebreaker}


def deserialize_position(written: Any, key_columns: Sequence[str]) -> tuple[CursorPart, ...]:
    """Return ``(cursor, *key)`` in the order of the key columns; the cursor alone where the position has no key.

    A plain list ``[cursor, key…]``, as older checkpoints have it, is read as well; its values
    are still of their JSON types.
    """
    match written:
        case {"kind": str() as kind, "value": plain, "tiebreaker": dict() as key}:
            if key and set(key) != set(key_columns):
                raise CursorSerializationError(
                    f"The checkpoint is keyed by {sorted(key)}, the source by {sorted(key_columns)}"
                )
            cursor = _decoded(kind.removesuffix("+pk"), plain)
            return (cursor, *(deserialize_part(key[name]) for name in key_columns if key))
        case [_, *rest] if len(rest) == len(key_columns):
            return tuple(deserialize_part(part) for part in written)
        case _:
            raise CursorSerializationError("The checkpoint's cursor has an unknown form")


def serialize_cursor_part(value: CursorPart) -> JsonScalar:
    """Return a cursor or key value as release 0.8 wrote it: a time, a Decimal and a UUID as texts."""
    match value:
        case None | str() | int() | float():
            return value
        case dt.datetime():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case _:
            raise CursorSerializationError(f"A value of type {type(value).__name__} cannot be a cursor or key")


def parse_checkpoint_cursor(raw: Any) -> CursorValue:
    """Return the position that release 0.8 wrote: a scalar alone, or a list of a cursor and its key as a tuple."""
    if isinstance(raw, list | tuple):
        return tuple(_plain(part) for part in raw)
    return _plain(raw)


def _plain(part: Any) -> JsonScalar:
    if type(part) not in _PLAIN:
        raise CursorSerializationError(f"A checkpoint holds a value of an unknown form: {type(part).__name__}")
    return part  # type: ignore[no-any-return]  # told by its type


def json_safe(value: Any) -> Any:
    """Return the value as JSON can hold it: RFC 3339 times, texts for Decimal and UUID, base64 for bytes."""
    # Most values are of one of these types and no other; patterns are slow, and events have many values.
    if type(value) in _UNCHANGED:
        return value
    if (written := _TAGGED.get(type(value))) is not None:
        return written[1](value)
    if (own_form := getattr(type(value), "json_form", None)) is not None:
        return own_form(value)
    match value:
        case Enum():
            return json_safe(value.value)
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dt.timedelta():
            return value.total_seconds()
        case bytearray() | memoryview():
            return json_safe(bytes(value))
        case Mapping():
            return {str(key): json_safe(inner) for key, inner in value.items()}
        case set() | frozenset():
            return sorted((json_safe(inner) for inner in value), key=str)
        case list() | tuple():
            return [json_safe(inner) for inner in value]
        case _:
            known = _known_type(value)
            return str(value) if known is None else _TAGGED[known][1](value)


def types_of(value: Any, at: str = "") -> dict[str, str]:
    """Return what `json_safe` forgets: the type of each part that JSON does not have, by its JSON Pointer."""
    if type(value) in _UNCHANGED:
        return {}
    match value:
        case Mapping():
            return _merged(types_of(inner, f"{at}/{_escaped(key)}") for key, inner in value.items())
        case list() | tuple():
            own = {at: "tuple"} if isinstance(value, tuple) else {}
            return own | _merged(types_of(inner, f"{at}/{place}") for place, inner in enumerate(value))
        case set() | frozenset():
            return {at: "set"}
        case float() if not math.isfinite(value):
            return {at: "float"}
        case dt.timedelta():
            return {at: _interval_kind(value)}
        case bytearray() | memoryview():
            return {at: "bytes"}
        case _:
            known = None if isinstance(value, Enum) else _known_type(value)
            return {} if known is None else {at: _TAGGED[known][0]}


def retyped(written: Any, types: Mapping[str, str], at: str = "") -> Any:
    """Return the value of a JSON-safe form, with the types that `types_of` has told."""
    match written:
        case dict():
            return {key: retyped(inner, types, f"{at}/{_escaped(key)}") for key, inner in written.items()}
        case list():
            parts = [retyped(inner, types, f"{at}/{place}") for place, inner in enumerate(written)]
            return {"tuple": tuple, "set": set}.get(types.get(at, ""), list)(parts)
    match types.get(at):
        case None:
            return written
        case "float":
            return float(written)
        case kind if kind.startswith(_INTERVAL):
            exact = kind.removeprefix(_INTERVAL)
            return dt.timedelta(microseconds=int(exact)) if exact else dt.timedelta(seconds=written)
        case kind:
            return _decoded(kind, written)


_INTERVAL = "interval"
_LONGEST_IN_FLOAT = dt.timedelta(seconds=2**33)
"""Of up to 272 years, a float tells the microseconds."""


def _interval_kind(value: dt.timedelta) -> str:
    """Return the type of an interval, with its microseconds where its seconds are not exact in JSON."""
    return _INTERVAL if abs(value) < _LONGEST_IN_FLOAT else f"{_INTERVAL} {value // dt.timedelta(microseconds=1)}"


def _merged(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {at: kind for part in parts for at, kind in part.items()}


def _escaped(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _encoded(value: CursorPart) -> tuple[str, Any]:
    """Return what kind of value this is, and the form in which JSON can hold it."""
    if not _is_finite(value):
        raise CursorSerializationError("A cursor cannot be NaN or infinite")
    if (plain_kind := _PLAIN.get(type(value))) is not None:
        return plain_kind, value
    known = _known_type(value)
    if known is None:
        raise CursorSerializationError(f"A value of type {type(value).__name__} cannot be a cursor or key")
    kind, text_of, _ = _TAGGED[known]
    return kind, text_of(value)


def _is_finite(value: CursorPart) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case Decimal():
            return value.is_finite()
        case _:
            return True


def _known_type(value: object) -> type | None:
    return next((known for known in _TAGGED if isinstance(value, known)), None)


def _decoded(kind: str, plain: Any) -> CursorPart:
    if kind in _PLAIN_KINDS:
        return _checked_plain(kind, plain)
    try:
        return _READERS[kind](plain)
    except (KeyError, ValueError, TypeError, ArithmeticError):
        raise CursorSerializationError(f"The checkpoint's value cannot be read as {kind!r}") from None


def _checked_plain(kind: str, plain: Any) -> CursorPart:
    if kind == "float" and type(plain) is int:  # other tools write 3.0 as 3
        return float(plain)
    if _PLAIN.get(type(plain)) != kind:
        raise CursorSerializationError(f"The checkpoint says {kind!r} but holds a {type(plain).__name__}")
    return plain  # type: ignore[no-any-return]


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
