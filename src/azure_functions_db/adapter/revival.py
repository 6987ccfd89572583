"""Rows that went through JSON, with the types of their columns again."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from azure_functions_db.adapter.values import coerced
from azure_functions_db.core.errors import CursorSerializationError

if TYPE_CHECKING:
    from sqlalchemy.types import TypeEngine


def revived_value(value: Any, kind: TypeEngine[Any] | None) -> Any:
    """Return a JSON value as the column would have given it; what does not fit stays as it is."""
    from sqlalchemy import types

    if not isinstance(value, str) or kind is None:
        return value
    try:
        if isinstance(kind, types.LargeBinary | types.BINARY | types.VARBINARY):
            return base64.b64decode(value, validate=True)
        return coerced(value, kind)
    except (CursorSerializationError, binascii.Error):
        return value
