"""Rows that went through JSON or a keyboard, with the types of their columns again."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import CursorSerializationError, SourceConfigurationError
from azure_functions_db.sources.keyset.values import coerced, type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.types import TypeEngine

    from azure_functions_db.core.types import RawRecord


def revived_row(row: Mapping[str, Any], types: Mapping[str, TypeEngine[Any]], *, strict: bool) -> RawRecord:
    """Return the row with each text as a value of its column's type; what does not fit stays, or is refused."""
    return {name: _revived(name, value, types.get(name), strict=strict) for name, value in row.items()}


def _revived(name: str, value: Any, kind: TypeEngine[Any] | None, *, strict: bool) -> Any:
    if not isinstance(value, str) or kind is None:
        return value
    try:
        return _of_type(value, kind)
    except (CursorSerializationError, binascii.Error):
        if strict:
            raise SourceConfigurationError(f"{value!r} is no value of {name}, a {type_name(kind)}") from None
        return value


def _of_type(value: str, kind: TypeEngine[Any]) -> Any:
    from sqlalchemy import types

    if isinstance(kind, types.LargeBinary | types.BINARY | types.VARBINARY):
        return base64.b64decode(value, validate=True)
    return coerced(value, kind)
