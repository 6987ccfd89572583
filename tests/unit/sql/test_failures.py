"""The errors of a driver whose server cannot be had here; the others are tested against real ones."""

from __future__ import annotations

from types import new_class
from typing import Any

import pytest
from sqlalchemy.exc import ArgumentError, DBAPIError, ProgrammingError

from azure_functions_db.sql.failures import (
    code_of,
    constraint_of,
    is_connection_failure,
    is_schema_change,
    is_transient,
)


def pyodbc_error(state: str, message: str, statement: str | None = "SELECT 1") -> DBAPIError:
    kind: Any = new_class("Error", (Exception,), exec_body=lambda names: names.update(__module__="pyodbc"))
    return ProgrammingError(statement, None, kind(state, f"[{state}] {message}"))


@pytest.mark.parametrize(
    ("error", "meanings"),
    [
        (pyodbc_error("28000", "Login failed for user 'sa'. (18456)", None), (True, False, False)),
        (pyodbc_error("08S01", "TCP Provider: Error code 0x68"), (True, True, False)),
        (pyodbc_error("HYT00", "Login timeout expired", None), (True, True, False)),
        (pyodbc_error("40001", "chosen as the deadlock victim. Rerun the transaction. (1205)"), (False, True, False)),
        (pyodbc_error("42S02", "Invalid object name 'orders'. (208)"), (False, False, True)),
        (pyodbc_error("42S22", "Invalid column name 'total'. (207)"), (False, False, True)),
        (pyodbc_error("42000", "Incorrect syntax near 'SELEC'. (102)"), (False, False, False)),
    ],
    ids=lambda value: code_of(value) if isinstance(value, DBAPIError) else "",
)
def test_odbc_errors_are_told_apart_by_their_state(error: DBAPIError, meanings: tuple[bool, bool, bool]) -> None:
    assert (is_connection_failure(error), is_transient(error), is_schema_change(error)) == meanings


@pytest.mark.parametrize(
    ("message", "constraint"),
    [
        ("Violation of UNIQUE KEY constraint 'UQ_orders'. The duplicate key value is (constraint 'x').", "UQ_orders"),
        ('The INSERT statement conflicted with the FOREIGN KEY constraint "FK_orders".', "FK_orders"),
        ("Cannot insert the value NULL into column 'total'.", None),
    ],
)
def test_sql_server_names_its_constraints(message: str, constraint: str | None) -> None:
    assert constraint_of(pyodbc_error("23000", message)) == constraint


def test_an_error_without_a_driver_behind_it_is_none_of_these() -> None:
    error = ArgumentError("misused")
    assert (is_connection_failure(error), is_transient(error), is_schema_change(error)) == (False, False, False)
    assert (code_of(error), constraint_of(error)) == (None, None)
