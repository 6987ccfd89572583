"""How values travel between Python and the columns of a database, and rows from a cursor to the user.

Where a driver takes and gives the natural Python type, nothing is done. SQLAlchemy's own
conversions serve the rest, except where they would lose something: SQLite's offsets and decimals,
offsets on MySQL, and enumerations that have grown since the table was read.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from azure_functions_db.core.errors import ConfigurationError, QueryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Dialect
    from sqlalchemy.types import TypeEngine

    Converter = Callable[[Any], Any]
    from collections.abc import Callable, Iterable

    from pydantic import BaseModel
    from sqlalchemy import Table

    from azure_functions_db.core.types import Row

    M = TypeVar("M", bound=BaseModel)


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


def names_of(cursor: Any) -> tuple[str, ...]:
    """Return the names of a result's columns, each of which must be there once."""
    return _names(_description(cursor))


def _description(cursor: Any) -> Any:
    description = None if cursor is None else cursor.description  # psycopg makes it anew each time
    if description is None:
        raise QueryError("The statement gives no rows")
    return description


def _names(description: Any) -> tuple[str, ...]:
    return _distinct(tuple([column[0] for column in description]))


@lru_cache(maxsize=512)
def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise QueryError(f"Columns of the result share a name: {', '.join(sorted(twice))}. Name them apart with AS")
    return names


def dicts(names: tuple[str, ...], rows: Iterable[Any]) -> list[Row]:
    """Return the rows as dicts."""
    return [dict(zip(names, row, strict=True)) for row in rows]


def loaded(
    cursor: Any, rows: Iterable[Any], table: Table, dialect: Dialect, refreshed: Callable[[], Table] | None = None
) -> list[Row]:
    """Return rows of a table as dicts of Python values; ``refreshed`` describes a table that has changed."""
    description = _description(cursor)
    names = _names(description)
    loaded_rows = dicts(names, rows)
    current = table if refreshed is None or _covers(table, names) else refreshed()
    # psycopg gives the natural types by itself, whatever their codes.
    codes = None if dialect.driver == "psycopg" else tuple([column[1] for column in description])
    for name, load in _loaders(dialect, current, names, codes):
        for row in loaded_rows:
            if row[name] is not None:
                row[name] = load(row[name])
    return loaded_rows


@lru_cache(maxsize=512)
def _covers(table: Table, names: tuple[str, ...]) -> bool:
    """Tell whether the table's description knows all columns of a result."""
    return all(name in table.columns for name in names)


@lru_cache(maxsize=512)
def _loaders(
    dialect: Dialect, table: Table, names: tuple[str, ...], codes: tuple[Any, ...] | None
) -> list[tuple[str, Converter]]:
    columns = zip(names, codes or (None,) * len(names), strict=True)
    known = [(name, loader(table.columns[name].type, dialect, code)) for name, code in columns if name in table.columns]
    return [(name, load) for name, load in known if load is not None]


def as_model(model: type[M] | None) -> Callable[[Row], Any]:
    """Return what makes a row into the user's model; without one the row stays as it is."""
    if model is None:
        return _unchanged
    validate = getattr(model, "model_validate", None)
    if validate is None:
        raise ConfigurationError(f"model= must be a Pydantic model class, not {model!r}")
    return lambda row: _validated(model, row)


def _unchanged(row: Row) -> Row:
    return row


def _validated(model: type[M], row: Row) -> M:
    from pydantic import ValidationError

    try:
        return model.model_validate(row)
    except ValidationError as invalid:
        # Its own text would repeat the row's values.
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'row'}: {fault['msg']}"
            for fault in invalid.errors(include_input=False, include_url=False, include_context=False)
        )
    raise QueryError(f"A row does not fit {model.__name__}: {faults}")
