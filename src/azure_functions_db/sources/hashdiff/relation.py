"""The statements that hash, count and read rows, in each database's own words.

A hash covers the key and all columns of a row in a form that cannot be read in two ways: PostgreSQL's text of a
whole row quotes its values and tells NULL from an empty text; MySQL and SQLite get every value with its length. What a
session could say about the form of values (time zone, style of dates, digits of floats) is set while rows are hashed.

Blocks are ranges of keys in the database's own order, which is that of the key's index whatever its collation; this
side never compares two keys for order across blocks, only for being the same, value by value.
"""

from __future__ import annotations

import hashlib
import struct
import time
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, SerializationError, SourceConfigurationError
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.page import is_undecodable
from azure_functions_db.sources.keyset.plan import typed_parameter
from azure_functions_db.sources.keyset.shape import bound_text
from azure_functions_db.sources.keyset.values import header_of
from azure_functions_db.sql.own_tables import own_types
from azure_functions_db.sql.transactions import driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Dialect, Select

    from azure_functions_db.core.types import CursorPart, RawRecord
    from azure_functions_db.sources.hashdiff.snapshots import Documents, Key
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.shape import Shape

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
_MYSQL = {"mysql", "mariadb"}
_HALF = (1 << 64) - 1
_MANY = 500  # keys in one statement
_START, _END = "azfdb_start", "azfdb_end"
_FIRST, _LAST = "azfdb_first", "azfdb_last"
_ARGUMENTS = 90  # SQLite passes 100 values to a function at most
_OLDEST_POSTGRES = (14,)
_SAMPLE_ROWS = 20_000
_ANSWER_BYTES = 250  # a sum of blocks, on the wire both ways
_ENTRY_BYTES = 70  # a key and a hash
# What PostgreSQL's texts of values depend on; the last is for servers that would round floats.
_POSTGRES_FORMS = (
    "SELECT set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true), "
    "set_config('IntervalStyle', 'postgres', true), set_config('bytea_output', 'hex', true), "
    "set_config('lc_monetary', 'C', true), set_config('xmlbinary', 'base64', true), "
    "set_config('extra_float_digits', '3', true)"
)


class FoundRow:
    """A row as it was read: its record, its hash at that moment, and why it cannot be handed out, if so."""

    __slots__ = ("failure", "hash", "record")

    def __init__(self, record: RawRecord, digest: bytes, failure: SerializationError | None = None) -> None:
        self.record = record
        self.hash = digest
        self.failure = failure


