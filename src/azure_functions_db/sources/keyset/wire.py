"""The short way to the driver: a page's statement compiled once, its rows as the driver gives them.

SQLAlchemy's own way costs as much as a few hundred rows. It is taken where somebody watches its
statements, where a value has to be converted on its way in, and for all other drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.sources.keyset.shape import header_of
from azure_functions_db.sql.autocommit import driver_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection, Dialect, Select

    from azure_functions_db.sources.keyset.shape import Header

# By PostgreSQL's type number: bool, bytea, the integers, text and varchar, double, date, both timestamps,
# uuid. These are the same in the binary form, which psycopg reads in half the time; a real is rounded in
# its text form, and a type that psycopg does not know (an enum) comes out of the binary form as bytes.
SAME_IN_BINARY = frozenset({16, 17, 20, 21, 23, 25, 1043, 701, 1082, 1114, 1184, 2950})


@dataclass(frozen=True)
class Wording:
    """A statement as its driver takes it."""

    text: str
    constants: Mapping[str, Any]
    positions: Sequence[str] | None
    """The parameters in their order, where the driver takes no names."""


def wording(statement: Select[Any], dialect: Dialect, limit: Mapping[str, int]) -> Wording | None:
    """Return the statement's wording with its limit written out; None where values need to be converted."""
    compiled: Any = statement.compile(dialect=dialect)
    types = [parameter.type.dialect_impl(dialect) for parameter in compiled.binds.values()]
    if any(kind.bind_processor(dialect) for kind in types):
        return None
    constants = {name: parameter.value for name, parameter in compiled.binds.items() if not parameter.required}
    worded = compiled.construct_expanded_state({**dict.fromkeys(compiled.binds), **constants, **limit})
    return Wording(worded.statement, constants, worded.positiontup)


def rows_of(
    connection: Connection, worded: Wording, parameters: Mapping[str, Any], *, binary: bool = False
) -> tuple[Header, Sequence[Any]]:
    """Execute on the driver's own connection; return the header of the result and its rows."""
    values: Any = {**worded.constants, **parameters}
    if worded.positions is not None:
        values = [values[name] for name in worded.positions]
    with driver_errors(connection):
        cursor: Any = connection.connection.cursor(**({"binary": True} if binary else {}))
        try:
            cursor.execute(worded.text, values)
            description, rows = cursor.description, cursor.fetchall()
        finally:
            cursor.close()
    return header_of(connection.dialect, description), rows
