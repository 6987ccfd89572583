"""What time it is on the database's own clock."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

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


def database_now(connection: Connection) -> dt.datetime | None:
    """Return the database's own clock; None where its dialect is not known well enough."""
    statement = _NOW.get(connection.dialect.name)
    if statement is None:
        return None
    value = connection.exec_driver_sql(statement).scalar_one()
    moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
