"""Rows with their cursor and key values: what the driver handed out must compare exactly when it is handed back.

A position holds the driver's own values, from before SQLAlchemy's result processing: a SQLite text
stays that text, whatever its column is declared to be. They are bound without further processing, cast
to the column's type where the database would otherwise compare in another one.

A TIMESTAMP of MySQL or MariaDB is a moment, but the session hands it out as a local time without its zone: an hour
comes twice in autumn, and another session may tell another time. A source that stands at such a value speaks UTC.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from azure_functions_db.core.errors import CursorSerializationError, SourceConfigurationError
from azure_functions_db.core.speedups import speedups
from azure_functions_db.sql.transactions import driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Dialect, Select
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.core.types import CursorPart, RawRecord

    Converter = Callable[[Any], Any]

_MYSQL = {"mysql", "mariadb"}


def require_orderable(name: str, kind: TypeEngine[Any], dialect: Dialect, *, described: bool) -> None:
    """Refuse a column whose values have no order that a checkpoint can hold.

    ``described`` says that the database told the type, so that one which is not known is not usable either.
    """
    from sqlalchemy import types

    refused: tuple[type[Any], ...] = (types.JSON, types.ARRAY, types.Interval, types.TupleType)
    if dialect.name in _MYSQL:
        from sqlalchemy.dialects import mysql  # which takes longer to load than others to answer

        from azure_functions_db.sources.keyset.expressions import ENUM, SET

        # An ENUM is sorted by its position and compared by its text; a BIT comes as bytes, compared as a number.
        refused += (types.Enum, mysql.SET, mysql.BIT, ENUM, SET)
    untyped = described and type(kind) is types.NullType and dialect.name == "postgresql"
    if untyped or isinstance(kind, refused) or type(kind).__name__.upper() in _UNORDERED:
        raise SourceConfigurationError(f"Column {name!r} cannot be a cursor or key: its type is {type_name(kind)}")


_UNORDERED = {"INTERVAL", "JSONB", "HSTORE", "TSVECTOR", "XML", "STRUCT", "MAP", "UNION", "POINT", "MONEY"}


def type_name(kind: TypeEngine[Any]) -> str:
    """Return the name of a column's type as a message shows it."""
    return type(kind).__name__.upper()


def is_temporal(kind: TypeEngine[Any]) -> bool:
    """Tell whether the column holds points in time that a clock can be compared with."""
    from sqlalchemy import types

    return isinstance(kind, types.DateTime)


def resolution(kind: TypeEngine[Any]) -> float | None:
    """Return the seconds from one value of a column of times to the next; None where that is not known.

    Dates, numbers and texts have none that a clock could be held against, nor has a type that does not
    tell its digits.
    """
    if not is_temporal(kind):
        return None
    if hasattr(kind, "fsp"):  # MySQL and MariaDB have whole seconds unless they are told otherwise
        return 10.0 ** -int(kind.fsp or 0)
    if not hasattr(kind, "precision"):
        return None
    return 10.0 ** -int(6 if kind.precision is None else kind.precision)


def is_whole(kind: TypeEngine[Any]) -> bool:
    """Tell whether the column holds integers."""
    from sqlalchemy import types

    return isinstance(kind, types.Integer)


def exact(column: ColumnElement[Any], kind: TypeEngine[Any], dialect: Dialect) -> ColumnElement[Any] | None:
    """Return what to read besides the column where its plain value is rounded on the way out."""
    from sqlalchemy import literal_column

    if dialect.name in _MYSQL and type_name(kind) in {"FLOAT", "REAL"}:
        return column + literal_column("0e0")
    return None


def converter(kind: TypeEngine[Any], dialect: Dialect, code: Any) -> Callable[[Any], Any] | None:
    """Return what makes the driver's value the one that SQLAlchemy would hand out, where they differ."""
    from sqlalchemy import types

    if dialect.name in _MYSQL and isinstance(kind, types.Float):
        return None  # SQLAlchemy would round a reflected DOUBLE to ten decimals.
    if dialect.name in _MYSQL and isinstance(kind, types.Time):
        return _time_of_day
    return kind.dialect_impl(dialect).result_processor(dialect, code)


UNCONVERTIBLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""What a conversion raises for a value that it cannot take."""


def as_text(column: ColumnElement[Any], dialect: Dialect) -> ColumnElement[Any]:
    """Return the column as the database writes it; where its very text may be broken, that text's bytes."""
    from sqlalchemy import LargeBinary, Text, cast

    return cast(column, LargeBinary() if dialect.name in {"sqlite", *_MYSQL} else Text())


def text_of(value: Any) -> Any:
    """Return what `as_text` has read: a text, in which bytes that are none are written out."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes | bytearray) else value


def lenient(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the conversion made so that a value it cannot take stays as it is."""

    def converted(value: Any) -> Any:
        try:
            return convert(value)
        except UNCONVERTIBLE:
            return value

    return converted


STORABLE = frozenset({type(None), str, int, float, bytes, dt.datetime, dt.date, dt.time, Decimal, UUID})
"""The types of values that a checkpoint holds as they are: asking for them saves a call for each value."""


def storable(value: Any) -> CursorPart:
    """Return a driver's value as a checkpoint holds it."""
    match value:
        case bytearray() | memoryview():
            return bytes(value)
        case dt.timedelta():
            return _clock_text(value)
        case None | str() | int() | float() | dt.datetime() | dt.date() | dt.time() | Decimal() | UUID() | bytes():
            return value
        case _:
            raise CursorSerializationError(f"A value of type {type(value).__name__} cannot be a cursor or key")


def coerced(value: Any, kind: TypeEngine[Any]) -> Any:
    """Return a text or number of an older checkpoint as a value of the column's type."""
    from sqlalchemy import types

    readers: list[tuple[tuple[type[Any], ...], Callable[[str], Any]]] = [
        ((types.DateTime,), dt.datetime.fromisoformat),
        ((types.Date,), dt.date.fromisoformat),
        ((types.Time,), dt.time.fromisoformat),
        ((types.Uuid,), UUID),
        ((types.Integer,), int),
        ((types.Float,), float),
        ((types.Numeric,), Decimal),
        ((types.LargeBinary, types.BINARY, types.VARBINARY), bytes.fromhex),
    ]
    if not isinstance(value, str):
        return Decimal(str(value)) if isinstance(value, float) and isinstance(kind, types.Numeric) else value
    for kinds, read in readers:
        if isinstance(kind, kinds):
            try:
                return read(value)
            except (ValueError, ArithmeticError):
                raise CursorSerializationError(f"The checkpoint holds no value of type {type_name(kind)}") from None
    return value


SAME_IN_DRIVERS = frozenset({type(None), str, int, float, bytes})
"""The types of values that every driver keeps as they are: asking for them saves a call for each value."""


