"""How far behind the newest change a poller is."""

from __future__ import annotations

import datetime as dt


def lag_of(cursor: object, now: dt.datetime) -> float | None:
    """Return the age of a timestamp cursor in seconds, None for any other cursor.

    A naive time is taken for UTC: databases that keep no zone are run that way.
    """
    if not isinstance(cursor, dt.datetime):
        return None
    aware = cursor if cursor.tzinfo is not None else cursor.replace(tzinfo=dt.UTC)
    return max(0.0, (now - aware).total_seconds())
