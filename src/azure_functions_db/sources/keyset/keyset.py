"""The condition "after this position" in the form that each database turns into an index range.

PostgreSQL, SQLite and DuckDB compare rows, ``(c, p) > (:c, :p)``, and start in the index there. MySQL
and MariaDB see no range in that, SQL Server and Oracle do not know it; they get it spelled out, led by
``c >= :c`` so that the range has a lower end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import ColumnElement

_COMPARE_ROWS = {"postgresql", "sqlite", "duckdb"}
_NULLS_LAST = {"postgresql", "duckdb", "oracle"}


def after(
    columns: Sequence[ColumnElement[Any]],
    values: Sequence[ColumnElement[Any]],
    dialect: str,
    nullable: Collection[ColumnElement[Any]] = (),
) -> ColumnElement[bool]:
    """Return the condition that a row comes after the position in the order of the columns.

    Those that are ``nullable`` are spelled out as well: a comparison of rows that meets a NULL is not true.
    """
    from sqlalchemy import and_, tuple_

    if len(columns) == 1:
        return columns[0] > values[0]
    if dialect in _COMPARE_ROWS and not nullable:
        return tuple_(*columns) > tuple_(*values)
    may_be_null = [any(column is other for other in nullable) for column in columns]
    pairs = list(zip(columns, values, may_be_null, strict=True))
    return and_(columns[0] >= values[0], _spelled(pairs, nulls_last=dialect in _NULLS_LAST))


_Pair = tuple["ColumnElement[Any]", "ColumnElement[Any]", bool]


def _spelled(pairs: Sequence[_Pair], *, nulls_last: bool) -> ColumnElement[bool]:
    from sqlalchemy import and_, or_

    first, *others = pairs
    higher = _higher(*first, nulls_last=nulls_last)
    if not others:
        return higher
    return or_(higher, and_(_same(*first), _spelled(others, nulls_last=nulls_last)))


def _higher(
    column: ColumnElement[Any], value: ColumnElement[Any], may_be_null: bool, *, nulls_last: bool
) -> ColumnElement[bool]:
    from sqlalchemy import and_, or_

    higher = column > value
    if not may_be_null:
        return higher
    lower, upper = (value, column) if nulls_last else (column, value)
    return or_(higher, and_(upper.is_(None), lower.is_not(None)))


def _same(column: ColumnElement[Any], value: ColumnElement[Any], may_be_null: bool) -> ColumnElement[bool]:
    return column.is_not_distinct_from(value) if may_be_null else column == value
