"""Running transactions of InnoDB, for a user with the PROCESS privilege.

``information_schema.innodb_trx`` is a cache, renewed at most every 100 ms and only when nobody has read
it for that long: what it shows may be old. So whoever asks writes the server's time into a comment of the
question. The list shows the questions that were being asked when it was taken; it is as young as the
youngest of them, no matter which process asked that one.

A transaction is in the list from its first use of an InnoDB table on. A stamp that the writing statement
takes itself is therefore covered; one that a session took before it touched any table is not.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.adapter.generations import Transaction
from azure_functions_db.adapter.horizon import DrainingWatch
from azure_functions_db.adapter.lineage_mysql import doubt
from azure_functions_db.adapter.plan import SIGNATURE, signed
from azure_functions_db.core.failures import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection, Engine, Select

    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.position import Position

# The cache stands still for those who read it faster than every 100 ms.
_PAUSE = 0.13
_LONGEST_PAUSE = 4 * _PAUSE
_ACCESS_DENIED = "1227"
_QUESTION = (
    f"SELECT {SIGNATURE} /* {{now}} */ t.trx_mysql_thread_id, t.trx_started, t.trx_id, p.user, "  # noqa: S608 - filled in with a time
    "timestampdiff(SECOND, t.trx_started, now()), t.trx_query "
    "FROM information_schema.innodb_trx AS t "
    "LEFT JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id"
)
_ASKED_AT = re.compile(re.escape(SIGNATURE) + r" /\* (\S+) \*/")
# A transaction that has written nothing has no number: MariaDB shows 0 or, like MySQL, something above these.
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


class Listing(NamedTuple):
    """Who was running at a moment, by the server's clock."""

    taken_at: dt.datetime
    running: list[Transaction]


class Listings:
    """The newest list of one server, shared by all its watches: together they must not ask too often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = Listing(dt.datetime.min, [])  # noqa: DTZ901 - the server tells UTC without saying so
        self._next_at = float("-inf")
        self._pause = _PAUSE

    def younger_than(
        self, since: dt.datetime, now: dt.datetime, connection: Connection, clock: Callable[[], float]
    ) -> Listing | None:
        """Return a list from after a moment, None if there is none yet; ``now`` is the server's time."""
        with self._lock:
            if self._newest.taken_at < since and clock() >= self._next_at:
                self._newest = _asked(now, connection)
                # A list that is too old shows that others ask as well: do it less often, and out of step.
                is_news = self._newest.taken_at >= since
                self._pause = _PAUSE if is_news else min(self._pause * 1.5, _LONGEST_PAUSE)
                self._next_at = clock() + self._pause * random.uniform(1, 1.5)  # noqa: S311 - no secret
            return self._newest if self._newest.taken_at >= since else None


def _asked(now: dt.datetime, connection: Connection) -> Listing:
    connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        rows = connection.exec_driver_sql(_QUESTION.format(now=now.isoformat())).all()
    finally:
        # SQLAlchemy knows nothing of this transaction. Left open after a refusal, it would show one moment for ever.
        connection.exec_driver_sql("ROLLBACK")
    questions = [_ASKED_AT.search(row.trx_query or "") for row in rows]
    times = [dt.datetime.fromisoformat(asked[1]) for asked in questions if asked]
    # Whoever runs a statement of ours only reads.
    running = [_transaction(*row[:5]) for row in rows if SIGNATURE not in (row.trx_query or "")]
    return Listing(max(times, default=dt.datetime.min), running)  # noqa: DTZ901 - see Listings


_listings: weakref.WeakKeyDictionary[Engine, Listings] = weakref.WeakKeyDictionary()


class MysqlWatch(DrainingWatch):
    """Reads up to where the transactions of this server allow it."""

    _since: dt.datetime

    def _doubted(self, connection: Connection, plan: Plan) -> str | None:
        return doubt(connection, plan)

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        from sqlalchemy import func, select

        sight = self._sight(connection, plan, start)
        if sight.newest is None:
            return False
        is_news = self._see(sight.newest, sight.clock)
        if not self.is_settled:
            # In a statement of its own, the server's time is certainly later than the sight.
            now: dt.datetime = connection.execute(signed(select(func.utc_timestamp(6)))).scalar_one()
            if is_news:
                self._since = now
            self._list_running(connection, now)
        return True

    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:  # noqa: ARG002 - all cursors alike
        from sqlalchemy import func, select

        clock = func.least(func.now(6), func.utc_timestamp(6)).label("clock")
        return signed(select(newest.scalar_subquery().label("newest"), clock))

    def _list_running(self, connection: Connection, now: dt.datetime) -> None:
        listings = _listings.setdefault(connection.engine, Listings())
        here = self._clock()
        connection.rollback()
        with self._told_when_denied():
            listing = listings.younger_than(self._since, now, connection, self._clock)
            if listing is not None:
                self._since = listing.taken_at + dt.timedelta(microseconds=1)  # the next one must be another
                self._note(listing.running, here + (listing.taken_at - now).total_seconds())

    def _note(self, running: list[Transaction], at: float) -> None:
        def successors(then: Transaction) -> Iterable[Transaction]:
            return [now for now in running if then.mark.may_be(now.mark)]

        self._list({transaction.key: transaction for transaction in running}, successors, at)

    @contextmanager
    def _told_when_denied(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            if code_of(error) != _ACCESS_DENIED:
                raise
            self._give_up("its user lacks the PROCESS privilege, which shows the running transactions")


def _transaction(thread: int, started: Any, shown: Any, user: str | None, age: int | None) -> Transaction:
    number = int(shown) if 0 < int(shown) < _FIRST_MADE_UP else None
    mark = _Mark(int(thread), started, number)
    return Transaction(mark, str(thread), user, number is not None, None if age is None else float(age), mark)
