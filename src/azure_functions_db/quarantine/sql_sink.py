"""Quarantine in a table of any database that SQLAlchemy reaches."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import StateStoreError
from azure_functions_db.quarantine.entry import decoded, encoded, oldest_first
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import reason_of
from azure_functions_db.sql.own_tables import OwnTable, exact_text, long_text
from azure_functions_db.sql.transactions import outside_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import QuarantinedRow
    from azure_functions_db.sql.engine import EngineProvider

LOCK_SECONDS = 30.0


class SqlQuarantine:
    """Keeps rows in a table, which is made when it is first needed and missing.

    The event and its error are one JSON text; poller, id, time and error type are columns to
    look for. All of it is ASCII, which a database of any encoding can keep. Rows are written in a
    transaction of their own, whatever the handler has open.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_quarantine",
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        self._own = OwnTable(engine_getter(url, db_config, engine_provider), table, schema, _columns)

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows durably; the same row put twice is kept once."""
        with self._connected() as connection:
            for row in rows:
                self._delete(connection, row.poller_name, row.event_id)
                connection.execute(self._own.table.insert().values(_values(row)))

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        statement = self._own.table.select()
        if poller_name is not None and _is_plain(poller_name):
            statement = statement.where(self._own.table.c.poller_name == poller_name)
        with self._connected() as connection:
            kept = [self._decoded(row) for row in connection.execute(statement)]
        return oldest_first([row for row in kept if poller_name in {None, row.poller_name}])

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept; none is read, unless its name is an odd one."""
        from sqlalchemy import func, select

        if not _is_plain(poller_name):
            return len(self.entries(poller_name))
        rows = select(func.count()).select_from(self._own.table).where(self._own.table.c.poller_name == poller_name)
        with self._connected() as connection:
            return int(connection.execute(rows).scalar_one())

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        with self._connected() as connection:
            self._delete(connection, poller_name, event_id)

    def ddl(self) -> str:
        """Return the statement that makes the table, for a database in which the app may not."""
        return self._own.ddl()

    def _delete(self, connection: Connection, poller_name: str, event_id: str) -> None:
        columns = self._own.table.c
        for poller, event in self._keys(connection, poller_name, event_id):
            connection.execute(self._own.table.delete().where(columns.poller_name == poller, columns.event_id == event))

    def _keys(self, connection: Connection, poller_name: str, event_id: str) -> list[tuple[str, str]]:
        """Return the key of a row in the table; one of an odd name may have been kept as it is by older versions."""
        if _is_plain(poller_name) and _is_plain(event_id):
            return [(poller_name, event_id)]
        rows = connection.execute(self._own.table.select()).all()
        keyed = ((self._decoded(row), (row.poller_name, row.event_id)) for row in rows)
        return [key for row, key in keyed if (row.poller_name, row.event_id) == (poller_name, event_id)]

    def _decoded(self, row: Any) -> QuarantinedRow:
        return decoded(row.entry, f"{self._own.name}, event {row.event_id}", _is_of(row))

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        try:
            with outside_transactions():
                self._own.ensure()
                with self._own.engine.begin() as connection:
                    _bound_waits(connection)
                    yield connection
        except DBAPIError as error:
            raise StateStoreError(
                f"The quarantine table {self._own.name} failed: {reason_of(error)}", unreachable=True
            ) from error
        except SQLAlchemyError as error:
            raise StateStoreError(f"The quarantine table {self._own.name} failed: {error}", unreachable=True) from error


def _columns() -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("poller_name", exact_text(200), primary_key=True),
        Column("event_id", exact_text(200), primary_key=True),
        Column("quarantined_at", String(40), nullable=False),
        Column("error_type", String(200), nullable=False),
        Column("entry", long_text(), nullable=False),
    ]


def _bound_waits(connection: Connection) -> None:
    """Let a locked table be an error after a while: PostgreSQL alone would wait for ever, and the lease be renewed."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(LOCK_SECONDS * 1000)}")


def _is_of(kept: Any) -> Callable[[QuarantinedRow], bool]:
    """Return what tells whether an entry belongs to its row in the table; older versions kept odd names as they are."""

    def belongs(row: QuarantinedRow) -> bool:
        names = ((row.poller_name, row.event_id), (_plain(row.poller_name), _plain(row.event_id)))
        return (kept.poller_name, kept.event_id) in names

    return belongs


def _values(row: QuarantinedRow) -> dict[str, str]:
    return {
        "poller_name": _plain(row.poller_name),
        "event_id": _plain(row.event_id),
        "quarantined_at": row.quarantined_at.isoformat(),
        "error_type": ascii(row.error_type)[1:-1][:200],
        "entry": encoded(row),
    }


def _is_plain(name: str) -> bool:
    return name.isascii() and "\0" not in name


def _plain(name: str) -> str:
    """Return the name in ASCII and short enough for its column; the digest keeps two of them apart."""
    escaped = ascii(name)
    return name if _is_plain(name) else f"{escaped[1:121]}~{hashlib.sha256(escaped.encode()).hexdigest()[:32]}"
