"""Transactions that several parts share without knowing each other, and statements that are one by themselves.

`ambient_transaction` opens one on an engine for the current context; whoever works on the same
engine in that context asks `ambient_connection` first and joins it. However a transaction is undone,
a rollback that fails never hides why it was wanted.

SQLAlchemy puts a transaction around every statement, which costs a read two round trips more
than it needs. For a single statement the driver's own connection is used in its autocommit mode. A
connection stays in the mode it was last used in, and changes when the other one is wanted: with
PyMySQL a change is a round trip.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.core.errors import DbConnectionError, DbError
from azure_functions_db.sql.failures import UNDECODABLE, hide_values, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine, PoolProxiedConnection
    from sqlalchemy.engine import Transaction
    from sqlalchemy.exc import DBAPIError

    from azure_functions_db.core.config import DbConfig


T = TypeVar("T")


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


def _switch_psycopg(connection: Any, autocommit: bool) -> None:
    if connection.autocommit is not autocommit:
        connection.autocommit = autocommit


def _switch_pymysql(connection: Any, autocommit: bool) -> None:
    connection.autocommit(autocommit)


def _switch_sqlite(connection: Any, autocommit: bool) -> None:
    connection.isolation_level = None if autocommit else ""


# Whether the user's own statement has begun a transaction and left it open.
_LEFT_OPEN: dict[str, Callable[[Any], object]] = {
    "psycopg": lambda connection: connection.pgconn.transaction_status,
    "pymysql": lambda connection: connection.server_status & 1,
    "pysqlite": lambda connection: connection.in_transaction,
}
_SWITCHES: dict[str, Callable[[Any, bool], None]] = {
    "psycopg": _switch_psycopg,
    "pymysql": _switch_pymysql,
    "pysqlite": _switch_sqlite,
}
# These live in the process; one of them in memory is gone with its connection.
_WITHOUT_A_LINE = {"sqlite", "duckdb"}
# Has read an answer to its end before it decodes the first value: one that cannot be decoded leaves nothing behind.
_READS_WHOLE = {"psycopg", "psycopg2"}
_SINGLE = "azfdb_single_statements"
_prepared: weakref.WeakSet[Engine] = weakref.WeakSet()


def engine_options(driver: str, config: DbConfig) -> dict[str, Any]:
    """Return what an engine of this driver must be made with."""
    arguments = dict(config.connect_args or {})
    # PyMySQL would begin with a round trip to leave the server's own mode, which is the one that is wanted first.
    if driver == "pymysql" and not _chooses_mode(config):
        arguments["autocommit"] = None
    # Otherwise PyMySQL sends a ROLLBACK even where no transaction can be open; psycopg takes time to see it.
    options: dict[str, Any] = {"skip_autocommit_rollback": True} if driver in {"psycopg", "pymysql"} else {}
    return {"connect_args": arguments, **options}


def _chooses_mode(config: DbConfig) -> bool:
    """Tell whether the user chose the transaction mode of the connections."""
    chosen = {"isolation_level", "execution_options", "autocommit"}
    return not chosen.isdisjoint({*config.engine_kwargs, *(config.connect_args or ())})


def allow_single_statements(engine: Engine, config: DbConfig) -> None:
    """Prepare a new engine, unless the user chose the transaction mode of its connections."""
    from sqlalchemy import event

    if _chooses_mode(config) or engine.dialect.driver not in _SWITCHES:
        return

    @event.listens_for(engine, "begin")
    def choose_mode(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            _switch(connection, autocommit=_SINGLE in options)

    _prepared.add(engine)


def takes_single_statements(engine: Engine) -> bool:
    """Tell whether `run_single` works here: a prepared engine whose statements nobody watches."""
    watched = engine.echo or engine.dispatch.before_cursor_execute or engine.dispatch.after_cursor_execute
    return engine in _prepared and not watched


def leave_transactions(connection: Connection) -> None:
    """Let each statement on this connection be a transaction of its own, where the engine is prepared for that.

    SQLAlchemy still speaks of transactions, but none is begun, and ending one sends nothing.
    """
    if connection.engine in _prepared:
        connection.execution_options(**{_SINGLE: True})
        _switch(connection, autocommit=True)


def forget_prepared(engine: Engine) -> None:
    """Let psycopg prepare its statements anew: those of a table that has changed are refused by the server.

    It forgets them with the end of a transaction that was rolled back.
    """
    if engine.dialect.driver == "psycopg":
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            connection.rollback()


def _switch(connection: Connection, *, autocommit: bool) -> None:
    with driver_errors(connection):
        _SWITCHES[connection.dialect.driver](connection.connection.dbapi_connection, autocommit)


def has_left_transactions(connection: Connection) -> bool:
    """Tell whether its driver may be used directly: no transaction opens unnoticed, and nobody watches."""
    return _SINGLE in connection.get_execution_options() and takes_single_statements(connection.engine)


def run_single(engine: Engine, sql: str, bound: Any, take: Callable[[Any], T]) -> T:
    """Run one statement, which is committed at once, and take what its cursor has.

    Written without layers: this is what a function that reads one row waits for.
    """
    pooled = None
    try:
        pooled = engine.raw_connection()
        raw: Any = pooled.dbapi_connection
        _SWITCHES[engine.dialect.driver](raw, True)
        cursor = raw.cursor()
        cursor.execute(sql, bound)
        taken = take(cursor)
        cursor.close()
    except BaseException as error:
        _report(engine, pooled, error)
        raise
    finally:
        if pooled is not None:
            _give_back(engine, pooled)
    return taken


def _give_back(engine: Engine, pooled: PoolProxiedConnection) -> None:
    try:
        if pooled.is_valid and _LEFT_OPEN[engine.dialect.driver](pooled.dbapi_connection):
            pooled.rollback()
    except engine.dialect.loaded_dbapi.Error as error:
        pooled.invalidate(error)
    finally:
        pooled.close()


class driver_errors:  # noqa: N801 - used as a statement
    """Stands around every use of the driver's own connection: what SQLAlchemy does not see, the pool learns here.

    The driver's errors become SQLAlchemy's, and a connection that has died, or whose answer may not
    have been read to its end, is not used again.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            _report(self._connection.engine, self._connection, error)


