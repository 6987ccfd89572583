"""What a database driver's error means, told apart by code and never by prose where a code exists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.secrets import masked

if TYPE_CHECKING:
    from sqlalchemy.exc import SQLAlchemyError

UNDECODABLE = (ValueError, ArithmeticError, RecursionError)
"""What is raised while a value is read that Python cannot hold."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One meaning, in the words of each family of drivers."""

    states: tuple[str, ...] = ()
    """SQLSTATE (PostgreSQL, ODBC); two characters stand for their whole class."""
    numbers: frozenset[int] = frozenset()
    """MySQL and MariaDB."""
    server_numbers: frozenset[int] = frozenset()
    """SQL Server and Azure SQL, and the library below pymssql."""
    names: tuple[str, ...] = ()
    """SQLite; a name stands for its extended forms too."""
    prose: re.Pattern[str] | None = None
    """Where drivers give no code at all."""


# The line is cut, or Azure moves the database to another place.
_GONE = frozenset({64, 233, 10053, 10054, 10060, 20003, 20004, 20006, 20017, 20047, 40197, 40501, 40613})
_LOGIN = _Kind(
    states=("28", "3D000"),
    numbers=frozenset({1044, 1045, 1049, 1698}),
    # libpq has no code for a refused connection.
    server_numbers=frozenset({4060, 18452, 18456, 18486, 18487, 18488}),
    prose=re.compile(
        r'authentication failed|no pg_hba\.conf entry|(?:database|role) ".*" does not exist|Login failed for user'
    ),
)
_UNREACHABLE = _Kind(
    states=("08", "57P01", "57P02", "57P03", "53300", "HYT00", "HYT01", "IM002"),
    numbers=frozenset({1040, 1053, 1129, 1130, 1203, 1927, 2002, 2003, 2005, 2006, 2013, 2026, 2055}),
    server_numbers=_GONE | {20002, 20009},
    names=("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_AUTH"),
    prose=re.compile("Communication link failure|Client unable to establish connection"),
)
_PASSING = _Kind(
    states=("08", "40001", "40P01", "53", "55P03", "57P01", "57P02", "57P03", "HYT00"),
    numbers=frozenset({1020, 1040, 1053, 1203, 1205, 1213, 1927, 2002, 2003, 2006, 2013, 2055}),
    # Deadlocks and lock timeouts, conflicts of snapshots, too many requests.
    server_numbers=_GONE | {1205, 1222, 3960, 3961, 8645, 10928, 10929, 49918, 49919, 49920},
    names=("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"),
    prose=re.compile("Serialization failure|Snapshot isolation transaction|is not currently available"),
)
_SCHEMA = _Kind(
    states=("42703", "42P01", "42S02", "42S22", "0A000"),
    numbers=frozenset({1054, 1146, 1364}),
    server_numbers=frozenset({207, 208, 3961}),
    names=("SQLITE_SCHEMA",),
    prose=re.compile(r"no such column|no such table|has no column named|Invalid (?:object|column) name"),
)
_FORBIDDEN = _Kind(
    states=("42501",),
    numbers=frozenset({1044, 1142, 1143, 1227, 1370}),
    server_numbers=frozenset({229, 230, 262, 297, 300}),
    names=("SQLITE_READONLY", "SQLITE_PERM"),
    prose=re.compile("permission was denied"),
)
NO_FOLDER = "is its folder there? A relative path begins in the working directory"
LOGIN_REFUSED = "the database refuses the login: check user, password and database name"
_CONSTRAINT = (
    re.compile(r"for key '(?:[^'.]+\.)?([^']+)'$"),  # MySQL, MariaDB: unique keys, after the value itself
    re.compile(r"CONSTRAINT `([^`]+)`"),  # MySQL, MariaDB: foreign keys and checks
    re.compile(r"^CHECK constraint failed: (\w+)$"),  # SQLite
    re.compile(r"""constraint ["']([^"']+)["']"""),  # SQL Server
)


def is_connection_failure(error: SQLAlchemyError) -> bool:
    """Tell whether the database could not be reached, went away or refused the login."""
    return _is_gone(error) or _means(error, _UNREACHABLE) or is_login_failure(error)


def is_transient(error: SQLAlchemyError) -> bool:
    """Tell whether the same read may well succeed in a moment."""
    return not is_login_failure(error) and (_is_gone(error) or _means(error, _PASSING))


def is_schema_change(error: Exception) -> bool:
    """Tell whether the statement failed because tables or columns are not as they were."""
    from sqlalchemy.exc import DBAPIError

    return isinstance(error, DBAPIError) and _means(error, _SCHEMA)


