"""PostgreSQL's binary form of values, which psycopg reads in half the time of the text form."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Dialect

    from azure_functions_db.adapter.shape import Header

# By type number: bool, bytea, the integers, text and varchar, double, date, both timestamps, uuid. Read in
# either form these are the same; a real is rounded in its text form, and what psycopg does not know (an
# enum, a domain of an extension) comes out of the binary form as bytes.
_SAME_IN_BOTH = frozenset({16, 17, 20, 21, 23, 25, 1043, 701, 1082, 1114, 1184, 2950})


def is_same_in_binary(dialect: Dialect, header: Header) -> bool:
    """Tell whether every column of a result may be read in either form."""
    return dialect.driver == "psycopg" and _SAME_IN_BOTH.issuperset(header.codes)


@contextmanager
def binary_results(connection: Connection) -> Iterator[None]:
    """Let the connection's statements bring their results in the binary form."""
    driver: Any = connection.connection.dbapi_connection
    usual = driver.cursor_factory
    driver.cursor_factory = _binary_cursor()
    try:
        yield
    finally:
        driver.cursor_factory = usual


@cache
def _binary_cursor() -> type[Any]:
    from psycopg import Cursor
    from psycopg.pq import Format

    class BinaryCursor(Cursor[Any]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.format = Format.BINARY

    return BinaryCursor
