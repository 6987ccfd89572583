"""Running transactions of InnoDB, for a user with the PROCESS privilege.

``information_schema.innodb_trx`` is a cache, renewed at most every 100 ms and only when nobody has read
it for that long. A list is trusted only if this session's own transaction is in it with the very query
that asks, recognised by a number that is used once.

A transaction is in the list from its first use of an InnoDB table on. A stamp that the writing statement
takes itself is therefore covered; one that a session took before it touched any table is not.
"""

from __future__ import annotations

import random
import secrets
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.adapter.generations import Transaction
from azure_functions_db.adapter.horizon import DrainingWatch
from azure_functions_db.core.failures import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection, Engine

    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.position import Position

# The cache stands still for those who read it faster than every 100 ms.
_PAUSE = 0.13
_LONGEST_PAUSE = 4 * _PAUSE
_ACCESS_DENIED = "1227"
# Transactions that have written nothing have no number of their own; what is shown lies above these.
_FIRST_MADE_UP = 1 << 48


@dataclass(frozen=True)
class _Mark:
    thread: int
    started: Any
    number: int | None

    def may_be(self, later: _Mark) -> bool:
        """Tell whether a transaction listed later may be this one: it may have got a number, or lost its session."""
        if self.number is not None and later.number is not None:
            return self.number == later.number
        return self.started == later.started and later.thread in {self.thread, 0}


class Listings:
    """The lists of one server, shared by all its watches: together they must not ask too often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_at = float("-inf")
        self._running: list[Transaction] = []
        self._next_at = float("-inf")
        self._pause = _PAUSE

    def is_due(self, since: float, now: float) -> bool:
        """Tell whether a list younger than ``since`` is at hand or may be asked for."""
        return self._taken_at >= since or now >= self._next_at

    def younger_than(
        self, since: float, connection: Connection, clock: Callable[[], float]
    ) -> list[Transaction] | None:
        """Return who was running at some moment after ``since``, None if that cannot be told yet."""
        with self._lock:
            if self._taken_at < since and clock() >= self._next_at:
                self._ask(connection, clock())
            return self._running if self._taken_at >= since else None

    def _ask(self, connection: Connection, now: float) -> None:
        found = _running(connection)
        if found is not None:
            self._running, self._taken_at, self._pause = found, now, _PAUSE
        else:  # Somebody else keeps the cache from being renewed: ask less often, and out of step.
            self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._next_at = now + self._pause * random.uniform(1, 1.5)  # noqa: S311 - no secret


_listings: weakref.WeakKeyDictionary[Engine, Listings] = weakref.WeakKeyDictionary()


class MysqlWatch(DrainingWatch):
    """Reads up to where the transactions of this server allow it."""

    _seen_at = float("-inf")

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        listings = _listings.setdefault(connection.engine, Listings())
        if not listings.is_due(self._seen_at, self._clock()):
            return True
        if not self._see_newest(connection, plan, start):
            return False
        with self._told_when_denied():
            running = listings.younger_than(self._seen_at, connection, self._clock)
            if running is not None:
                self._note(running)
        return True

    def _see_newest(self, connection: Connection, plan: Plan, start: Position) -> bool:
        from sqlalchemy import func, select

        statement, parameters = self._newest(connection, plan, start)
        clock = func.least(func.now(6), func.utc_timestamp(6)).label("clock")
        sight = connection.execute(select(statement.scalar_subquery().label("newest"), clock), parameters).one()
        connection.rollback()
        self._seen_at = self._clock()
        self._see(sight.newest, sight.clock)
        return sight.newest is not None

    def _note(self, running: list[Transaction]) -> None:
        def successors(then: Transaction) -> Iterable[Transaction]:
            return [now for now in running if then.mark.may_be(now.mark)]

        self._list({transaction.key: transaction for transaction in running}, successors)

    @contextmanager
    def _told_when_denied(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            if code_of(error) != _ACCESS_DENIED:
                raise
            self._give_up("its user lacks the PROCESS privilege, which shows the running transactions")


def _running(connection: Connection) -> list[Transaction] | None:
    """Return the running transactions, None if the list is not of this moment."""
    nonce = secrets.token_hex(8)
    connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    rows = connection.exec_driver_sql(
        f"SELECT /* azfdb {nonce} */ t.trx_mysql_thread_id, t.trx_started, t.trx_id, p.user, "  # noqa: S608
        "timestampdiff(SECOND, t.trx_started, now()), t.trx_query, connection_id() "
        "FROM information_schema.innodb_trx AS t "
        "LEFT JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id"
    ).all()
    connection.rollback()
    if not any(nonce in (row.trx_query or "") for row in rows):
        return None
    return [_transaction(*row[:5]) for row in rows if row[0] != row[6]]


def _transaction(thread: int, started: Any, shown: Any, user: str | None, age: int | None) -> Transaction:
    number = int(shown) if int(shown) < _FIRST_MADE_UP else None
    mark = _Mark(int(thread), started, number)
    return Transaction(mark, str(thread), user, number is not None, None if age is None else float(age), mark)