class Relation:
    """A table or query with its key, and the statements about it."""

    def __init__(self, definition: Definition, shape: Shape, dialect: Dialect) -> None:
        self.definition = definition
        self.shape = shape
        self.dialect = dialect
        self.keys = definition.pk_columns
        self._range: dict[str, Any] = {}
        """The first and the last value of the leading key column, where not all rows are read."""
        shape.require(definition.needed_columns)
        self._check(definition)

    def ranged(self, connection: Connection, first: CursorPart, last: CursorPart) -> Relation:
        """Return the rows from one value of the leading key column to another, both included; None is open."""
        some = copy(self)
        given = {name: value for name, value in ((_FIRST, first), (_LAST, last)) if value is not None}
        some._range = {name: self._driver_value(connection, value) for name, value in given.items()}  # noqa: SLF001 - a copy
        return some

    def _driver_value(self, connection: Connection, value: CursorPart) -> Any:
        kind = self.shape.types[self.keys[0]]
        if self.dialect.name in _MYSQL and values.type_name(kind) == "TIMESTAMP":
            return values.naive_utc(value, connection)
        sample = self.boundary(connection, None, None, 1) if self.dialect.name == "sqlite" else None
        return values.driver_value(value, kind, self.dialect, sample and sample[0])

    def _check(self, definition: Definition) -> None:
        from sqlalchemy import types

        if self.dialect.name not in DIALECTS:
            raise SourceConfigurationError(
                f"A hash diff knows PostgreSQL, MySQL, MariaDB and SQLite, not {self.dialect.name}"
            )
        if self.dialect.name == "postgresql" and (self.dialect.server_version_info or (99,)) < _OLDEST_POSTGRES:
            raise SourceConfigurationError("A hash diff needs PostgreSQL 14 or newer")
        for name in self.keys:
            kind = self.shape.types[name]
            values.require_orderable(name, kind, self.dialect, described=definition.table is not None)
            if isinstance(kind, types.Float):
                raise SourceConfigurationError(f"Column {name!r} cannot be a key: its type is {values.type_name(kind)}")

    @cached_property
    def key_kinds(self) -> tuple[str, ...]:
        """The key columns, each with the kind of its values: a snapshot is good for these alone."""
        return tuple(f"{name}: {_kind(self.shape.types[name])}" for name in self.keys)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns of a record, in their order; the key is always among them."""
        if self.definition.columns is not None:
            return self.definition.needed_columns
        return tuple(name for name in self.shape.types if name not in self.shape.hidden or name in self.keys)

    @cached_property
    def may_lack_keys(self) -> bool:
        """Whether a key column can be NULL."""
        return any(self.shape.may_be_null(name) for name in self.keys)

    @cached_property
    def _key(self) -> list[ColumnElement[Any]]:
        return [self.shape.column(name) for name in self.keys]

    @cached_property
    def _raw_key(self) -> list[ColumnElement[Any]]:
        """The key columns, compared with values as the driver has them."""
        from sqlalchemy import type_coerce

        from azure_functions_db.sources.keyset.expressions import Raw

        return [type_coerce(column, Raw()) for column in self._key]

    @cached_property
    def _hash(self) -> ColumnElement[Any]:
        from sqlalchemy import Text, cast, func

        columns = [self.shape.column(name) for name in self.columns]
        match self.dialect.name:
            case "postgresql":
                return func.md5(cast(func.row(*columns), Text))
            case "sqlite":
                return func.azfdb_hash(*_in_parts(columns))
            case _:
                return self._hashed(func.concat(*(self._piece(name) for name in self.columns)))

    def _hashed(self, value: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the hash of a value for MariaDB, or for MySQL, which has no MD5 any more: there half of a SHA-256."""
        from sqlalchemy import func

        if getattr(self.dialect, "is_mariadb", False):
            return func.md5(value)
        return func.left(func.sha2(value, 256), 32)

    def _piece(self, name: str) -> ColumnElement[Any]:
        """Return a column for MySQL: its length and its bytes, or a letter for NULL; a long value's own hash."""
        from sqlalchemy import LargeBinary, cast, func

        kind = self.shape.types[name]
        exact = values.exact(self.shape.column(name), kind, self.dialect)
        column = self.shape.column(name) if exact is None else exact
        if _may_be_long(kind):
            return func.coalesce(self._hashed(column), "n")
        plain = func.hex(column) if values.type_name(kind) == "BIT" else cast(column, LargeBinary())
        return func.coalesce(func.concat(func.length(plain), ":", plain), "n")

    @cached_property
    def _digest(self) -> ColumnElement[Any]:
        from sqlalchemy import BigInteger, cast, func, literal_column

        own = own_types(self.dialect.name)
        match self.dialect.name:
            case "postgresql":
                bits = literal_column("'x'").op("||")(func.substr(self._hash, 1, 16))
                return func.bit_xor(cast(cast(bits, own.BIT(64)), BigInteger))
            case "sqlite":
                return func.azfdb_digest(*_in_parts([self.shape.column(name) for name in self.columns]))
            case _:
                number = func.conv(func.left(self._hash, 16), 16, 10)
                return func.bit_xor(cast(number, own.INTEGER(unsigned=True)))

    def digest(self, connection: Connection, start: Key | None, end: Key | None) -> tuple[int, int]:
        """Return how many rows a range has, and the sum of their hashes."""
        from sqlalchemy import func

        [(count, digest)] = self._fetched(connection, self._between([func.count(), self._digest], start, end))
        return int(count), int(digest or 0) & _HALF

    def count(self, connection: Connection, start: Key | None, end: Key | None) -> int:
        """Return how many rows a range has."""
        from sqlalchemy import func

        [(count,)] = self._fetched(connection, self._between([func.count()], start, end))
        return int(count)

    def hashes(self, connection: Connection, start: Key | None, end: Key | None) -> dict[Key, bytes]:
        """Return the hash of each row of a range by its key; a key that comes twice is an error."""
        rows = self._fetched(connection, self._between([*self._key, self._hash], start, end))
        found = {self._key_of(row): bytes.fromhex(_text(row[-1])) for row in rows}
        if len(found) < len(rows):
            raise self._doubled([self._key_of(row) for row in rows])
        return found

    def boundary(self, connection: Connection, start: Key | None, end: Key | None, count: int) -> Key | None:
        """Return the key of the row with this number in a range; None where there are not so many."""
        statement = self._between(self._key, start, end).order_by(*self._key).offset(count - 1).limit(1)
        return next((self._key_of(row) for row in self._fetched(connection, statement)), None)

    def rows_between(self, connection: Connection, start: Key | None, end: Key | None) -> dict[Key, FoundRow]:
        """Return the rows of a range, in the database's order."""
        return self._rows(connection, lambda texts: self._between(self._shown(texts), start, end).order_by(*self._key))

    def rows(self, connection: Connection, keys: Sequence[Key]) -> dict[Key, FoundRow]:
        """Return the rows with these keys, as far as they are there."""
        found: dict[Key, FoundRow] = {}
        for place in range(0, len(keys), _MANY):
            some = keys[place : place + _MANY]
            found |= self._rows(connection, lambda texts: self._with_keys(self._shown(texts), some))  # noqa: B023 - used at once
        return found

    def existing(
        self, connection: Connection, keys: Sequence[Key], start: Key | None, end: Key | None
    ) -> dict[Key, bool]:
        """Return those of the keys that are there, the same value by value, and whether they lie in a range."""
        from sqlalchemy import and_, case, true

        is_inside = case((and_(true(), *self._limits(start, end)), 1), else_=0)
        found: dict[Key, bool] = {}
        for place in range(0, len(keys), _MANY):
            statement = self._with_keys([*self._key, is_inside], keys[place : place + _MANY])
            rows = self._fetched(connection, statement.params(_numbered(_START, start) | _numbered(_END, end)))
            found |= {self._key_of(row): bool(row[-1]) for row in rows}
        return {key: found[key] for key in keys if key in found}

    def lacks_keys(self, connection: Connection) -> bool:
        """Tell whether a row has NULL in its key."""
        from sqlalchemy import literal, or_

        statement = self._between([literal(1)], None, None).where(or_(*(key.is_(None) for key in self._key))).limit(1)
        return bool(self._fetched(connection, statement))

    def key_values(self, key: Key) -> dict[str, Any]:
        """Return a key as events have it."""
        return {
            name: part if convert is None else values.lenient(convert)(part)
            for name, part, convert in zip(self.keys, key, self._key_converters, strict=True)
        }

    @cached_property
    def _key_converters(self) -> list[Callable[[Any], Any] | None]:
        if self.dialect.name == "postgresql":  # its driver knows the types by itself
            return [None for _ in self.keys]
        return [self._converter(name, None) for name in self.keys]

    def _converter(self, name: str, code: Any) -> Callable[[Any], Any] | None:
        kind = self.shape.types[name]
        if self.dialect.name in _MYSQL and values.type_name(kind) == "TIMESTAMP":
            return values.aware_utc
        return values.converter(kind, self.dialect, code)

    def _shown(self, texts: bool) -> list[ColumnElement[Any]]:
        columns = [(name, self.shape.column(name)) for name in self.columns]
        if texts:
            columns = [
                (name, column if name in self.keys else values.as_text(column, self.dialect).label(name))
                for name, column in columns
            ]
        return [*(column for _, column in columns), self._hash.label("azfdb_hash")]

    def _rows(self, connection: Connection, statement: Callable[[bool], Select[Any]]) -> dict[Key, FoundRow]:
        try:
            return self._read_rows(connection, statement(False))
        except Exception as error:
            if not is_undecodable(error):
                raise
            reason = type(error).__name__
        return self._salvaged(connection, statement, reason)

    def _salvaged(
        self, connection: Connection, statement: Callable[[bool], Select[Any]], reason: str
    ) -> dict[Key, FoundRow]:
        """Read rows among which are some that Python cannot hold: these as texts, and marked."""
        found: dict[Key, FoundRow] = {}
        with self._reading_keys():
            rows = self._read_rows(connection, statement(True), texts=True)
        for key, row in rows.items():
            try:
                alone = self._read_rows(connection, self._with_keys(self._shown(texts=False), [key]))
            except Exception as error:
                if not is_undecodable(error):
                    raise
                row.failure = SerializationError(f"A value of the row cannot be decoded ({reason})")
                alone = {key: row}
            if key in alone:  # or else it was deleted meanwhile
                found[key] = alone[key]
        return found

    def _read_rows(self, connection: Connection, statement: Select[Any], *, texts: bool = False) -> dict[Key, FoundRow]:
        with connection.execute(statement) as result, driver_errors(connection):
            cursor: Any = result.cursor
            header, rows = header_of(self.dialect, cursor.description), cursor.fetchall()
        converters = [
            (None if name in self.keys else values.text_of) if texts else self._converter(name, code)
            for name, code in zip(self.columns, header.codes, strict=False)
        ]
        places = [self.columns.index(name) for name in self.keys]
        keys = [tuple(values.storable(row[place]) for place in places) for row in rows]
        hashes = (bytes.fromhex(_text(row[-1])) for row in rows)
        found = dict(zip(keys, map(FoundRow, self._records(rows, converters), hashes), strict=True))
        if len(found) < len(rows):
            raise self._doubled(keys)
        return found

    def _records(self, rows: Sequence[Any], converters: Sequence[Callable[[Any], Any] | None]) -> list[RawRecord]:
        try:
            return [self._record(row, converters) for row in rows]
        except values.UNCONVERTIBLE:
            # SQLite keeps any value in any column: one that is not of the declared type is handed out as it is.
            lenient = [convert and values.lenient(convert) for convert in converters]
            return [self._record(row, lenient) for row in rows]

    def _record(self, row: Sequence[Any], converters: Sequence[Callable[[Any], Any] | None]) -> RawRecord:
        return {
            name: value if convert is None else convert(value)
            for name, value, convert in zip(self.columns, row, converters, strict=False)
        }

    def _between(self, shown: Sequence[ColumnElement[Any]], start: Key | None, end: Key | None) -> Select[Any]:
        from sqlalchemy import select

        statement = select(*shown).select_from(self.shape.relation)
        if self.definition.where is not None:
            statement = statement.where(bound_text(f"({self.definition.where}\n)", self.definition))
        limited = statement.where(*self._limits(start, end), *self._range_limits())
        return limited.params(_numbered(_START, start) | _numbered(_END, end) | self._range)

    def _range_limits(self) -> list[ColumnElement[bool]]:
        leading, kind = self._key[0], self.shape.types[self.keys[0]]
        given = {name: typed_parameter(name, kind, self.dialect) for name in self._range}
        return [leading >= value if name == _FIRST else leading <= value for name, value in given.items()]

    def _limits(self, start: Key | None, end: Key | None) -> list[ColumnElement[bool]]:
        after = [] if start is None else [self._compared(_START, lambda one, other: one > other)]
        return after if end is None else [*after, self._compared(_END, lambda one, other: one <= other)]

    def _compared(self, name: str, compare: Callable[[Any, Any], Any]) -> ColumnElement[bool]:
        """Return a condition on the key in the form that this database can answer from the key's index."""
        from sqlalchemy import tuple_

        parameters = [
            typed_parameter(f"{name}_{place}", self.shape.types[column], self.dialect)
            for place, column in enumerate(self.keys)
        ]
        if len(parameters) == 1:
            return compare(self._key[0], parameters[0])  # type: ignore[no-any-return]
        if self.dialect.name not in _MYSQL:
            return compare(tuple_(*self._key), tuple_(*parameters))  # type: ignore[no-any-return]
        return _spelled_out(self._key, parameters, compare)

    def _with_keys(self, shown: Sequence[ColumnElement[Any]], keys: Sequence[Key]) -> Select[Any]:
        from sqlalchemy import tuple_

        statement = self._between(shown, None, None)
        if len(self._raw_key) == 1:
            return statement.where(self._raw_key[0].in_([key[0] for key in keys]))
        return statement.where(tuple_(*self._raw_key).in_(list(keys)))

    def _key_of(self, row: Sequence[Any]) -> Key:
        return tuple(values.storable(part) for part in row[: len(self.keys)])

    def _fetched(self, connection: Connection, statement: Select[Any]) -> Sequence[Any]:
        """Return the driver's own tuples: a position holds values from before any processing."""
        with self._reading_keys(), connection.execute(statement) as result, driver_errors(connection):
            cursor: Any = result.cursor
            return cursor.fetchall()  # type: ignore[no-any-return]

    @contextmanager
    def _reading_keys(self) -> Iterator[None]:
        """Say so where a key cannot be read: nothing else is read meanwhile that Python may not be able to hold."""
        try:
            yield
        except Exception as error:
            if not is_undecodable(error):
                raise
            raise FetchError(
                f"A row has a key ({', '.join(self.keys)}) that Python cannot hold ({type(error).__name__}): the "
                "poller cannot get past it. Correct the row, or leave it out with where="
            ) from error

    def _doubled(self, keys: Sequence[Key]) -> SourceConfigurationError:
        seen: set[Key] = set()
        double = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return SourceConfigurationError(
            f"The key ({', '.join(self.keys)}) does not tell rows apart: two of them have {double!r}. Name columns in "
            "pk_columns= that are unique together"
        )


