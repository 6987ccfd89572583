"""What operations return, as JSON can hold it, and the schema of that."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from azure_functions_db.core import types as known_types
from azure_functions_db.core.secrets import masked
from azure_functions_db.core.serializers import json_safe

HIDDEN = {"hidden": True}
"""The metadata of a field that is not part of the JSON form."""


def jsonable(result: Any) -> Any:
    """Return dataclasses as objects, and every value in its JSON form."""
    return json_safe(_fields(result))


def without_secrets(plain: Any) -> Any:
    """Return a JSON value with the secrets in its texts masked."""
    match plain:
        case str():
            return masked(plain)
        case dict():
            return {name: without_secrets(value) for name, value in plain.items()}
        case list():
            return [without_secrets(value) for value in plain]
        case _:
            return plain


def _fields(result: Any) -> Any:
    if is_dataclass(result) and not isinstance(result, type):
        shown = (field.name for field in fields(result) if not field.metadata.get("hidden"))
        return {name: _fields(getattr(result, name)) for name in shown}
    if isinstance(result, Mapping):
        return {name: _fields(value) for name, value in result.items()}
    if isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray):
        return [_fields(value) for value in result]
    return result


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of what `jsonable` makes of a dataclass: every field is there, others may be added."""
    definitions: dict[str, Any] = {}
    whole = _object_schema(kind, definitions)
    return {"$schema": _DIALECT, **whole, **({"$defs": definitions} if definitions else {})}


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    dt.datetime: {"type": "string", "format": "date-time"},
}


def _object_schema(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    # Names that modules import for checkers only are of core.types or of the standard library.
    hints = get_type_hints(kind, localns={**vars(known_types), "Mapping": Mapping, "Sequence": Sequence, "dt": dt})
    properties = {field.name: _value_schema(hints[field.name], definitions) for field in fields(kind)}
    told = (kind.__doc__ or "").partition("\n")[0]
    return {"type": "object", "description": told, "properties": properties, "required": list(properties)}


def _value_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_dataclass(hint):
        return _reference(hint, definitions)
    inner = get_args(hint)
    match get_origin(hint):
        case origin if origin in {Union, UnionType}:
            return {"anyOf": [_value_schema(each, definitions) for each in inner]}
        case origin if origin is Literal:
            return {"enum": list(inner)}
        case type() as origin if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": _value_schema(inner[1], definitions)}
        case type() as origin if issubclass(origin, Sequence):
            return {"type": "array", "items": _value_schema(inner[0], definitions)}
        case _:
            return {}  # a value of a row, which can be anything


def _reference(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}
        definitions[kind.__name__] = _object_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}
