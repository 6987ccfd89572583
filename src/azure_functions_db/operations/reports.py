"""What operations return, as JSON can hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

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
