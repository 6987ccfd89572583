"""What time it is elsewhere, and how long ago something was."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure_functions_db.core.types import Finding

if TYPE_CHECKING:
    from sqlalchemy import Connection

_NOW = {
    "postgresql": "SELECT clock_timestamp()",
    "mysql": "SELECT utc_timestamp(6)",
    "mariadb": "SELECT utc_timestamp(6)",
    "mssql": "SELECT sysutcdatetime()",
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
    "oracle": "SELECT sys_extract_utc(systimestamp) FROM dual",
}
# Leases allow for clocks that differ by this much.
_TOLERANCE = 5.0


def database_now(connection: Connection) -> dt.datetime | None:
    """Return the database's own clock; None where its dialect is not known well enough."""
    statement = _NOW.get(connection.dialect.name)
    if statement is None:
        return None
    told = connection.exec_driver_sql(statement).scalar_one()
    moment = dt.datetime.fromisoformat(told) if isinstance(told, str) else told
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def clock_finding(check: str, there: dt.datetime | None, here: dt.datetime | None = None) -> Finding:
    """Compare a clock with this machine's."""
    if there is None:
        return Finding(check, "note", "not known")
    difference = (there - (here or dt.datetime.now(dt.UTC))).total_seconds()
    told = "this machine's" if abs(difference) < 1 else f"{difference:+.1f} s against this machine"
    if abs(difference) > _TOLERANCE:
        return Finding(check, "warning", told, "leases allow for 5 s: set the clocks by NTP")
    return Finding(check, "ok", told)


def lag_seconds(cursor: object, now: dt.datetime) -> float | None:
    """Return the age of a timestamp cursor, None for any other cursor.

    A naive time is taken for UTC: databases that keep no zone are run that way.
    """
    if not isinstance(cursor, dt.datetime):
        return None
    aware = cursor if cursor.tzinfo is not None else cursor.replace(tzinfo=dt.UTC)
    return max(0.0, (now - aware).total_seconds())
