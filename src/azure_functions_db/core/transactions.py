"""A transaction that several parts share without knowing each other.

`ambient_transaction` opens one on an engine for the current context; whoever works on the same
engine in that context asks `ambient_connection` first and joins it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection, Engine

_open: ContextVar[Mapping[int, Connection]] = ContextVar("azfdb_open_transactions", default={})  # noqa: B039 - never mutated


def ambient_connection(engine: Engine) -> Connection | None:
    """Return the connection of the transaction that is open on this engine here, if any."""
    return _open.get().get(id(engine))


@contextmanager
def ambient_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction for this context; commit at the end, roll back on an exception."""
    with engine.begin() as connection, joined(connection):
        yield connection


@contextmanager
def joined(connection: Connection) -> Iterator[None]:
    """Let whoever works on the connection's engine in this context join its transaction."""
    with _during({**_open.get(), id(connection.engine): connection}):
        yield


@contextmanager
def outside_transactions() -> Iterator[None]:
    """Do what must take effect at once and on a connection of its own, whatever is open here."""
    with _during({}):
        yield


@contextmanager
def _during(transactions: Mapping[int, Connection]) -> Iterator[None]:
    token = _open.set(transactions)
    try:
        yield
    finally:
        _open.reset(token)
