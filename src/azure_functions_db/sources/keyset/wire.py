"""The short way to the driver: a page's statement compiled once, its rows as the driver gives them.

SQLAlchemy's own way costs as much as a few hundred rows. It is taken where somebody watches its
statements, where a value has to be converted on its way in, and for all other drivers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.sql.autocommit import driver_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import BindParameter, Connection, Dialect, Select

# By PostgreSQL's type number: bool, bytea, the integers, text and varchar, double, date, both timestamps,
# uuid. These are the same in the binary form, which psycopg reads in half the time; a real is rounded in
# its text form, and a type that psycopg does not know (an enum) comes out of the binary form as bytes.
_SAME_IN_BINARY = frozenset({16, 17, 20, 21, 23, 25, 1043, 701, 1082, 1114, 1184, 2950})


@dataclass(frozen=True)
class Wording:
    """A statement as its driver takes it."""

    text: str
    constants: Mapping[str, Any]
    positions: Sequence[str] | None
    """The parameters in their order, where the driver takes no names."""

    def values(self, parameters: Mapping[str, Any]) -> Any:
        """Return the values for one execution."""
        known = {**self.constants, **parameters}
        return known if self.positions is None else [known[name] for name in self.positions]


def wording(statement: Select[Any], dialect: Dialect, limit: Mapping[str, int]) -> Wording | None:
    """Return the statement's wording with its limit written out; None where values need to be converted."""
    compiled: Any = statement.compile(dialect=dialect)
    if any(_is_converted(parameter, dialect) for parameter in compiled.binds.values()):
        return None
    constants = {name: parameter.value for name, parameter in compiled.binds.items() if not parameter.required}
    worded = compiled.construct_expanded_state({**dict.fromkeys(compiled.binds), **constants, **limit})
    return Wording(worded.statement, constants, worded.positiontup)


def rows_of(connection: Connection, worded: Wording, parameters: Mapping[str, Any], *, binary: bool) -> Any:
    """Execute on the driver's own connection; return the description of the result and its rows."""
    options = {"binary": True} if binary else {}
    with driver_errors(connection):
        cursor: Any = connection.connection.cursor(**options)
        try:
            cursor.execute(worded.text, worded.values(parameters))
            return cursor.description, cursor.fetchall()
        finally:
            cursor.close()


def is_same_in_binary(dialect: Dialect, codes: Sequence[Any]) -> bool:
    """Tell whether columns of these types may be read in either form."""
    return dialect.driver == "psycopg" and _SAME_IN_BINARY.issuperset(codes)


def _is_converted(parameter: BindParameter[Any], dialect: Dialect) -> bool:
    return parameter.type.dialect_impl(dialect).bind_processor(dialect) is not None
