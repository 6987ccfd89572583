"""The events of a binary log: table maps and the rows that follow them.

A table map stands before the rows of every statement, and is nearly always the one that stood there before: it is
parsed once and found again by its bytes, which is what makes single-row transactions cheap.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, SourceConfigurationError
from azure_functions_db.sources.mysql.values import CHARACTER, NUMERIC, Column, Kind, decoder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from azure_functions_db.sources.mysql.values import Reader

    Values = tuple[Any, ...] | list[Any]


class EventKind(IntEnum):
    """The events that a reader has to know; others are passed over."""

    QUERY = 2
    ROTATE = 4
    FORMAT = 15
    XID = 16
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    HEARTBEAT = 27
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    TAGGED_GTID = 42
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    MARIADB_GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED = 166
    UPDATE_ROWS_COMPRESSED = 167
    DELETE_ROWS_COMPRESSED = 168


INSERTS = frozenset({EventKind.WRITE_ROWS_V1, EventKind.WRITE_ROWS})
UPDATES = frozenset({EventKind.UPDATE_ROWS_V1, EventKind.UPDATE_ROWS})
DELETES = frozenset({EventKind.DELETE_ROWS_V1, EventKind.DELETE_ROWS})
ROWS = INSERTS | UPDATES | DELETES
COMPRESSED = frozenset({EventKind.TRANSACTION_PAYLOAD, *range(EventKind.QUERY_COMPRESSED, 172)})

# timestamp, kind, server id, length, where the next event begins, flags
HEADER = struct.Struct("<IBIIIH")
HEADER_SIZE = HEADER.size

# What reading beyond the end of an event, or what stands at a wrong place, raises.
_BROKEN = (IndexError, struct.error, ValueError, OverflowError, KeyError, RecursionError, ArithmeticError)


class Table:
    """A table as the log describes it at one moment."""

    __slots__ = ("_hidden", "_null_bytes", "_readers", "_times", "columns", "full_name", "key", "name", "schema")

    def __init__(self, schema: str, name: str, columns: Sequence[Column], key: Sequence[str]) -> None:
        self.schema = schema
        self.name = name
        self.full_name = f"{schema}.{name}"
        self.key = tuple(key)
        self._readers: list[Reader] = [column.reader() for column in columns]
        self._null_bytes = (len(columns) + 7) // 8
        # As SELECT * does, rows leave out what is invisible; from the last on, so that places stay right.
        self._hidden = [place for place, column in enumerate(columns) if column.hint == "invisible"][::-1]
        shown = [column for column in columns if column.hint != "invisible"]
        self.columns = [column.name for column in shown]
        self._times = [place for place, column in enumerate(shown) if column.kind in {Kind.TIME, Kind.TIME2}]

    def rows(self, kind: int, body: bytes) -> list[tuple[Values | None, Values | None]]:
        """Return the rows of an event: before and after."""
        try:
            images = list(self._images(kind, body))
        except _BROKEN as broken:
            raise FetchError(f"A rows event of {self.full_name} cannot be decoded: {broken}") from broken
        if kind in INSERTS:
            return [(None, image) for image in images]
        if kind in DELETES:
            return [(image, None) for image in images]
        if len(images) % 2:
            raise FetchError(f"A rows event of {self.full_name} cannot be decoded: an update without its row after")
        return list(zip(images[::2], images[1::2], strict=True))

    def _images(self, kind: int, body: bytes) -> Iterator[Values]:
        at = 8
        if kind >= EventKind.WRITE_ROWS:
            at += int.from_bytes(body[8:10], "little")
        count, at = _number(body, at)
        if not count or count != len(self._readers):  # rows of no columns would never end
            raise ValueError(f"{count} columns where the table map has {len(self._readers)}")
        for _ in range(2 if kind in UPDATES else 1):
            self._require_all_columns(body[at : at + self._null_bytes])
            at += self._null_bytes
        end, size, readers = len(body), self._null_bytes, self._readers
        # The hottest loop: no call besides the readers'.
        while at < end:
            nulls = int.from_bytes(body[at : at + size], "little")
            at += size
            row: list[Any] = []
            add = row.append
            if nulls:
                for read in readers:
                    if nulls & 1:
                        add(None)
                    else:
                        value, at = read(body, at)
                        add(value)
                    nulls >>= 1
            else:
                for read in readers:
                    value, at = read(body, at)
                    add(value)
            if at > end:
                raise ValueError("a row is cut short")
            for place in self._hidden:
                del row[place]
            yield row

    def _require_all_columns(self, present: bytes) -> None:
        if int.from_bytes(present, "little").bit_count() < len(self._readers):
            raise SourceConfigurationError(
                f"A change of {self.full_name} was logged without all of its columns, by a session with another "
                "binlog_row_image: SET GLOBAL binlog_row_image = 'FULL', and let no session change it"
            )

    def undecodable(self, values: Values | None) -> list[str]:
        """Return the columns of a row that Python has no value for."""
        return [] if values is None else [self.columns[i] for i in self._times if isinstance(values[i], str)]


class TableMaps:
    """The tables of a log, by the bytes of their maps."""

    def __init__(
        self,
        wanted: Callable[[str, str], bool],
        charset_of: Callable[[int], str],
        hints_of: Callable[[str, str], Mapping[str, str | int]],
    ) -> None:
        self._wanted = wanted
        self._charset_of = charset_of
        self._hints_of = hints_of
        self._parsed: dict[bytes, Table | None] = {}

    def table(self, body: bytes) -> Table | None:
        """Return the table of a map; None for a table that nobody asked for."""
        described = body[8:]
        if described not in self._parsed:
            self._parsed[described] = self._parse(described)
        return self._parsed[described]

    def _parse(self, described: bytes) -> Table | None:
        try:
            parts = _MapParts(described)
        except _BROKEN as broken:
            raise FetchError(f"A table map cannot be decoded: {broken}") from broken
        if not self._wanted(parts.schema, parts.name):
            return None
        try:
            return self._complete(parts)
        except _BROKEN as broken:
            raise FetchError(f"The table map of {parts.schema}.{parts.name} cannot be decoded: {broken}") from broken

    def _complete(self, parts: _MapParts) -> Table:
        metadata = _Metadata(parts.columns, parts.metadata, self._charset_of)
        hints = self._hints_of(parts.schema, parts.name)
        for place, column in enumerate(parts.columns):
            column.hint = hints.get(column.name)
            if place in metadata.key and column.hint == "invisible":
                column.hint = None
        if not metadata.key:
            raise SourceConfigurationError(
                f"Table {parts.schema}.{parts.name} has no primary key in the log: changes of its rows cannot be told "
                "apart. Give it one (ALTER TABLE … ADD PRIMARY KEY …)",
                table=f"{parts.schema}.{parts.name}",
            )
        return Table(parts.schema, parts.name, parts.columns, [parts.columns[place].name for place in metadata.key])


class _MapParts:
    """A table map cut into its parts."""

    def __init__(self, described: bytes) -> None:
        self.schema, at = _name(described, 0)
        self.name, at = _name(described, at)
        count, at = _number(described, at)
        kinds = described[at : at + count]
        size, at = _number(described, at + count)
        end = at + size
        self.columns: list[Column] = []
        for kind in kinds:
            length = _META_SIZES.get(kind, 0)
            self.columns.append(Column(kind, described[at : at + length]))
            at += length
        if at != end or len(self.columns) != count:
            raise ValueError("its column types do not fit")
        self.metadata = described[end + (count + 7) // 8 :]


_META_SIZES: Mapping[int, int] = {
    **dict.fromkeys((Kind.FLOAT, Kind.DOUBLE, Kind.GEOMETRY, Kind.JSON, Kind.VECTOR, Kind.BLOB_COMPRESSED), 1),
    **dict.fromkeys((Kind.BLOB, Kind.TINY_BLOB, Kind.MEDIUM_BLOB, Kind.LONG_BLOB), 1),
    **dict.fromkeys((Kind.TIMESTAMP2, Kind.DATETIME2, Kind.TIME2), 1),
    **dict.fromkeys((Kind.VARCHAR, Kind.VAR_STRING, Kind.STRING, Kind.ENUM, Kind.SET, Kind.VARCHAR_COMPRESSED), 2),
    **dict.fromkeys((Kind.BIT, Kind.NEWDECIMAL), 2),
}


class _Metadata:
    """The optional part of a table map, which is there with binlog_row_metadata=FULL."""

    def __init__(self, columns: Sequence[Column], data: bytes, charset_of: Callable[[int], str]) -> None:
        self._columns = columns
        self._charset_of = charset_of
        self.key: list[int] = []
        self._texts_charset: dict[int, int] = {}
        fields = dict(_fields(data))
        if _COLUMN_NAME not in fields:
            raise SourceConfigurationError(
                "The log does not name the columns of its tables: SET GLOBAL binlog_row_metadata = 'FULL'. "
                "What was written before cannot be read; reset the poller to a newer position"
            )
        self._read_signs(fields.get(_SIGNEDNESS, b""))
        self._read_charsets(fields)
        self._read_names(fields[_COLUMN_NAME])
        self._read_texts(fields)
        self._read_key(fields)

    def _read_signs(self, bits: bytes) -> None:
        numeric = [column for column in self._columns if column.kind in NUMERIC]
        if (len(numeric) + 7) // 8 > len(bits):
            raise ValueError("the signs of its numbers are missing")
        for place, column in enumerate(numeric):
            column.unsigned = bool(bits[place // 8] & 0x80 >> place % 8)

    def _read_charsets(self, fields: Mapping[int, bytes]) -> None:
        texts = [column for column in self._columns if column.kind in CHARACTER]
        for column, collation in zip(texts, _collations(fields, len(texts), 2, 3), strict=True):
            column.charset = self._charset_name(collation)

    def _charset_name(self, collation: int) -> str | None:
        return None if collation == _BINARY_COLLATION else self._charset_of(collation)

    def _read_names(self, data: bytes) -> None:
        at = 0
        for column in self._columns:
            name, at = _text(data, at)
            column.name = name.decode()

    def _read_texts(self, fields: Mapping[int, bytes]) -> None:
        listed = [column for column in self._columns if column.kind in {Kind.ENUM, Kind.SET}]
        charsets = dict(zip(map(id, listed), _collations(fields, len(listed), 10, 11), strict=True))
        for kind, field in ((Kind.SET, _SET_TEXTS), (Kind.ENUM, _ENUM_TEXTS)):
            data, at = fields.get(field, b""), 0
            for column in (column for column in listed if column.kind == kind):
                decode = decoder_of(self._charset_name(charsets[id(column)]) or "utf8mb4")
                count, at = _number(data, at)
                texts: list[str] = []
                for _ in range(count):
                    raw, at = _text(data, at)
                    texts.append(decode(raw))
                column.texts = texts

    def _read_key(self, fields: Mapping[int, bytes]) -> None:
        self.key = list(_numbers(fields.get(_SIMPLE_KEY, b""))) or list(_numbers(fields.get(_PREFIX_KEY, b"")))[::2]


_BINARY_COLLATION = 63
_SIGNEDNESS, _COLUMN_NAME, _SET_TEXTS, _ENUM_TEXTS, _SIMPLE_KEY, _PREFIX_KEY = 1, 4, 5, 6, 8, 9


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind = data[at]
        length, at = _number(data, at + 1)
        if at + length > len(data):
            raise ValueError("its metadata is cut short")
        yield kind, data[at : at + length]
        at += length


def _collations(fields: Mapping[int, bytes], count: int, default: int, each: int) -> list[int]:
    """Return the collation of each column: one for all with exceptions by place, or a list."""
    if each in fields:
        found = list(_numbers(fields[each]))
    else:
        numbers = list(_numbers(fields.get(default, b"")))
        exceptions = dict(zip(numbers[1::2], numbers[2::2], strict=True))
        found = [exceptions.get(place, numbers[0] if numbers else _BINARY_COLLATION) for place in range(count)]
    if len(found) != count:
        raise ValueError("the character sets of its columns do not fit")
    return found


def _numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _number(data, at)
        yield number


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of one byte, or of as many as its first byte says."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    if at + 1 + size > len(data):
        raise ValueError("a number is cut short")
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _number(data, at)
    if at + length > len(data):
        raise ValueError("a text is cut short")
    return data[at : at + length], at + length


def _name(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end >= len(data):
        raise ValueError("a name is cut short")
    return data[at + 1 : end].decode(), end + 1


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that the log holds as text: the frame of a transaction, or DDL."""

    schema: str
    text: str

    @classmethod
    def of(cls, body: bytes) -> Statement:
        """Return the statement of a query event."""
        try:
            schema_length, variables = body[8], int.from_bytes(body[11:13], "little")
            at = 13 + variables
            schema = body[at : at + schema_length].decode()
            return cls(schema, body[at + schema_length + 1 :].decode(errors="replace"))
        except _BROKEN as broken:
            raise FetchError(f"A query event cannot be decoded: {broken}") from broken

    @property
    def bare(self) -> str:
        """The statement without the comments around its first words."""
        return _COMMENT.sub(" ", self.text[:2000]).strip()

    @property
    def emptied_table(self) -> tuple[str, str] | None:
        """The table that a TRUNCATE or DROP leaves without rows."""
        found = _EMPTIES.match(self.bare)
        if found is None:
            return None
        schema, name = found["schema"], found["name"]
        return _unquoted(schema[:-1].strip()) if schema else self.schema, _unquoted(name)

    @property
    def is_change(self) -> bool:
        """Whether it changes rows, as the STATEMENT format has it."""
        return _CHANGES.match(self.bare) is not None


_COMMENT = re.compile(r"/\*(?![!M]).*?\*/|(?:--[ \t]|#)[^\n]*\n", re.DOTALL)
_IDENTIFIER = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_EMPTIES = re.compile(
    r"(?:TRUNCATE(?:\s+TABLE)?|DROP\s+TABLE(?:\s+IF\s+EXISTS)?|CREATE\s+OR\s+REPLACE\s+TABLE)\s+"
    rf"(?P<schema>{_IDENTIFIER}\s*\.\s*)?(?P<name>{_IDENTIFIER})",
    re.IGNORECASE,
)
_CHANGES = re.compile(r"(?:INSERT|UPDATE|DELETE|REPLACE|LOAD\s+DATA|WITH)\b", re.IGNORECASE)


def _unquoted(name: str) -> str:
    quote = name[0]
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
