"""State in a SQL table: one row per poller, written only against its version."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.errors import DbConnectionError, StateStoreError
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import code_of, is_schema_change, reason_of
from azure_functions_db.sql.own_tables import OwnTable, exact_text, long_text
from azure_functions_db.sql.transactions import (
    ambient_connection,
    ambient_transaction,
    database_now,
    outside_transactions,
)
from azure_functions_db.state.backend import Stored, poller_of
from azure_functions_db.state.document import committed_alone
from azure_functions_db.state.store import DocumentLease, DocumentStateStore

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Column, ColumnElement, Connection, Engine, Table
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.sql.engine import EngineProvider
    from azure_functions_db.state.backend import DocumentName, Version
    from azure_functions_db.state.document import Document

T = TypeVar("T")

_LONGEST_NAME = 200
# A transaction that reads a snapshot may not write what a renewal of the lease has changed since.
_CHANGED_SINCE = {"40001", "1020"}
_SNAPSHOT_HINT = (
    ". If the lease was renewed meanwhile, the transaction's isolation level does not allow it to go on: "
    "use READ COMMITTED, or a lease_ttl_seconds of three times what the handler takes"
)


class SqlBackend:
    """Rows of ``(app_name, poller_name, document, version)``; the table is made when it is missing."""

    def __init__(self, engine: Callable[[], Engine], table: str, schema: str | None) -> None:
        self._own = OwnTable(engine, table, schema, _columns)
        self._touched: dict[DocumentName, Connection] = {}

    @property
    def engine(self) -> Engine:
        """The engine of the table; whoever works on the same one can share a transaction."""
        return self._own.engine

    @property
    def table(self) -> Table:
        """The table's definition."""
        return self._own.table

    def ddl(self) -> str:
        """Return the statement that makes the table in this database's dialect."""
        return self._own.ddl()

    def read(self, name: DocumentName) -> Stored | None:
        """Return the document, or None where there is none."""
        with self._failures(name):
            return self._unless_there_is_no_table(lambda: self._read(name), None)

    def create(self, name: DocumentName, content: bytes) -> Version | None:
        """Write a new document and return its version; None when there is one already."""
        from sqlalchemy import insert
        from sqlalchemy.exc import IntegrityError

        version = _new_version()
        row = {"app_name": name.app, "poller_name": name.poller, "document": content.decode(), "version": version}
        with self._failures(name):
            try:
                self._with_table(lambda connection: connection.execute(insert(self.table), row))
            except IntegrityError:
                return None
        return version

    def replace(self, name: DocumentName, content: bytes, version: Version) -> Version | None:
        """Write over the version that was read; None when it is no longer the current one."""
        from sqlalchemy import update

        following = _new_version()
        current = (self._is(name)) & (self.table.c.version == version)
        change = update(self.table).where(current).values(document=content.decode(), version=following)
        self._touch(name)
        with self._failures(name):
            changed = self._run(lambda connection: connection.execute(change).rowcount)
        return following if changed == 1 else None

    def delete(self, name: DocumentName, version: Version) -> bool:
        """Remove the version that was read; False when it is no longer the current one."""
        from sqlalchemy import delete

        wanted = delete(self.table).where(self._is(name) & (self.table.c.version == version))
        with self._failures(name):
            return self._run(lambda connection: connection.execute(wanted).rowcount) == 1

    def pollers(self, app: str) -> Iterable[str]:
        """Return the encoded poller names that have a document, of one encoded app."""
        from sqlalchemy import select

        wanted = select(self.table.c.poller_name).where(self.table.c.app_name == app)
        with self._failures(None):
            return self._unless_there_is_no_table(
                lambda: self._run(lambda connection: list(connection.scalars(wanted))), []
            )

    def missing_place(self) -> str | None:
        """Return the name of what is not there yet; None where it is."""
        with self._failures(None):
            return None if self._own.exists() else f"table {self.table.fullname}"

    def now(self) -> dt.datetime | None:
        """Return the database's own time; None where its dialect is not known well enough."""
        with self._failures(None), self.engine.connect() as connection:
            return database_now(connection)

    def _read(self, name: DocumentName) -> Stored | None:
        from sqlalchemy import select

        wanted = select(self.table.c.document, self.table.c.version).where(self._is(name))
        if self._joined() is not None and name in self._touched:
            # After a refused write: a plain read may show how things were when the transaction began.
            wanted = wanted.with_for_update()
        row = self._run(lambda connection: connection.execute(wanted).one_or_none())
        return None if row is None else Stored(_content(row.document), row.version)

    def _with_table(self, work: Callable[[Connection], T]) -> T:
        """Do work that writes the first document; the table is made for it, never for a mere look."""
        try:
            return self._run(work)
        except _database_error() as failure:
            if not self._may_lack_table(failure):
                raise
        self._make_table()
        return self._run(work)

    def _unless_there_is_no_table(self, look: Callable[[], T], nothing: T) -> T:
        try:
            return look()
        except _database_error() as failure:
            if not self._may_lack_table(failure):
                raise
        # Somebody may have made it since.
        return look() if self._own.exists() else nothing

    def _may_lack_table(self, failure: DBAPIError) -> bool:
        return is_schema_change(failure) and self._joined() is None

    def _run(self, work: Callable[[Connection], T]) -> T:
        joined = self._joined()
        if joined is not None:
            return work(joined)
        with self.engine.begin() as connection:
            return work(connection)

    def _joined(self) -> Connection | None:
        return ambient_connection(self.engine)

    def _touch(self, name: DocumentName) -> None:
        """Note that an open transaction keeps the row locked: nobody else here may wait for it."""
        joined = self._joined()
        if joined is not None:
            self._touched[name] = joined
        elif name in self._touched:
            # Waiting would hold the lock that the transaction's next step needs.
            raise StateStoreError(
                f"The state of poller {poller_of(name.poller)!r} is being committed by an open transaction",
                poller_name=poller_of(name.poller),
            )

    def let_go(self, connection: Connection) -> None:
        """Note that a transaction has ended."""
        self._touched = {name: by for name, by in self._touched.items() if by is not connection}

    def _is(self, name: DocumentName) -> ColumnElement[bool]:
        return (self.table.c.app_name == name.app) & (self.table.c.poller_name == name.poller)

    def _make_table(self) -> None:
        try:
            self._own.create_if_missing()
        except _database_error() as refused:
            raise StateStoreError(
                f"The table {self.table.fullname} is missing and cannot be made here ({code_of(refused)}): "
                "let somebody run what ddl() returns",
                table=self.table.fullname,
            ) from refused

    @contextmanager
    def _failures(self, name: DocumentName | None) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, DbConnectionError) as failure:
            raise self._translated(failure, poller_of(name.poller) if name else None) from failure

    def _translated(self, failure: SQLAlchemyError | DbConnectionError, poller_name: str | None) -> StateStoreError:
        reason = str(failure) if isinstance(failure, DbConnectionError) else reason_of(failure)
        of_poller = f" of poller {poller_name!r}" if poller_name else ""
        hint = _SNAPSHOT_HINT if reason in _CHANGED_SINCE and self._joined() is not None else ""
        return StateStoreError(
            f"The table {self.table.fullname} failed on the state{of_poller}: {reason}{hint}",
            poller_name=poller_name,
            table=self.table.fullname,
            unreachable=True,
        )


