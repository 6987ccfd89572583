"""Tables as the database describes them, remembered per engine; a table that the user describes is taken as it is."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from azure_functions_db.core.errors import Code, ConfigurationError, did_you_mean
from azure_functions_db.sql.failures import is_schema_change
from azure_functions_db.sql.transactions import ambient_connection, forget_prepared, leave_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection, Engine, Inspector, MetaData, Table

T = TypeVar("T")

_REFLECTED = "azfdb_reflected"
KIND = "azfdb_kind"
"""In the ``info`` of a table that PostgreSQL has described: the letter by which it tells tables from views."""


class _Reflections:
    """The tables of one engine; a table is read once however many threads want it."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str | None, str], Table] = {}
        self._lock = threading.Lock()

    def get(self, engine: Engine, name: str, schema: str | None) -> Table:
        table = self._tables.get((schema, name))
        if table is not None:
            return table
        with self._lock:
            if (schema, name) not in self._tables:
                self._tables[schema, name] = _reflected(engine, name, schema)
            return self._tables[schema, name]

    def forget(self, table: Table) -> None:
        with self._lock:
            if self._tables.get((table.schema, table.name)) is table:
                del self._tables[table.schema, table.name]


_caches: weakref.WeakKeyDictionary[Engine, _Reflections] = weakref.WeakKeyDictionary()
_caches_lock = threading.Lock()


def _after_fork() -> None:
    # Another thread of the parent may have held one of the locks: here nobody would ever open it.
    global _caches_lock  # noqa: PLW0603 - a lock cannot be made free again, only made anew
    _caches_lock = threading.Lock()
    _caches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def checked_table(table: object, schema: object) -> str | Table:
    """Return a table's name, or a described table, as a user gave it; refuse what is neither."""
    if isinstance(table, str) and table.strip():
        if schema is not None and not (isinstance(schema, str) and schema.strip()):
            raise ConfigurationError("schema= must name a schema; leave it out for the default one")
        return table
    if not is_described(table):
        raise ConfigurationError(_NO_TABLE + (" (of a mapped class: its __table__)" if isinstance(table, type) else ""))
    if schema is not None:
        raise ConfigurationError("A Table knows its schema itself: leave out schema=")
    if renamed := [column.name for column in table.columns if column.key != column.name]:
        raise ConfigurationError(
            f"The column {renamed[0]!r} of the Table {table.name!r} has a key= of its own: give the table's name"
        )
    return table


_NO_TABLE = "table= must be the name of a table, or a SQLAlchemy Table"


def is_described(table: object) -> TypeGuard[Table]:
    """Tell whether this is a SQLAlchemy `Table`; whoever has one has imported SQLAlchemy, nobody else needs to."""
    sqlalchemy = sys.modules.get("sqlalchemy")
    return sqlalchemy is not None and isinstance(table, sqlalchemy.Table)


def table_name(table: str | Table) -> str:
    """Return the name by which messages call a table."""
    return table if isinstance(table, str) else str(table.fullname)


def table_of(engine: Engine, table: str | Table, schema: str | None = None) -> Table:
    """Return the table's description; an unknown table is a `ConfigurationError`."""
    return _cache_of(engine).get(engine, table, schema) if isinstance(table, str) else table


def table_now(engine: Engine, table: Table) -> Table:
    """Return the description of a table as it is at this moment; what is remembered stays as it is."""
    return _reflected(engine, table.name, table.schema)


def refreshed(engine: Engine, table: Table) -> Table:
    """Read the table's description again after the one at hand turned out to be old; a user's own stays."""
    if not table.metadata.info.get(_REFLECTED):
        return table
    cache = _cache_of(engine)
    cache.forget(table)
    if ambient_connection(engine) is None:
        forget_prepared(engine)
    return cache.get(engine, table.name, table.schema)


def with_current_table(engine: Engine, name: str | Table, schema: str | None, work: Callable[[Table], T]) -> T:
    """Run work that fails as a whole, once more with a fresh description if the schema has changed.

    The work must leave nothing behind when it fails: it is a read, or a transaction of its own.
    """
    table = table_of(engine, name, schema)
    try:
        return work(table)
    except Exception as failure:
        # A transaction shared with others cannot be begun again from here.
        if not is_schema_change(failure) or ambient_connection(engine) is not None:
            raise
        current = refreshed(engine, table)
        if _shape(current) == _shape(table):
            raise
    return work(current)


