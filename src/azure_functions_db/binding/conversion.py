"""How values travel between Python and the columns of a database: rows as users give them, and rows as they get them.

Where a driver takes and gives the natural Python type, nothing is done. SQLAlchemy's own
conversions serve the rest, except where they would lose something: SQLite's offsets and decimals,
offsets on MySQL, and enumerations that have grown since the table was read.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import groupby, islice
from numbers import Integral, Real
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from azure_functions_db.core.errors import Code, ConfigurationError, QueryError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel
    from sqlalchemy import Column, Dialect, Index, Table
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.core.types import Row

    Converter = Callable[[Any], Any]
    M = TypeVar("M", bound=BaseModel)
    Types = tuple[type, ...]


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


Names = tuple[str, ...]
Values = tuple[Any, ...]


def row_of(data: object) -> Row:
    """Return a dict's or a Pydantic model's columns and values.

    A field that a model left unset at None is left to the database and its default.
    """
    if isinstance(data, dict):
        return data
    if hasattr(data, "model_dump"):
        unset = {name for name in type(data).model_fields if name not in data.model_fields_set}  # type: ignore[attr-defined]
        left_out = {name for name in unset if getattr(data, name) is None}
        dumped: Row = data.model_dump(by_alias=True, exclude=left_out)
        return dumped
    if isinstance(data, Mapping):
        return dict(data)
    raise ConfigurationError(f"A row must be a dict or a Pydantic model, not {type(data).__name__}")


def chunked(rows: object, size: int) -> Iterator[list[Row]]:
    """Return the rows of any iterable in lists of at most this size."""
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping) or hasattr(rows, "model_dump"):
        raise ConfigurationError(f"rows= must be several rows, such as a list of dicts, not {type(rows).__name__}")
    return _chunks(iter(rows), size)


def _chunks(rows: Iterator[object], size: int) -> Iterator[list[Row]]:
    start = 0
    while chunk := list(islice(rows, size)):
        yield chunk if set(map(type, chunk)) == {dict} else _rows_of(chunk, start)  # type: ignore[misc]
        start += len(chunk)


def _rows_of(chunk: list[object], start: int) -> list[Row]:
    rows: list[Row] = []
    for data in chunk:
        try:
            rows.append(row_of(data))
        except ConfigurationError as refusal:
            raise ConfigurationError(f"{refusal} (row {start + len(rows)})") from None
    return rows


# The next three see every row of a bulk write: the loops are left to the interpreter's own functions,
# and no object is kept per row, which would wake the garbage collector.


def grouped(rows: list[Row], *, keep_order: bool) -> list[tuple[Names, list[Row]]]:
    """Put rows with the same columns together; with ``keep_order`` only neighbours."""
    names = tuple(rows[0])
    if _have_just(rows, names):
        return [(names, rows)]
    if keep_order:
        return [(tuple(key), list(run)) for key, run in groupby(rows, key=sorted)]
    together: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        together.setdefault(frozenset(row), []).append(row)
    return [(tuple(group[0]), group) for group in together.values()]


def _have_just(rows: list[Row], names: Names) -> bool:
    try:
        deque(map(picker(names), rows), maxlen=0)
    except KeyError:
        return False
    return set(map(len, rows)) == {len(names)}


def picker(names: Names) -> Callable[[Row], Values]:
    """Return what takes the values of these columns out of a row."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple([row[name] for name in names])


def merged(rows: list[Row], key: Names) -> list[Row]:
    """Return one row for each key: what writing them one after the other would leave.

    NULL is equal to nothing, so rows with a NULL in their key stay apart.
    """
    try:
        keys = list(map(itemgetter(*key), rows))
    except KeyError as missing:
        raise ConfigurationError(f"A row has no value for the conflict column {missing}") from None
    if len(set(keys)) == len(rows):
        return rows
    unique: dict[Any, Row] = {}
    for index, row in enumerate(rows):
        values = tuple(row[name] for name in key)
        identity = index if None in values else values
        unique[identity] = {**unique.get(identity, {}), **row}
    return list(unique.values())


def checked_known(table: Table, names: Iterable[str]) -> None:
    """Refuse columns that the table does not have."""
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise ConfigurationError(
            f"{table.name!r} has no column {_listed(unknown)}{did_you_mean(unknown[0], table.columns.keys())}",
            table=table.name,
            code=Code.COLUMN_MISSING,
        )


