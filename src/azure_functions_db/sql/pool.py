"""Finds out before use that a pooled connection has died, at no cost for a busy pool."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

_IDLE_SINCE = "azfdb_idle_since"
# A connection that a network device has forgotten swallows what is sent, for many minutes.
_ANSWER_WITHIN_MS = 5_000


def check_idle_connections(engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Ping a connection before use when it was idle for long, when its socket has news, or when another has died.

    A server that ends a session says so on the socket. Looking costs no round trip, so a
    restarted server or a terminated session is noticed even on a busy pool.
    """
    from sqlalchemy import event
    from sqlalchemy.exc import InvalidatePoolError

    last_death = float("-inf")

    @event.listens_for(engine, "invalidate")
    def mourn(_connection: Any, _record: Any, _error: Any) -> None:
        # What ended this connection has most likely ended its neighbours too.
        nonlocal last_death
        last_death = clock()

    @event.listens_for(engine, "checkin")
    def remember(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = clock()

    @event.listens_for(engine, "checkout")
    def check(connection: Any, record: Any, _proxy: Any) -> None:
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None:
            return
        descriptor = _descriptor(connection)
        is_old = clock() - idle_since > idle_seconds or idle_since <= last_death
        if (is_old or _has_news(descriptor)) and not _answers(engine, connection, descriptor):
            raise InvalidatePoolError


def _answers(engine: Engine, connection: Any, descriptor: int | None) -> bool:
    with _impatient(descriptor):
        try:
            return engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            return False


def _descriptor(connection: Any) -> int | None:
    # psycopg tells its descriptor; PyMySQL keeps its socket to itself; others have none to show.
    owner = connection if hasattr(connection, "fileno") else getattr(connection, "_sock", None)
    try:
        return None if owner is None else int(owner.fileno())
    except Exception:  # noqa: BLE001 - a closed connection has many ways to say so
        return None


def _has_news(descriptor: int | None) -> bool:
    """Tell whether something unasked-for waits on the connection's socket."""
    if descriptor is None or descriptor < 0:
        return False
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


@contextmanager
def _impatient(descriptor: int | None) -> Iterator[None]:
    """Give a connection up after seconds without an acknowledgment, where the system can do that."""
    if descriptor is None or descriptor < 0 or not hasattr(socket, "TCP_USER_TIMEOUT"):
        yield
        return
    with socket.socket(fileno=os.dup(descriptor)) as same_connection:
        _set_user_timeout(same_connection, _ANSWER_WITHIN_MS)
        try:
            yield
        finally:
            _set_user_timeout(same_connection, 0)


def _set_user_timeout(connection: socket.socket, milliseconds: int) -> None:
    with suppress(OSError):  # not a TCP connection, or already closed
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
