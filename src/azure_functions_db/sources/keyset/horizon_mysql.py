"""Who is writing on a server of MySQL or MariaDB, for a user with the PROCESS privilege.

InnoDB knows a transaction from its first use of a table on. A statement takes its stamp or number before
that, and may then wait for a lock, a slow SELECT or a trigger. So two lists are taken, in this order:

1. the process list: every session that is executing a statement;
2. the transactions of InnoDB.

Whoever has taken a stamp is in one of them. Its statement is still being executed when the first is taken:
it is in that. Or it is over: then it has touched its table, and its transaction is in the second list, which
is younger, or has ended. A listed statement is waited for until its session is in a transaction, which then
stands for it, or is found idle. Statements are not told apart: while a trigger or function runs, the server
shows the one that is executed inside it.

``information_schema.innodb_trx`` is a cache, renewed only when nobody has read it for 100 ms: what it shows
may be old. It is young if it shows the question itself, known by our connection's id and by a number that
nobody can guess. Otherwise ``SHOW ENGINE INNODB STATUS`` is read: the same list, never cached, but as text.
There the statements of others can look like further transactions, they cannot hide one. What such a text
pretends does not hold us either: it does not grow older, and a transaction does.

Of what others write, nothing else is ever looked at. Not covered is a stamp that a session took in an
*earlier* statement than the one that writes it, before its transaction touched any table.

Only InnoDB has transactions that the server lists. Which tables are behind a source, the optimiser says in the note
that follows an EXPLAIN: the statement as it runs it, with views that it can merge replaced by their tables.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from azure_functions_db.sources.keyset.expressions import explained
from azure_functions_db.sources.keyset.horizon import DrainingWatch, Transaction
from azure_functions_db.sql.failures import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection, Engine, Select
    from sqlalchemy.exc import SQLAlchemyError

    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Position


# The cache stands still for those who read it faster than every 100 ms.
_PAUSE = 0.13
_BLIND_AFTER_SECONDS = 10.0
_ACCESS_DENIED = "1227"

_SESSIONS = (
    "SELECT id AS thread, user AS user, command AS command, info IS NOT NULL AS has_statement, "
    "unix_timestamp() - coalesce(time, 0) AS began, unix_timestamp() AS now, id = connection_id() AS is_own, "
    "{server} AS server, "
    "@@global.read_only AS is_read_only, {cluster} AS is_in_cluster FROM information_schema.processlist"
)
# Which server this is, as of this start of it: both times are those of the statement, so their difference stands still.
_SERVER = (
    "concat(@@hostname, ':', @@port, ' since ', "
    "unix_timestamp() - (SELECT variable_value FROM {status}.global_status WHERE variable_name = 'UPTIME'))"
)
_NOT_WORKING = {"Sleep", "Daemon", "Binlog Dump", "Binlog Dump GTID"}
_APPLIES = {"Slave_IO", "Slave_SQL", "Slave_worker"}
_APPLIES_ON_MYSQL = {("system user", "Connect"), ("system user", "Query")}

# InnoDB tells times in the zone of the server's machine, whatever the zone of the session.
_TRANSACTIONS = (
    "SELECT trx_mysql_thread_id, trx_id, "
    "coalesce(timestampdiff(SECOND, '1970-01-01', convert_tz(trx_started, 'SYSTEM', '+00:00')), 0), "
    "trx_mysql_thread_id = connection_id() AND locate('{nonce}', trx_query) > 0 FROM information_schema.innodb_trx"
)
# A transaction that has written nothing has no number: MariaDB shows 0 or, like MySQL, something above these.
_FIRST_MADE_UP = 1 << 48

_STATUS = "SHOW ENGINE INNODB STATUS /* {nonce} */"
_LONGEST_STATUS = (1 << 20) - 1  # of a longer one, the server leaves something out
_HEAD = re.compile(r"(\d{0,20})[^,]*, (?!not started)(?:\D*(\d{1,10}) sec)?", re.ASCII)
_THREAD = re.compile(r"^(?:MySQL|MariaDB) thread id (\d{1,20}),", re.MULTILINE | re.ASCII)

_NO_PRIVILEGE = "its user lacks the PROCESS privilege, which shows the running transactions"
_REPLICA = "a replica does not know the transactions that run on its primary"
_READ_ONLY = "the server is read_only as replicas are, which do not know the transactions that run on their primary"
_CLUSTER = "a node of a Galera cluster does not know the transactions that run on the others"
_CROWDED = (
    "others read information_schema.innodb_trx more often than every 100 ms, which makes the server show an old list, "
    "and SHOW ENGINE INNODB STATUS is not complete"
)


class _InnodbTransaction(NamedTuple):
    thread: int
    number: int | None
    began: int | None
    """In seconds since 1970; None: it was about to end."""
    slack: int = 0

    def may_be(self, later: _Mark) -> bool:
        """Tell whether a transaction listed later may be this one: it may have got a number, or lost its session."""
        if self.began is None or isinstance(later, _Statement):
            return False
        is_as_old = later.began is None or abs(self.began - later.began) <= self.slack + later.slack
        if self.number is not None and later.number is not None:
            # One that was prepared before a restart begins anew; only a text has to show its age as well.
            return self.number == later.number and (is_as_old or not later.slack)
        return is_as_old and later.thread in {self.thread, 0}

    def narrowed(self, later: _InnodbTransaction) -> _InnodbTransaction:
        """Return what is known of this one if it is the one listed later.

        Its age is the one that was told most exactly, and first: a text that never grows older is not followed.
        """
        exact = later if later.began is not None and later.slack < self.slack else self
        number = later.number if self.number is None else self.number
        return _InnodbTransaction(later.thread, number, exact.began, exact.slack)


class _Statement(NamedTuple):
    thread: int

    def may_be(self, later: _Mark) -> bool:
        """Tell whether a statement listed later may be this one, or what this one is calling."""
        return self == later


_Mark: TypeAlias = "_InnodbTransaction | _Statement"
_Found: TypeAlias = "list[tuple[_InnodbTransaction, bool]]"


def _key(mark: _Mark) -> str:
    """Return a mark as a text that any process understands."""
    return json.dumps([isinstance(mark, _Statement), *mark])


def _mark(key: Hashable) -> _Mark:
    match json.loads(str(key)):
        case [True, int() as thread]:
            return _Statement(thread)
        case [False, int() as thread, int() | None as number, int() | None as began, int() as slack]:
            return _InnodbTransaction(thread, number, began, slack)
        case _:
            raise ValueError(f"{key!r} is no mark of a transaction")


@dataclass(frozen=True)
class _Sessions:
    """The process list at a moment, in seconds since 1970."""

    server: str
    asked_at: float
    now: int
    own: int
    users: dict[int, str | None]
    executing: dict[int, int]
    trouble: str | None


class Listing(NamedTuple):
    """Who was running at a moment, or why that cannot be seen."""

    number: int
    taken_at: float
    running: Sequence[Transaction] = ()
    trouble: str | None = None
    server: str | None = None


class Listings:
    """The newest list of one server, shared by all its watches: together they must not ask too often."""

    def __init__(self) -> None:
        self.begun = 0
        self._lock = threading.Lock()
        self._newest = Listing(0, float("-inf"))
        self._next_at = float("-inf")
        self._in_vain_since: float | None = None

    def newest(self, since: int, connection: Connection, clock: Callable[[], float]) -> Listing:
        """Return the newest list: one that was begun after another's number, if it is not too early to ask."""
        with self._lock:
            if self._newest.number <= since and clock() >= self._next_at:
                self.begun += 1
                self._newest = self._asked(Listing(self.begun, clock()), connection, clock)
                self._next_at = clock() + _PAUSE
            return self._newest

    def _asked(self, new: Listing, connection: Connection, clock: Callable[[], float]) -> Listing:
        running = _listed(connection, clock)
        if running is None:
            return self._asked_in_vain(new)
        self._in_vain_since = None
        if isinstance(running, str):
            return new._replace(trouble=running)
        server, transactions = running
        return new._replace(server=server, running=list(_recognised(transactions, self._newest.running)))

    def _asked_in_vain(self, new: Listing) -> Listing:
        since = self._in_vain_since = new.taken_at if self._in_vain_since is None else self._in_vain_since
        return self._newest if new.taken_at - since < _BLIND_AFTER_SECONDS else new._replace(trouble=_CROWDED)


