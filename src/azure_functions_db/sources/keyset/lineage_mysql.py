"""Which tables of MySQL or MariaDB are behind a source, and whether all of them are InnoDB's.

The optimiser says it in the note that follows an EXPLAIN: the statement as it runs it, with views that it can
merge replaced by their tables. Only InnoDB has transactions that the server lists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from azure_functions_db.sources.keyset.explain import explained

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from azure_functions_db.sources.keyset.plan import Plan

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
    word = "EXPLAIN EXTENDED" if getattr(connection.dialect, "is_mariadb", False) else "EXPLAIN"
    explained(connection, plan.cursors(), word)
    notes = connection.exec_driver_sql("SHOW WARNINGS").all()
    return str(notes[-1][2]) if notes else ""


def _engine(connection: Connection, place: str, name: str) -> str | None:
    from sqlalchemy import text

    engine = connection.execute(text(_ENGINE), {"place": place, "name": name}).scalar()
    return None if engine is None else str(engine)


def _plain(name: str) -> str:
    return name.replace("``", "`")
