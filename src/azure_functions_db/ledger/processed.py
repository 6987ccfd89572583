"""The processed ledger: effects that happen once for each event, however often it is delivered."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.ledger.ledger_table import LedgerTable
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.own_tables import exact_text
from azure_functions_db.sql.transactions import ambient_connection, ambient_transaction, savepoint

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Event
    from azure_functions_db.sql.engine import EngineProvider

E = TypeVar("E", bound="Event")

# Where events of no known poller are noted, and where earlier versions noted those of all.
_SHARED = ""
_LONGEST_SCOPE = 100


class ProcessedLedger:
    """Remembers event ids in a table of the database that the handler writes to.

    ``with ledger.once(events) as new:`` opens a transaction, notes the events in it and gives back
    those that are new. `DbWriter` and `DbSession` on the same URL join that transaction, so that
    note and effect are committed together or not at all: the effect is exactly once. Each function
    has notes of its own: ``scope`` is its poller's name unless given, and functions that are given
    the same one count as one. It blocks, so it is for plain handlers, not for async
    ones. Prune it no closer than the longest time after which an event may come again.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_processed",
        schema: str | None = None,
        scope: str | None = None,
        engine_provider: EngineProvider | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._scope = scope
        self._table = LedgerTable(engine_getter(url, db_config, engine_provider), table, schema, _columns, clock)

    @contextmanager
    def once(self, events: Sequence[E]) -> Iterator[list[E]]:
        """Give those events that were not processed before; an exception takes note and effect back.

        Of two instances with the same event the second waits for the first to commit or fail.
        """
        with self._table.failures():
            self._table.ensure()
        with self._transaction() as connection:
            yield self._new(connection, events)

    def prune(self, older_than: dt.timedelta) -> int:
        """Forget events that were processed longer ago than this; return how many."""
        return self._table.prune(older_than)

    def ddl(self) -> str:
        """Return the statements that make the table, for a database in which the app may not."""
        return self._table.ddl()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        joined = ambient_connection(self._table.engine)
        if joined is not None:
            # So that whoever surrounds this may catch its exception and go on without its notes.
            with savepoint(joined):
                yield joined
            return
        with ambient_transaction(self._table.engine) as connection:
            yield connection

    def _new(self, connection: Connection, events: Sequence[E]) -> list[E]:
        by_key = {(self._scope_of(event), event.event_id): event for event in events}
        if not by_key:
            return []
        # Whose note it is tells a new event from one that was there.
        mark = uuid.uuid4().hex
        # In one order, so that two instances with the same events wait for, not on, each other.
        rows = [{"scope": scope, "event_id": event_id, "mark": mark} for scope, event_id in sorted(by_key)]
        with self._table.failures():
            self._table.add(connection, rows)
            new = {scope: self._noted(connection, scope, list(by_key), mark) for scope in {key[0] for key in by_key}}
        return [event for (scope, event_id), event in by_key.items() if event_id in new[scope]]

    def _noted(self, connection: Connection, scope: str, keys: Sequence[tuple[str, str]], mark: str) -> set[str]:
        """Return the ids whose note is this one, and that were not noted before each function had a scope."""
        ids = sorted(event_id for of_scope, event_id in keys if of_scope == scope)
        mine = self._table.matching(connection, "event_id", ids, scope=scope, mark=mark)
        if self._scope is not None or scope == _SHARED:
            return mine
        return mine - self._table.matching(connection, "event_id", ids, scope=_SHARED)

    def _scope_of(self, event: Event) -> str:
        if self._scope is not None:
            return self._scope
        consumer = getattr(event, "metadata", {}).get("consumer")
        return _SHARED if consumer is None else _shortened(f"poller:{consumer}")


@contextmanager
def processed_once(
    events: Sequence[E],
    *,
    url: str | None = None,
    db_config: DbConfig | None = None,
    scope: str | None = None,
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


def _shortened(scope: str) -> str:
    """Return a scope that fits its column, a digest in place of what is too long."""
    if len(scope) <= _LONGEST_SCOPE:
        return scope
    digest = hashlib.sha256(scope.encode()).hexdigest()
    return f"{scope[: _LONGEST_SCOPE - len(digest)]}{digest}"


def _columns() -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("scope", exact_text(_LONGEST_SCOPE), primary_key=True),
        Column("event_id", exact_text(200), primary_key=True),
        Column("mark", String(32), nullable=False),
    ]
