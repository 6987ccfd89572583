"""Where the statements of a reader, a writer or a session run, and what their failures become."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from azure_functions_db.binding.statements import plans, unfit_values
from azure_functions_db.core.errors import (
    Code,
    ConfigurationError,
    DbConnectionError,
    QueryConnectionError,
    QueryError,
    WriteConnectionError,
    WriteError,
)
from azure_functions_db.core.secrets import masked
from azure_functions_db.sql.failures import (
    LOGIN_REFUSED,
    code_of,
    constraint_of,
    is_connection_failure,
    is_forbidden,
    is_login_failure,
    right_missing,
)
from azure_functions_db.sql.reflection import refreshed, table_with, with_current_table
from azure_functions_db.sql.transactions import (
    ambient_connection,
    begin_now,
    begun,
    driver_errors,
    joined,
    run_single,
    savepoint,
    takes_single_statements,
    turn_on,
    undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Engine, Table
    from sqlalchemy.engine import Transaction
    from sqlalchemy.exc import SQLAlchemyError

    from azure_functions_db.binding.statements import Statement

T = TypeVar("T")


class Database:
    """A database as one reader, writer or session uses it, with its transaction if one is open.

    A ``confined`` one serves the first thread that uses it and refuses others.
    """

    def __init__(self, engine: Callable[[], Engine], *, confined: bool) -> None:
        self._get_engine = engine
        self._block: _Block | None = None
        self._confined = confined
        self._owner: int | None = None

    @cached_property
    def engine(self) -> Engine:
        """The shared engine; made when it is first wanted."""
        return self._get_engine()

    @property
    def is_open(self) -> bool:
        """Whether a transaction of its own is open."""
        return self._block is not None

    def current(self) -> Connection | None:
        """Return the connection of the transaction that statements join, if there is one."""
        if self._confined:
            self._refuse_other_threads()
        if self._block is not None:
            return self._block.connection()
        return ambient_connection(self.engine)

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Run work on the connection of the transaction that is open here."""
        connection = self.current()
        if connection is None:
            raise ConfigurationError("This belongs into a transaction: use it inside `with writer.transaction():`")
        return work(connection)

    def run_on_one_row(self, statement: Statement, values: Sequence[Any], take: Callable[[Any], T]) -> T:
        """Run a statement that may touch one row at most; one that touches more is undone with its transaction."""
        try:
            return self.run(statement, values, take, most_rows=1)
        except _TooManyRowsError:
            self._undo_all()
        raise WriteError("The key fits more than one row, so the statement and its transaction were rolled back")

    def _undo_all(self) -> None:
        connection = self.current()
        transaction = None if connection is None else connection.get_transaction()
        if transaction is not None:
            undo(transaction.rollback)

    def run(
        self, statement: Statement, values: Sequence[Any], take: Callable[[Any], T], *, most_rows: int | None = None
    ) -> T:
        """Run one statement and take what its cursor has: in the open transaction, or as one of its own.

        ``most_rows`` that it may touch cost a transaction around it: what is committed cannot be undone.
        """
        connection = self.current()
        try:
            return self._run(connection, statement, values, take, most_rows=most_rows)
        except Exception as failure:
            if not plans.is_outdated(failure):
                raise
            plans.renew(self.engine)
            if connection is not None:
                raise
        return self._run(None, statement, values, take, most_rows=most_rows)

    def _run(
        self,
        connection: Connection | None,
        statement: Statement,
        values: Sequence[Any],
        take: Callable[[Any], T],
        *,
        most_rows: int | None,
    ) -> T:
        engine = self.engine
        with unfit_values():
            bound = statement.bound(values)
            sql = plans.text(engine, statement.sql)
            if connection is not None:
                with turn_on(connection):
                    return _run_on(connection, sql, bound, take, most_rows)
            if takes_single_statements(engine) and most_rows is None:
                return run_single(engine, sql, bound, take)
            with begun(engine) as own:
                return _run_on(own, sql, bound, take, most_rows)

    def table(self, name: str | Table, schema: str | None, columns: Iterable[str] = ()) -> Table:
        """Return the table's description, read again if it does not know these columns."""
        connection = self.current()
        with nullcontext() if connection is None else _joined(connection):
            return table_with(self.engine, name, schema, columns)

    def refreshed(self, table: Table) -> Table:
        """Return the table's description, read again."""
        connection = self.current()
        with nullcontext() if connection is None else _joined(connection):
            return refreshed(self.engine, table)

    def with_table(self, name: str | Table, schema: str | None, work: Callable[[Table], T]) -> T:
        """Run work on a table, once more if it fails because the table has changed."""
        if self.current() is None:
            return with_current_table(self.engine, name, schema, work)
        return work(self.table(name, schema))

    @contextmanager
    def atomic(self) -> Iterator[Connection]:
        """Lend a connection on which several statements are kept or undone together."""
        connection = self.current()
        if connection is None:
            with begun(self.engine) as own:
                yield own
        else:
            with turn_on(connection), savepoint(connection):
                yield connection

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend the connection of the open transaction, or one of the pool."""
        connection = self.current()
        with nullcontext(connection) if connection is not None else self.engine.connect() as lent:
            yield lent

    def begin(self, isolation_level: str | None = None) -> None:
        """Open a transaction that all statements join until its end."""
        if self._confined:
            self._refuse_other_threads()
        if self._block is not None:
            raise WriteError("A transaction is already open; transactions do not nest")
        self._block = _Block(self.engine, ambient_connection(self.engine), isolation_level)

    def end(self, *, keep: bool) -> None:
        """Commit or roll back the open transaction."""
        block, self._block = self._block, None
        if block is not None:
            block.end(keep=keep)

    def close(self) -> None:
        """Roll back an open transaction, whose block then stays unusable; let another thread go on."""
        if self._block is not None:
            self._block.end(keep=False)
        self._owner = None

    def _refuse_other_threads(self) -> None:
        thread = threading.get_ident()
        if self._owner is None:
            self._owner = thread
        elif self._owner != thread:
            raise ConfigurationError(
                "A writer or a session belongs to the thread that first used it. Give each thread one of its own "
                "(they share one pool), or close() it before another thread takes it over"
            )


@contextmanager
def _joined(connection: Connection) -> Iterator[None]:
    with turn_on(connection), joined(connection):
        yield


class _TooManyRowsError(Exception):
    """A statement touched more rows than it may."""


class _Block:
    """A transaction while it is open; a savepoint where a transaction surrounds it already."""

    def __init__(self, engine: Engine, outer: Connection | None, isolation_level: str | None) -> None:
        self._is_own = outer is None
        self._connection = outer or engine.connect()
        self._ended = False
        try:
            self._transaction = self._begun(isolation_level)
        except BaseException:
            self._give_back()
            raise

    def _begun(self, isolation_level: str | None) -> Transaction:
        if not self._is_own:
            begin_now(self._connection)
            return self._connection.begin_nested()
        if isolation_level is not None:
            self._connection.execution_options(isolation_level=isolation_level)
        begun = self._connection.begin()
        begin_now(self._connection)
        return begun

    def connection(self) -> Connection:
        if self._ended:
            raise WriteError("The transaction was closed, and rolled back; nothing more can be done in its block")
        return self._connection

    def end(self, *, keep: bool) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            if keep:
                _refuse_failed(self._connection)
                self._transaction.commit()
            else:
                undo(self._transaction.close)
        finally:
            self._give_back()

    def _give_back(self) -> None:
        if self._is_own:
            undo(self._connection.close)


def _refuse_failed(connection: Connection) -> None:
    # PostgreSQL answers the commit of a failed transaction with a rollback, and drivers keep quiet about it.
    info = getattr(connection.connection.dbapi_connection, "info", None)
    if getattr(getattr(info, "transaction_status", None), "name", None) == "INERROR":
        raise WriteError("A statement of this transaction had failed, so all of it was rolled back")


def _run_on(connection: Connection, sql: str, bound: Any, take: Callable[[Any], T], most_rows: int | None) -> T:
    result = connection.exec_driver_sql(sql, bound)
    try:
        with driver_errors(connection):
            taken = take(result.cursor)
        if most_rows is not None and result.rowcount > most_rows:
            raise _TooManyRowsError
        return taken
    finally:
        result.close()


class translated:  # noqa: N801 - used as a statement
    """Raises what goes wrong inside as an error of the given kind; a lost connection is one of both kinds."""

    def __init__(self, kind: type[QueryError | WriteError], table: str | None = None) -> None:
        self._kind = kind
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        from sqlalchemy.exc import SQLAlchemyError

        if isinstance(error, SQLAlchemyError):
            raise _translation(error, self._kind, self._table) from error
        if type(error) is DbConnectionError:  # there was no token to log in with
            raise _lost(self._kind)(str(error), table=self._table) from error


def _lost(kind: type[QueryError | WriteError]) -> type[QueryConnectionError | WriteConnectionError]:
    return QueryConnectionError if issubclass(kind, QueryError) else WriteConnectionError


def _translation(
    cause: SQLAlchemyError, kind: type[QueryError | WriteError], table: str | None
) -> QueryError | WriteError:
    if is_login_failure(cause):
        text = f"{LOGIN_REFUSED}: {_reason(cause)}"
        return _lost(kind)(text[0].upper() + text[1:], table=table, code=Code.LOGIN_REFUSED)
    if is_connection_failure(cause):
        return _lost(kind)(f"The database cannot be reached: {_reason(cause)}", table=table)
    action = "Reading" if issubclass(kind, QueryError) else "Writing"
    place = f" {table!r}" if table else ""
    if is_forbidden(cause):
        text = f"{action}{place} failed: {right_missing(cause)}: {_reason(cause)}"
        return kind(text, table=table, code=Code.RIGHT_MISSING)
    return kind(f"{action}{place} failed: {_reason(cause)}", table=table, constraint=constraint_of(cause))


def _reason(cause: SQLAlchemyError) -> str:
    """Say what happened without repeating a value of a row, which drivers like to quote."""
    original = getattr(cause, "orig", None) or cause
    constraint = constraint_of(cause)
    parts = [
        type(original).__name__,
        None if constraint is None else f"constraint {constraint!r}",
        code_of(cause),
        _safe_text(cause),
    ]
    return ", ".join(part for part in parts if part)


def _safe_text(cause: SQLAlchemyError) -> str | None:
    from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

    if not isinstance(cause, DBAPIError):
        return None if hasattr(cause, "orig") else masked(str(cause))
    diagnosis = getattr(cause.orig, "diag", None)
    is_about_the_statement = isinstance(cause, OperationalError | ProgrammingError)
    # PyMySQL writes the values into the statement, and MySQL quotes the statement.
    if not is_about_the_statement or code_of(cause) == "1064" or cause.orig is None:
        return None
    text = getattr(diagnosis, "message_primary", None) or str(cause.orig.args[-1] if cause.orig.args else "")
    return masked(text.strip())
