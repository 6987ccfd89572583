"""The time zone in which a session of MySQL or MariaDB tells its TIMESTAMP values.

Such a value is a moment, but the session hands it out as a local time without its zone: an hour comes twice
in autumn, and another session may tell another time. A source that stands at such a value speaks UTC.
"""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import CursorSerializationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_LEAVE = "SET @azfdb_zone = @@session.time_zone, SESSION time_zone = '+00:00'"
_RETURN = "SET SESSION time_zone = @azfdb_zone"
_CONVERT = "SELECT convert_tz(%s, @azfdb_zone, '+00:00')"


@contextmanager
def in_utc(connection: Connection) -> Iterator[None]:
    """Let the session speak UTC for a while; whoever gets the connection next finds its own zone again."""
    connection.exec_driver_sql(_LEAVE)
    try:
        yield
    finally:
        _return(connection)


def _return(connection: Connection) -> None:
    from sqlalchemy.exc import DBAPIError

    if connection.invalidated:
        return
    try:
        connection.exec_driver_sql(_RETURN)
    except DBAPIError as failure:
        connection.invalidate(failure)  # What keeps the wrong zone must not be lent again.


def naive_utc(value: Any, connection: Connection) -> Any:
    """Return a moment as a session in UTC tells it; one without a zone is the local time of the session's own."""
    if not isinstance(value, dt.datetime):
        return value
    if value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    converted = connection.exec_driver_sql(_CONVERT, (value,)).scalar_one()
    if not isinstance(converted, dt.datetime):
        raise CursorSerializationError(f"The database cannot tell what {value} is in UTC")
    return converted


def aware_utc(value: Any) -> Any:
    """Return what a session in UTC told as a moment that says so."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value
