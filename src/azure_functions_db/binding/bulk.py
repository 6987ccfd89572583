"""Many rows at once, by the fastest way that each driver has.

Every function writes rows of the same columns on a connection whose transaction is the caller's.
"""

from __future__ import annotations

import secrets
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from azure_functions_db.binding.converters import ByType
from azure_functions_db.binding.input_rows import picker
from azure_functions_db.binding.statements import Words, insert, on_conflict, unfit_values, upsert
from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.sql.autocommit import driver_errors
from azure_functions_db.sql.transactions import savepoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Table

    from azure_functions_db.binding.converters import Converter
    from azure_functions_db.binding.input_rows import Names, Values
    from azure_functions_db.binding.statements import Statement
    from azure_functions_db.core.types import Row

# Below this many rows the round trips of COPY cost more than they spare.
_COPY_FROM = 100
# A view, row-level security or a missing right to temporary tables: COPY is refused, INSERT is not.
_NO_COPY = {"0A000", "42809", "42501"}
_STATEMENT_BYTES = 1_000_000
_RETURNING_VALUES = 10_000


def write_rows(connection: Connection, table: Table, names: Names, conflict: Names, rows: list[Row]) -> None:
    """Insert rows, or upsert them where there are conflict columns."""
    dialect = connection.dialect
    statement = upsert(dialect, table, names, conflict, ()) if conflict else insert(dialect, table, names, ())
    with driver_errors(connection), unfit_values():
        ready = _tuples(statement, names, rows)
        match dialect.driver:
            case "psycopg" if len(rows) >= _COPY_FROM and names:
                _copy_or_execute(connection, statement, table, names, conflict, rows)
            case "pymysql" if names:
                _write_long_statements(connection, statement, ready)
            case _:
                _execute(connection, statement, ready)


