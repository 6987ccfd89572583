"""Running transactions of PostgreSQL, as any role sees them.

Every transaction holds a lock on its virtual id from its begin to its end, and `pg_locks` shows it to
everybody. A backend gives the lock up after its rows have become visible. The view reads those locks
first and the shared lock table after them, in which a prepared transaction appears before it gives up
its virtual id: it cannot slip through between the two. Whoever has changed a row of our tables holds a
lock on them as well. Transactions of other databases, and of the
server itself (autovacuum has no user), cannot write here and do not count.

The newest cursor value and the list come from one statement: its snapshot is taken before it runs, the
view is read while it runs, so the list is the younger one.

Which tables are behind a source, and whether its cursor is one of their columns, the planner says: it looks
through views, queries, conditions and inheritance down to what is scanned. Only the rows of plain tables appear with
the commit of a transaction that the server shows; a materialized view shows old rows when it is refreshed, a foreign
table has its writers elsewhere, so has one that a subscription fills, and a function hides what it reads.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.horizon import DrainingWatch, Transaction
from azure_functions_db.sql.reflection import KIND

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from sqlalchemy import Connection, Select

    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Position


# The functions behind `pg_locks`, `pg_stat_activity` and `pg_prepared_xacts`: to plan the views, which look up names of
# roles and databases that nobody needs, takes twice as long as to read what they show.
_RUNNING = """
SELECT coalesce(json_agg(json_build_array(held.virtualtransaction, held.pid, held.writes,
           pg_get_userbyid(coalesce(session.usesysid, prepared.ownerid)), held.xid, held.touches,
           extract(epoch FROM clock_timestamp() - coalesce(session.xact_start, prepared.prepared)))), '[]')
FROM (SELECT oid FROM pg_database WHERE datname = current_database()) AS here
CROSS JOIN LATERAL
     (SELECT virtualtransaction, pid, bool_or(locktype = 'transactionid') AS writes,
             bool_or(locktype = 'relation') AS touches, max(transactionid::text) AS xid
      FROM pg_lock_status()
      WHERE granted AND pid IS DISTINCT FROM pg_backend_pid()
        AND ((mode = 'ExclusiveLock' AND locktype IN ('virtualxid', 'transactionid'))
          OR (locktype = 'relation' AND relation = ANY (CAST(:azfdb_tables AS oid[]))
            AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
            AND database = here.oid))
      GROUP BY virtualtransaction, pid
      HAVING bool_or(locktype <> 'relation')) AS held
LEFT JOIN pg_stat_get_activity(NULL) AS session ON session.pid = held.pid
LEFT JOIN pg_prepared_xact() AS prepared ON held.pid IS NULL AND prepared.transaction::text = held.xid
WHERE (session.pid IS NULL OR (session.datid = here.oid AND session.usesysid IS NOT NULL))
  AND (prepared.transaction IS NULL OR prepared.dbid = here.oid)
