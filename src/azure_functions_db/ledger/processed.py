"""The processed ledger: effects that happen once for each event, however often it is delivered."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.tables import exact_text
from azure_functions_db.core.transactions import ambient_connection, ambient_transaction
from azure_functions_db.ledger.book import Book, utc_now

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.engine import EngineProvider
    from azure_functions_db.core.types import Event

E = TypeVar("E", bound="Event")


class ProcessedLedger:
    """Remembers event ids in a table of the database that the handler writes to.

    ``with ledger.once(events) as new:`` opens a transaction, notes the events in it and gives back
    those that are new. `DbWriter` and `DbSession` on the same URL join that transaction, so that
    note and effect are committed together or not at all: the effect is exactly once. ``scope``
    keeps apart handlers that share a table. It blocks, so it is for plain handlers, not for async
    ones. Prune it no closer than the longest time after which an event may come again.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_processed",
        schema: str | None = None,
        scope: str = "",
        engine_provider: EngineProvider | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._scope = scope
        self._book = Book(
            _columns,
            url=url,
            db_config=db_config,
            table=table,
            schema=schema,
            engine_provider=engine_provider,
            clock=clock,
        )

    @contextmanager
    def once(self, events: Sequence[E]) -> Iterator[list[E]]:
        """Give those events that were not processed before; an exception takes the note back.

        Of two instances with the same event the second waits for the first to commit or fail.
        """
        with self._book.failures():
            self._book.make_table()
        with self._transaction() as connection:
            yield self._new(connection, events)

    def prune(self, older_than: dt.timedelta) -> int:
        """Forget events that were processed longer ago than this; return how many."""
        return self._book.prune(older_than)

    def ddl(self) -> str:
        """Return the statements that make the table, for a database in which the app may not."""
        return self._book.ddl()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        joined = ambient_connection(self._book.engine)
        if joined is not None:
            yield joined
            return
        with ambient_transaction(self._book.engine) as connection:
            yield connection

    def _new(self, connection: Connection, events: Sequence[E]) -> list[E]:
        by_id = {event.event_id: event for event in events}
        if not by_id:
            return []
        # Whose note it is tells a new event from one that was there.
        mark = uuid.uuid4().hex
        # In one order, so that two instances with the same events wait for, not on, each other.
        rows = [{"scope": self._scope, "event_id": event_id, "mark": mark} for event_id in sorted(by_id)]
        with self._book.failures():
            self._book.add(connection, rows)
            mine = self._book.found(connection, "event_id", sorted(by_id), scope=self._scope, mark=mark)
        return [event for event_id, event in by_id.items() if event_id in mine]


@contextmanager
def processed_once(
    events: Sequence[E],
    *,
    url: str | None = None,
    db_config: DbConfig | None = None,
    scope: str = "",
    table: str = "azfdb_processed",
    schema: str | None = None,
    engine_provider: EngineProvider | None = None,
) -> Iterator[list[E]]:
    """Give those events that were not processed before, in a transaction that the handler's writers join.

    The short form of `ProcessedLedger`; see there.
    """
    ledger = ProcessedLedger(
        url=url, db_config=db_config, scope=scope, table=table, schema=schema, engine_provider=engine_provider
    )
    with ledger.once(events) as new:
        yield new


def _columns() -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("scope", exact_text(100), primary_key=True),
        Column("event_id", exact_text(200), primary_key=True),
        Column("mark", String(32), nullable=False),
    ]
