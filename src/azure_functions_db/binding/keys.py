"""Values of keys: only those that can mean no other row than the one they are.

MySQL compares a text with a number by the number that the text begins with: ``token = 0`` is every
token that begins with none. Other databases refuse that, or find nothing. Here a key's value must be
of its column's type on each of them.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from azure_functions_db.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Column, Dialect, Table

    from azure_functions_db.core.types import Row

    Types = tuple[type, ...]


def checked_key_values(dialect: Dialect, table: Table, pk: Mapping[str, Any]) -> None:
    """Refuse values that are not of their columns' types; a key has a value in each column."""
    for name, value in pk.items():
        if value is None:
            raise ConfigurationError(
                f"pk= gives None for {name!r} of {table.name!r}, but a key has a value in each of its columns",
                table=table.name,
            )
        _check(dialect, table, name, type(value))


def checked_conflict_values(dialect: Dialect, table: Table, conflict: Iterable[str], rows: Sequence[Row]) -> None:
    """Refuse the same in the columns by which upserts find their rows; NULL finds none and is allowed."""
    for name in conflict:
        for given in set(map(type, map(itemgetter(name), rows))) - {type(None)}:
            _check(dialect, table, name, given)


def _check(dialect: Dialect, table: Table, name: str, given: type) -> None:
    column = table.columns[name]
    if not _fits(dialect, column, given):
        wanted = " or ".join(each.__name__ for each in _named(_types_of(dialect, column)))
        raise ConfigurationError(
            f"The key column {name!r} of {table.name!r} is {type(column.type).__name__}, which takes {wanted}, "
            f"not {given.__name__}: some databases would find other rows by it",
            table=table.name,
        )


@lru_cache(maxsize=512)
def _fits(dialect: Dialect, column: Column[Any], given: type) -> bool:
    types = _types_of(dialect, column)
    # True is an int to Python.
    return not types or bool in types if issubclass(given, bool) else not types or issubclass(given, types)


def _types_of(dialect: Dialect, column: Column[Any]) -> Types:
    """Return what a column's values may be; nothing where anything may pass."""
    from sqlalchemy import types

    kind = column.type
    if getattr(kind, "display_width", None) == 1:  # MySQL's BOOLEAN
        return Integral, bool
    if dialect.name == "sqlite" and isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
        return ()  # also what SQLite calls a column whose type it does not know
    return next((given for known, given in _kinds() if isinstance(kind, known)), ())


def _kinds() -> list[tuple[Any, Types]]:
    from sqlalchemy import types

    return [
        (types.Boolean, (bool, Integral)),
        (types.Integer, (Integral,)),
        (types.Float, (Real, Decimal)),
        (types.Numeric, (Integral, Decimal)),
        (types.String, (str, UUID, dt.date, dt.time)),
        ((types.LargeBinary, types.BINARY, types.VARBINARY), (bytes, bytearray, memoryview, str)),
        (types.DateTime, (dt.date,)),
        (types.Date, (dt.date,)),
        (types.Time, (dt.time, dt.timedelta)),
        (types.Uuid, (UUID, str)),
    ]


def _named(types: Types) -> Types:
    """Return the types by the names that users know."""
    known: dict[type, type] = {Integral: int, Real: float}
    return tuple(known.get(each, each) for each in types)
