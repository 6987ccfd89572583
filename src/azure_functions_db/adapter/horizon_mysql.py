"""Running transactions of InnoDB, for a user with the PROCESS privilege.

``information_schema.innodb_trx`` is a cache, renewed at most every 100 ms and only when nobody has read
it for that long. A list is trusted only if this session's own transaction is in it with the very query
that asks, recognised by a number that is used once.

A transaction is in the list from its first use of an InnoDB table on. A stamp that the writing statement
takes itself is therefore covered; one that a session took before it touched any table is not.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.adapter.generations import Transaction
from azure_functions_db.adapter.horizon import DrainingWatch
from azure_functions_db.core.failures import code_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.position import Position

# The cache stands still for those who read it faster than every 100 ms.
_PAUSE = 0.13
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


class MysqlWatch(DrainingWatch):
    """Reads up to where the transactions of this server allow it."""

    _listed_at: float | None = None

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        """See the newest cursor value, then who is running, unless the last look was a moment ago."""
        from sqlalchemy import func, select

        if self._listed_at is not None and self._clock() - self._listed_at < _PAUSE:
            return True
        statement, parameters = self._newest(connection, plan, start)
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        clock = func.least(func.now(6), func.utc_timestamp(6))
        newest = statement.scalar_subquery().label("newest")
        sight = connection.execute(select(newest, clock.label("clock")), parameters).one()
        if sight.newest is None:
            connection.rollback()
            return False
        self._see(sight.newest, sight.clock)
        with self._without_privilege():
            self._note(connection)
        connection.rollback()
        return True

    @contextmanager
    def _without_privilege(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            if code_of(error) != _ACCESS_DENIED:
                raise
            self._give_up("its user lacks the PROCESS privilege, which shows the running transactions")

    def _note(self, connection: Connection) -> None:
        nonce = secrets.token_hex(8)
        self._listed_at = self._clock()
        rows = connection.exec_driver_sql(
            f"SELECT /* azfdb {nonce} */ t.trx_mysql_thread_id, t.trx_started, t.trx_id, t.trx_query, p.user, "  # noqa: S608
            "timestampdiff(SECOND, t.trx_started, now()), connection_id() "
            "FROM information_schema.innodb_trx AS t "
            "LEFT JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id"
        ).all()
        others = [row for row in rows if row[0] != row[6]]
        if any(row[0] == row[6] and nonce in (row[3] or "") for row in rows):
            self._note_running([_transaction(*row[:6]) for row in others])

    def _note_running(self, running: list[Transaction]) -> None:
        def successors(then: Transaction) -> Iterable[Transaction]:
            return [now for now in running if then.mark.may_be(now.mark)]

        self._list({transaction.key: transaction for transaction in running}, successors)


def _transaction(thread: int, started: Any, shown: Any, _query: Any, user: str | None, age: int | None) -> Transaction:
    number = int(shown) if int(shown) < _FIRST_MADE_UP else None
    mark = _Mark(int(thread), started, number)
    return Transaction(mark, str(thread), user, number is not None, None if age is None else float(age), mark)