class SqlLease(DocumentLease):
    """A lease whose commits can join the handler's own transaction."""

    _store: SqlStateStore
    _open: Connection | None = None

    def renew(self, ttl_seconds: float) -> None:
        """Push the expiry, unless one's own transaction keeps every other taker away as it would this renewal."""
        opened = self._open
        if opened is not None and _locks_out_others(opened):
            return
        # A heartbeat goes on beside the handler's transaction, on a connection of its own.
        with outside_transactions():
            super().renew(ttl_seconds)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open the transaction that the handler and the next commit share."""
        known = self._known
        try:
            with self._store.transaction() as opened:
                self._open = opened
                try:
                    yield
                finally:
                    self._open = None
        except BaseException:
            self._known, self._has_given_up = known, True  # what was written is gone, or not there yet
            raise

    def _committed(self, held: Document, now: dt.datetime, checkpoint: CheckpointJson) -> Document:
        joined = ambient_connection(self._store.engine)
        if joined is None or not _locks_out_others(joined):
            return super()._committed(held, now, checkpoint)
        # No renewal gets past this transaction, and no other owner either: the lease's id tells whose it is.
        return committed_alone(held, self.lease_id, now, checkpoint)


class SqlStateStore(DocumentStateStore):
    """Keeps state in a table of a SQL database; a checkpoint can be committed with the handler's own writes.

    The table is made on first use. Where the login may not do that, run what `ddl` returns.
    """

    _backend: SqlBackend
    _lease_type = SqlLease

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_state",
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
        source_fingerprint: str | None = None,
        app_name: str | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        backend = SqlBackend(engine_getter(url, db_config, engine_provider), table, schema)
        super().__init__(backend, source_fingerprint=source_fingerprint, app_name=app_name, clock=clock)

    def ddl(self) -> str:
        """Return the statement that makes the table, in this database's dialect."""
        return self._backend.ddl()

    @property
    def engine(self) -> Engine:
        """The engine of the table; whoever works on the same one can share a transaction."""
        return self._backend.engine

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction that this store and every writer on the same engine share.

        Leaving it commits; an exception rolls back, checkpoint and the handler's writes alike.
        """
        with ExitStack() as ending, self._doubted(), ambient_transaction(self._backend.engine) as connection:
            ending.callback(self._backend.let_go, connection)
            yield connection

    @contextmanager
    def _doubted(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # What was written is gone, or nobody knows: nothing that is remembered is certain.
            for lease in self._held_leases():
                lease.doubt()
            raise


def _locks_out_others(transaction: Connection) -> bool:
    """Tell whether nobody can take a lease as long as this transaction is open: it has SQLite's one write lock."""
    raw: Any = transaction.connection.dbapi_connection
    return transaction.dialect.name == "sqlite" and bool(getattr(raw, "in_transaction", False))


def _columns(dialect: str) -> list[Column[Any]]:
    from sqlalchemy import BigInteger, Column

    return [
        Column("app_name", exact_text(_LONGEST_NAME, dialect, charset="ascii"), primary_key=True),
        Column("poller_name", exact_text(_LONGEST_NAME, dialect, charset="ascii"), primary_key=True),
        Column("document", long_text(dialect), nullable=False),
        Column("version", BigInteger, nullable=False),
    ]


def _content(document: Any) -> bytes:
    # SQLite keeps what it is given, whatever the column's type.
    return document if isinstance(document, bytes) else str(document).encode(errors="replace")


def _new_version() -> int:
    # Counted from 1, a row that was deleted and made anew would take the writes of those who knew the old one.
    return secrets.randbits(62)


def _database_error() -> type[DBAPIError]:
    from sqlalchemy.exc import DBAPIError

    return DBAPIError
