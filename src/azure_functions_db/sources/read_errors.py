"""Turns what goes wrong underneath a source into the errors that a poller knows."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from azure_functions_db.core.errors import (
    Code,
    ConfigurationError,
    CursorSerializationError,
    DbConnectionError,
    FetchError,
    PollerError,
    SourceConfigurationError,
)
from azure_functions_db.sql.failures import (
    LOGIN_REFUSED,
    NO_FOLDER,
    code_of,
    is_connection_failure,
    is_forbidden,
    is_login_failure,
    is_schema_change,
    is_transient,
    is_without_file,
    right_missing,
    server_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.exc import DBAPIError

# Syntax errors, unknown names and missing rights: trying again changes nothing.
_MYSQL_DEFINITION = {1052, 1054, 1064, 1109, 1142, 1143, 1146, 1248, 1305}
_SQL_SERVER_DEFINITION = {102, 105, 156, 195, 207, 208, 229, 230, 297, 300, 4104, 22104, 22105}
_DUCKDB_DEFINITION = {"BinderException", "CatalogException", "ParserException", "PermissionException"}
_SQLITE_DEFINITION = re.compile(
    r"syntax error|no such|unknown database|unrecognized token|incomplete input|ambiguous column", re.IGNORECASE
)


# An operator or a cast that is missing because a column has got another type.
_OTHER_TYPE = {"42883", "42804", "42846"}


def may_be_migration(error: DBAPIError) -> bool:
    """Tell whether a statement may have failed because the table is another one than it was made for."""
    return is_schema_change(error) or getattr(error.orig, "sqlstate", None) in _OTHER_TYPE


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Raise `SourceConfigurationError` for a wrong definition and `FetchError` for a failed read."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each is raised, as itself or as what a poller knows
        raise_read_error(source, error)


def raise_read_error(source: str, error: Exception) -> NoReturn:
    """Raise what a poller knows in place of what was raised."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    match error:
        case PollerError():
            raise error
        case ConfigurationError():
            raise SourceConfigurationError.of(error, source) from None
        case DbConnectionError():
            raise FetchError(f"Source {source!r}: {error}", source=source, transient=True) from error
        case CursorSerializationError():
            raise FetchError(f"Source {source!r}: {error}", source=source) from error
        case DBAPIError():
            raise _translated(source, error) from error
        case SQLAlchemyError():
            raise FetchError(f"Source {source!r} cannot be read: {error}", source=source) from error
        case OverflowError():  # SQLite's driver raises it as it is
            raise FetchError(
                f"Source {source!r}: a value is larger than the database can hold: {error}", source=source
            ) from error
        case _ if type(error).__module__.startswith("pymssql"):
            # A rollback that fails raises what is none of the driver's own errors, so that SQLAlchemy lets it pass.
            reason = type(error).__name__
            raise FetchError(f"Source {source!r} cannot be read: {reason}", source=source, transient=True) from error
        case _:
            raise error


def _translated(source: str, error: DBAPIError) -> PollerError:
    reason = _reason(error)
    if is_login_failure(error):
        return FetchError(f"Source {source!r}: {LOGIN_REFUSED}: {reason}", source=source, code=Code.LOGIN_REFUSED)
    if is_forbidden(error):
        return SourceConfigurationError(
            f"Source {source!r}: {right_missing(error)}: {reason}", source=source, code=Code.RIGHT_MISSING
        )
    if _is_definition_fault(error):
        return SourceConfigurationError(f"Source {source!r} does not fit its database: {reason}", source=source)
    transient = is_transient(error)
    if is_connection_failure(error):
        return FetchError(
            f"Source {source!r}: the database cannot be reached: {reason}",
            source=source,
            transient=transient,
            code=Code.DATABASE_UNREACHABLE,
        )
    return FetchError(f"Source {source!r} cannot be read: {reason}", source=source, transient=transient)


def _reason(error: DBAPIError) -> str:
    code = code_of(error)
    message = " ".join(str(error.orig).split())
    told = message if code is None or code in message else f"{message} ({code})"
    return f"{told}: {NO_FOLDER}" if is_without_file(error) else told


def _is_definition_fault(error: DBAPIError) -> bool:
    cause = error.orig
    number = cause.args[0] if cause is not None and cause.args else None
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):  # to MySQL, a name that several tables have violates a constraint
        return state.startswith("42") or number in _MYSQL_DEFINITION
    if getattr(cause, "sqlite_errorname", None):
        return bool(_SQLITE_DEFINITION.search(str(cause)))
    if type(cause).__name__ in _DUCKDB_DEFINITION:
        return True
    if (server := server_number(error)) is not None:
        return server in _SQL_SERVER_DEFINITION
    return number in _MYSQL_DEFINITION or is_schema_change(error)
