"""A transaction that several parts share without knowing each other.

`ambient_transaction` opens one on an engine for the current context; whoever works on the same
engine in that context asks `ambient_connection` first and joins it.

However a transaction is undone, a rollback that fails never hides why it was wanted.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import DbConnectionError
from azure_functions_db.sql.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import Transaction


_logger = logging.getLogger("azure_functions_db")
_open: ContextVar[Mapping[int, Connection]] = ContextVar("azfdb_open_transactions", default={})  # noqa: B039 - never mutated


def ambient_connection(engine: Engine) -> Connection | None:
    """Return the connection of the transaction that is open on this engine here, if any."""
    return _open.get().get(id(engine))


_turns: weakref.WeakKeyDictionary[Connection, Any] = weakref.WeakKeyDictionary()
_turns_lock = threading.Lock()


def turn_on(connection: Connection) -> AbstractContextManager[object]:
    """Return what lets the threads that share a transaction use its connection one after the other."""
    with _turns_lock:
        turn: AbstractContextManager[object] = _turns.setdefault(connection, threading.RLock())
        return turn


@contextmanager
def ambient_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction for this context; commit at the end, roll back on an exception."""
    with begun(engine) as connection, joined(connection):
        yield connection


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """Lend a connection with a transaction: committed at the end, rolled back on an exception."""
    with engine.connect() as connection, _kept(connection.begin()):
        yield connection


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo what is done inside when it fails, and nothing else of the transaction."""
    begin_now(connection)
    with _kept(connection.begin_nested()):
        yield


def begin_now(connection: Connection) -> None:
    """Begin on the database what SQLAlchemy has begun on paper.

    Python's SQLite driver begins with the first write only: reads before it would not belong to
    the transaction, and a savepoint before it would be committed on its own.
    """
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "pysqlite" and not raw.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def undo(give_up: Callable[[], object]) -> None:
    """Roll back or close; a failure is only logged: a connection that is lost takes what it did with it."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        give_up()
    except SQLAlchemyError as failure:
        _logger.warning("Rolling back failed: %s", reason_of(failure))
    except DbConnectionError as lost:
        _logger.warning("Rolling back failed: %s", str(lost))
    except Exception as failure:  # noqa: BLE001 - drivers have errors of their own, and why it was wanted comes first
        _logger.warning("Rolling back failed: %s", type(failure).__name__)


@contextmanager
def _kept(transaction: Transaction) -> Iterator[None]:
    try:
        yield
        transaction.commit()
    except BaseException:
        undo(transaction.close)
        raise


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
