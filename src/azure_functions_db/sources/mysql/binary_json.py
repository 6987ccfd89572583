"""MySQL's binary form of JSON: offsets into one block of bytes, so that a part can be found without reading all."""

from __future__ import annotations

import base64
import struct
from decimal import Decimal
from typing import Any

from azure_functions_db.sources.mysql import values

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_LITERALS = (None, True, False)
_NUMBERS = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
    _DOUBLE: struct.Struct("<d"),
}


def document(data: bytes) -> Any:
    """Return the value of a JSON column; no bytes at all are a null."""
    return _value(data[0], data, 1) if data else None


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind <= _LARGE_ARRAY:
        return _container(data, at, is_object=kind <= _LARGE_OBJECT, size=4 if kind in {1, 3} else 2)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack_from(data, at)[0]
    if kind == _STRING:
        length, start = _length(data, at)
        return data[start : start + length].decode()
    if kind == _OPAQUE:
        length, start = _length(data, at + 1)
        return _opaque(data[at], data[start : start + length])
    raise ValueError(f"JSON has no type {kind}")


def _container(data: bytes, base: int, *, is_object: bool, size: int) -> Any:
    count = int.from_bytes(data[base : base + size], "little")
    at = base + 2 * size
    if at + count * (size + 1) > len(data):
        raise ValueError("a JSON document is cut short")
    keys: list[str] = []
    if is_object:
        for entry in range(at, at + count * (size + 2), size + 2):
            start = base + int.from_bytes(data[entry : entry + size], "little")
            length = int.from_bytes(data[entry + size : entry + size + 2], "little")
            keys.append(data[start : start + length].decode())
        at += count * (size + 2)
    items = [_item(data, base, entry, size) for entry in range(at, at + count * (size + 1), size + 1)]
    return dict(zip(keys, items, strict=True)) if is_object else items


def _item(data: bytes, base: int, entry: int, size: int) -> Any:
    kind = data[entry]
    if kind in {_LITERAL, _INT16, _UINT16} or (size == 4 and kind in {_INT32, _UINT32}):
        return _value(kind, data, entry + 1)
    start = base + int.from_bytes(data[entry + 1 : entry + 1 + size], "little")
    if start <= entry:
        raise ValueError("a JSON document points back into itself")
    return _value(kind, data, start)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of seven bits a byte, the lowest first, and where its value begins."""
    length = shift = 0
    while True:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return length, at


def _opaque(kind: int, raw: bytes) -> Any:
    """Return a value that JSON itself does not know as the server writes it: decimals as numbers, times as texts."""
    match kind:
        case values.Kind.NEWDECIMAL:
            number: Decimal = values.decimal(raw[0], raw[1])(raw, 2)[0]
            return float(number) if raw[1] else int(number)
        case values.Kind.DATE:
            return _moment(raw)[:10]
        case values.Kind.DATETIME | values.Kind.TIMESTAMP:
            return _moment(raw)
        case values.Kind.TIME:
            return _time(raw)
    return f"base64:type{kind}:{base64.b64encode(raw).decode()}"


def _moment(raw: bytes) -> str:
    packed = int.from_bytes(raw, "little", signed=True)
    whole, micros = packed >> 24, packed & 0xFFFFFF
    year, month = divmod(whole >> 22, 13)
    day, hour, minute, second = whole >> 17 & 31, whole >> 12 & 31, whole >> 6 & 63, whole & 63
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"


def _time(raw: bytes) -> str:
    packed = int.from_bytes(raw, "little", signed=True)
    whole, micros = abs(packed) >> 24, abs(packed) & 0xFFFFFF
    sign = "-" if packed < 0 else ""
    return f"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{micros:06}"
