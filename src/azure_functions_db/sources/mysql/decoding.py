"""The events of a binary log: table maps, the rows that follow them, and their values as SQLAlchemy hands them out.

A table map stands before the rows of every statement, and is nearly always the one that stood there before: it is
parsed once and found again by its bytes, which is what makes single-row transactions cheap.

A reader takes the bytes of a rows event and where its value begins; it returns the value and where the next begins.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from azure_functions_db.core.errors import FetchError, SourceConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Values = tuple[Any, ...] | list[Any]


class Kind(IntEnum):
    """The types of columns as a table map numbers them."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


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
        if at != end:
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


Reader = Callable[[bytes, int], tuple[Any, int]]


_CODECS: Mapping[str, str] = {
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "euckr": "euc_kr",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macroman": "mac-roman",
    "sjis": "shift_jis",
    "tis620": "tis-620",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}


def decoder_of(charset: str) -> Callable[[bytes], str]:
    """Return what makes a text of the bytes of a character set."""
    codec = _CODECS.get(charset)
    if not codec:
        raise SourceConfigurationError(
            f"Python has no codec for the character set {charset!r}: ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4"
        )
    if codec == "utf-8":
        return bytes.decode
    if codec == "cp1252":
        return _latin1
    return lambda data: data.decode(codec)


def _latin1(data: bytes) -> str:
    # To MySQL, latin1 is Windows' code page with its five holes filled.
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte in _HOLES else bytes([byte]).decode("cp1252") for byte in data)


_HOLES = frozenset({0x81, 0x8D, 0x8F, 0x90, 0x9D})


def integer(size: int, *, unsigned: bool) -> Reader:
    """Return the reader of integers of so many bytes."""
    code = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size)
    if code is None:
        return _integer24(unsigned=unsigned)
    unpack = struct.Struct("<" + (code.upper() if unsigned else code)).unpack_from

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return read


def _integer24(*, unsigned: bool) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        return int.from_bytes(data[at : at + 3], "little", signed=not unsigned), at + 3

    return read


_unpack_float = struct.Struct("<f").unpack_from
_unpack_double = struct.Struct("<d").unpack_from


def float32(scale: int | None) -> Reader:
    """Return the reader of FLOAT: with the digits that the server shows, six or those after the point."""
    shown = "{:.6g}".format if scale is None else f"{{:.{scale}f}}".format

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return float(shown(_unpack_float(data, at)[0])), at + 4

    return read


def float64(data: bytes, at: int) -> tuple[Any, int]:
    """Read a DOUBLE."""
    return _unpack_double(data, at)[0], at + 8


