"""What an operator should know about a source before trusting it with production data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import text

from azure_functions_db.core.clocks import clock_finding
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.expressions import explained
from azure_functions_db.sources.keyset.indexes import missing_index
from azure_functions_db.sources.keyset.page import at_present
from azure_functions_db.sources.keyset.plan import LIMIT
from azure_functions_db.sources.keyset.position import MOST_ROWS, Position
from azure_functions_db.sql.transactions import database_now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Dialect, Inspector, Row
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.sources.keyset.horizon import Grade
    from azure_functions_db.sources.keyset.plan import Plan, Recurrence


def checked_up(plan: Plan, connection: Connection) -> Iterator[Finding]:
    """Look at the index, the cursor and the clock of a source's database."""
    yield _index(plan, connection)
    yield _cursor_type(plan)
    yield from _key(plan, connection)
    yield _recurring_values(plan, connection)
    yield _null_cursors(plan, connection)
    yield from unread_tombstones(plan, connection)
    yield clock_finding("database clock", database_now(connection))
    yield from _settling(plan, connection)
    yield from tested_against(connection.dialect)


def tested_against(dialect: Dialect) -> Iterator[Finding]:
    """Say where the project's own tests have not seen a real server of this kind."""
    cure = "tools/sqlserver-check URL runs what there is against a server of yours"
    match dialect.name:
        case "mssql":
            seen = (
                "Microsoft's parser takes every statement, and real drivers ran them against a stand-in: the isolation "
                "and the cleanup of a real SQL Server have not been seen"
            )
            yield Finding("tested against", "note", seen, cure)
        case "oracle":
            yield Finding("tested against", "note", "statements are compared as texts; no Oracle has run them", cure)


def late_commits(grade: Grade, reason: str | None = None) -> Finding:
    """Say how well late commits are guarded against, and why not better."""
    why = f" ({reason})" if reason else ""
    match grade:
        case "exact":
            return Finding(
                "late commits",
                "ok",
                "exact: no row that commits late is jumped over, unless its stamp is older than its transaction",
            )
        case "settled":
            return Finding("late commits", "ok", f"settled: rows are read at a distance from the clock{why}")
        case "none":
            return Finding(
                "late commits",
                "warning",
                f"none: a row that commits later than its successor can be missed{why}",
                "give settle_seconds=, or let the database show its running transactions (PROCESS on MySQL/MariaDB); "
                "poll the primary rather than a replica",
            )


def _index(plan: Plan, connection: Connection) -> Finding:
    words = plan_words(plan, connection)
    shown = f"; the plan says: {words}" if words else ""
    if plan.definition.table is None:
        return Finding("index", "note", f"a query: see its plan{shown}")
    missing = missing_index(connection.engine, plan)
    if missing is not None:
        return Finding("index", "warning", f"no index serves the poll{shown}", missing)
    return Finding("index", "ok", f"the poll is served{shown}")


_OFFSET = {
    "postgresql": "SELECT extract(timezone FROM clock_timestamp())",
    "mysql": "SELECT timestampdiff(second, utc_timestamp(), now())",
    "mariadb": "SELECT timestampdiff(second, utc_timestamp(), now())",
}


def _settling(plan: Plan, connection: Connection) -> Iterator[Finding]:
    """Tell of a distance that is kept from the wrong clock: a time without a zone is compared with the session's."""
    kind, name = _kind(plan), plan.definition.cursor_column
    keeps_zone = bool(getattr(kind, "timezone", False)) or name in plan.utc_columns
    if plan.definition.settle_seconds is None or keeps_zone or plan.dialect.name not in _OFFSET:
        return
    hours = float(connection.exec_driver_sql(_OFFSET[plan.dialect.name]).scalar_one()) / 3600
    if hours:
        yield Finding(
            "settling",
            "warning",
            f"{name} keeps no zone, and the poller's session is {hours:+g} h from UTC: rows stamped in another "
            "zone have no distance",
            "give the poller's session the zone that writers stamp in, or let the column keep the zone",
        )


def _null_cursors(plan: Plan, connection: Connection) -> Finding:
    count = int(connection.execute(plan.without_cursor()).scalar_one())
    if not count:
        return Finding("NULL cursors", "ok", "none")
    column = plan.definition.cursor_column
    return Finding(
        "NULL cursors", "warning", f"{count:,} row(s) are never delivered", f"fill {column} and declare it NOT NULL"
    )