def _report(engine: Engine, connection: Connection | PoolProxiedConnection | None, error: BaseException) -> None:
    """Drop the connection if the error says that it is of no more use; raise a driver's error as SQLAlchemy's."""
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(error, engine.dialect.loaded_dbapi.Error):
        died = connection is not None and _has_died(engine, connection, error)
        if connection is not None and died:
            connection.invalidate(error)
        raise _wrapped(engine, error, never_connected=connection is None, died=died) from error
    # Anything else that ends a call in the middle leaves an answer on the line that nobody has asked for.
    in_the_middle = not isinstance(error, DbError | SQLAlchemyError) and not (
        engine.dialect.driver in _READS_WHOLE and isinstance(error, UNDECODABLE)
    )
    if connection is not None and in_the_middle and engine.dialect.name not in _WITHOUT_A_LINE:
        connection.invalidate(error)


def _has_died(engine: Engine, connection: Connection | PoolProxiedConnection, error: Any) -> bool:
    from sqlalchemy import Connection

    if isinstance(connection, Connection) and connection.invalidated:
        return True  # asking it for its driver's connection would make a new one
    pooled = connection.connection if isinstance(connection, Connection) else connection
    return engine.dialect.is_disconnect(error, pooled.dbapi_connection, None)


def _wrapped(engine: Engine, error: Any, *, never_connected: bool, died: bool) -> DBAPIError:
    from sqlalchemy.exc import DBAPIError

    hide_values(error)
    wrapped: DBAPIError = DBAPIError.instance(
        None if never_connected else "a statement",
        None,
        error,
        engine.dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=died,
        dialect=engine.dialect,
    )
    return wrapped