def _numbered(name: str, key: Key | None) -> dict[str, Any]:
    return {f"{name}_{place}": part for place, part in enumerate(key or ())}


@contextmanager
def hashing(connection: Connection) -> Iterator[None]:
    """Let the session write values in one form only, whatever it was set to; leave it as it was."""
    match connection.dialect.name:
        case "postgresql":
            connection.exec_driver_sql(_POSTGRES_FORMS)
            yield
        case "sqlite":
            raw: Any = connection.connection.dbapi_connection
            raw.create_function("azfdb_hash", -1, _sqlite_hash, deterministic=True)
            raw.create_aggregate("azfdb_digest", -1, _SqliteDigest)
            yield
        case _:
            with values.in_utc(connection):
                yield


def _spelled_out(
    columns: Sequence[ColumnElement[Any]], parameters: Sequence[Any], compare: Callable[[Any, Any], Any]
) -> ColumnElement[bool]:
    """Return a comparison of rows as MySQL sees a range in it: led by the first column's own."""
    from sqlalchemy import and_, or_

    first, value = columns[0], parameters[0]
    if len(columns) == 1:
        return compare(first, value)  # type: ignore[no-any-return]
    is_after = bool(compare(1, 0))
    rest = and_(first == value, _spelled_out(columns[1:], parameters[1:], compare))
    if is_after:
        return and_(first >= value, or_(first > value, rest))
    return and_(first <= value, or_(first < value, rest))