def _recurring_values(plan: Plan, connection: Connection) -> Finding:
    """Say why a cursor value that was passed does not come again, or what is done about it."""
    texts: dict[Recurrence, str] = {
        "unique": "unique: a value belongs to one row",
        "ripens": f"ripens ({10 ** -_fraction(_kind(plan), plan.dialect.name):g} s): passed when the clock has",
        "read again": "read again: the newest value is looked at once more, rows are told apart by key and content",
    }
    if _takes_the_highest_and_one_more(plan, connection):
        remedy = "count in a table of its own: UPDATE versions SET newest = newest + 1, then take newest"
        return Finding("cursor values", "warning", "a trigger takes max() + 1: a deleted row's comes again", remedy)
    if plan.recurrence == "ignored":
        return Finding("cursor values", "note", 'read once: in_flight="ignore" is plain polling')
    if plan.recurrence == "read again" and _is_crowded(plan, connection):
        crowd = (
            f"more than {MOST_ROWS:,} rows have the newest value: not read again, and each page looks who is writing"
        )
        return Finding("cursor values", "warning", crowd, "give each change a value of its own")
    return Finding("cursor values", "ok", texts[plan.recurrence])


def _is_crowded(plan: Plan, connection: Connection) -> bool:
    last = connection.execute(plan.last()).first()
    return (
        last is not None and at_present(connection, plan, Position(tuple(map(values.storable, last)))).boundary is None
    )


def _takes_the_highest_and_one_more(plan: Plan, connection: Connection) -> bool:
    """Tell whether a trigger of SQLite makes the cursor out of the rows that happen to be there."""
    if plan.dialect.name != "sqlite":
        return False
    triggers = text("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :name COLLATE NOCASE")
    highest = re.compile(rf"\bmax\s*\(\s*\W?{re.escape(plan.definition.cursor_column)}\W?\s*\)", re.IGNORECASE)
    return any(highest.search(sql) for sql in connection.execute(triggers, {"name": plan.definition.table}).scalars())


def _key(plan: Plan, connection: Connection) -> Iterator[Finding]:
    """Tell of key columns that several rows may share: of two rows with one cursor value, too, only one is read."""
    names, shape = plan.definition.pk_columns, plan.shape
    if not shape.is_key(names, plan.dialect) and (shape.tells_keys or _is_table(plan, connection)):
        own = [column.name for column in shape.table.primary_key.columns] if shape.table is not None else []
        nullable = any(map(shape.may_be_null, names))
        unique = f"a unique index on ({', '.join(names)})" + (", NOT NULL" if nullable else "")
        shared = f"a value of {', '.join(names)}" + (", or have NULL there" if nullable else "")
        yield Finding(
            "key",
            "warning",
            f"several rows may share {shared}: of those with one cursor value, one is read",
            f"pk_columns={own}, or {unique}" if own else unique,
        )


def _is_table(plan: Plan, connection: Connection) -> bool:
    """Tell whether it is a table that is polled: of a view nobody knows what tells its rows apart."""
    from sqlalchemy import inspect

    definition = plan.definition
    return plan.shape.is_reflected and definition.table in inspect(connection).get_table_names(definition.schema)


def _kind(plan: Plan) -> TypeEngine[Any]:
    return plan.shape.types[plan.definition.cursor_column]


def _cursor_type(plan: Plan) -> Finding:
    name = plan.definition.cursor_column
    kind = _kind(plan)
    shown = (
        f"{name} {kind.compile(dialect=plan.dialect)}" if _compiles(kind, plan) else f"{name} {values.type_name(kind)}"
    )
    grade, remark = _judged(kind, plan.dialect.name)
    remedy = "poll by a number or a time that grows with each change" if _is_text(kind) else None
    return Finding("cursor", grade, f"{shown}: {remark}" if remark else shown, remedy)


def _judged(kind: TypeEngine[Any], dialect: str) -> tuple[Literal["ok", "note", "warning"], str]:
    from sqlalchemy import types

    match kind:
        case types.DateTime() if _fraction(kind, dialect) == 0:
            return "warning", "whole seconds; changes of one row within a second collapse into the last"
        case types.DateTime() if not kind.timezone and dialect not in {"mysql", "mariadb", "sqlite"}:
            return "note", f"{_resolution(kind, dialect)}, without a time zone: writers must agree on one (UTC)"
        case types.DateTime():
            return "ok", _resolution(kind, dialect)
        case types.Date():
            return "warning", "whole days; changes of one row within a day collapse into the last"
        case types.Integer():
            return "ok", "exact"
        case types.Float():
            return "note", "a floating point number: make sure that it only grows"
        case _ if _is_text(kind):
            return "warning", "text; its order depends on a collation, which upgrades can change"
        case _:
            return "ok", ""


