"""How values travel between Python and the columns of a database.

Where a driver takes and gives the natural Python type, nothing is done. SQLAlchemy's own
conversions serve the rest, except where they would lose something: SQLite's offsets and decimals,
offsets on MySQL, and enumerations that have grown since the table was read.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Dialect
    from sqlalchemy.types import TypeEngine

    Converter = Callable[[Any], Any]


def binder(kind: TypeEngine[Any], dialect: Dialect) -> Converter | None:
    """Return what prepares a value that is not None for a column of this kind."""
    from sqlalchemy import types

    if isinstance(kind, types.JSON):
        return kind.dialect_impl(dialect).bind_processor(dialect)
    if dialect.driver == "psycopg" or isinstance(kind, types.Enum | types.Integer | types.Float):
        return None
    if dialect.name in _PLAIN and not isinstance(kind, types.Boolean | types.LargeBinary | types.Interval):
        return plain_binder(dialect)
    return kind.dialect_impl(dialect).bind_processor(dialect)


def loader(kind: TypeEngine[Any], dialect: Dialect, code: Any) -> Converter | None:
    """Return what reads a value that is not None from a column of this kind."""
    from sqlalchemy import types

    if dialect.driver == "psycopg":
        return _enum_array if _is_enum_array(kind) else None
    if isinstance(kind, types.Enum | types.Float):
        return None
    if dialect.name == "sqlite":
        for known, load in _sqlite_loaders():
            if isinstance(kind, known):
                return load
    return kind.dialect_impl(dialect).result_processor(dialect, code)


def _is_enum_array(kind: TypeEngine[Any]) -> bool:
    # psycopg does not know the user's own types, and gives their arrays as texts.
    from sqlalchemy import types

    return isinstance(kind, types.ARRAY) and isinstance(kind.item_type, types.Enum)


def _enum_array(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    items = re.findall(r'"((?:\\.|[^"\\])*)"|([^,{}]+)', value)
    return [re.sub(r"\\(.)", r"\1", quoted) if not bare else None if bare == "NULL" else bare for quoted, bare in items]


def plain_binder(dialect: Dialect) -> ByType | None:
    """Return what prepares a value whose column is unknown, as in a statement of the user's."""
    return _PLAIN.get(dialect.name)


class ByType:
    """Converts values of some types and leaves all others as they are."""

    def __init__(self, converters: dict[type, Converter]) -> None:
        self.types = frozenset(converters)
        self._find = converters.get

    def __call__(self, value: Any) -> Any:
        """Return the value as the driver takes it."""
        convert = self._find(type(value))
        return value if convert is None else convert(value)


def _sqlite_loaders() -> list[tuple[Any, Converter]]:
    from sqlalchemy import types

    return [
        (types.DateTime, _from_text(dt.datetime.fromisoformat)),
        (types.Date, _from_text(dt.date.fromisoformat)),
        (types.Time, _from_text(dt.time.fromisoformat)),
        (types.Numeric, _decimal),
    ]


def _from_text(parse: Converter) -> Converter:
    # SQLite keeps whatever it is given: a number in a date column is the user's own.
    return lambda value: parse(value) if isinstance(value, str) else value


def _decimal(value: Any) -> Any:
    try:
        return Decimal(str(value))
    except InvalidOperation:  # a type that SQLite does not know counts as numeric
        return value


def _moment_text(value: dt.datetime) -> str:
    return value.isoformat(" ", "microseconds")


def _time_text(value: dt.time) -> str:
    return value.isoformat("microseconds")


def _without_offset(value: dt.datetime) -> dt.datetime:
    return value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)


_MYSQL = ByType({dt.datetime: _without_offset, UUID: str})
_PLAIN = {
    "sqlite": ByType(
        {
            dt.datetime: _moment_text,
            dt.date: dt.date.isoformat,
            dt.time: _time_text,
            Decimal: str,
            UUID: str,
        }
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
