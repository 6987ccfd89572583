"""Ledgers in a user's own database: effects that happen once for each event, and which rows were delivered."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.clocks import utc_moment, utc_now
from azure_functions_db.core.errors import WriteConnectionError, WriteError
from azure_functions_db.core.serializers import datetime_text, serialize_part
from azure_functions_db.core.signals import BatchCommitted
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.failures import code_of, is_connection_failure
from azure_functions_db.sql.own_tables import OwnTable, exact_text, own_types
from azure_functions_db.sql.transactions import (
    ambient_connection,
    ambient_transaction,
    begun,
    outside_transactions,
    savepoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection, Engine, Executable, Table
    from sqlalchemy.schema import SchemaItem

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.signals import Signal
    from azure_functions_db.core.types import CursorPart, Event
    from azure_functions_db.sql.engine import EngineProvider


NOTED_AT = "noted_at"
# Oracle allows 1000 values in a list, SQL Server 2100 parameters.
_LIST = 500


class LedgerTable(OwnTable):
    """One ledger's table: its own columns, and when each row was noted."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        name: str,
        schema: str | None,
        columns: Callable[[str], list[Column[Any]]],
        clock: Callable[[], dt.datetime],
    ) -> None:
        def items(dialect: str) -> list[SchemaItem]:
            from sqlalchemy import Column, Index, String

            noted_at = Column(NOTED_AT, String(32), nullable=False)
            return [*columns(dialect), noted_at, Index(f"ix_{name}_{NOTED_AT}", noted_at)]

        super().__init__(engine, name, schema, items)
        self._clock = clock

    def add(self, connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; one whose key is there already is left as it is."""
        noted = datetime_text(self._clock())
        connection.execute(_insert_new(self.table, connection.dialect.name), [{**row, NOTED_AT: noted} for row in rows])

    def matching(self, connection: Connection, column: str, values: Sequence[str], **same: str) -> set[str]:
        """Return those of the values that rows with these other values hold in a column."""
        from sqlalchemy import select

        searched = self.table.c[column]
        conditions = [self.table.c[name] == value for name, value in same.items()]
        seen: set[str] = set()
        for start in range(0, len(values), _LIST):
            part = searched.in_(values[start : start + _LIST])
            seen.update(connection.scalars(select(searched).where(part, *conditions)))
        return seen

    def prune(self, older_than: dt.timedelta) -> int:
        """Delete the rows that were noted longer ago than this; return how many."""
        from sqlalchemy import delete

        limit = datetime_text(self._clock() - older_than)
        with self.failures(), begun(self.engine) as connection:
            self.ensure()
            pruned = connection.execute(delete(self.table).where(self.table.c[NOTED_AT] < limit)).rowcount
            return max(0, int(pruned))  # mssql-python says -1 for none

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Raise the library's errors for the driver's."""
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            kind = WriteConnectionError if is_connection_failure(error) else WriteError
            raise kind(f"The ledger {self.name} failed: {code_of(error)}", table=self.name) from error


def _insert_new(table: Table, dialect: str) -> Any:
    """Return an insert that passes over rows whose key is there already."""
    match dialect:
        case "postgresql" | "sqlite":
            return own_types(dialect).insert(table).on_conflict_do_nothing()
        case "mysql" | "mariadb":
            # IGNORE would also cut a text that is too long, and the event it stands for would never be found again.
            as_it_is = {NOTED_AT: table.c[NOTED_AT]}
            return own_types(dialect).insert(table).on_duplicate_key_update(as_it_is)
        case "mssql":
            return _insert_unless_there(table)
        case _:
            raise WriteError(f"A ledger cannot be kept in a {dialect} database")


def _insert_unless_there(table: Table) -> Executable:
    """Return the insert of SQL Server: the row is looked for under a lock that keeps others from adding it."""
    from sqlalchemy import bindparam, exists, insert, select

    given = {column.name: bindparam(column.name, type_=column.type) for column in table.columns}
    same = [column == given[column.name] for column in table.primary_key.columns]
    there = select(table).with_hint(table, "WITH (UPDLOCK, HOLDLOCK)", "mssql").where(*same)
    return insert(table).from_select(list(given), select(*given.values()).where(~exists(there)))


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
        self._table = LedgerTable(
            engine_getter(url, db_config, engine_provider), table, schema, _processed_columns, clock
        )

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


def _processed_columns(dialect: str) -> list[Column[Any]]:
    from sqlalchemy import Column, String

    return [
        Column("scope", exact_text(_LONGEST_SCOPE, dialect), primary_key=True),
        Column("event_id", exact_text(200, dialect), primary_key=True),
        Column("mark", String(32), nullable=False),
    ]


class DeliveredLedger:
    """An observer that notes key and cursor of every delivered row in a table; `azfdb verify` reads it.

    Give it to a trigger as one of its ``observers=``. It costs one statement for each committed
    batch. A crash between a commit and that statement leaves rows out, which `verify` then lists
    although they were delivered: it errs on the safe side.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str = "azfdb_delivered",
        schema: str | None = None,
        engine_provider: EngineProvider | None = None,
        clock: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        self._table = LedgerTable(
            engine_getter(url, db_config, engine_provider), table, schema, _delivered_columns, clock
        )

    def notice(self, signal: Signal) -> None:
        """Note the events of a committed batch."""
        if isinstance(signal, BatchCommitted) and signal.events:
            self.note(signal.poller_name, signal.events)

    def note(self, poller_name: str, events: Sequence[Event]) -> None:
        """Note that events were delivered; noting one twice is no error."""
        rows = [_row(poller_name, event) for event in events]
        with self._table.failures(), outside_transactions():
            self._table.ensure()
            with begun(self._table.engine) as connection:
                self._table.add(connection, rows)

    def missing(self, poller_name: str, events: Sequence[Event]) -> list[Event]:
        """Return those of the events that were never noted."""
        positions = {position_of(event): event for event in events}
        with self._table.failures():
            self._table.ensure()
            with self._table.engine.connect() as connection:
                noted = self._table.matching(connection, "position_hash", list(positions), poller_name=poller_name)
        return [event for position, event in positions.items() if position not in noted]

    def prune(self, older_than: dt.timedelta) -> int:
        """Forget what was delivered longer ago than this; return how many rows that were."""
        return self._table.prune(older_than)

    def ddl(self) -> str:
        """Return the statements that make the table, for a database in which the app may not."""
        return self._table.ddl()


def position_of(event: Event) -> str:
    """Return a text that two events share exactly when they are about the same state of the same row."""
    parts = [_comparable(_cursor_of(event)), *(_comparable(part) for _, part in sorted(event.pk.items()))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _cursor_of(event: Event) -> CursorPart:
    return event.cursor[0] if isinstance(event.cursor, tuple) else event.cursor


def _comparable(part: CursorPart) -> Any:
    # The same moment may come with another offset when a session's time zone is another.
    if isinstance(part, dt.datetime) and part.tzinfo is not None:
        part = utc_moment(part)
    return serialize_part(part)


def _row(poller_name: str, event: Event) -> dict[str, str]:
    return {
        "poller_name": poller_name,
        "position_hash": position_of(event),
        "event_id": event.event_id,
        "cursor_value": json.dumps(serialize_part(_cursor_of(event))),
        "row_key": json.dumps({name: serialize_part(part) for name, part in event.pk.items()}),
    }


def _delivered_columns(dialect: str) -> list[Column[Any]]:
    from sqlalchemy import Column, String, Text

    return [
        Column("poller_name", exact_text(200, dialect), primary_key=True),
        Column("position_hash", String(64), primary_key=True),
        Column("event_id", exact_text(200, dialect), nullable=False),
        Column("cursor_value", Text, nullable=False),
        Column("row_key", Text, nullable=False),
    ]
