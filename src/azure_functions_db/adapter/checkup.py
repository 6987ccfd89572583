"""What an operator should know about a source before trusting it with production data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.adapter import values
from azure_functions_db.adapter.explain import plan_words
from azure_functions_db.adapter.indexes import missing_index
from azure_functions_db.core.clocks import clock_finding, database_now
from azure_functions_db.core.types import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.adapter.horizon import Grade
    from azure_functions_db.adapter.plan import Plan


def checked_up(plan: Plan, connection: Connection) -> Iterator[Finding]:
    """Look at the index, the cursor and the clock of a source's database."""
    yield _index(plan, connection)
    yield _cursor_type(plan)
    yield _null_cursors(plan, connection)
    yield clock_finding("database clock", database_now(connection))


def late_commits(grade: Grade) -> Finding:
    """Say how well late commits are guarded against."""
    match grade:
        case "exact":
            return Finding(
                "late commits",
                "ok",
                "exact: no row that commits late is jumped over, unless its stamp is older than its transaction",
            )
        case "settled":
            return Finding("late commits", "ok", "settled: rows are read at a distance from the clock")
        case "none":
            return Finding(
                "late commits",
                "warning",
                "none: a row that commits later than its successor can be missed",
                "give settle_seconds=, or let the database show its running transactions (PROCESS on MySQL/MariaDB); "
                "poll the primary rather than a replica",
            )


def _index(plan: Plan, connection: Connection) -> Finding:
    words = plan_words(plan, connection)
    told = f"; the plan says: {words}" if words else ""
    if plan.definition.table is None:
        return Finding("index", "note", f"a query: see its plan{told}")
    missing = missing_index(connection.engine, plan)
    if missing is not None:
        return Finding("index", "warning", f"no index serves the poll{told}", missing)
    return Finding("index", "ok", f"the poll is served{told}")


def _null_cursors(plan: Plan, connection: Connection) -> Finding:
    count = int(connection.execute(plan.without_cursor()).scalar_one())
    if not count:
        return Finding("NULL cursors", "ok", "none")
    column = plan.definition.cursor_column
    return Finding(
        "NULL cursors", "warning", f"{count:,} row(s) are never delivered", f"fill {column} and declare it NOT NULL"
    )


def _cursor_type(plan: Plan) -> Finding:
    name = plan.definition.cursor_column
    kind = plan.shape.types[name]
    shown = (
        f"{name} {kind.compile(dialect=plan.dialect)}" if _compiles(kind, plan) else f"{name} {values.type_name(kind)}"
    )
    grade, told = _judged(kind, plan.dialect.name)
    return Finding("cursor", grade, f"{shown}: {told}" if told else shown)


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
        case types.String() if not isinstance(kind, types.Enum):
            return "warning", "text; its order depends on a collation, which upgrades can change"
        case _:
            return "ok", ""


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
