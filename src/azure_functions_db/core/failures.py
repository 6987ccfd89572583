"""What a database driver's error means, told apart by code and never by prose where a code exists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError

# SQLSTATE (PostgreSQL, ODBC); a class of two characters stands for all its members.
_STATES_CONNECTION = ("08", "28", "57P01", "57P02", "57P03", "53300", "3D000", "HYT00", "HYT01", "IM002")
_STATES_TRANSIENT = ("08", "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53", "HYT00")
_STATES_SCHEMA = ("42703", "42P01", "42S02", "42S22", "0A000")

_MYSQL_CONNECTION = {1040, 1044, 1045, 1049, 1129, 1130, 1203, 1698, 2002, 2003, 2005, 2006, 2013, 2026, 2055}
_MYSQL_TRANSIENT = {1040, 1203, 1205, 1213, 2002, 2003, 2006, 2013, 2055}
_MYSQL_SCHEMA = {1054, 1146, 1364}

_SQLITE_CONNECTION = {"SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_AUTH"}
_SQLITE_TRANSIENT = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"}
_SQLITE_SCHEMA = re.compile(r"no such column|no such table|has no column named", re.IGNORECASE)


def is_connection_failure(error: DBAPIError) -> bool:
    """Tell whether the database could not be reached, went away or refused the login."""
    if error.connection_invalidated:
        return True
    return _matches(error, _STATES_CONNECTION, _MYSQL_CONNECTION, _SQLITE_CONNECTION) or _never_connected(error)


def is_transient(error: DBAPIError) -> bool:
    """Tell whether the same read may well succeed in a moment."""
    if error.connection_invalidated or _never_connected(error):
        return not _matches(error, ("28", "3D000"), {1044, 1045, 1049, 1698}, set())
    return _matches(error, _STATES_TRANSIENT, _MYSQL_TRANSIENT, _SQLITE_TRANSIENT)


def is_schema_change(error: DBAPIError) -> bool:
    """Tell whether the statement failed because tables or columns are not as they were."""
    if _matches(error, _STATES_SCHEMA, _MYSQL_SCHEMA, {"SQLITE_SCHEMA"}):
        return True
    return _sqlite_name(error) is not None and bool(_SQLITE_SCHEMA.search(str(error.orig)))


def constraint_of(error: DBAPIError) -> str | None:
    """Return the name of the violated constraint, where the driver tells it."""
    diagnosis = getattr(error.orig, "diag", None)
    if diagnosis is not None:
        return getattr(diagnosis, "constraint_name", None)
    named = re.search(r"(?:CONSTRAINT|for key|CHECK constraint failed:) [`']?(?:\w+\.)?(\w+)", str(error.orig))
    return named[1] if named else None


def code_of(error: DBAPIError) -> str | None:
    """Return the database's own code of the error, for a message."""
    code = _state(error) or _number(error) or _sqlite_name(error)
    return None if code is None else str(code)


def _matches(error: DBAPIError, states: tuple[str, ...], numbers: set[int], sqlite_names: set[str]) -> bool:
    state, name = _state(error), _sqlite_name(error)
    if state is not None:
        return state.startswith(states)
    if name is not None:
        return any(name.startswith(known) for known in sqlite_names)
    return _number(error) in numbers


def _state(error: DBAPIError) -> str | None:
    state = getattr(error.orig, "sqlstate", None)
    if state is None and type(error.orig).__module__.startswith("pyodbc"):
        state = _first_argument(error)
    return state if isinstance(state, str) else None


def _number(error: DBAPIError) -> int | None:
    number = _first_argument(error)
    return number if isinstance(number, int) else None


def _sqlite_name(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlite_errorname", None)


def _first_argument(error: DBAPIError) -> Any:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None


def _never_connected(error: DBAPIError) -> bool:
    # psycopg has no SQLSTATE for a server it never reached; no statement was sent then.
    return error.statement is None and type(error.orig).__name__ == "OperationalError" and _sqlite_name(error) is None
