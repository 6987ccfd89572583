"""Several tables in one explicit transaction."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from azure_functions_db.binding.database import Database, translated
from azure_functions_db.binding.reader import Reader
from azure_functions_db.binding.writer import Writer
from azure_functions_db.core.errors import ConfigurationError, WriteError
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.transactions import savepoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from sqlalchemy import Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.sql.engine import EngineProvider

T = TypeVar("T")


class _SessionDatabase(Database):
    """Refuses to run anything outside the session's transaction."""

    def current(self) -> Connection:
        connection = super().current() if self.is_open else None
        if connection is None:
            raise ConfigurationError("A session, with its readers and writers, works inside its with block only")
        return connection


class DbSession:
    """One transaction: everything in its ``with`` block is kept at the end, or undone on an exception.

    It belongs to one thread. ``isolation_level`` (such as ``"REPEATABLE READ"``, for reads that
    all see the same state) is the database's default unless given.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        engine_provider: EngineProvider | None = None,
        isolation_level: str | None = None,
    ) -> None:
        self._database = _SessionDatabase(engine_getter(url, db_config, engine_provider), confined=True)
        self._isolation_level = isolation_level

    def reader(self, table: str | None = None, *, schema: str | None = None) -> Reader:
        """Return a reader inside this transaction."""
        return Reader(self._database, table, schema)

    def writer(self, table: str, *, schema: str | None = None) -> Writer:
        """Return a writer inside this transaction."""
        return Writer(self._database, table, schema)

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run work on the SQLAlchemy connection of this transaction."""
        with translated(WriteError):
            return self._database.in_transaction(work)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is done inside when it raises, and let the transaction go on."""
        with translated(WriteError), savepoint(self._database.current()):
            yield

    def close(self) -> None:
        """Roll back what has not been kept; the pool stays."""
        self._database.close()

    def __enter__(self) -> Self:
        with translated(WriteError):
            self._database.begin(self._isolation_level)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with translated(WriteError):
            self._database.end(keep=error is None)