def checked_columns(table: Table, names: Iterable[str]) -> None:
    """Refuse columns that the table does not have, and those that the database fills by itself."""
    checked_known(table, names)
    made = [name for name in names if _is_generated(table.columns[name])]
    if made:
        raise ConfigurationError(
            f"The database itself generates {_listed(made)} of {table.name!r}; leave it out", table=table.name
        )


def checked_key(table: Table, pk: Mapping[str, Any]) -> Names:
    """Return the key's columns in the table's order; they must be the primary key, the whole and nothing else."""
    if not isinstance(pk, Mapping):
        raise ConfigurationError(f"pk= must be a dict of the key's columns and values, not {type(pk).__name__}")
    key = _primary_key(table)
    if pk.keys() == set(key) and key:
        return key
    if not key:
        raise ConfigurationError(
            f"{table.name!r} has no primary key: give it one, or read it by a query (views have none)",
            table=table.name,
            code=Code.KEY_UNFIT,
        )
    missing, extra = [name for name in key if name not in pk], [name for name in pk if name not in key]
    faults = [f"misses {_listed(missing)}"] * bool(missing) + [f"has no use for {_listed(extra)}"] * bool(extra)
    raise ConfigurationError(
        f"The primary key of {table.name!r} is {_listed(key)}: pk= {' and '.join(faults)}",
        table=table.name,
        code=Code.KEY_UNFIT,
    )


@lru_cache(maxsize=512)
def _primary_key(table: Table) -> Names:
    return tuple(column.name for column in table.primary_key.columns)


def checked_conflict(table: Table, conflict_columns: Sequence[str]) -> Names:
    """Return the columns by which an upsert finds its row: a primary or unique key."""
    if isinstance(conflict_columns, str) or not conflict_columns:
        raise ConfigurationError("conflict_columns= must be a list of at least one column")
    checked_known(table, conflict_columns)
    if not has_unique_key(table, conflict_columns):
        raise ConfigurationError(
            f"conflict_columns= {_listed(conflict_columns)}: {table.name!r} has no such primary or unique key",
            table=table.name,
            code=Code.KEY_UNFIT,
        )
    return tuple(conflict_columns)


def has_unique_key(table: Table, columns: Sequence[str]) -> bool:
    """Tell whether these columns are together the primary key or a unique key."""
    return frozenset(columns) in _unique_sets(table)


@lru_cache(maxsize=512)
def _unique_sets(table: Table) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, unique_keys(table)))


def unique_keys(table: Table) -> list[Names]:
    """Return the columns of the primary key and of each unique key."""
    from sqlalchemy import UniqueConstraint

    constraints = [each for each in table.constraints if isinstance(each, UniqueConstraint)]
    indexes = [each for each in table.indexes if each.unique and not _is_partial(each)]
    keys = [table.primary_key.columns, *(each.columns for each in constraints), *(each.columns for each in indexes)]
    return [tuple(column.name for column in key) for key in keys if len(key)]


def _is_partial(index: Index) -> bool:
    filters = [options.get("where") for options in index.dialect_options.values()]
    return any(condition is not None for condition in filters) or len(index.expressions) != len(index.columns)


def references_itself(table: Table) -> bool:
    """Tell whether rows may refer to earlier rows of the same table."""
    own = table.fullname
    return any(key.target_fullname.rpartition(".")[0] == own for key in table.foreign_keys)


def _is_generated(column: Column[Any]) -> bool:
    return column.computed is not None or (column.identity is not None and bool(column.identity.always))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# MySQL compares a text with a number by the number that the text begins with: ``token = 0`` is every
# token that begins with none. Other databases refuse that, or find nothing. Here a key's value must be
# of its column's type on each of them, so that it can mean no other row.


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
    if not _fits(dialect, table, name, given):
        column = table.columns[name]
        expected = " or ".join(each.__name__ for each in _named(_types_of(dialect, column)))
        raise ConfigurationError(
            f"The key column {name!r} of {table.name!r} is {type(column.type).__name__}, which takes {expected}, "
            f"not {given.__name__}: some databases would find other rows by it",
            table=table.name,
        )


@lru_cache(maxsize=512)
def _fits(dialect: Dialect, table: Table, name: str, given: type) -> bool:
    types = _types_of(dialect, table.columns[name])
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
