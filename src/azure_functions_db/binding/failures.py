"""The one place where errors of databases become errors of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from azure_functions_db.core.errors import (
    DbConnectionError,
    QueryConnectionError,
    QueryError,
    WriteConnectionError,
    WriteError,
)
from azure_functions_db.core.secrets import masked
from azure_functions_db.sql.failures import code_of, constraint_of, is_connection_failure

if TYPE_CHECKING:
    from sqlalchemy.exc import SQLAlchemyError


class translated:  # noqa: N801 - used as a statement
    """Raises what goes wrong inside as an error of the given kind; a lost connection is one of both kinds."""

    def __init__(self, kind: type[QueryError | WriteError], table: str | None = None) -> None:
        self._kind = kind
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        from sqlalchemy.exc import SQLAlchemyError

        if isinstance(error, SQLAlchemyError):
            raise _translation(error, self._kind, self._table) from error
        if type(error) is DbConnectionError:  # there was no token to log in with
            raise _lost(self._kind)(str(error), table=self._table) from error


def _lost(kind: type[QueryError | WriteError]) -> type[QueryConnectionError | WriteConnectionError]:
    return QueryConnectionError if issubclass(kind, QueryError) else WriteConnectionError


def _translation(
    cause: SQLAlchemyError, kind: type[QueryError | WriteError], table: str | None
) -> QueryError | WriteError:
    if is_connection_failure(cause):
        return _lost(kind)(f"The database cannot be reached: {_reason(cause)}", table=table)
    action = "Reading" if issubclass(kind, QueryError) else "Writing"
    place = f" {table!r}" if table else ""
    return kind(f"{action}{place} failed: {_reason(cause)}", table=table, constraint=constraint_of(cause))


def _reason(cause: SQLAlchemyError) -> str:
    """Say what happened without repeating a value of a row, which drivers like to quote."""
    original = getattr(cause, "orig", None) or cause
    constraint = constraint_of(cause)
    parts = [
        type(original).__name__,
        None if constraint is None else f"constraint {constraint!r}",
        code_of(cause),
        _safe_text(cause),
    ]
    return ", ".join(part for part in parts if part)


def _safe_text(cause: SQLAlchemyError) -> str | None:
    from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

    if not isinstance(cause, DBAPIError):
        return None if hasattr(cause, "orig") else masked(str(cause))
    diagnosis = getattr(cause.orig, "diag", None)
    is_about_the_statement = isinstance(cause, OperationalError | ProgrammingError)
    # PyMySQL writes the values into the statement, and MySQL quotes the statement.
    if not is_about_the_statement or code_of(cause) == "1064" or cause.orig is None:
        return None
    text = getattr(diagnosis, "message_primary", None) or str(cause.orig.args[-1] if cause.orig.args else "")
    return masked(text.strip())