def _recognised(running: Sequence[Transaction], earlier: Sequence[Transaction]) -> Iterator[Transaction]:
    """Give whoever may have been in the last list the key that he had there: he has been waited for since then."""
    keys = {transaction.key for transaction in running}
    earlier_keys = {then.key for then in earlier}
    missing = [then for then in earlier if then.key not in keys]
    for transaction in running:
        then = next(
            (
                then
                for then in missing
                if transaction.key not in earlier_keys and _mark(then.key).may_be(transaction.mark)
            ),
            None,
        )
        if then is None:
            yield transaction
        else:
            missing.remove(then)
            yield replace(transaction, key=then.key)


def _listed(connection: Connection, clock: Callable[[], float]) -> tuple[str, list[Transaction]] | str | None:
    """Return which server it is and who is running there, or why that cannot be seen; None: not this time."""
    sessions = _sessions(connection, clock)
    if sessions is None:
        return None
    if sessions.trouble:
        return sessions.trouble
    try:
        transactions = _transactions(connection, sessions, clock)
    except _database_error() as error:
        if code_of(error) != _ACCESS_DENIED:
            raise
        return _NO_PRIVILEGE
    if not any(is_own and mark.thread == sessions.own for mark, is_own in transactions):
        return None
    marks: list[_Mark] = [mark for mark, _ in transactions if mark.thread != sessions.own]
    statements = [_Statement(thread) for thread in sessions.executing]
    return sessions.server, [_holder(mark, sessions) for mark in marks + statements]