def is_forbidden(error: BaseException) -> bool:
    """Tell whether the database answered that this login may not do that."""
    return _means(error, _FORBIDDEN)


def right_missing(error: BaseException) -> str:
    """Say what helps where the database forbids something; SQLite knows no logins, but files."""
    if (_sqlite_name(error) or "").startswith("SQLITE_READONLY"):
        return "the file is read-only here, let this user write it and its folder"
    return "this login lacks a right, GRANT it"


def is_without_file(error: BaseException) -> bool:
    """Tell whether SQLite cannot open its file."""
    return (_sqlite_name(error) or "").startswith("SQLITE_CANTOPEN")


def constraint_of(error: SQLAlchemyError) -> str | None:
    """Return the name of the violated constraint, where the driver tells it."""
    diagnosis = getattr(_original(error), "diag", None)
    if diagnosis is not None:
        return getattr(diagnosis, "constraint_name", None)
    message = _message(error)
    return next((found[1] for pattern in _CONSTRAINT if (found := pattern.search(message))), None)


def code_of(error: SQLAlchemyError) -> str | None:
    """Return the database's own code of the error, for a message."""
    code = server_number(error) or _number(error) or _state(error) or _sqlite_name(error)
    return None if code is None else str(code)


def reason_of(error: SQLAlchemyError) -> str:
    """Return in a few words why the database failed; its own prose may show values."""
    code = code_of(error) or type(error).__name__
    if is_login_failure(error):
        return f"{LOGIN_REFUSED} ({code})"
    if is_without_file(error):
        return f"the database file cannot be opened: {NO_FOLDER} ({code})"
    if is_connection_failure(error):
        return f"the database does not answer ({code})"
    return f"{right_missing(error)} ({code})" if is_forbidden(error) else code


def hide_values(error: BaseException | None) -> None:
    """Mask the words of a driver's error where they are: it travels as the cause of others, into any log."""
    if error is not None:
        error.args = tuple(masked(part) if isinstance(part, str) else part for part in error.args)


def _is_gone(error: SQLAlchemyError) -> bool:
    from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError  # noqa: A004 - SQLAlchemy's name for it

    if isinstance(error, TimeoutError):  # no connection of the pool became free
        return True
    if not isinstance(error, DBAPIError):
        return False
    never_connected = isinstance(error, OperationalError) and error.statement is None and code_of(error) is None
    return error.connection_invalidated or never_connected


def is_login_failure(error: SQLAlchemyError) -> bool:
    """Tell whether the database answered, and did not let this login in."""
    return _means(error, _LOGIN) and getattr(error, "statement", None) is None


def _means(error: BaseException, kind: _Kind) -> bool:
    state, number, name = _state(error), _number(error), _sqlite_name(error)
    if state is not None and state.startswith(kind.states):
        return True
    if name is not None and name.startswith(kind.names):
        return True
    if (server := server_number(error)) is not None:
        return server in kind.server_numbers
    if number is not None:
        return number in kind.numbers
    told_by_code = state is not None or name not in {None, "SQLITE_ERROR"}
    return not told_by_code and kind.prose is not None and bool(kind.prose.search(_message(error)))


def _state(error: BaseException) -> str | None:
    original = _original(error)
    state = getattr(original, "sqlstate", None)
    if state is None and type(original).__module__.startswith("pyodbc"):
        state = _first_argument(error)
    return state if isinstance(state, str) else None


def server_number(error: BaseException) -> int | None:
    """Return SQL Server's own number of an error, where the driver tells it."""
    original = _original(error)
    if type(original).__module__.startswith("pyodbc"):
        told = _ODBC_NUMBER.search(_message(error))
        return None if told is None else int(told[1])
    number = _first_argument(error) if "pymssql" in type(original).__module__ else None
    return number if isinstance(number, int) else None


_ODBC_NUMBER = re.compile(r"\((\d+)\) \(SQL\w+\)")


def _number(error: BaseException) -> int | None:
    number = _first_argument(error)
    return number if isinstance(number, int) else None


def _sqlite_name(error: BaseException) -> str | None:
    return getattr(_original(error), "sqlite_errorname", None)


def _message(error: BaseException) -> str:
    arguments = getattr(_original(error), "args", ())
    return str(arguments[-1]) if arguments else ""


def _first_argument(error: BaseException) -> Any:
    arguments = getattr(_original(error), "args", ())
    return arguments[0] if arguments else None


def _original(error: BaseException) -> BaseException | None:
    return getattr(error, "orig", None)
