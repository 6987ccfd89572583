"""The condition "after this position" in the form that each database turns into an index range.

PostgreSQL, SQLite and DuckDB compare rows, ``(c, p) > (:c, :p)``, and start in the index there. MySQL
and MariaDB see no range in that, SQL Server and Oracle do not know it; they get it spelled out, led by
``c >= :c`` so that the range has a lower end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement

_COMPARE_ROWS = {"postgresql", "sqlite", "duckdb"}


def after(
    columns: Sequence[ColumnElement[Any]], values: Sequence[ColumnElement[Any]], dialect: str
) -> ColumnElement[bool]:
    """Return the condition that a row comes after the position in the order of the columns."""
    from sqlalchemy import and_, tuple_

    if len(columns) == 1:
        return columns[0] > values[0]
    if dialect in _COMPARE_ROWS:
        return tuple_(*columns) > tuple_(*values)
    return and_(columns[0] >= values[0], _spelled(columns, values))


def _spelled(columns: Sequence[ColumnElement[Any]], values: Sequence[ColumnElement[Any]]) -> ColumnElement[bool]:
    from sqlalchemy import and_, or_

    first = columns[0] > values[0]
    if len(columns) == 1:
        return first
    return or_(first, and_(columns[0] == values[0], _spelled(columns[1:], values[1:])))
