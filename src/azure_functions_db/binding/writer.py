"""Writes rows of one table; many at once by the fastest way that each driver has."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from azure_functions_db.binding import statements
from azure_functions_db.binding.conversion import (
    ByType,
    checked_columns,
    checked_conflict,
    checked_conflict_values,
    checked_key,
    checked_key_values,
    checked_known,
    chunked,
    grouped,
    has_unique_key,
    loaded,
    merged,
    picker,
    references_itself,
    row_of,
)
from azure_functions_db.binding.database import Database, translated
from azure_functions_db.binding.statements import Words, insert, on_conflict, unfit_values, upsert
from azure_functions_db.core.errors import ConfigurationError, WriteError
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.reflection import checked_table, table_name
from azure_functions_db.sql.transactions import driver_errors, savepoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from pydantic import BaseModel
    from sqlalchemy import Connection, Table

    from azure_functions_db.binding.conversion import Converter, Names, Values
    from azure_functions_db.binding.statements import Statement
    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Row
    from azure_functions_db.sql.engine import EngineProvider

    Data = Mapping[str, Any] | BaseModel


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
            case "pysqlite" if names:
                _write_together(connection, statement, ready, len(rows))
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


# SQLite -----------------------------------------------------------------------------------------

# What a statement costs beside its rows hardly counts then; of each value the driver makes a copy until it has run.
_TOGETHER = 20


def _write_together(connection: Connection, statement: Statement, rows: Iterator[Values], count: int) -> None:
    """Write several rows with each statement, and what is left one by one."""
    from sqlite3 import SQLITE_LIMIT_VARIABLE_NUMBER

    width = len(statement.converters)
    cursor: Any = connection.connection.cursor()
    together = min(_TOGETHER, cursor.connection.getlimit(SQLITE_LIMIT_VARIABLE_NUMBER) // width)
    values = chain.from_iterable(rows)
    try:
        if together > 1:
            parts = (tuple(islice(values, width * together)) for _ in range(count // together))
            cursor.executemany(_repeated(statement.sql, Words(connection.dialect), width, together), parts)
        cursor.executemany(statement.sql, zip(*[values] * width, strict=True))
    finally:
        cursor.close()


T = TypeVar("T")

_CHUNK = 10_000


class Writer:
    """Writes rows of one table, given as dicts or as Pydantic models.

    Outside a transaction each call is one of its own, and a call of many rows is all or nothing.
    With ``returning=`` a call gives these columns of the written rows back, where the database can.
    """

    def __init__(self, database: Database, table: str | Table, schema: str | None) -> None:
        self._database = database
        self._table = checked_table(table, schema)
        self._name = table_name(table)
        self._schema = schema

    @overload
    def insert(self, *, data: Data) -> None: ...
    @overload
    def insert(self, *, data: Data, returning: Sequence[str]) -> Row: ...
    def insert(self, *, data: Data, returning: Sequence[str] = ()) -> Row | None:
        """Insert one row."""
        row = row_of(data)

        def prepare(table: Table) -> tuple[Statement, list[Any]]:
            checked_columns(table, row)
            back = self._returned(table, returning, "insert")
            return statements.insert(self._dialect, table, tuple(row), back), list(row.values())

        return self._write(row, returning, prepare)

    @overload
    def insert_many(self, *, rows: Iterable[Data]) -> None: ...
    @overload
    def insert_many(self, *, rows: Iterable[Data], returning: Sequence[str]) -> list[Row]: ...
    def insert_many(self, *, rows: Iterable[Data], returning: Sequence[str] = ()) -> list[Row] | None:
        """Insert all rows or none; they need not have the same columns."""
        return self._write_many(rows, (), returning)

    @overload
    def upsert(self, *, data: Data, conflict_columns: Sequence[str]) -> None: ...
    @overload
    def upsert(self, *, data: Data, conflict_columns: Sequence[str], returning: Sequence[str]) -> Row: ...
    def upsert(self, *, data: Data, conflict_columns: Sequence[str], returning: Sequence[str] = ()) -> Row | None:
        """Insert one row, or change the given columns of the one with the same conflict columns."""
        row = row_of(data)

        def prepare(table: Table) -> tuple[Statement, list[Any]]:
            conflict = self._conflict(table, row, conflict_columns)
            back = self._returned(table, returning, "insert")
            return upsert(self._dialect, table, tuple(row), conflict, back), list(row.values())

        return self._write(row, returning, prepare, conflict_columns)

    @overload
    def upsert_many(self, *, rows: Iterable[Data], conflict_columns: Sequence[str]) -> None: ...
    @overload
    def upsert_many(
        self, *, rows: Iterable[Data], conflict_columns: Sequence[str], returning: Sequence[str]
    ) -> list[Row]: ...
    def upsert_many(
        self, *, rows: Iterable[Data], conflict_columns: Sequence[str], returning: Sequence[str] = ()
    ) -> list[Row] | None:
        """Upsert all rows or none; of several with the same conflict columns the last one wins."""
        if isinstance(conflict_columns, str) or not conflict_columns:
            raise ConfigurationError("conflict_columns= must be a list of at least one column")
        return self._write_many(rows, tuple(conflict_columns), returning)

    @overload
    def update(self, *, data: Data, pk: Mapping[str, Any]) -> None: ...
    @overload
    def update(self, *, data: Data, pk: Mapping[str, Any], returning: Sequence[str]) -> Row | None: ...
    def update(self, *, data: Data, pk: Mapping[str, Any], returning: Sequence[str] = ()) -> Row | None:
        """Change columns of the row of a primary key; that there is none is no error."""
        row = row_of(data)
        if not row:
            raise ConfigurationError("update() needs at least one column to change", table=self._name)

        def prepare(table: Table) -> tuple[Statement, list[Any]]:
            checked_columns(table, row)
            key = self._key(table, pk)
            back = self._returned(table, returning, "update")
            statement = statements.update(self._dialect, table, tuple(row), key, back)
            return statement, [*row.values(), *(pk[name] for name in key)]

        return self._write(row, returning, prepare, run=self._database.run_on_one_row)

    @overload
    def delete(self, *, pk: Mapping[str, Any]) -> None: ...
    @overload
    def delete(self, *, pk: Mapping[str, Any], returning: Sequence[str]) -> Row | None: ...
    def delete(self, *, pk: Mapping[str, Any], returning: Sequence[str] = ()) -> Row | None:
        """Delete the row of a primary key; that there is none is no error."""

        def prepare(table: Table) -> tuple[Statement, list[Any]]:
            key = self._key(table, pk)
            back = self._returned(table, returning, "delete")
            return statements.delete(self._dialect, table, key, back), [pk[name] for name in key]

        return self._write({}, returning, prepare, run=self._database.run_on_one_row)

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run work on the SQLAlchemy connection of the open transaction; without one it is a `ConfigurationError`."""
        with translated(WriteError):
            return self._database.in_transaction(work)

    @property
    def _dialect(self) -> Any:
        return self._database.engine.dialect

    def _key(self, table: Table, pk: Mapping[str, Any]) -> Names:
        key = checked_key(table, pk)
        checked_key_values(self._dialect, table, pk)
        return key

    def _conflict(self, table: Table, row: Row, conflict_columns: Sequence[str]) -> Names:
        checked_columns(table, row)
        conflict = checked_conflict(table, conflict_columns)
        checked_conflict_values(self._dialect, table, conflict, merged([row], conflict))
        return conflict

    def _write(
        self,
        row: Row,
        returning: Sequence[str],
        prepare: Callable[[Table], tuple[Statement, list[Any]]],
        conflict: Sequence[str] = (),
        run: Callable[..., list[Row]] | None = None,
    ) -> Row | None:
        def work(table: Table) -> list[Row]:
            statement, values = prepare(table)
            return (run or self._database.run)(statement, values, self._taker(table, returning))

        with translated(WriteError, self._name):
            self._look_at_table(row, conflict)
            written = self._database.with_table(self._table, self._schema, work)
        return written[0] if written else None

    def _look_at_table(self, columns: Iterable[str], conflict: Sequence[str]) -> None:
        """Read the table's description, and read it again where it lacks a column or the key of an upsert."""
        table = self._database.table(self._table, self._schema, columns)
        if conflict and not has_unique_key(table, conflict):
            self._database.refreshed(table)

    def _write_many(self, rows: Iterable[Data], conflict: Names, returning: Sequence[str]) -> list[Row] | None:
        chunks = chunked(rows, _CHUNK)
        written: list[Row] = []
        first = next(chunks, None)
        if first is None:
            return written if returning else None
        with translated(WriteError, self._name):
            # Read before the transaction holds a connection, lest a pool of one waits for itself.
            self._look_at_table(first[0], conflict)
            with self._database.atomic() as connection:
                for chunk in chain([first], chunks):
                    written += self._write_chunk(connection, chunk, conflict, returning)
        return written if returning else None

    def _write_chunk(
        self, connection: Connection, chunk: list[Row], conflict: Names, returning: Sequence[str]
    ) -> list[Row]:
        table = self._database.table(self._table, self._schema, conflict)
        if conflict:
            checked_conflict(table, conflict)
            chunk = merged(chunk, conflict)
            checked_conflict_values(self._dialect, table, conflict, chunk)
        written: list[Row] = []
        for names, group in grouped(chunk, keep_order=references_itself(table)):
            table = self._database.table(self._table, self._schema, names)
            checked_columns(table, names)
            back = self._returned(table, returning, "insert")
            if back:
                take = self._taker(table, back)
                written += write_rows_returning(connection, table, names, conflict, group, back, take)
            else:
                write_rows(connection, table, names, conflict, group)
        return written

    def _returned(self, table: Table, returning: Sequence[str], action: str) -> Names:
        if isinstance(returning, str):
            raise ConfigurationError("returning= must be a list of columns")
        if not returning:
            return ()
        checked_known(table, returning)
        if not getattr(self._dialect, f"{action}_returning") or self._dialect.name in {"mssql", "oracle"}:
            raise ConfigurationError(f"returning= does not work for {action} with {self._dialect.name}")
        return tuple(returning)

    def _taker(self, table: Table, returning: Sequence[str]) -> Callable[[Any], list[Row]]:
        if not returning:
            return _nothing
        dialect = self._dialect
        return lambda cursor: loaded(cursor, cursor.fetchall(), table, dialect)


class DbWriter(Writer):
    """A writer of its own, for one invocation and one thread; its connections come from a pool that all share."""

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        super().__init__(Database(engine_getter(url, db_config, engine_provider), confined=True), table, schema)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Let all calls inside share one transaction: kept at the end, undone on an exception."""
        with translated(WriteError, self._name):
            self._database.begin()
        try:
            yield self
        except BaseException:
            self._database.end(keep=False)
            raise
        with translated(WriteError, self._name):
            self._database.end(keep=True)

    def close(self) -> None:
        """Roll back a transaction that is still open; the pool stays."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _nothing(_cursor: Any) -> list[Row]:
    return []
