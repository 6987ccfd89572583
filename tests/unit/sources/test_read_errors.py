"""What a poller gets to know of whatever goes wrong underneath a source."""

from __future__ import annotations

import sqlite3
from types import new_class
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, ProgrammingError

from azure_functions_db.core.errors import (
    Code,
    ConfigurationError,
    CursorSerializationError,
    DbConnectionError,
    FetchError,
    LostLeaseError,
    PollerError,
    SourceConfigurationError,
)
from azure_functions_db.sources.read_errors import may_be_migration, reading


def raised_for(error: Exception) -> Any:
    """Return what is raised in the place of an error."""
    with pytest.raises(Exception) as caught, reading("orders"):
        raise error
    return caught.value


def of_module(module: str, *arguments: Any, name: str = "Error") -> Exception:
    """Return an error as a driver raises it that may not be installed."""
    kind: Any = new_class(name, (Exception,), exec_body=lambda names: names.update(__module__=module))
    error: Exception = kind(*arguments)
    return error


def wrapped(original: BaseException, statement: str | None = "SELECT 1") -> DBAPIError:
    return ProgrammingError(statement, None, original)


def of_sqlite(statement: str, url: str = "sqlite://") -> DBAPIError:
    """Return what SQLite really raises for a statement."""
    with pytest.raises(DBAPIError) as caught, create_engine(url).connect() as connection:
        connection.execute(text(statement))
    return caught.value


def test_what_a_poller_knows_is_raised_as_it_is() -> None:
    for known in (FetchError("failed"), SourceConfigurationError("wrong"), LostLeaseError("lost")):
        assert raised_for(known) is known


def test_a_wrong_setting_is_a_wrong_definition() -> None:
    error = raised_for(ConfigurationError("no such setting"))
    assert isinstance(error, SourceConfigurationError)
    assert error.source == "orders"


def test_a_database_that_does_not_answer_may_answer_in_a_moment() -> None:
    error = raised_for(DbConnectionError("gone"))
    assert isinstance(error, FetchError)
    assert (error.source, error.transient, str(error)) == ("orders", True, "Source 'orders': gone")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CursorSerializationError("no cursor"), "Source 'orders': no cursor"),
        (ArgumentError("misused"), "Source 'orders' cannot be read: misused"),
        (OverflowError("too large"), "a value is larger than the database can hold: too large"),
    ],
)
def test_what_another_try_does_not_mend_is_said_so(error: Exception, words: str) -> None:
    told = raised_for(error)
    assert isinstance(told, FetchError)
    assert (told.source, told.transient, told.__cause__) == ("orders", False, error)
    assert words in str(told)


def test_a_rollback_of_pymssql_that_fails_may_be_tried_again() -> None:
    told = raised_for(of_module("pymssql._mssql", "dead", name="MSSQLDriverException"))
    assert isinstance(told, FetchError)
    assert (told.source, told.transient) == ("orders", True)
    assert "MSSQLDriverException" in str(told)


def test_a_mistake_of_ours_stays_what_it_is() -> None:
    mistake = RuntimeError("a mistake")
    assert raised_for(mistake) is mistake


MISSING = psycopg.errors.UndefinedColumn("column does not exist")
DEFINITIONS = [
    wrapped(psycopg.errors.SyntaxError("syntax")),
    wrapped(MISSING),
    wrapped(pymysql.err.ProgrammingError(1064, "syntax")),
    wrapped(pymysql.err.OperationalError(1054, "Unknown column")),
    wrapped(pymysql.err.OperationalError(1054, "Unknown column", sqlstate="42S22")),
    wrapped(pymysql.err.IntegrityError(1052, "Column 'id' is ambiguous", sqlstate="23000")),
    wrapped(of_module("duckdb", "no", name="BinderException")),
    wrapped(of_module("pymssql.exceptions", 102, b"syntax")),
    wrapped(of_module("mssql_python.exceptions", "Invalid column name 'total'")),
]
FAILURES = [
    wrapped(psycopg.errors.DivisionByZero("division by zero")),
    wrapped(pymysql.err.OperationalError(1365, "Division by 0")),
    wrapped(pymysql.err.OperationalError(1365, "Division by 0", sqlstate="22012")),
    wrapped(pymysql.err.OperationalError()),
    wrapped(of_module("duckdb", "no", name="ConversionException")),
    wrapped(of_module("pymssql.exceptions", 8134, b"Divide by zero")),
    wrapped(of_module("mssql_python.exceptions", "Divide by zero")),
]


