"""How many rows follow a position."""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.types import Backlog
from azure_functions_db.sources.keyset.page import read_page
from azure_functions_db.sources.keyset.plan import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Position

_EVERYTHING = sys.maxsize
# Counting stops here: an operator needs no exact number beyond it.
_COUNTED = 100_000


def counted(connection: Connection, plan: Plan, start: Position, most: int | None = None) -> int:
    """Count the rows after a position; a share that only Python can pick is estimated."""
    from sqlalchemy import func, select

    page = plan.page(start)
    count = select(func.count()).select_from(page.subquery("azfdb_counted"))
    parameters = {**plan.parameters(start), LIMIT: _EVERYTHING if most is None else most}
    rows = int(connection.execute(count, parameters).scalar_one())
    partition = plan.definition.partition
    return rows if partition is None or plan.partitions_in_sql else rows // partition.count


def backlog_behind(connection: Connection, plan: Plan, start: Position) -> Backlog:
    """Count the rows after a position, up to where nobody needs the exact number, and tell the age of the first."""
    rows = counted(connection, plan, start, _COUNTED)
    page = read_page(connection, plan, start, 1)
    if not page.rows:
        return Backlog(rows, is_more=rows >= _COUNTED, lag_seconds=None if rows else 0.0)
    [oldest] = plan.records(page.header, page.rows)
    lag = lag_seconds(oldest[plan.definition.cursor_column], dt.datetime.now(dt.UTC))
    return Backlog(rows, is_more=rows >= _COUNTED, lag_seconds=lag)


_EVERY_SECONDS = 3600.0


class NullCursorCount:
    """Counts when the first page is read, and every hour after that."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due_at: float | None = None

    def due(self, count: Callable[[], int]) -> int | None:
        """Return the number if it is time to count, None in between."""
        now = self._clock()
        if self._due_at is not None and now < self._due_at:
            return None
        self._due_at = now + _EVERY_SECONDS
        return count()