def driver_value(value: Any, kind: TypeEngine[Any], dialect: Dialect, sample: Any = None) -> Any:
    """Return a Python value in the form in which the driver keeps it in such a column.

    SQLite keeps times as text in whatever form the writer chose: ``sample``, a stored value, shows it. Its own
    clock tells UTC. So does a DATETIME of MySQL, whose drivers would leave a zone out without a word.
    """
    if isinstance(value, UUID) and dialect.name in {"sqlite", *_MYSQL}:
        return value.hex if getattr(kind, "length", None) == 32 else str(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None and dialect.name in _MYSQL:
        return _told_in_utc(value)
    if dialect.name != "sqlite":
        return value
    match value:
        case dt.datetime() if isinstance(sample, int | float):
            return (value if value.tzinfo else value.replace(tzinfo=dt.UTC)).timestamp()
        case dt.datetime():
            return _like(sample if isinstance(sample, str) else "2000-01-01 00:00:00.000000", value)
        case dt.date() | dt.time():
            return value.isoformat()
        case Decimal():
            return float(value)
        case _:
            return value


# How a text of SQLite's ends that tells a time: with digits of a second, with a zone, or without them.
_END = re.compile(r"(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?$", re.ASCII)


def _like(sample: str, value: dt.datetime) -> str:
    """Return a moment as a text in the form and the zone of another one, which is UTC where it tells none."""
    fraction, zone = _END.search(sample).groups()  # type: ignore[union-attr]  # it may find nothing, but at the end
    there = dt.UTC if zone in {None, "Z"} else dt.datetime.fromisoformat(f"2000-01-01T00:00{zone}").tzinfo
    local = value if value.tzinfo is None else value.astimezone(there).replace(tzinfo=None)
    precision = "seconds" if not fraction else "milliseconds" if len(fraction) == 3 else "microseconds"
    return local.isoformat(sep="T" if "T" in sample else " ", timespec=precision) + (zone or "")


def _clock_text(value: dt.timedelta) -> str:
    sign = "-" if value < dt.timedelta() else ""
    seconds, microseconds = divmod(abs(value) // dt.timedelta(microseconds=1), 1_000_000)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{microseconds:06}"


def _time_of_day(value: Any) -> Any:
    """Return a MySQL TIME as a time, or as text where it is longer than a day."""
    if not isinstance(value, dt.timedelta):
        return value
    if dt.timedelta() <= value < dt.timedelta(days=1):
        return (dt.datetime(2000, 1, 1) + value).time()  # noqa: DTZ001 - a clock without a zone
    return _clock_text(value)


def revived_row(row: Mapping[str, Any], types: Mapping[str, TypeEngine[Any]], *, strict: bool) -> RawRecord:
    """Return the row with each text as a value of its column's type; what does not fit stays, or is refused."""
    return {name: _revived(name, value, types.get(name), strict=strict) for name, value in row.items()}


def _revived(name: str, value: Any, kind: TypeEngine[Any] | None, *, strict: bool) -> Any:
    if not isinstance(value, str) or kind is None:
        return value
    try:
        return _of_type(value, kind)
    except (CursorSerializationError, binascii.Error):
        if strict:
            raise SourceConfigurationError(f"{value!r} is no value of {name} ({type_name(kind)})") from None
        return value


def _of_type(value: str, kind: TypeEngine[Any]) -> Any:
    from sqlalchemy import types

    if isinstance(kind, types.LargeBinary | types.BINARY | types.VARBINARY):
        return base64.b64decode(value, validate=True)
    return coerced(value, kind)


_LEAVE = "SET @azfdb_zone = @@session.time_zone, SESSION time_zone = '+00:00'"
_RETURN = "SET SESSION time_zone = @azfdb_zone"
_CONVERT = "SELECT convert_tz(%s, @azfdb_zone, '+00:00')"


@contextmanager
def in_utc(connection: Connection) -> Iterator[None]:
    """Let the session speak UTC for a while; whoever gets the connection next finds its own zone again."""
    connection.exec_driver_sql(_LEAVE)
    try:
        yield
    finally:
        _return(connection)


def _return(connection: Connection) -> None:
    from sqlalchemy.exc import DBAPIError

    if connection.invalidated:
        return
    try:
        connection.exec_driver_sql(_RETURN)
    except DBAPIError as failure:
        connection.invalidate(failure)  # What keeps the wrong zone must not be lent again.


def naive_utc(value: Any, connection: Connection) -> Any:
    """Return a moment as a session in UTC tells it; one without a zone is the local time of the session's own."""
    if not isinstance(value, dt.datetime):
        return value
    if value.tzinfo is not None:
        return _told_in_utc(value)
    converted = connection.exec_driver_sql(_CONVERT, (value,)).scalar_one()
    if not isinstance(converted, dt.datetime):
        raise CursorSerializationError(f"The database cannot tell what {value} is in UTC")
    return converted


def _told_in_utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(tzinfo=None)


def aware_utc(value: Any) -> Any:
    """Return what a session in UTC told as a moment that says so."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value


# The short way to the driver's rows, and from there to records.
#
# A page's statement is compiled once, and its rows are taken as the driver gives them: SQLAlchemy's own way costs as
# much as a few hundred rows. That is taken where somebody watches its statements, where a value has to be converted on
# its way in, and for all other drivers. Records are made by a function that is built once for each kind of result.


class Header(NamedTuple):
    """The column names of a result, and the driver's type code of each."""

    names: tuple[str, ...]
    codes: tuple[Any, ...]


def header_of(dialect: Dialect, description: Sequence[Any]) -> Header:
    """Return a result's header with the names as the dialect writes them; a name that comes twice is refused."""
    names = tuple(column[0] for column in description)
    if dialect.requires_name_normalize:
        names = tuple(map(dialect.normalize_name, names))
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SourceConfigurationError(f"The query has several columns named {', '.join(map(repr, twice))}")
    codes = tuple(column[1] for column in description)
    # A text of DuckDB's types serves as well, and keeps none of its objects alive.
    return Header(names, tuple(map(str, codes)) if dialect.name == "duckdb" else codes)


def row_builder(
    names: Sequence[str], converters: Sequence[Converter | None], unused: int = 0
) -> Callable[[Sequence[Any]], list[RawRecord]]:
    """Return a function that makes records of tuples; ``unused`` values at a tuple's end are left out."""
    behind = _behind()
    # Those of SQLAlchemy's that only let None pass are replaced by what they call: a call of two is saved.
    lenient = [convert and behind.get(convert) for convert in converters]
    if speedups is not None:
        functions = [other or (convert and (convert,)) for convert, other in zip(converters, lenient, strict=True)]
        return partial(speedups.records, dict.fromkeys(names), tuple(names), tuple(functions), len(names) + unused)
    return _generated_builder(names, converters, lenient, unused)


def _generated_builder(
    names: Sequence[str], converters: Sequence[Converter | None], lenient: Sequence[Converter | None], unused: int
) -> Callable[[Sequence[Any]], list[RawRecord]]:
    """Return one of generated code: a dict display takes less than half the time of ``dict(zip(names, row))``."""
    values = [f"v{i}" for i in range(len(names) + unused)]
    functions: dict[str, Converter] = {}
    items = []
    for i, (name, convert, other) in enumerate(zip(names, converters, lenient, strict=False)):
        functions |= {f"c{i}": other or convert} if convert else {}
        call = f"None if v{i} is None else c{i}(v{i})" if other else f"c{i}(v{i})" if convert else f"v{i}"
        items.append(f"{name!r}: {call}")
    code = f"lambda rows: [{{{', '.join(items)}}} for {', '.join(values)}, in rows]"
    # Column names enter the code as string literals only.
    return eval(code, functions)  # type: ignore[no-any-return]  # noqa: S307


def _behind() -> dict[Converter, Converter]:
    from sqlalchemy.engine import processors

    return {
        processors.int_to_boolean: bool,
        processors.str_to_datetime: dt.datetime.fromisoformat,
        processors.str_to_date: dt.date.fromisoformat,
        processors.str_to_time: dt.time.fromisoformat,
    }


# By PostgreSQL's type number: bool, bytea, the integers, text and varchar, double, date, both timestamps,
# uuid. These are the same in the binary form, which psycopg reads in half the time; a real is rounded in
# its text form, and a type that psycopg does not know (an enum) comes out of the binary form as bytes.
SAME_IN_BINARY = frozenset({16, 17, 20, 21, 23, 25, 1043, 701, 1082, 1114, 1184, 2950})


@dataclass(frozen=True)
class CompiledStatement:
    """A statement as its driver takes it."""

    text: str
    constants: Mapping[str, Any]
    positions: Sequence[str] | None
    """The parameters in their order, where the driver takes no names."""


def compiled_statement(statement: Select[Any], dialect: Dialect, limit: Mapping[str, int]) -> CompiledStatement | None:
    """Return a statement as its driver takes it, its limit written out; None where values need to be converted."""
    compiled: Any = statement.compile(dialect=dialect)
    types = [parameter.type.dialect_impl(dialect) for parameter in compiled.binds.values()]
    if any(kind.bind_processor(dialect) for kind in types):
        return None
    constants = {name: parameter.value for name, parameter in compiled.binds.items() if not parameter.required}
    expanded = compiled.construct_expanded_state({**dict.fromkeys(compiled.binds), **constants, **limit})
    return CompiledStatement(expanded.statement, constants, expanded.positiontup)


def rows_of(
    connection: Connection, compiled: CompiledStatement, parameters: Mapping[str, Any], **form: Any
) -> tuple[Header, Sequence[Any]]:
    """Execute with a cursor of the driver's own, of this form; return the header of the result and its rows."""
    values: Any = {**compiled.constants, **parameters}
    if compiled.positions is not None:
        values = [values[name] for name in compiled.positions]
    with driver_errors(connection):
        cursor: Any = connection.connection.cursor(**form)
        try:
            cursor.execute(compiled.text, values)
            description, rows = cursor.description, cursor.fetchall()
        finally:
            cursor.close()
    return header_of(connection.dialect, description), rows