"""

# Written out: SQLAlchemy takes longer to put functions together than the server to call them. A naive column may hold
# the session's time or UTC: the earlier of the two is the safe assumption.
_BESIDE = (
    "clock_timestamp() AS clock",
    "least(clock_timestamp()::timestamp, timezone('UTC', clock_timestamp())) AS naive_clock",
    "pg_is_in_recovery() AS replays",
    "extract(epoch FROM clock_timestamp()) AS seconds",
    "extract(epoch FROM pg_postmaster_start_time())::text AS server",
    f"({_RUNNING}) AS running",
)

# How the virtual id of a prepared transaction begins: it has no backend any more.
_PREPARED = "-1/"


class PostgresWatch(DrainingWatch):
    """Reads up to where the transactions of this database allow it."""

    _prepared: frozenset[Hashable] = frozenset()
    _tables: tuple[int, ...] = ()

    def _doubted(self, connection: Connection, plan: Plan) -> str | None:
        behind = lineage(connection, plan)
        self._tables = behind.tables
        return behind.doubt

    def _look(self, connection: Connection, plan: Plan, start: Position) -> bool:
        observed = self._observed(connection, plan, start)
        if observed.replays:
            self._give_up("a standby does not know the transactions that run on its primary")
        else:
            self._see_again()
        if observed.newest is None:
            return False
        if not self.is_blind:
            self._know(observed.server, float(observed.seconds))
        self._see(observed.newest, observed.clock if _is_aware(observed.newest) else observed.naive_clock)
        self._note([] if self.is_blind else observed.running)
        return True

    def _due(self, newest: Select[Any], plan: Plan) -> Select[Any]:
        from sqlalchemy import func

        kind = plan.shape.types[plan.definition.cursor_column]
        if values.is_temporal(kind) and getattr(kind, "timezone", False):
            # A stamp from a clock that is ahead waits until it is due: lower ones are still to come.
            return newest.where(plan.cursor <= func.statement_timestamp())
        return newest

    def _beside(self, newest: Select[Any], plan: Plan) -> Select[Any]:  # noqa: ARG002 - all cursors alike
        from sqlalchemy import select, text

        return select(newest.scalar_subquery().label("newest"), *map(text, _BESIDE))

    def _parameters(self) -> dict[str, Any]:
        return {"azfdb_tables": f"{{{','.join(map(str, self._tables))}}}"}

    def _mark_of(self, text: str) -> bool:
        return text.startswith(_PREPARED)

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


_Node = dict[str, Any]

_PASSES_ON = {"Gather", "Limit", "Result"}
_NAME = r'(?:"(?:[^"]|"")+"|\w+)'
_COLUMN = rf"(?:(?P<alias>{_NAME})\.)?(?P<column>{_NAME})"  # compiled where it is needed, which is not at each start
_OTHER_KINDS = {"m": "the materialized view", "f": "the foreign table"}

# Every scanned table with all that it inherits from: a row may be inserted through any of them, and gets
# its number by the default of that one.
_CATALOG = """
WITH RECURSIVE scanned AS (
    SELECT held.oid, held.relkind, wanted.name, wanted.cursor
    FROM json_to_recordset(CAST(:scanned AS json)) AS wanted (schema text, name text, cursor text)
    JOIN pg_namespace AS place ON place.nspname = wanted.schema
    JOIN pg_class AS held ON held.relnamespace = place.oid AND held.relname = wanted.name
), family AS (
    SELECT oid, cursor FROM scanned
    UNION SELECT to_regclass(CAST(:own AS text)), CAST(:cursor AS text) WHERE CAST(:own AS text) IS NOT NULL
    UNION SELECT above.inhparent, family.cursor FROM family JOIN pg_inherits AS above ON above.inhrelid = family.oid
), numbered AS (
    SELECT held.attrelid, held.attnum FROM family
    JOIN pg_attribute AS held ON held.attrelid = family.oid AND held.attname = family.cursor
), drawn AS (
    SELECT owned.objid FROM numbered
    JOIN pg_depend AS owned ON owned.refclassid = 'pg_class'::regclass AND owned.refobjid = numbered.attrelid
        AND owned.refobjsubid = numbered.attnum AND owned.classid = 'pg_class'::regclass
    UNION SELECT used.refobjid FROM numbered
    JOIN pg_attrdef AS given ON given.adrelid = numbered.attrelid AND given.adnum = numbered.attnum
    JOIN pg_depend AS used ON used.classid = 'pg_attrdef'::regclass AND used.objid = given.oid
)
SELECT (SELECT coalesce(json_agg(json_build_array(name, relkind)), '[]') FROM scanned) AS kinds,
       (SELECT coalesce(json_agg(oid::bigint), '[]') FROM family) AS tables,
       (SELECT max(seqcache) FROM pg_sequence WHERE seqrelid IN (SELECT objid FROM drawn)) AS cached,
       EXISTS (SELECT FROM pg_sequence WHERE seqrelid IN (SELECT objid FROM drawn)
               AND (seqcycle OR seqincrement < 0)) AS falls,
       EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN (SELECT oid FROM family)) AS subscribes
"""


# All that such a table shows is in it: no child or parent, no policy that looks elsewhere, no cursor computed on
# reading. Then there is little to ask.
_PLAIN_TABLE = """
SELECT relkind = 'r' AND NOT relhassubclass AND NOT relrowsecurity AND attgenerated <> 'v'
           AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = held.oid) AS is_plain,
       '[]'::json AS kinds, json_build_array(held.oid::bigint) AS tables, drawn.cached, drawn.falls,
       EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = held.oid) AS subscribes