def _in_parts(columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Return the arguments of a function of SQLite: of many columns, all but the last ones hashed before."""
    from sqlalchemy import func

    shown = list(map(_as_argument, columns))
    while len(shown) > _ARGUMENTS:
        shown = [_as_argument(func.azfdb_hash(*shown[:_ARGUMENTS])), *shown[_ARGUMENTS:]]
    return shown


def _as_argument(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a column as Python is to get it: SQLite's texts may be no UTF-8, and come as bytes; bytes come as text."""
    from sqlalchemy import LargeBinary, case, cast, func, literal_column

    return case(
        (literal_column("'text'"), cast(column, LargeBinary())),
        (literal_column("'blob'"), func.hex(column)),
        value=func.typeof(column),
        else_=column,
    )


def _may_be_long(kind: Any) -> bool:
    """Tell whether values may be too long for MySQL to put them together."""
    from sqlalchemy import types

    return isinstance(kind, types.Text | types.JSON | types.LargeBinary) or values.type_name(kind) in {
        "NULLTYPE", "LONGTEXT", "MEDIUMTEXT", "LONGBLOB", "MEDIUMBLOB", "BLOB", "TINYBLOB",
    }  # fmt: skip


def _kind(kind: Any) -> str:
    """Return the kind of a key column's values; a migration that keeps it keeps the keys."""
    from sqlalchemy import types

    kinds: Mapping[str, tuple[type[Any], ...]] = {
        "integer": (types.Integer,),
        "decimal": (types.Numeric,),
        "timestamp": (types.DateTime,),
        "date": (types.Date,),
        "time": (types.Time,),
        "uuid": (types.Uuid,),
        "bytes": (types.LargeBinary, types.BINARY, types.VARBINARY),
        "boolean": (types.Boolean,),
        "text": (types.String,),
    }
    return next((name for name, classes in kinds.items() if isinstance(kind, classes)), values.type_name(kind))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _sqlite_hash(*parts: Any) -> str:
    """Return the hash of a row's values, each with its type and its length; they come as `_as_argument` has them."""
    written = bytearray()
    for part in parts:
        if part is None:
            written += b"n"
        elif isinstance(part, int):
            written += b"i%d;" % part
        elif isinstance(part, float):
            written += b"f" + struct.pack(">d", part)
        elif isinstance(part, bytes):
            written += b"t%d:" % len(part) + part
        else:
            content = bytes.fromhex(part)
            written += b"b%d:" % len(content) + content
    return hashlib.md5(written, usedforsecurity=False).hexdigest()


class _SqliteDigest:
    """The sum of the hashes of many rows."""

    def __init__(self) -> None:
        self._total = 0

    def step(self, *parts: Any) -> None:
        """Take a row."""
        self._total ^= int(_sqlite_hash(*parts)[:16], 16)

    def finalize(self) -> str:
        """Return the sum as a text: SQLite has no numbers of 64 bits without a sign."""
        return str(self._total)


def checked_up(
    relation: Relation, connection: Connection, documents: Documents, block_rows: int, rows_per_tick: int
) -> Iterator[Finding]:
    """Return the findings about a relation: its key, its index, what a scan costs, its snapshot."""
    yield _nulls(relation, connection)
    yield _uniqueness(relation)
    yield _index(relation)
    yield from _cost(relation, connection, block_rows, rows_per_tick)
    yield Finding("snapshot", "ok", f"{documents.size():,} document(s) in {type(documents.place).__name__}")


def _nulls(relation: Relation, connection: Connection) -> Finding:
    if relation.may_lack_keys and relation.lacks_keys(connection):
        return Finding("key", "error", "there are rows with NULL in their key", "leave them out with where=")
    return Finding("key", "ok", f"{', '.join(relation.keys)}, compared value by value whatever the collation")


def _uniqueness(relation: Relation) -> Finding:
    if _index_columns(relation, unique=True):
        return Finding("unique key", "ok", "the database lets a key appear once")
    return Finding(
        "unique key", "note", "nothing in the database keeps two rows from having one key; a scan that meets them stops"
    )


def _index(relation: Relation) -> Finding:
    table, keys = relation.shape.table, list(relation.keys)
    if table is None:
        return Finding("index", "note", "a query: make sure that its key can be read in order from an index")
    if _index_columns(relation):
        return Finding("index", "ok", "blocks are ranges of an index")
    quote = relation.dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, keys))
    name = relation.dialect.identifier_preparer.format_table(table)
    return Finding(
        "index",
        "warning",
        "no index begins with the key: each block reads and sorts the whole table",
        f"CREATE INDEX {quote(f'{table.name}_by_key')} ON {name} ({columns})",
    )


