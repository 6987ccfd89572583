"""Running transactions of PostgreSQL, as any role sees them.

Every transaction holds a lock on its virtual id from its begin to its end, and `pg_locks` shows it to
everybody. A backend gives the lock up after its rows have become visible. The view reads those locks
first and the shared lock table after them, in which a prepared transaction appears before it gives up
its virtual id: it cannot slip through between the two. Whoever has changed a row of our tables holds a
lock on them as well. Transactions of other databases, and of the
server itself (autovacuum has no user), cannot write here and do not count.

The newest cursor value and the list come from one statement: its snapshot is taken before it runs, the
view is read while it runs, so the list is the younger one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.generations import Transaction
from azure_functions_db.sources.keyset.horizon import DrainingWatch
from azure_functions_db.sources.keyset.lineage_postgres import lineage

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from sqlalchemy import Connection, Select

    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Position

_RUNNING = """
SELECT coalesce(json_agg(json_build_array(held.virtualtransaction, held.pid, held.writes,
           coalesce(session.usename, prepared.owner), held.xid, held.touches,
           extract(epoch FROM clock_timestamp() - coalesce(session.xact_start, prepared.prepared)))), '[]')
FROM (SELECT virtualtransaction, pid, bool_or(locktype = 'transactionid') AS writes,
             bool_or(locktype = 'relation') AS touches, max(transactionid::text) AS xid
      FROM pg_locks
      WHERE granted AND pid IS DISTINCT FROM pg_backend_pid()
        AND ((mode = 'ExclusiveLock' AND locktype IN ('virtualxid', 'transactionid'))
          OR (locktype = 'relation' AND relation = ANY (CAST(:azfdb_tables AS oid[]))
            AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))
      GROUP BY virtualtransaction, pid
      HAVING bool_or(locktype <> 'relation')) AS held
LEFT JOIN pg_stat_activity AS session ON session.pid = held.pid
LEFT JOIN pg_prepared_xacts AS prepared ON held.pid IS NULL AND prepared.transaction::text = held.xid
WHERE (session.pid IS NULL OR (session.datname = current_database() AND session.usesysid IS NOT NULL))
  AND (prepared.transaction IS NULL OR prepared.database = current_database())
"""

# How the virtual id of a prepared transaction begins: it has no backend any more.
_PREPARED = "-1/"


class PostgresWatch(DrainingWatch):
    """Reads up to where the transactions of this database allow it."""

    _prepared: frozenset[Hashable] = frozenset()
    _tables: tuple[int, ...] = ()

    def _doubted(self, connection: Connection, plan: Plan) -> str | None:
        found = lineage(connection, plan)
        self._tables = found.tables
        return found.doubt

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        sight = self._sight(connection, plan, start)
        if sight.replays:
            self._give_up("a standby does not know the transactions that run on its primary")
        else:
            self._see_again()
        if sight.newest is None or self.is_blind:
            return sight.newest is not None
        self._know(sight.server, float(sight.seconds))
        self._see(sight.newest, sight.clock if _is_aware(sight.newest) else sight.naive_clock)
        self._note(sight.running)
        return True

    def _due(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        from sqlalchemy import func

        kind = plan.shape.types[plan.definition.cursor_column]
        if values.is_temporal(kind) and getattr(kind, "timezone", False):
            # A stamp from a clock that is ahead waits until it is due: lower ones are still to come.
            return newest.where(plan.cursor <= func.statement_timestamp())
        return newest

    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:  # noqa: ARG002 - all cursors alike
        from sqlalchemy import DateTime, cast, func, select, text

        clock = func.clock_timestamp()
        # A naive column may hold the session's time or UTC: the earlier of the two is the safe assumption.
        naive = func.least(cast(clock, DateTime), func.timezone("UTC", clock))
        return select(
            newest.scalar_subquery().label("newest"),
            clock.label("clock"),
            naive.label("naive_clock"),
            func.pg_is_in_recovery().label("replays"),
            text("extract(epoch FROM clock_timestamp()) AS seconds"),
            text("extract(epoch FROM pg_postmaster_start_time())::text AS server"),
            text(f"({_RUNNING}) AS running"),
        )

    def _parameters(self) -> dict[str, Any]:
        return {"azfdb_tables": f"{{{','.join(map(str, self._tables))}}}"}

    def _recalled_as(self, told: str) -> Transaction:
        return replace(super()._recalled_as(told), mark=told.startswith(_PREPARED))

    def _note(self, rows: list[list[Any]]) -> None:
        running = {row[0]: _transaction(*row) for row in rows}
        prepared = frozenset(key for key, transaction in running.items() if transaction.mark)
        fresh = [running[key] for key in prepared - self._prepared]

        def successors(then: Transaction) -> Iterable[Transaction]:
            if then.key in running:
                return [running[then.key]]
            # It has ended, or it is one of those that were prepared since the last look.
            return [] if then.mark else fresh

        self._list(running, successors)
        self._prepared = prepared


def _transaction(
    key: str, pid: int | None, writes: bool, user: str | None, xid: str | None, touches: bool, age: float | None
) -> Transaction:
    session = f"prepared {xid}" if pid is None else str(pid)
    return Transaction(
        key, session, user, writes, None if age is None else float(age), touches=touches, mark=pid is None
    )


def _is_aware(newest: Any) -> bool:
    return getattr(newest, "tzinfo", None) is not None