@pytest.mark.parametrize("error", DEFINITIONS, ids=lambda error: type(error.orig).__module__)
def test_a_statement_that_can_never_work_is_a_wrong_definition(error: DBAPIError) -> None:
    told = raised_for(error)
    assert isinstance(told, SourceConfigurationError)
    assert (told.source, told.__cause__) == ("orders", error)
    assert "does not fit its database" in str(told)
    assert str(told).count("1064") <= 1, "a code that is in the words is not told again"


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error.orig).__module__)
def test_a_read_that_fails_for_its_values_is_a_failed_read(error: DBAPIError) -> None:
    told = raised_for(error)
    assert isinstance(told, FetchError)
    assert (told.source, told.transient, told.code) == ("orders", False, FetchError("").code)
    assert "cannot be read" in str(told)


def test_sqlite_tells_a_wrong_definition_by_its_words() -> None:
    assert isinstance(raised_for(of_sqlite("SELEC 1")), SourceConfigurationError)
    assert isinstance(raised_for(of_sqlite("SELECT nothing")), SourceConfigurationError)
    told = raised_for(of_sqlite("SELECT abs(-9223372036854775808)"))
    assert isinstance(told, FetchError)
    assert "integer overflow (SQLITE_ERROR)" in str(told), "the code is told where the words do not"


def test_a_file_that_is_not_there_is_told_with_what_helps() -> None:
    told = raised_for(of_sqlite("SELECT 1", "sqlite:///no/such/folder/rows.db"))
    assert isinstance(told, FetchError)
    assert told.code == Code.DATABASE_UNREACHABLE
    assert "is its folder there?" in str(told)
    assert "folder" not in str(raised_for(of_sqlite("SELEC 1")))


def test_a_refused_login_a_missing_right_and_a_server_that_is_gone_have_their_codes() -> None:
    refused = raised_for(wrapped(pymysql.err.OperationalError(1045, "Access denied"), None))
    assert (type(refused), refused.code, refused.transient) == (FetchError, Code.LOGIN_REFUSED, False)
    forbidden = raised_for(wrapped(psycopg.errors.InsufficientPrivilege("permission denied")))
    assert (type(forbidden), forbidden.code) == (SourceConfigurationError, Code.RIGHT_MISSING)
    forbidden = raised_for(wrapped(of_module("mssql_python.exceptions", "The SELECT permission was denied")))
    assert (type(forbidden), forbidden.code) == (SourceConfigurationError, Code.RIGHT_MISSING)
    gone = raised_for(OperationalError("SELECT 1", None, pymysql.err.OperationalError(2013, "Lost connection")))
    assert (type(gone), gone.code, gone.transient) == (FetchError, Code.DATABASE_UNREACHABLE, True)
    busy = raised_for(OperationalError("SELECT 1", None, pymysql.err.OperationalError(1213, "Deadlock found")))
    assert (type(busy), busy.transient) == (FetchError, True)
    assert all(isinstance(error, PollerError) for error in (refused, forbidden, gone, busy))


def test_a_column_of_another_type_may_be_a_migration_and_wrong_words_are_none() -> None:
    assert may_be_migration(wrapped(MISSING))
    assert may_be_migration(wrapped(psycopg.errors.UndefinedFunction("operator does not exist")))
    assert not may_be_migration(wrapped(psycopg.errors.SyntaxError("syntax")))
    assert not may_be_migration(wrapped(sqlite3.OperationalError("locked")))
