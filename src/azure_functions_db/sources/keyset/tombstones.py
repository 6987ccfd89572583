"""A table of tombstones beside the table that is polled: where deletes are written down that a poll cannot see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from azure_functions_db.core.types import Finding
from azure_functions_db.sources.keyset import values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Inspector

    from azure_functions_db.sources.keyset.plan import Plan

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
