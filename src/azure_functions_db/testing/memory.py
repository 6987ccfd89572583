"""A source and a quarantine in memory, for tests of handlers."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.quarantine import oldest_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from azure_functions_db.core.types import CursorValue, QuarantinedRow, RawRecord


class MemorySource:
    """Delivers rows from a list, in the order cursor, key; append to ``rows`` to let something change."""

    def __init__(
        self,
        rows: Sequence[RawRecord],
        *,
        cursor_column: str,
        pk_columns: Sequence[str],
        created_column: str | None = None,
        deleted_column: str | None = None,
        name: str = "memory",
    ) -> None:
        self.rows = list(rows)
        self.cursor_column = cursor_column
        self.pk_columns = tuple(pk_columns)
        self.created_column = created_column
        self.deleted_column = deleted_column
        self.source_descriptor = SourceDescriptor(name, "memory", f"sha256:{name}")

    def fetch(self, cursor: CursorValue, batch_size: int) -> Sequence[RawRecord]:
        """Return at most ``batch_size`` rows after the cursor, of each key its newest state only."""
        newest = {self._place(row)[1:]: row for row in sorted(self.rows, key=self._place)}
        current = sorted(newest.values(), key=self._place)
        if cursor is None:
            return current[:batch_size]
        after = cursor if isinstance(cursor, tuple) else (cursor,)
        return [row for row in current if self._place(row)[: len(after)] > after][:batch_size]

    def _place(self, row: RawRecord) -> tuple[CursorValue, ...]:
        return (row[self.cursor_column], *(row[name] for name in self.pk_columns))


class MemoryQuarantine:
    """Keeps quarantined rows as long as it lives."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], QuarantinedRow] = {}

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        """Keep the rows; the same row put twice is kept once."""
        self._rows |= {(row.poller_name, row.event_id): row for row in rows}

    def entries(self, poller_name: str | None = None) -> list[QuarantinedRow]:
        """Return what is kept, oldest first; of one poller where it is named."""
        return oldest_first([row for row in self._rows.values() if poller_name in {None, row.poller_name}])

    def count(self, poller_name: str) -> int:
        """Return how many rows of a poller are kept."""
        return len(self.entries(poller_name))

    def remove(self, poller_name: str, event_id: str) -> None:
        """Forget one row; one that is not there is no error."""
        self._rows.pop((poller_name, event_id), None)

    def take_back(self, poller_name: str, batch_id: str) -> None:
        """Forget the rows of a poller that this batch has put aside."""
        for row in self.entries(poller_name):
            if row.batch_id == batch_id:
                self.remove(poller_name, row.event_id)


class FakeClock:
    """Stands still until it is told to move; give it wherever a ``clock=`` is asked for."""

    def __init__(self, now: dt.datetime | None = None) -> None:
        self.now = now or dt.datetime(2026, 4, 7, 1, 23, 45, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass, backwards too."""
        self.now += dt.timedelta(seconds=seconds)

    def monotonic(self) -> float:
        """Return the time in seconds, for what measures spans."""
        return self.now.timestamp()

    def sleep(self, seconds: float) -> None:
        """Pass the time at once, for what would wait."""
        self.advance(seconds)
