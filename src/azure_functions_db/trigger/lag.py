"""How far behind the newest change a poller is."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from azure_functions_db.core.types import Checkpoint

# Further behind than this is far behind; counting on would cost more than it tells.
_MOST_ROWS = 10_000


def lag_of(cursor: object, now: dt.datetime) -> float | None:
    """Return the age of a timestamp cursor in seconds, None for any other cursor.

    A naive time is taken for UTC: databases that keep no zone are run that way.
    """
    if not isinstance(cursor, dt.datetime):
        return None
    aware = cursor if cursor.tzinfo is not None else cursor.replace(tzinfo=dt.UTC)
    return max(0.0, (now - aware).total_seconds())


def rows_behind(source: object, checkpoint: Checkpoint, *, more: bool) -> int | None:
    """Return how many rows follow a checkpoint, None where the source cannot count them; counting is bounded."""
    if not more:
        return 0
    count = getattr(source, "count_changes", None)
    with suppress(Exception):  # a number for a dashboard is not worth a failed tick
        return None if count is None else int(count(checkpoint, _MOST_ROWS))
    return None