# Nine digits take four bytes, fewer take so many.
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal(precision: int, scale: int) -> Reader:
    """Return the reader of DECIMAL: groups of nine digits around the point, the first bit is set unless negative."""
    whole, fraction = precision - scale, scale
    digits = [*([whole % 9] if whole % 9 else []), *[9] * (whole // 9)]
    point = len(digits)
    digits += [*[9] * (fraction // 9), *([fraction % 9] if fraction % 9 else [])]
    groups: list[tuple[int, int, Callable[[int], str]]] = []
    size = 0
    for count in digits:
        groups.append((size, size + _DIGIT_BYTES[count], f"{{:0{count}d}}".format))
        size += _DIGIT_BYTES[count]
    flip = (1 << 8 * size) - 1

    def read(data: bytes, at: int) -> tuple[Any, int]:
        raw, sign = data[at : at + size], ""
        if raw[0] & 0x80:
            raw = bytes([raw[0] ^ 0x80]) + raw[1:]
        else:
            inverted = int.from_bytes(raw, "big") ^ flip
            raw, sign = (inverted ^ (0x80 << 8 * (size - 1))).to_bytes(size, "big"), "-"
        texts = [shown(int.from_bytes(raw[start:end], "big")) for start, end, shown in groups]
        return Decimal(f"{sign}{''.join(texts[:point]) or '0'}.{''.join(texts[point:])}"), at + size

    return read


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a TIMESTAMP is handed out as a time without a zone, in UTC
# Bytes of a fraction of so many digits, and what their number is multiplied with to be microseconds.
_FRACTIONS = ((0, 0), (1, 10_000), (1, 10_000), (2, 100), (2, 100), (3, 1), (3, 1))


def timestamp(digits: int) -> Reader:
    """Return the reader of TIMESTAMP: a moment, in UTC."""
    size, factor = _FRACTIONS[digits]
    zero = _moment_text(0, 0, 0, 0, 0, 0, 0, digits)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        micros = int.from_bytes(data[at + 4 : at + 4 + size], "big") * factor
        if not seconds and not micros:
            return zero, at + 4 + size
        return _EPOCH + dt.timedelta(seconds=seconds, microseconds=micros), at + 4 + size

    return read


def datetime(digits: int) -> Reader:
    """Return the reader of DATETIME; one that is no date, such as zero, is a text."""
    size, factor = _FRACTIONS[digits]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        packed = int.from_bytes(data[at : at + 5], "big") - 0x8000000000
        micros = int.from_bytes(data[at + 5 : at + 5 + size], "big") * factor
        year, month = divmod(packed >> 22, 13)
        parts = (year, month, packed >> 17 & 31, packed >> 12 & 31, packed >> 6 & 63, packed & 63, micros)
        try:
            return dt.datetime(*parts), at + 5 + size  # noqa: DTZ001 - it has no zone
        except ValueError:
            return _moment_text(*parts, digits), at + 5 + size

    return read


def _moment_text(year: int, month: int, day: int, hour: int, minute: int, second: int, micros: int, digits: int) -> str:
    whole = f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    return f"{whole}.{micros:06}"[: len(whole) + 1 + digits] if digits else whole


def date(data: bytes, at: int) -> tuple[Any, int]:
    """Read a DATE; one that is no date, such as zero, is a text."""
    packed = int.from_bytes(data[at : at + 3], "little")
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    try:
        return dt.date(year, month, day), at + 3
    except ValueError:
        return f"{year:04}-{month:02}-{day:02}", at + 3


def time(digits: int) -> Reader:
    """Return the reader of TIME; one that is negative or a day and longer is a text, as Python's cannot hold it."""
    size, factor = _FRACTIONS[digits]
    bits = 8 * size
    zero = 0x800000 << bits

    def read(data: bytes, at: int) -> tuple[Any, int]:
        packed = int.from_bytes(data[at : at + 3 + size], "big") - zero
        magnitude = abs(packed)
        whole, micros = magnitude >> bits, (magnitude & (1 << bits) - 1) * factor
        return _time_of_day(packed < 0, whole >> 12 & 1023, whole >> 6 & 63, whole & 63, micros), at + 3 + size

    return read


def _time_of_day(negative: bool, hour: int, minute: int, second: int, micros: int) -> dt.time | str:
    if negative or hour > 23:
        return f"{'-' if negative else ''}{hour:02}:{minute:02}:{second:02}.{micros:06}"
    return dt.time(hour, minute, second, micros)


def _old_timestamp(data: bytes, at: int) -> tuple[Any, int]:
    seconds = int.from_bytes(data[at : at + 4], "little")
    return (_EPOCH + dt.timedelta(seconds=seconds) if seconds else "0000-00-00 00:00:00"), at + 4


def _old_datetime(data: bytes, at: int) -> tuple[Any, int]:
    day, clock = divmod(int.from_bytes(data[at : at + 8], "little"), 1_000_000)
    parts = (day // 10_000, day // 100 % 100, day % 100, clock // 10_000, clock // 100 % 100, clock % 100, 0)
    try:
        return dt.datetime(*parts), at + 8  # noqa: DTZ001 - it has no zone
    except ValueError:
        return _moment_text(*parts, 0), at + 8


def _old_time(data: bytes, at: int) -> tuple[Any, int]:
    packed = int.from_bytes(data[at : at + 3], "little", signed=True)
    clock = abs(packed)
    return _time_of_day(packed < 0, clock // 10_000, clock // 100 % 100, clock % 100, 0), at + 3


def _year(data: bytes, at: int) -> tuple[Any, int]:
    return data[at] and data[at] + 1900, at + 1


def bits(size: int) -> Reader:
    """Return the reader of BIT, a number of so many bytes."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return int.from_bytes(data[at : at + size], "big"), at + size

    return read


def prefixed(size: int, convert: Callable[[bytes], Any]) -> Reader:
    """Return the reader of a value whose length stands before it in so many bytes."""
    if size == 1:

        def read_short(data: bytes, at: int) -> tuple[Any, int]:
            start = at + 1
            end = start + data[at]
            return convert(data[start:end]), end

        return read_short

    def read(data: bytes, at: int) -> tuple[Any, int]:
        start = at + size
        end = start + int.from_bytes(data[at:start], "little")
        return convert(data[start:end]), end

    return read


def enumeration(size: int, texts: Sequence[str]) -> Reader:
    """Return the reader of ENUM: the number of a text, 0 being the empty one."""
    by_number = ["", *texts]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return by_number[int.from_bytes(data[at : at + size], "little")], at + size

    return read


def members(size: int, texts: Sequence[str]) -> Reader:
    """Return the reader of SET: a bit for each of its texts."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        chosen = int.from_bytes(data[at : at + size], "little")
        return {text for place, text in enumerate(texts) if chosen >> place & 1}, at + size

    return read


def _padded(length: int) -> Callable[[bytes], bytes]:
    """BINARY is written without the zeros at its end."""
    return lambda data: data.ljust(length, b"\0")


def mariadb_uuid(data: bytes) -> UUID:
    """Return the UUID of MariaDB's record: of versions 1 to 5, the parts stand in reverse."""
    raw = data.ljust(16, b"\0")
    if raw[6] & 0x80 and 0 < raw[8] < 0x60:
        raw = raw[12:16] + raw[10:12] + raw[8:10] + raw[6:8] + raw[0:6]
    return UUID(bytes=raw)


def _address(data: bytes) -> str:
    """Return an address as MariaDB writes it: what holds one of four bytes at its end shows that."""
    if len(data) == 4:
        return str(ipaddress.IPv4Address(data))
    last = ipaddress.IPv4Address(data[12:])
    if data[:12] == bytes(10) + b"\xff\xff":
        return f"::ffff:{last}"
    if data[:12] == bytes(12) and data[12:14] != bytes(2):
        return f"::{last}"
    return str(ipaddress.IPv6Address(data))


_FIXED: Mapping[int, Reader] = {
    Kind.DOUBLE: float64,
    Kind.DATE: date,
    Kind.NEWDATE: date,
    Kind.YEAR: _year,
    Kind.TIMESTAMP: _old_timestamp,
    Kind.DATETIME: _old_datetime,
    Kind.TIME: _old_time,
}
_INTEGERS = {Kind.TINY: 1, Kind.SHORT: 2, Kind.INT24: 3, Kind.LONG: 4, Kind.LONGLONG: 8}
_BLOBS = {Kind.BLOB, Kind.TINY_BLOB, Kind.MEDIUM_BLOB, Kind.LONG_BLOB}
_WITH_DIGITS: Mapping[int, Callable[[int], Reader]] = {
    Kind.TIMESTAMP2: timestamp,
    Kind.DATETIME2: datetime,
    Kind.TIME2: time,
}
NUMERIC = frozenset({*_INTEGERS, Kind.NEWDECIMAL, Kind.FLOAT, Kind.DOUBLE, Kind.YEAR})
"""Those for which a table map says whether they are unsigned."""
CHARACTER = frozenset({Kind.VARCHAR, Kind.VAR_STRING, Kind.STRING, *_BLOBS})
"""Those for which a table map gives a character set."""


class Column:
    """What is known of a column: from the table map, and from the database where that does not say it all."""

    __slots__ = ("charset", "hint", "kind", "meta", "name", "texts", "unsigned")

    def __init__(self, kind: int, meta: bytes) -> None:
        self.kind = kind
        self.meta = meta
        if kind == Kind.STRING and meta[0] in {Kind.ENUM, Kind.SET}:
            self.kind = meta[0]
        self.name = ""
        self.unsigned = False
        self.charset: str | None = None
        """None for bytes."""
        self.texts: Sequence[str] = ()
        self.hint: str | int | None = None
        """What the log does not tell: json, uuid, inet4, inet6, invisible, the digits of a FLOAT(m, d)."""

    def reader(self) -> Reader:
        """Return what reads the values of this column."""
        kind, meta = self.kind, self.meta
        if kind in _INTEGERS:
            return integer(_INTEGERS[Kind(kind)], unsigned=self.unsigned)
        if kind in CHARACTER:
            return self._string()
        if kind in _FIXED:
            return _FIXED[kind]
        if kind in _WITH_DIGITS:
            return _WITH_DIGITS[kind](meta[0])
        return self._other()

    def _other(self) -> Reader:
        match self.kind:
            case Kind.FLOAT:
                return float32(self.hint if isinstance(self.hint, int) else None)
            case Kind.NEWDECIMAL:
                return decimal(self.meta[0], self.meta[1])
            case Kind.BIT:
                return bits(self.meta[1] + (self.meta[0] > 0))
            case Kind.ENUM:
                return enumeration(self.meta[1], self.texts)
            case Kind.SET:
                return members(self.meta[1], self.texts)
            case Kind.GEOMETRY | Kind.VECTOR:
                return prefixed(self.meta[0], bytes)
            case Kind.JSON:
                return prefixed(self.meta[0], document)
        raise SourceConfigurationError(
            f"Column {self.name!r} has a type that cannot be read from the binary log ({self.kind}): "
            "compressed columns and types of before MySQL 5.0 are not supported"
        )

    def _string(self) -> Reader:
        length = self._length()
        if self.kind in _BLOBS:
            return prefixed(self.meta[0], self._converter(length))
        return prefixed(1 if length < 256 else 2, self._converter(length))

    def _length(self) -> int:
        if self.kind == Kind.STRING:
            # The length of a CHAR has ten bits: two of them hide, inverted, in the type.
            return self.meta[1] | ((self.meta[0] & 0x30) ^ 0x30) << 4
        return int.from_bytes(self.meta, "little")

    def _converter(self, length: int) -> Callable[[bytes], Any]:
        match self.hint:
            case "json":
                return json.loads
            case "uuid" if length == 16:
                return mariadb_uuid
            case "inet4" | "inet6" if length in {4, 16}:
                return lambda data: _address(data.ljust(length, b"\0"))
        if self.charset is not None:
            return decoder_of(self.charset)
        return _padded(length) if self.kind == Kind.STRING else bytes


_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_LITERALS = (None, True, False)
_NUMBERS = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
    _DOUBLE: struct.Struct("<d"),
}


def document(data: bytes) -> Any:
    """Return the value of a JSON column; no bytes at all are a null."""
    return _value(data[0], data, 1) if data else None


def _value(kind: int, data: bytes, at: int) -> Any:
    if kind <= _LARGE_ARRAY:
        return _container(data, at, is_object=kind <= _LARGE_OBJECT, size=4 if kind in {1, 3} else 2)
    if kind == _LITERAL:
        return _LITERALS[data[at]]
    if kind in _NUMBERS:
        return _NUMBERS[kind].unpack_from(data, at)[0]
    if kind == _STRING:
        length, start = _length(data, at)
        return data[start : start + length].decode()
    if kind == _OPAQUE:
        length, start = _length(data, at + 1)
        return _opaque(data[at], data[start : start + length])
    raise ValueError(f"JSON has no type {kind}")


def _container(data: bytes, base: int, *, is_object: bool, size: int) -> Any:
    count = int.from_bytes(data[base : base + size], "little")
    at = base + 2 * size
    if at + count * (size + 1) > len(data):
        raise ValueError("a JSON document is cut short")
    keys: list[str] = []
    if is_object:
        for entry in range(at, at + count * (size + 2), size + 2):
            start = base + int.from_bytes(data[entry : entry + size], "little")
            length = int.from_bytes(data[entry + size : entry + size + 2], "little")
            keys.append(data[start : start + length].decode())
        at += count * (size + 2)
    items = [_item(data, base, entry, size) for entry in range(at, at + count * (size + 1), size + 1)]
    return dict(zip(keys, items, strict=True)) if is_object else items


def _item(data: bytes, base: int, entry: int, size: int) -> Any:
    kind = data[entry]
    if kind in {_LITERAL, _INT16, _UINT16} or (size == 4 and kind in {_INT32, _UINT32}):
        return _value(kind, data, entry + 1)
    start = base + int.from_bytes(data[entry + 1 : entry + 1 + size], "little")
    if start <= entry:
        raise ValueError("a JSON document points back into itself")
    return _value(kind, data, start)


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of seven bits a byte, the lowest first, and where its value begins."""
    length = shift = 0
    while True:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return length, at


def _opaque(kind: int, raw: bytes) -> Any:
    """Return a value that JSON itself does not know as the server writes it: decimals as numbers, times as texts."""
    match kind:
        case Kind.NEWDECIMAL:
            number: Decimal = decimal(raw[0], raw[1])(raw, 2)[0]
            return float(number) if raw[1] else int(number)
        case Kind.DATE:
            return _moment(raw)[:10]
        case Kind.DATETIME | Kind.TIMESTAMP:
            return _moment(raw)
        case Kind.TIME:
            return _time(raw)
    return f"base64:type{kind}:{base64.b64encode(raw).decode()}"


def _moment(raw: bytes) -> str:
    packed = int.from_bytes(raw, "little", signed=True)
    whole, micros = packed >> 24, packed & 0xFFFFFF
    year, month = divmod(whole >> 22, 13)
    day, hour, minute, second = whole >> 17 & 31, whole >> 12 & 31, whole >> 6 & 63, whole & 63
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"


def _time(raw: bytes) -> str:
    packed = int.from_bytes(raw, "little", signed=True)
    whole, micros = abs(packed) >> 24, abs(packed) & 0xFFFFFF
    sign = "-" if packed < 0 else ""
    return f"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}.{micros:06}"
