"""Reads rows of any database that SQLAlchemy knows."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from azure_functions_db.binding.conversion import as_model, checked_key, checked_key_values, dicts, loaded, names_of
from azure_functions_db.binding.database import Database, translated
from azure_functions_db.binding.statements import plans, select_by_key, unfit_values, user_statement
from azure_functions_db.core.errors import ConfigurationError, QueryError
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.reflection import checked_table, table_name
from azure_functions_db.sql.transactions import undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from pydantic import BaseModel
    from sqlalchemy import Table

    from azure_functions_db.binding.statements import UserStatement
    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Row
    from azure_functions_db.sql.engine import EngineProvider

    M = TypeVar("M", bound=BaseModel)

T = TypeVar("T")


class Reader:
    """Reads rows: of one table by key, or by any statement.

    Outside a transaction each call is one of its own. A missing row is None; a failure is a
    `QueryError`, which is a `DbConnectionError` too where the database cannot be reached.
    """

    def __init__(self, database: Database, table: str | Table | None, schema: str | None) -> None:
        self._database = database
        self._table = None if table is None else checked_table(table, schema)
        self._schema = schema

    @overload
    def get(self, *, pk: Mapping[str, Any]) -> Row | None: ...
    @overload
    def get(self, *, pk: Mapping[str, Any], model: type[M]) -> M | None: ...
    @overload
    def get(self, *, pk: Mapping[str, Any], model: type[M] | None) -> Row | M | None: ...
    def get(self, *, pk: Mapping[str, Any], model: type[M] | None = None) -> Row | M | None:
        """Return the row of a primary key, or None."""
        convert = as_model(model)
        given = self._table
        if given is None:
            raise ConfigurationError("get() needs a reader with table=")
        name = table_name(given)
        with translated(QueryError, name):
            rows = self._database.with_table(given, self._schema, lambda table: self._rows_by_key(table, pk))
        return None if _single(rows, name) is None else convert(rows[0])

    @overload
    def query(self, sql: str, *, params: Mapping[str, Any] | None = None) -> list[Row]: ...
    @overload
    def query(self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M]) -> list[M]: ...
    @overload
    def query(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None
    ) -> list[Row] | list[M]: ...
    def query(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None = None
    ) -> list[Row] | list[M]:
        """Return all rows of a statement, with ``:name`` for each of its ``params``."""
        convert = as_model(model)
        rows = self._run(sql, params, lambda cursor: dicts(names_of(cursor), cursor.fetchall()))
        return rows if model is None else [convert(row) for row in rows]

    def scalar(self, sql: str, *, params: Mapping[str, Any] | None = None) -> Any:
        """Return the first column of the only row, or None where there is no row."""
        row = _single(self._run(sql, params, _at_most_two))
        return None if row is None else row[0]

    @overload
    def one(self, sql: str, *, params: Mapping[str, Any] | None = None) -> Row: ...
    @overload
    def one(self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M]) -> M: ...
    @overload
    def one(self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None) -> Row | M: ...
    def one(self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None = None) -> Row | M:
        """Return the only row; no row, like more than one, is a `QueryError`."""
        convert = as_model(model)
        row = _single(self._run(sql, params, _first_dicts))
        if row is None:
            raise QueryError("There is no row where exactly one was expected")
        converted: Row | M = convert(row)
        return converted

    @overload
    def one_or_none(self, sql: str, *, params: Mapping[str, Any] | None = None) -> Row | None: ...
    @overload
    def one_or_none(self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M]) -> M | None: ...
    @overload
    def one_or_none(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None
    ) -> Row | M | None: ...
    def one_or_none(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None = None
    ) -> Row | M | None:
        """Return the only row, or None; more than one is a `QueryError`."""
        convert = as_model(model)
        row = _single(self._run(sql, params, _first_dicts))
        return None if row is None else convert(row)

    @overload
    def stream(self, sql: str, *, params: Mapping[str, Any] | None = None, chunk_size: int = 1000) -> Iterator[Row]: ...
    @overload
    def stream(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M], chunk_size: int = 1000
    ) -> Iterator[M]: ...
    @overload
    def stream(
        self, sql: str, *, params: Mapping[str, Any] | None = None, model: type[M] | None, chunk_size: int = 1000
    ) -> Iterator[Row] | Iterator[M]: ...
    def stream(
        self,
        sql: str,
        *,
        params: Mapping[str, Any] | None = None,
        model: type[M] | None = None,
        chunk_size: int = 1000,
    ) -> Iterator[Row] | Iterator[M]:
        """Return the rows of a statement one by one; the server sends them in chunks."""
        convert = as_model(model)
        chunks = self.chunks(sql, params=params, chunk_size=chunk_size)
        return (convert(row) for chunk in chunks for row in chunk)

    def chunks(
        self, sql: str, *, params: Mapping[str, Any] | None = None, chunk_size: int = 1000
    ) -> Iterator[list[Row]]:
        """Return the rows of a statement in lists, as the server sends them."""
        if chunk_size < 1:
            raise ConfigurationError("chunk_size= must be at least 1")
        return self._chunks(self._prepared(sql, params), params or {}, chunk_size)

    def _chunks(self, prepared: UserStatement, params: Mapping[str, Any], size: int) -> Iterator[list[Row]]:
        database = self._database
        with translated(QueryError), database.connected() as connection:
            with unfit_values():
                bound = prepared.statement.bound(prepared.values(params))
                sql = plans.text(database.engine, prepared.statement.sql)
                result = connection.exec_driver_sql(sql, bound, execution_options={"yield_per": size})
            try:
                names = names_of(result.cursor)
                for rows in result.partitions(size):
                    yield dicts(names, rows)
            finally:
                result.close()

    def _run(self, sql: str, params: Mapping[str, Any] | None, take: Callable[[Any], T]) -> T:
        prepared = self._prepared(sql, params)
        with translated(QueryError):
            return self._database.run(prepared.statement, prepared.values(params or {}), take)

    def _prepared(self, sql: str, params: Mapping[str, Any] | None) -> UserStatement:
        if params is None:
            warnings.warn(
                "A statement without params=: never build SQL from input, write :name and give params={'name': value} "
                "(params={} if there are none)",
                UserWarning,
                stacklevel=4,
            )
        return user_statement(self._database.engine.dialect, sql)

    def _rows_by_key(self, table: Table, pk: Mapping[str, Any]) -> list[Row]:
        key, engine = checked_key(table, pk), self._database.engine
        checked_key_values(engine.dialect, table, pk)

        def refreshed() -> Table:
            return self._database.refreshed(table)

        def take(cursor: Any) -> list[Row]:
            return loaded(cursor, cursor.fetchmany(2), table, engine.dialect, refreshed)

        return self._database.run(select_by_key(engine.dialect, table, key), [pk[name] for name in key], take)


class DbReader(Reader):
    """A reader of its own, for one invocation; its connections come from a pool that all share."""

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table | None = None,
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        super().__init__(Database(engine_getter(url, db_config, engine_provider), confined=False), table, schema)
        self._streams: list[Iterator[list[Row]]] = []

    def chunks(
        self, sql: str, *, params: Mapping[str, Any] | None = None, chunk_size: int = 1000
    ) -> Iterator[list[Row]]:
        """Return the rows of a statement in lists, as the server sends them."""
        stream = super().chunks(sql, params=params, chunk_size=chunk_size)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """End streams that are still open; the pool stays."""
        while self._streams:
            undo(self._streams.pop().close)  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reader_of(
    config: DbConfig, provider: EngineProvider | None, table: str | Table | None, schema: str | None
) -> Reader:
    """Return a reader for calls that leave nothing to close: all but streams."""
    return Reader(Database(engine_getter(None, config, provider), confined=False), table, schema)


def _at_most_two(cursor: Any) -> list[Any]:
    names_of(cursor)
    rows: list[Any] = cursor.fetchmany(2)
    return rows


def _first_dicts(cursor: Any) -> list[Row]:
    return dicts(names_of(cursor), cursor.fetchmany(2))


def _single(rows: list[T], table: str | None = None) -> T | None:
    if len(rows) > 1:
        raise QueryError("There is more than one row where at most one was expected", table=table)
    return rows[0] if rows else None
