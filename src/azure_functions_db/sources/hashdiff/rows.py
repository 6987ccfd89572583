"""Rows as a snapshot keeps them for before images: JSON that gives back the same values of the same types."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import CursorSerializationError
from azure_functions_db.core.serializers import deserialize_part, json_safe, serialize_part

if TYPE_CHECKING:
    from azure_functions_db.core.types import RawRecord


def packed_row(row: RawRecord) -> str:
    """Return a row as a text."""
    return json.dumps({name: _packed(value) for name, value in row.items()}, separators=(",", ":"))


def unpacked_row(text: str) -> RawRecord:
    """Return the row of a text."""
    return {name: _unpacked(value) for name, value in json.loads(text).items()}


def _packed(value: Any) -> Any:
    match value:
        case dict() | list() | tuple():
            return {"type": "json", "value": json_safe(value)}
        case dt.timedelta():
            return {"type": "interval", "value": [value.days, value.seconds, value.microseconds]}
        case float() if not math.isfinite(value):
            return {"type": "number", "value": str(value)}
    try:
        return serialize_part(value)
    except CursorSerializationError:
        return json_safe(value)  # no more than JSON knows of it, as in the event's own JSON form


def _unpacked(written: Any) -> Any:
    match written:
        case {"type": "json", "value": value}:
            return value
        case {"type": "interval", "value": [days, seconds, microseconds]}:
            return dt.timedelta(days, seconds, microseconds)
        case {"type": "number", "value": text}:
            return float(text)
        case _:
            return deserialize_part(written)