FROM pg_class AS held
JOIN pg_attribute ON attrelid = held.oid AND attname = %(cursor)s
CROSS JOIN LATERAL
     (SELECT max(seqcache) AS cached, bool_or(seqcycle OR seqincrement < 0) AS falls
      FROM pg_sequence WHERE seqrelid IN (
          SELECT objid FROM pg_depend WHERE refclassid = 'pg_class'::regclass AND refobjid = held.oid
              AND refobjsubid = attnum AND classid = 'pg_class'::regclass
          UNION ALL SELECT refobjid FROM pg_depend WHERE classid = 'pg_attrdef'::regclass
              AND objid = (SELECT oid FROM pg_attrdef WHERE adrelid = held.oid AND adnum = attnum))) AS drawn
WHERE held.oid = to_regclass(%(own)s)
"""


class Lineage(NamedTuple):
    """The tables that rows of a source come from, and why it cannot be sure of them, if it cannot."""

    tables: tuple[int, ...]
    doubt: str | None


def lineage(connection: Connection, plan: Plan) -> Lineage:
    """Ask the planner and the catalog what is behind a source; of a plain table the catalog knows it all."""
    own = plan.shape.table
    named = {
        "own": _quoted(None if own is None else [own.schema, own.name]),
        "cursor": plan.definition.cursor_column,
    }
    if own is not None and own.info.get(KIND) == "r" and plan.definition.where is None:
        catalog = connection.exec_driver_sql(_PLAIN_TABLE, named).one_or_none()
        if catalog is not None and catalog.is_plain:
            return Lineage(tuple(catalog.tables), _doubt([], {}, catalog, is_table=True))
    from sqlalchemy import text

    from azure_functions_db.sources.keyset.expressions import explained

    [[output]] = explained(connection, plan.cursors(), "EXPLAIN (VERBOSE, FORMAT JSON)")
    top = (json.loads(output) if isinstance(output, str) else output)[0]["Plan"]
    nodes, origins = list(_nodes(top)), _origins(top)
    scanned = [
        {"schema": node["Schema"], "name": node["Relation Name"], "cursor": origins.get(node["Alias"])}
        for node in nodes
        if "Relation Name" in node
    ]
    catalog = connection.execute(text(_CATALOG), {**named, "scanned": json.dumps(scanned)}).one()
    return Lineage(tuple(catalog.tables), _doubt(nodes, origins, catalog, is_table=own is not None))


def _quoted(names: list[str | None] | None) -> str | None:
    """Return a name as a value: SQLAlchemy quotes it for a statement, where percent signs are doubled."""
    if names is None:
        return None
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name)


def _doubt(nodes: list[_Node], origins: dict[str, str], catalog: Any, *, is_table: bool) -> str | None:
    for name, kind in catalog.kinds:
        if kind in _OTHER_KINDS:
            return f"it reads {_OTHER_KINDS[kind]} {name}, whose rows appear without a transaction of this server"
    if catalog.subscribes:
        return "a subscription fills its table, and this server does not know the transactions of the publisher"
    if any(node["Node Type"] in {"Function Scan", "Table Function Scan", "Custom Scan"} for node in nodes):
        return "it reads from a function, which hides the tables behind it"
    if not origins and not (is_table and not catalog.kinds):  # a parent without any child has nothing to scan
        return "its cursor is computed and not a column of a table"
    if catalog.falls:
        return "its sequence does not only grow: what it hands out later can be less than what was read"
    if catalog.cached is not None and catalog.cached > 1:
        return f"its sequence hands out {catalog.cached} numbers at a time to each session"
    return None


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _origins(node: _Node) -> dict[str, str]:
    """Return the column that the first output is in each table it comes from, by the alias of the scan."""
    members = [
        child for child in node.get("Plans", ()) if child.get("Parent Relationship") not in {"InitPlan", "SubPlan"}
    ]
    if node["Node Type"] in {"Append", "Merge Append"}:
        origins = [_origins(member) for member in members]
        return {alias: column for one in origins for alias, column in one.items()} if all(origins) else {}
    if node["Node Type"] in _PASSES_ON and len(members) == 1:
        return _origins(members[0])
    named = re.fullmatch(_COLUMN, next(iter(node.get("Output", ())), ""))
    if named is None:
        return {}
    scans = {scan["Alias"] for scan in _nodes(node) if "Relation Name" in scan}
    alias = node["Alias"] if "Relation Name" in node else _plain(named["alias"] or "")
    return {alias: _plain(named["column"])} if alias in scans else {}


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
