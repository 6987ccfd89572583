"""What time it is, and how far apart two clocks are."""

from __future__ import annotations

import datetime as dt
from functools import partial

from azure_functions_db.core.types import Finding

# Leases allow for clocks that differ by this much.
_TOLERANCE = 5.0


utc_now = partial(dt.datetime.now, dt.UTC)
"""The time by the machine's clock."""


def utc_moment(moment: dt.datetime) -> dt.datetime:
    """Return a moment that has a zone in UTC; one that is in the year 0 or 10000 there stays as it is."""
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        return moment


def lease_margin(ttl_seconds: float) -> float:
    """Return how far clocks may differ: so long before the expiry a holder stops, so long after it a taker waits."""
    return min(5.0, ttl_seconds / 4)


def clock_finding(check: str, there: dt.datetime | None, here: dt.datetime | None = None) -> Finding:
    """Compare a clock with this machine's."""
    if there is None:
        return Finding(check, "note", "not known")
    difference = (there - (here or utc_now())).total_seconds()
    comparison = "this machine's" if abs(difference) < 1 else f"{difference:+.1f} s against this machine"
    if abs(difference) > _TOLERANCE:
        return Finding(check, "warning", comparison, "leases allow for 5 s: set the clocks by NTP")
    return Finding(check, "ok", comparison)


def lag_seconds(cursor: object, now: dt.datetime) -> float | None:
    """Return the age of a timestamp cursor, alone or before its key; None for any other cursor.

    A naive time is taken for UTC: databases that keep no zone are run that way.
    """
    if isinstance(cursor, tuple) and cursor:
        cursor = cursor[0]
    if not isinstance(cursor, dt.datetime):
        return None
    aware = cursor if cursor.tzinfo is not None else cursor.replace(tzinfo=dt.UTC)
    return max(0.0, (now - aware).total_seconds())