def _is_text(kind: TypeEngine[Any]) -> bool:
    from sqlalchemy import types

    return isinstance(kind, types.String) and not isinstance(kind, types.Enum)


def _resolution(kind: TypeEngine[Any], dialect: str) -> str:
    digits = _fraction(kind, dialect)
    return {3: "milliseconds", 6: "microseconds"}.get(digits, f"{digits} digits of a second")


def _fraction(kind: TypeEngine[Any], dialect: str) -> int:
    if dialect in {"mysql", "mariadb"}:
        return int(getattr(kind, "fsp", None) or 0)
    precision = getattr(kind, "precision", None)
    return 6 if precision is None else int(precision)


def _compiles(kind: TypeEngine[Any], plan: Plan) -> bool:
    from sqlalchemy.exc import CompileError

    try:
        kind.compile(dialect=plan.dialect)
    except CompileError:
        return False
    return True


_PREFIX = {
    "postgresql": "EXPLAIN",
    "mysql": "EXPLAIN FORMAT=TRADITIONAL",
    "mariadb": "EXPLAIN FORMAT=TRADITIONAL",
    "sqlite": "EXPLAIN QUERY PLAN",
}
_ESTIMATES = re.compile(r"\s+\(cost=.*")


def plan_words(plan: Plan, connection: Connection) -> str | None:
    """Return how the database would read the page after the last row; None where it cannot be asked."""
    dialect = plan.dialect.name
    if dialect not in _PREFIX:
        return None
    if dialect == "postgresql":
        # On a small table reading all of it is cheapest, which says nothing about a large one.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
    last = connection.execute(plan.last()).first()
    position = Position(() if last is None else tuple(last))
    parameters = {**plan.parameters(position), LIMIT: 100}
    rows = explained(connection, plan.page(position), _PREFIX[dialect], parameters)
    return "; ".join(_said(dialect, row) for row in rows if _said(dialect, row))


def _said(dialect: str, row: Row[Any]) -> str:
    match dialect:
        case "postgresql":
            line = _ESTIMATES.sub("", str(row[0])).strip().removeprefix("->").strip()
            return line if " Scan" in line or line == "Sort" else ""
        case "sqlite":
            return str(row.detail)
        case _:
            columns = row._mapping  # noqa: SLF001 - the documented name
            words = [
                f"{columns['type']} on {columns['key'] or 'no index'}",
                f"about {columns['rows']} rows",
                columns["Extra"],
            ]
            return ", ".join(word for word in words if word)


_WORDS = re.compile(r"tombstone|delet|removed|grave", re.IGNORECASE)


def unread_tombstones(plan: Plan, connection: Connection) -> Iterator[Finding]:
    """Point out a table that seems to tell of deletes while nobody asks it."""
    from sqlalchemy import inspect

    definition = plan.definition
    if definition.table is None or definition.deleted_column is not None:
        return
    inspector = inspect(connection)
    for name in inspector.get_table_names(definition.schema):
        if name != definition.table and _speaks_of(name, definition.table) and _has_key(inspector, name, plan):
            yield Finding(
                "deletes",
                "note",
                f"{name} has the key of {definition.table} and looks like a table of tombstones: its deletes are not "
                "delivered",
                "poll both as one: query= with a UNION ALL of rows and tombstones, and deleted_column=",
            )


def _speaks_of(name: str, table: str) -> bool:
    """Tell whether a name is made of the table's name and a word for what has gone."""
    return table.lower().rstrip("s") in name.lower() and _WORDS.search(name) is not None


def _has_key(inspector: Inspector, name: str, plan: Plan) -> bool:
    """Tell whether a table has the key columns, of types that can be compared."""
    kinds = {column["name"]: column["type"] for column in inspector.get_columns(name, plan.definition.schema)}
    return all(
        key in kinds and values.is_whole(kinds[key]) == values.is_whole(plan.shape.types[key])
        for key in plan.definition.pk_columns
    )
