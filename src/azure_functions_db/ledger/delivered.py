"""The delivered ledger: which rows a poller has delivered, to be compared with its source."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import utc_now
from azure_functions_db.core.serializers import serialize_part
from azure_functions_db.core.signals import BatchCommitted
from azure_functions_db.ledger.ledger_table import LedgerTable
from azure_functions_db.sql.engine import engine_getter
from azure_functions_db.sql.own_tables import exact_text
from azure_functions_db.sql.transactions import begun, outside_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Column

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.signals import Signal
    from azure_functions_db.core.types import CursorPart, Event
    from azure_functions_db.sql.engine import EngineProvider


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
        self._table = LedgerTable(engine_getter(url, db_config, engine_provider), table, schema, _columns, clock)

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
        part = part.astimezone(dt.UTC)
    return serialize_part(part)


def _row(poller_name: str, event: Event) -> dict[str, str]:
    return {
        "poller_name": poller_name,
        "position_hash": position_of(event),
        "event_id": event.event_id,
        "cursor_value": json.dumps(serialize_part(_cursor_of(event))),
        "row_key": json.dumps({name: serialize_part(part) for name, part in event.pk.items()}),
    }


def _columns() -> list[Column[Any]]:
    from sqlalchemy import Column, String, Text

    return [
        Column("poller_name", exact_text(200), primary_key=True),
        Column("position_hash", String(64), primary_key=True),
        Column("event_id", exact_text(200), nullable=False),
        Column("cursor_value", Text, nullable=False),
        Column("row_key", Text, nullable=False),
    ]
