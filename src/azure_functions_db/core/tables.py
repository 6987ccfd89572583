"""Tables as the database describes them, remembered per engine."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.core.failures import is_schema_change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Engine, Table

T = TypeVar("T")


class _Reflections:
    """The tables of one engine; a table is read once however many threads want it."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str | None, str], Table] = {}
        self._lock = threading.Lock()

    def get(self, engine: Engine, name: str, schema: str | None) -> Table:
        known = self._tables.get((schema, name))
        if known is not None:
            return known
        with self._lock:
            if (schema, name) not in self._tables:
                self._tables[schema, name] = _reflected(engine, name, schema)
            return self._tables[schema, name]

    def forget(self, known: Table) -> None:
        with self._lock:
            if self._tables.get((known.schema, known.name)) is known:
                del self._tables[known.schema, known.name]


_caches: weakref.WeakKeyDictionary[Engine, _Reflections] = weakref.WeakKeyDictionary()
_caches_lock = threading.Lock()


def table_of(engine: Engine, name: str, schema: str | None = None) -> Table:
    """Return the table's description; an unknown table is a `ConfigurationError`."""
    return _cache_of(engine).get(engine, name, schema)


def refreshed(engine: Engine, known: Table) -> Table:
    """Read the table's description again after the one at hand turned out to be old."""
    cache = _cache_of(engine)
    cache.forget(known)
    return cache.get(engine, known.name, known.schema)


def with_current_table(engine: Engine, name: str, schema: str | None, work: Callable[[Table], T]) -> T:
    """Run work that fails as a whole, once more with a fresh description if the schema has changed.

    The work must leave nothing behind when it fails: it is a read, or a transaction of its own.
    """
    from sqlalchemy.exc import DBAPIError

    known = table_of(engine, name, schema)
    try:
        return work(known)
    except DBAPIError as failure:
        if not is_schema_change(failure):
            raise
        current = refreshed(engine, known)
        if _shape(current) == _shape(known):
            raise
    return work(current)


def unknown_columns(table: Table, names: Iterable[str]) -> list[str]:
    """Return the names that are no columns of the table, in their order."""
    return [name for name in names if name not in table.columns]


def _cache_of(engine: Engine) -> _Reflections:
    with _caches_lock:
        return _caches.setdefault(engine, _Reflections())


def _shape(table: Table) -> list[tuple[str, str]]:
    return [(column.name, repr(column.type)) for column in table.columns]


def _reflected(engine: Engine, name: str, schema: str | None) -> Table:
    from sqlalchemy import MetaData, Table
    from sqlalchemy.exc import NoSuchTableError

    try:
        return Table(name, MetaData(), schema=schema, autoload_with=engine, resolve_fks=False)
    except NoSuchTableError:
        full = f"{schema}.{name}" if schema else name
        raise ConfigurationError(f"There is no table {full!r} in the database", table=full) from None