def _index_columns(relation: Relation, *, unique: bool = False) -> bool:
    """Tell whether an index begins with the key, or is on nothing else and unique."""
    from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint

    table, keys = relation.shape.table, list(relation.keys)
    if table is None:
        return False
    rules = [rule for rule in table.constraints if isinstance(rule, PrimaryKeyConstraint | UniqueConstraint)]
    indexes: list[Any] = [*rules, *(index for index in table.indexes if index.unique or not unique)]
    columns = [[column.name for column in index.columns] for index in indexes]
    if unique:
        return any(names and set(names) <= set(keys) for names in columns)
    return any(names[: len(keys)] == keys for names in columns)


def _cost(relation: Relation, connection: Connection, block_rows: int, rows_per_tick: int) -> Iterator[Finding]:
    """Sum up a sample and say what the whole would cost."""
    rows = relation.count(connection, None, None)
    end = relation.boundary(connection, None, None, _SAMPLE_ROWS)
    began = time.perf_counter()
    sample, _ = relation.digest(connection, None, end)
    seconds = (time.perf_counter() - began) * rows / max(1, sample)
    ticks = -(-rows // rows_per_tick) if rows else 1
    blocks = -(-rows // block_rows)
    yield Finding(
        "cost",
        "ok",
        f"a scan reads {rows:,} row(s) inside the database, about {seconds:.1f} s by a sample of {sample:,}, in "
        f"{ticks:,} tick(s); on the wire about {_bytes(blocks * _ANSWER_BYTES)} where nothing has changed, "
        f"{_bytes(rows * _ENTRY_BYTES)} and the changed rows where every block has a change. A change is seen after "
        "the interval of the schedule and a scan, at the latest",
    )


def _bytes(amount: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:,.0f} {unit}"
        amount = round(amount / 1000)
    return f"{amount:,} GB"
