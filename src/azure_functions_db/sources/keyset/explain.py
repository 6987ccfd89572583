"""The database's own words about how it would read a page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement, Executable

from azure_functions_db.sources.keyset.plan import LIMIT
from azure_functions_db.sources.keyset.position import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Row
    from sqlalchemy.sql.compiler import SQLCompiler

    from azure_functions_db.sources.keyset.plan import Plan

_PREFIX = {"postgresql": "EXPLAIN", "mysql": "EXPLAIN", "mariadb": "EXPLAIN", "sqlite": "EXPLAIN QUERY PLAN"}
_ESTIMATES = re.compile(r"\s+\(cost=.*")


class _Explained(Executable, ClauseElement):
    """A statement that the database is to explain instead of running it."""

    inherit_cache = False

    def __init__(self, statement: ClauseElement, prefix: str) -> None:
        self.statement = statement
        self.prefix = prefix


@compiles(_Explained)
def _compiled(element: _Explained, compiler: SQLCompiler, **options: Any) -> str:
    return f"{element.prefix} {compiler.process(element.statement, **options)}"


def explained(
    connection: Connection, statement: ClauseElement, prefix: str, parameters: Mapping[str, Any] | None = None
) -> Sequence[Row[Any]]:
    """Return what the database says about how it would run a statement."""
    return connection.execute(_Explained(statement, prefix), parameters or {}).all()


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
            told = row._mapping  # noqa: SLF001 - the documented name
            words = [f"{told['type']} on {told['key'] or 'no index'}", f"about {told['rows']} rows", told["Extra"]]
            return ", ".join(word for word in words if word)