def _transactions(connection: Connection, sessions: _Sessions, clock: Callable[[], float]) -> _Found:
    """Return the transactions of InnoDB, and of which one this question is."""
    nonce = secrets.token_hex(16)
    with _transaction_of_our_own(connection):
        rows = connection.exec_driver_sql(_TRANSACTIONS.format(nonce=nonce)).all()
        if any(is_own for *_, is_own in rows):
            return [
                (_InnodbTransaction(thread, _number(shown), at), bool(is_own)) for thread, shown, at, is_own in rows
            ]
        status = _status(connection, nonce)
    if len(status) >= _LONGEST_STATUS:
        return []
    slack = 1 + math.ceil(clock() - sessions.asked_at)
    return list(_shown(status, sessions.now, slack, nonce))


def _sessions(connection: Connection, clock: Callable[[], float]) -> _Sessions | None:
    asked_at = clock()
    cluster = "@@global.wsrep_on" if getattr(connection.dialect, "is_mariadb", False) else "0"
    rows = connection.exec_driver_sql(_SESSIONS.format(cluster=cluster, server=_server(connection))).all()
    own = next((row for row in rows if row.is_own), None)
    if own is None:
        return None  # a proxy has asked another server
    executing = {row.thread: int(row.began) for row in rows if _is_executing(row) and row is not own}
    users = {row.thread: row.user for row in rows}
    return _Sessions(own.server, asked_at, int(own.now), own.thread, users, executing, _trouble(rows))


def _server(connection: Connection) -> str:
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    return _SERVER.format(status="information_schema" if is_mariadb else "performance_schema")


def _is_executing(row: Any) -> bool:
    # Events are executed under the command of those who are about to log in.
    return bool(row.has_statement) if row.command == "Connect" else row.command not in _NOT_WORKING


def _trouble(rows: Sequence[Any]) -> str | None:
    """Return why the transactions of this server are not all that matter."""
    applies = any(row.command in _APPLIES or (row.user, row.command) in _APPLIES_ON_MYSQL for row in rows)
    reasons = {_CLUSTER: _is_on(rows[0].is_in_cluster), _REPLICA: applies, _READ_ONLY: _is_on(rows[0].is_read_only)}
    return next((reason for reason, holds in reasons.items() if holds), None)


def _is_on(variable: Any) -> bool:
    return str(variable) not in {"0", "OFF"}


@contextmanager
def _transaction_of_our_own(connection: Connection) -> Iterator[None]:
    """Be in InnoDB's list."""
    connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        yield
    finally:
        # SQLAlchemy knows nothing of this transaction. Left open after a refusal, it would show one moment for ever.
        connection.exec_driver_sql("ROLLBACK")


def _status(connection: Connection, nonce: str) -> str:
    """Return InnoDB's status, byte by byte: statements of others need not be in any character set."""
    connection.exec_driver_sql("SET @azfdb_results = @@character_set_results, character_set_results = binary")
    try:
        status = connection.exec_driver_sql(_STATUS.format(nonce=nonce)).one()[2]
    finally:
        connection.exec_driver_sql("SET character_set_results = @azfdb_results")
    return status if isinstance(status, str) else bytes(status).decode("latin-1")


def _shown(status: str, now: int, slack: int, nonce: str) -> Iterator[tuple[_InnodbTransaction, bool]]:
    """Find the transactions in a status, and tell whether each is that of the question."""
    for block in status.split("\n---TRANSACTION ")[1:]:
        head, _, body = block.partition("\n")
        if shown := _HEAD.match(head):
            thread = _THREAD.search(body)  # the first one: after it comes the statement, which can look like anything
            began = now - int(shown[2]) if shown[2] else None
            transaction = _InnodbTransaction(int(thread[1]) if thread else 0, _number(shown[1] or 0), began, slack)
            yield transaction, nonce in body


def _number(shown: Any) -> int | None:
    return int(shown) if 0 < int(shown) < _FIRST_MADE_UP else None


def _holder(mark: _Mark, sessions: _Sessions) -> Transaction:
    began = sessions.executing[mark.thread] if isinstance(mark, _Statement) else mark.began
    age = None if began is None else float(max(0, sessions.now - began))
    writes = isinstance(mark, _InnodbTransaction) and mark.number is not None
    return Transaction(_key(mark), str(mark.thread), sessions.users.get(mark.thread), writes, age, mark)


def _database_error() -> type[SQLAlchemyError]:
    from sqlalchemy.exc import DBAPIError

    return DBAPIError


