"""Finds out before use that a pooled connection has died, at no cost for a busy pool."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

_IDLE_SINCE = "azfdb_idle_since"


def check_idle_connections(
    engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Ping a connection before use when it was idle for long, or when its socket has news.

    A server that ends a session says so on the socket. Looking costs no round trip, so a
    restarted server or a terminated session is noticed even on a busy pool.
    """
    from sqlalchemy import event
    from sqlalchemy.exc import DisconnectionError

    @event.listens_for(engine, "checkin")
    def remember(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = clock()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None:
            return
        rested_long = clock() - idle_since > idle_seconds
        if (rested_long or _has_news(connection)) and not _answers(engine, connection):
            raise DisconnectionError


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        return engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False


def _has_news(connection: Any) -> bool:
    """Tell whether something unasked-for waits on the connection's socket."""
    descriptor = _descriptor(connection)
    if descriptor is None:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


def _descriptor(connection: Any) -> int | None:
    # psycopg tells its descriptor; PyMySQL keeps its socket to itself.
    owner = connection if hasattr(connection, "fileno") else getattr(connection, "_sock", None)
    try:
        return None if owner is None else int(owner.fileno())
    except Exception:  # noqa: BLE001 - a closed connection has many ways to say so
        return None
