"""Removes what was delivered: row by row as it was read, in bounded steps, never a range that others may write into.

The rows between two positions are read once more, without their payloads, and deleted by their ids. Of a range that
was read while late commits could be seen, every row was delivered; from any other, nothing is removed.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.sources.outbox.table import writing
from azure_functions_db.sql.autocommit import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Table

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.outbox.rows import OutboxRows
    from azure_functions_db.sources.outbox.table import Outbox

STEP = 1000
"""How many rows one statement removes at most."""
# What is left after so many steps waits for the next acknowledgement.
_STEPS = 100
# How many rows are looked at where it is not known whether any were left behind.
_LOOK = 100

BEGINNING: dict[str, Any] = {}
"""The written position before every row."""


class Removal:
    """Deletes the delivered rows of one outbox, or of one share of its keys."""

    def __init__(self, outbox: Outbox, rows: OutboxRows, retention: dt.timedelta) -> None:
        self._outbox = outbox
        self._rows = rows
        self._retention = retention

    def between(self, start: Any, end: Any, expected: int | None = None) -> Any:
        """Remove the rows after one written position up to another; return up to where all of them have gone.

        ``expected`` is how many there should be, where that is known, so that no more are read.
        """
        limit, last = min(expected or _LOOK, STEP), self._place(end)
        for _ in range(_STEPS):
            page = self._rows.thin.fetch_changes({"cursor": start} if start else {}, limit)
            due = [record for record in page.records if self._place_of(record) <= last]
            mine = list(filter(self._rows.takes, due))
            if mine and self._deleted(mine) < len(mine):
                return start  # Some are to be kept for now: the next time begins here again.
            if len(due) < len(page.records) or len(page.records) < limit:
                return end
            start, limit = page.next_checkpoint["cursor"], STEP
            if self._place(start) >= last:
                return end
        return start

    def sweep(self, end: Any, *, dry_run: bool = False) -> int:
        """Remove every row up to a position that has been kept long enough; return how many, or would be."""
        start, last, swept = BEGINNING, self._place(end), 0
        while True:
            page = self._rows.thin.fetch_changes({"cursor": start} if start else {}, STEP)
            due = [one for one in page.records if self._place_of(one) <= last]
            mine = self._old_enough(list(filter(self._rows.takes, due)))
            if mine and not dry_run:
                self._deleted(mine)
            swept += len(mine)
            if not page.records or len(due) < len(page.records):
                return swept
            start = page.next_checkpoint["cursor"]

    def is_due(self, start: Any, end: Any) -> bool:
        """Tell whether there is a row between two positions that should have gone by now."""
        page, last = self._rows.thin.fetch_changes({"cursor": start} if start else {}, _LOOK), self._place(end)
        return bool(
            self._old_enough([one for one in page.records if self._place_of(one) <= last and self._rows.takes(one)])
        )

    def _old_enough(self, records: list[RawRecord]) -> list[RawRecord]:
        """Return the rows that need not be kept any longer."""
        column = self._outbox.columns.created_at
        if not records or not self._retention or column is None:
            return records
        with self._rows.engine().connect() as connection:
            limit = _comparable(self._limit(connection))
        return [one for one in records if _comparable(one[column]) < limit]

    def _deleted(self, records: Sequence[RawRecord]) -> int:
        """Delete rows that have been kept long enough; return how many that were, counting those that had gone."""
        label, ids = self._outbox.label, [record[self._outbox.columns.id] for record in records]
        with writing(f"Removing delivered rows of {label}", label), self._rows.engine().connect() as connection:
            leave_transactions(connection)
            table = self._outbox.reflected(self._rows.engine())
            self._delete(connection, table, ids)
            kept = self._count(connection, table, ids) if self._retention else 0
            connection.commit()
            return len(records) - kept

    def _delete(self, connection: Connection, table: Table, ids: Sequence[Any]) -> None:
        from sqlalchemy import delete

        columns = self._outbox.columns
        removing = delete(table).where(table.columns[columns.id].in_(ids))
        if self._retention and columns.created_at is not None:
            removing = removing.where(table.columns[columns.created_at] < self._limit(connection))
        connection.execute(removing)

    def _count(self, connection: Connection, table: Table, ids: Sequence[Any]) -> int:
        from sqlalchemy import func, select

        present = select(func.count()).where(table.columns[self._outbox.columns.id].in_(ids))
        return int(connection.execute(present).scalar_one())

    def _limit(self, connection: Connection) -> dt.datetime:
        """Return the moment, on the database's clock, before which rows are no longer kept."""
        from sqlalchemy import func, select

        match connection.dialect.name:
            case "postgresql":
                clock: Any = func.clock_timestamp()
            case "mysql" | "mariadb":
                clock = func.now(6)  # of the session, as its TIMESTAMP columns are
            case "mssql":
                clock = func.sysdatetimeoffset()
            case _:
                return dt.datetime.now(dt.UTC).replace(tzinfo=None) - self._retention
        now: dt.datetime = connection.execute(select(clock)).scalar_one()
        return now - self._retention

    def _place(self, written: Any) -> tuple[Any, ...]:
        return tuple(map(_comparable, deserialize_position(written, self._rows.thin.pk_columns)))

    def _place_of(self, record: RawRecord) -> tuple[Any, ...]:
        names = (self._rows.thin.cursor_column, *self._rows.thin.pk_columns)
        return tuple(_comparable(record[name]) for name in names)


def _comparable(value: Any) -> Any:
    """Return a value that can be compared with others of its column, whether they have a zone or not."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value
