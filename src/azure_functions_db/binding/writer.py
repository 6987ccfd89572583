"""Writes rows of one table."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from azure_functions_db.binding import statements
from azure_functions_db.binding.bulk import write_rows, write_rows_returning
from azure_functions_db.binding.converters import loaded
from azure_functions_db.binding.database import Database, translated
from azure_functions_db.binding.input_rows import (
    checked_columns,
    checked_conflict,
    checked_conflict_values,
    checked_key,
    checked_key_values,
    checked_known,
    chunked,
    grouped,
    has_unique_key,
    merged,
    references_itself,
    row_of,
)
from azure_functions_db.binding.statements import upsert
from azure_functions_db.core.errors import ConfigurationError, WriteError
from azure_functions_db.sql.engine import engine_getter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from pydantic import BaseModel
    from sqlalchemy import Connection, Table

    from azure_functions_db.binding.input_rows import Names
    from azure_functions_db.binding.statements import Statement
    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Row
    from azure_functions_db.sql.engine import EngineProvider

    Data = Mapping[str, Any] | BaseModel

T = TypeVar("T")

_CHUNK = 10_000


class Writer:
    """Writes rows of one table, given as dicts or as Pydantic models.

    Outside a transaction each call is one of its own, and a call of many rows is all or nothing.
    With ``returning=`` a call gives these columns of the written rows back, where the database can.
    """

    def __init__(self, database: Database, table: str, schema: str | None) -> None:
        self._database = database
        self._table = table
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
            raise ConfigurationError("update() needs at least one column to change", table=self._table)

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

        with translated(WriteError, self._table):
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
        with translated(WriteError, self._table):
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
        table: str,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        super().__init__(Database(engine_getter(url, db_config, engine_provider), confined=True), table, schema)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Let all calls inside share one transaction: kept at the end, undone on an exception."""
        with translated(WriteError, self._table):
            self._database.begin()
        try:
            yield self
        except BaseException:
            self._database.end(keep=False)
            raise
        with translated(WriteError, self._table):
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