def write_rows_returning(
    connection: Connection,
    table: Table,
    names: Names,
    conflict: Names,
    rows: list[Row],
    returning: Names,
    take: Callable[[Any], list[Row]],
) -> list[Row]:
    """Write rows in statements of several rows each, and return what the database gives back."""
    dialect = connection.dialect
    one = upsert(dialect, table, names, conflict, returning) if conflict else insert(dialect, table, names, returning)
    size = max(1, _RETURNING_VALUES // len(names)) if names else 1
    written: list[Row] = []
    with driver_errors(connection), unfit_values():
        ready = list(_tuples(one, names, rows))
        for start in range(0, len(ready), size):
            part = ready[start : start + size]
            sql = _repeated(one.sql, Words(dialect), len(names), len(part)) if names else one.sql
            result = connection.exec_driver_sql(sql, tuple(chain.from_iterable(part)))
            written += take(result.cursor)
            result.close()
    return written


def _tuples(statement: Statement, names: Names, rows: list[Row]) -> Iterator[Values]:
    """Return the rows as the driver takes them."""
    picked = map(picker(names), rows)
    converters = [
        (index, convert)
        for index, (name, convert) in enumerate(zip(names, statement.converters, strict=True))
        if convert is not None and _is_needed(convert, name, rows)
    ]

    def converted(values: Values) -> Values:
        ready = list(values)
        for index, convert in converters:
            if ready[index] is not None:
                ready[index] = convert(ready[index])
        return tuple(ready)

    return map(converted, picked) if converters else picked


def _is_needed(convert: Converter, name: str, rows: list[Row]) -> bool:
    """Tell whether a converter has anything to do in this column."""
    return not isinstance(convert, ByType) or not convert.types.isdisjoint(map(type, map(itemgetter(name), rows)))


def _execute(connection: Connection, statement: Statement, rows: Iterator[Values]) -> None:
    cursor: Any = connection.connection.cursor()
    try:
        match connection.dialect.driver:
            case "psycopg" | "pysqlite":
                cursor.executemany(statement.sql, rows)
            case "pyodbc":
                cursor.fast_executemany = _is_microsofts(connection)
                cursor.executemany(statement.sql, list(rows))
            case _:
                cursor.executemany(statement.sql, [statement.arranged(row) for row in rows])
    finally:
        cursor.close()


def _is_microsofts(connection: Connection) -> bool:
    """Tell whether the ODBC driver is Microsoft's own; with FreeTDS, arrays of parameters end the process."""
    raw: Any = connection.connection.dbapi_connection
    return "msodbcsql" in str(raw.getinfo(_ODBC_DRIVER_NAME)).lower()


_ODBC_DRIVER_NAME = 6


def _repeated(sql: str, words: Words, width: int, count: int) -> str:
    """Return the statement of one row as one of several rows."""
    head, values, tail = sql.partition(f"VALUES ({words.placeholders(width)})")
    if not values:
        raise ConfigurationError("returning= does not work for several rows with this dialect")
    groups = ", ".join(f"({words.placeholders(width, start)})" for start in range(0, width * count, width))
    return f"{head}VALUES {groups}{tail}"


# PostgreSQL ------------------------------------------------------------------------------------


def _copy_or_execute(
    connection: Connection, statement: Statement, table: Table, names: Names, conflict: Names, rows: list[Row]
) -> None:
    try:
        with savepoint(connection):
            if conflict:
                _copy_by_detour(connection, table, names, conflict, _tuples(statement, names, rows))
            else:
                _copy(connection, Words(connection.dialect).table(table), names, _tuples(statement, names, rows))
    except connection.dialect.loaded_dbapi.Error as refusal:
        if getattr(refusal, "sqlstate", None) not in _NO_COPY:
            raise
        _execute(connection, statement, _tuples(statement, names, rows))


def _copy(connection: Connection, target: str, names: Names, rows: Iterator[Values]) -> None:
    sql = f"COPY {target} ({Words(connection.dialect).names(names)}) FROM STDIN"
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(_bare(sql)) as copy:
        write = copy.write_row
        for row in rows:
            write(row)


def _copy_by_detour(
    connection: Connection, table: Table, names: Names, conflict: Names, rows: Iterator[Values]
) -> None:
    """Copy into a temporary table, from where one statement upserts all rows."""
    words = Words(connection.dialect)
    detour, columns, target = f"azfdb_{secrets.token_hex(8)}", words.names(names), words.table(table)
    clause = on_conflict(words, names, conflict)
    cursor: Any = connection.connection.cursor()
    with cursor:
        cursor.execute(
            _bare(f"CREATE TEMPORARY TABLE {detour} ON COMMIT DROP AS SELECT {columns} FROM {target} WITH NO DATA")
        )
        _copy(connection, detour, names, rows)
        cursor.execute(_bare(f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {detour} {clause}"))
        cursor.execute(f"DROP TABLE {detour}")


def _bare(sql: str) -> str:
    """Return the text for a call without values, where a percent sign stands for itself."""
    return sql.replace("%%", "%")


# MySQL and MariaDB ------------------------------------------------------------------------------


def _write_long_statements(connection: Connection, statement: Statement, rows: Iterator[Values]) -> None:
    """Send statements of as many rows as the server takes at once."""
    group = f"({', '.join(['%s'] * len(statement.converters))})"
    head, _, tail = _bare(statement.sql).partition(group)
    limit = min(_longest_packet(connection), _STATEMENT_BYTES) - len(head.encode()) - len(tail.encode()) - 1024
    cursor: Any = connection.connection.cursor()
    encoding = cursor.connection.encoding
    with cursor:
        for part in _filled((cursor.mogrify(group, row).encode(encoding, "surrogateescape") for row in rows), limit):
            cursor.execute(head.encode(encoding) + part + tail.encode(encoding))


def _filled(rows: Iterator[bytes], limit: int) -> Iterator[bytes]:
    """Join rows with commas into pieces that are no longer than the limit, unless a row alone is."""
    piece: list[bytes] = []
    size = 0
    for row in rows:
        if piece and size + len(row) > limit:
            yield b",".join(piece)
            piece, size = [], 0
        piece.append(row)
        size += len(row) + 1
    if piece:
        yield b",".join(piece)


def _longest_packet(connection: Connection) -> int:
    longest = connection.info.get("azfdb_longest_packet")
    if longest is None:
        longest = connection.info["azfdb_longest_packet"] = int(
            connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        )
    return longest