_listings: weakref.WeakKeyDictionary[Engine, Listings] = weakref.WeakKeyDictionary()


class MysqlWatch(DrainingWatch):
    """Reads up to where the statements and transactions of this server allow it."""

    _since = 0
    _has_listed = False

    def _doubted(self, connection: Connection, plan: Plan) -> str | None:
        return doubt(connection, plan)

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        observed = self._observed(connection, plan, start)
        listings = _listings.setdefault(connection.engine, Listings())
        if self._server is None:
            self._know_server(connection)
        if self._see(observed.newest, observed.clock):
            self._since = listings.begun  # what has been seen now needs a list that begins after it
        has_news = observed.newest is not None and (self.is_blind or not self.is_settled)
        if has_news or not self._has_listed:
            self._list_running(listings, connection)
        return observed.newest is not None

    def _know_server(self, connection: Connection) -> None:
        """Ask which server this is, so that what another process has remembered of it can be gone on from."""
        asked = connection.exec_driver_sql(f"SELECT {_server(connection)}, unix_timestamp(now(6))").one()
        self._know(asked[0], float(asked[1]))

    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:  # noqa: ARG002 - all cursors alike
        from sqlalchemy import func, select

        return select(newest.scalar_subquery().label("newest"), func.utc_timestamp(6).label("clock"))

    def _list_running(self, listings: Listings, connection: Connection) -> None:
        connection.rollback()
        listing = listings.newest(self._since, connection, self._clock)
        self._has_listed = True
        if listing.trouble is not None:
            self._give_up(listing.trouble)
        if listing.number <= self._since:
            return  # It is older than what was seen, which waits for the next one: the server may be another by now.
        self._since = listing.number  # the next one must be another
        if listing.trouble is None:
            self._see_again()
        if listing.server is not None:
            self._know(listing.server, self._ahead + self._clock())  # it may have been another one that was seen
        self._note(listing)

    def _mark_of(self, text: str) -> _Mark:
        return _mark(text)

    def _note(self, listing: Listing) -> None:
        def successors(then: Transaction) -> Iterable[Transaction]:
            # By its mark and not by its key, which may have been that of an earlier transaction of the same session.
            mark = then.mark
            present = [now for now in listing.running if mark.may_be(now.mark)]
            if isinstance(mark, _InnodbTransaction):
                return [replace(now, mark=mark.narrowed(now.mark)) for now in present]
            # What a statement writes, it writes in the transaction of its session, which then stands for it:
            # unless that is known from a text, which somebody else may have made up.
            begun = [now for now in listing.running if _is_begun(now.mark, mark.thread)]
            if begun and not any(now.mark.slack for now in begun):
                return begun
            return begun + present or [now for now in listing.running if _is_begun(now.mark, 0)]

        running = {transaction.key: transaction for transaction in listing.running}
        self._list(running, successors, listing.taken_at)


def _is_begun(mark: _Mark, thread: int) -> bool:
    return isinstance(mark, _InnodbTransaction) and mark.thread == thread


_NAME = r"`((?:[^`]|``)+)`"
_READ = re.compile(rf"(?:\bfrom|\bjoin|,)[\s(]*{_NAME}\.{_NAME}")
_COLUMN = re.compile(rf"(?:/\*.*?\*/ )?select {_NAME}\.{_NAME}\.{_NAME} AS ")
_ENGINE = "SELECT engine FROM information_schema.tables WHERE table_schema = :place AND table_name = :name"


def doubt(connection: Connection, plan: Plan) -> str | None:
    """Return why rows may appear without a transaction that the server lists, None where they cannot."""
    note = _rewritten(connection, plan)
    for place, name in sorted(set(_READ.findall(note))):
        engine = _engine(connection, _plain(place), _plain(name))
        if engine is None:
            return f"{_plain(name)} cannot be seen through to its tables"
        if engine != "InnoDB":
            return f"it reads {_plain(name)}, a table of {engine}, which has no transactions that could be waited for"
    if _COLUMN.match(note) is None:
        return "its cursor is computed and not a column of a table"
    return None


def _rewritten(connection: Connection, plan: Plan) -> str:
    # MySQL 9 draws a tree unless it is told otherwise, and then leaves out the note.
    how = "EXTENDED" if getattr(connection.dialect, "is_mariadb", False) else "FORMAT=TRADITIONAL"
    explained(connection, plan.cursors(), f"EXPLAIN {how}")
    notes = connection.exec_driver_sql("SHOW WARNINGS").all()
    return str(notes[-1][2]) if notes else ""


def _engine(connection: Connection, place: str, name: str) -> str | None:
    from sqlalchemy import text

    engine = connection.execute(text(_ENGINE), {"place": place, "name": name}).scalar()
    return None if engine is None else str(engine)


def _plain(name: str) -> str:
    return name.replace("``", "`")
