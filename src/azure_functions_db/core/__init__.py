"""What every other part stands on; knows nobody else in the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db._lazy import lazy_names

if TYPE_CHECKING:
    from azure_functions_db.core.config import DbConfig, resolve_env_vars
    from azure_functions_db.core.engine import EngineProvider
    from azure_functions_db.core.errors import (
        ConfigurationError,
        CursorSerializationError,
        DbConnectionError,
        DbError,
        NotFoundError,
        QueryError,
        WriteError,
    )
    from azure_functions_db.core.serializers import parse_checkpoint_cursor, serialize_cursor_part
    from azure_functions_db.core.types import (
        CursorPart,
        CursorValue,
        JsonScalar,
        JsonValue,
        RawRecord,
        Row,
        RowDict,
        SourceDescriptor,
    )

__all__ = [
    "ConfigurationError",
    "CursorPart",
    "CursorSerializationError",
    "CursorValue",
    "DbConfig",
    "DbConnectionError",
    "DbError",
    "EngineProvider",
    "JsonScalar",
    "JsonValue",
    "NotFoundError",
    "QueryError",
    "RawRecord",
    "Row",
    "RowDict",
    "SourceDescriptor",
    "WriteError",
    "parse_checkpoint_cursor",
    "resolve_env_vars",
    "serialize_cursor_part",
]

if not TYPE_CHECKING:  # so that a checker notices a name that does not exist
    __getattr__ = lazy_names(
        __name__,
        {
            "ConfigurationError": "errors",
            "CursorPart": "types",
            "CursorSerializationError": "errors",
            "CursorValue": "types",
            "DbConfig": "config",
            "DbConnectionError": "errors",
            "DbError": "errors",
            "EngineProvider": "engine",
            "JsonScalar": "types",
            "JsonValue": "types",
            "NotFoundError": "errors",
            "QueryError": "errors",
            "RawRecord": "types",
            "Row": "types",
            "RowDict": "types",
            "SourceDescriptor": "types",
            "WriteError": "errors",
            "parse_checkpoint_cursor": "serializers",
            "resolve_env_vars": "config",
            "serialize_cursor_part": "serializers",
        },
    )


def __dir__() -> list[str]:
    return __all__