def table_with(engine: Engine, name: str | Table, schema: str | None, columns: Iterable[str]) -> Table:
    """Return the table's description, read again if it knows less than these columns.

    A migration may have added them since; the caller tells which of them are still unknown.
    """
    table = table_of(engine, name, schema)
    return refreshed(engine, table) if unknown_columns(table, columns) else table


def unknown_columns(table: Table, names: Iterable[str]) -> list[str]:
    """Return the names that are no columns of the table, in their order."""
    return [name for name in names if name not in table.columns]


def is_view(engine: Engine, table: Table) -> bool:
    """Tell whether a table that the database has described is a view, which has no indexes."""
    from sqlalchemy import inspect

    if KIND in table.info:
        return bool(table.info[KIND] == "v")
    with catalog_connection(engine) as connection:
        return table.name in inspect(connection).get_view_names(table.schema)


def _cache_of(engine: Engine) -> _Reflections:
    cache = _caches.get(engine)
    if cache is not None:
        return cache
    with _caches_lock:
        return _caches.setdefault(engine, _Reflections())


def _shape(table: Table) -> list[tuple[str, str]]:
    return [(column.name, repr(column.type)) for column in table.columns]


def _reflected(engine: Engine, name: str, schema: str | None) -> Table:
    from sqlalchemy.exc import NoSuchTableError

    with catalog_connection(engine) as connection:
        try:
            return _described(connection, name, schema)
        except NoSuchTableError:
            full = f"{schema}.{name}" if schema else name
            raise ConfigurationError(
                f"There is no table {full!r} in the database{_what_is_there(connection, name, schema)}",
                table=full,
                code=Code.TABLE_MISSING,
            ) from None


@contextmanager
def catalog_connection(engine: Engine) -> Iterator[Connection]:
    """Lend a connection for questions about tables: that of a shared transaction, else one without any."""
    # Inside a shared transaction a second connection might not be there to be had.
    shared = ambient_connection(engine)
    if shared is not None:
        yield shared
        return
    with engine.connect() as connection:
        leave_transactions(connection)
        yield connection


_WITH_GENERATED_COLUMNS = (12,)


def _described(connection: Connection, name: str, schema: str | None) -> Table:
    from sqlalchemy import MetaData

    metadata, table = MetaData(info={_REFLECTED: True}), None
    dialect = connection.dialect
    if dialect.driver == "psycopg" and (dialect.server_version_info or ()) >= _WITH_GENERATED_COLUMNS:
        from azure_functions_db.sql.postgres import described

        table = described(connection, name, schema, metadata)
    return _described_by_sqlalchemy(connection, name, schema, metadata) if table is None else table


def _described_by_sqlalchemy(connection: Connection, name: str, schema: str | None, metadata: MetaData) -> Table:
    from sqlalchemy import Table

    table = Table(
        name,
        metadata,
        schema=schema,
        autoload_with=connection,
        resolve_fks=False,
        listeners=[("column_reflect", _unescape_name)],
    )
    if getattr(connection.dialect, "is_mariadb", False):
        _recognise_json(table, connection)
    return table


def _what_is_there(connection: Connection, name: str, schema: str | None) -> str:
    """Return what was probably meant in place of a table that is not there, for the end of a message."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    try:
        inspector = inspect(connection)
        if schema is not None and schema not in (schemas := inspector.get_schema_names()):
            return f": it has no schema {schema!r}{did_you_mean(schema, schemas)}"
        there = [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]
    except SQLAlchemyError:  # a mistyped name is what matters
        return ""
    if not there and inspector.dialect.name == "sqlite" and (file := connection.engine.url.database):
        return f": {Path(file).absolute()} is empty, and a relative path begins in the working directory"
    return did_you_mean(name, there) if there else ", which has no table that this login may see"


def _unescape_name(inspector: Inspector, _table: Table, column: dict[str, Any]) -> None:
    # SQLAlchemy takes names out of MySQL's DDL as they are written there.
    if inspector.dialect.name in {"mysql", "mariadb"}:
        column["name"] = column["name"].replace("``", "`")


def _recognise_json(table: Table, connection: Connection) -> None:
    """MariaDB keeps JSON as a text with a check, and describes it as such."""
    from sqlalchemy import JSON, String, text

    texts = [column for column in table.columns if getattr(column.type, "collation", None) == "utf8mb4_bin"]
    if not any(isinstance(column.type, String) for column in texts):
        return
    checks = text(
        "SELECT check_clause FROM information_schema.check_constraints "
        "WHERE constraint_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
    )
    clauses = set(connection.execute(checks, {"schema": table.schema, "name": table.name}).scalars())
    for column in texts:
        if f"json_valid(`{column.name}`)" in clauses:
            column.type = JSON()
