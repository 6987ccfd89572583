"""Removes what was delivered: row by row as it was read, in bounded steps, never a range that others may write into.

The rows between two positions are read once more, without their payloads, and deleted by their ids. Of a range that
was read while late commits could be seen, every row was delivered; from any other, nothing is removed.
"""

from __future__ import annotations

import datetime as dt
from itertools import islice
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.sources.outbox.table import writing
from azure_functions_db.sql.autocommit import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.outbox.rows import OutboxRows
    from azure_functions_db.sources.outbox.table import Outbox

# How many rows one statement removes at most.
_STEP = 1000
# What is left after so many steps waits for the next acknowledgement.
_STEPS = 100
# How many rows are looked at first where it is not known whether any were left behind.
_LOOK = 100

BEGINNING: dict[str, Any] = {}
"""The written position before every row."""


class Removal:
    """Deletes the delivered rows of one outbox, or of one share of its keys, once they have been kept long enough."""

    def __init__(self, outbox: Outbox, rows: OutboxRows, retention: dt.timedelta) -> None:
        self._outbox = outbox
        self._rows = rows
        self._retention = retention

    def between(self, start: Any, end: Any, expected: int | None = None) -> Any:
        """Remove the rows after one written position up to another; return up to where all of them have gone.

        ``expected`` is how many there should be, where that is known, so that no more are read.
        """
        for rows, position in islice(self._steps(start, end, min(expected or _LOOK, _STEP)), _STEPS):
            old = self._old_enough(rows)
            self._delete(old)
            if len(old) < len(rows):
                break  # Some are to be kept for now: the next time begins here again.
            start = position
        return start

    def sweep(self, end: Any, *, dry_run: bool = False) -> int:
        """Remove every row up to a position; return how many that were, or would be."""
        swept = 0
        for rows, _ in self._steps(BEGINNING, end, _STEP):
            old = self._old_enough(rows)
            swept += len(old)
            if not dry_run:
                self._delete(old)
        return swept

    def is_due(self, start: Any, end: Any) -> bool:
        """Tell whether there is a row between two positions that should have gone by now."""
        rows, _ = next(self._steps(start, end, _LOOK))
        return bool(self._old_enough(rows))

    def _steps(self, start: Any, end: Any, limit: int) -> Iterator[tuple[list[RawRecord], Any]]:
        """Give our rows between two positions in steps, each with the position behind it."""
        last, is_last = self._place(end), False
        while not is_last:
            page = self._rows.thin.fetch_changes({"cursor": start} if start else {}, limit)
            due = [row for row in page.records if self._place_of(row) <= last]
            is_last = len(due) < limit or self._place_of(due[-1]) == last
            start, limit = end if is_last else page.next_checkpoint["cursor"], _STEP
            yield list(filter(self._rows.takes, due)), start

    def _old_enough(self, rows: list[RawRecord]) -> list[RawRecord]:
        """Return the rows that need not be kept any longer, by the database's clock."""
        column = self._outbox.columns.created_at
        if not rows or not self._retention or column is None:
            return rows
        with self._rows.engine().connect() as connection:
            now = _now(connection, aware=rows[0][column].tzinfo is not None)
        return [row for row in rows if row[column] < now - self._retention]

    def _delete(self, rows: Sequence[RawRecord]) -> None:
        from sqlalchemy import delete

        if not rows:
            return
        label, name = self._outbox.label, self._outbox.columns.id
        with writing(f"Removing delivered rows of {label}", label), self._rows.engine().connect() as connection:
            leave_transactions(connection)
            table = self._outbox.reflected(self._rows.engine())
            connection.execute(delete(table).where(table.columns[name].in_([row[name] for row in rows])))
            connection.commit()

    def _place(self, written: Any) -> tuple[Any, ...]:
        return deserialize_position(written, self._rows.thin.pk_columns)

    def _place_of(self, row: RawRecord) -> tuple[Any, ...]:
        return tuple(row[name] for name in (self._rows.thin.cursor_column, *self._rows.thin.pk_columns))


def _now(connection: Connection, *, aware: bool) -> dt.datetime:
    """Return the database's clock as its columns tell times: with a zone, or without one and in the session's."""
    from sqlalchemy import func, select

    match connection.dialect.name:
        case "postgresql":
            clock: Any = func.clock_timestamp()
        case "mysql" | "mariadb":
            clock = func.utc_timestamp(6) if aware else func.now(6)
        case "mssql":
            clock = func.sysdatetimeoffset()
        case _:
            return dt.datetime.now(dt.UTC).replace(tzinfo=None)
    now: dt.datetime = connection.execute(select(clock)).scalar_one()
    return now.replace(tzinfo=dt.UTC) if aware and now.tzinfo is None else now
