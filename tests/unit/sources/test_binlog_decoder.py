"""The decoder of the binary log: bytes that a server wrote, and bytes that none would write."""

from __future__ import annotations

import datetime as dt
import json
import struct
from contextlib import suppress
from decimal import Decimal
from ipaddress import IPv6Address
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from azure_functions_db.core.errors import ConfigurationError, FetchError, SourceConfigurationError
from azure_functions_db.sources.mysql import decoding
from azure_functions_db.sources.mysql.decoding import EventKind, Statement, Table, TableMaps, document
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, MySqlGtids, parsed, stem

# CREATE TABLE t (id int PRIMARY KEY, v varchar(20), n int unsigned), in utf8mb4, and an insert of (1, 'é', 4000000000).
TABLE_MAP = (
    bytes.fromhex("2a00000000000100")
    + b"\x02b1\x00\x01t\x00"
    + bytes.fromhex("03 030f03 02 5000 06")
    + bytes.fromhex("01 01 40")  # of the two numbers the second is unsigned
    + bytes.fromhex("02 01 2d")  # collation 45: utf8mb4_general_ci
    + b"\x04\x07\x02id\x01v\x01n"
    + bytes.fromhex("08 01 00")
)
ROWS = bytes.fromhex("2a0000000000 0100 03 07") + bytes.fromhex("00 01000000 02 c3a9 00286bee")


def table_maps() -> TableMaps:
    return TableMaps(lambda schema, name: True, lambda collation: "utf8mb4", lambda schema, name: {})


def table() -> Table:
    found = table_maps().table(TABLE_MAP)
    assert found is not None
    return found


def test_a_row_is_decoded_by_its_table_map() -> None:
    assert (table().full_name, table().columns, table().key) == ("b1.t", ["id", "v", "n"], ("id",))
    assert table().rows(EventKind.WRITE_ROWS_V1, ROWS) == [(None, [1, "é", 4000000000])]


def test_a_table_map_is_parsed_once_and_found_by_its_bytes() -> None:
    maps = table_maps()
    other_number = b"\x2b" + TABLE_MAP[1:]
    assert maps.table(TABLE_MAP) is maps.table(other_number)


def test_a_row_without_all_of_its_columns_is_refused() -> None:
    with pytest.raises(SourceConfigurationError, match="binlog_row_image"):
        table().rows(EventKind.WRITE_ROWS_V1, ROWS[:9] + b"\x03" + ROWS[10:])


def test_a_table_map_without_names_is_refused() -> None:
    with pytest.raises(SourceConfigurationError, match="binlog_row_metadata"):
        table_maps().table(TABLE_MAP[: TABLE_MAP.index(b"\x04\x07")])


@given(st.integers(0, len(ROWS) - 1))
def test_a_rows_event_that_is_cut_short_is_one_clear_error(length: int) -> None:
    if length == 10:  # an event with no row at all
        assert table().rows(EventKind.WRITE_ROWS_V1, ROWS[:length]) == []
        return
    with pytest.raises((FetchError, SourceConfigurationError)):
        table().rows(EventKind.WRITE_ROWS_V1, ROWS[:length])


def test_an_update_without_its_row_after_is_refused() -> None:
    update = ROWS[:10] + ROWS[9:]  # both bitmaps, of the columns before and after; one row only
    with pytest.raises(FetchError, match="row after"):
        table().rows(EventKind.UPDATE_ROWS_V1, update)


def test_rows_of_no_columns_are_refused_and_not_read_for_ever() -> None:
    with pytest.raises(FetchError, match="0 columns"):
        Table("b1", "t", [], ()).rows(EventKind.WRITE_ROWS_V1, bytes(8) + b"\0" + b"left")


@given(st.binary(max_size=200), st.sampled_from([*range(23, 26), *range(30, 33)]))
def test_any_bytes_as_rows_are_decoded_or_one_clear_error(body: bytes, kind: int) -> None:
    with suppress(FetchError, SourceConfigurationError):
        table().rows(kind, body)


@given(st.data())
def test_a_table_map_with_flipped_bytes_is_decoded_or_one_clear_error(data: st.DataObject) -> None:
    body = bytearray(TABLE_MAP)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FetchError, SourceConfigurationError):
        found = table_maps().table(bytes(body))
        if found is not None:
            found.rows(EventKind.WRITE_ROWS_V1, ROWS)


@given(st.binary(max_size=300))
def test_any_bytes_as_a_table_map_or_statement_are_one_clear_error(body: bytes) -> None:
    for decode in (table_maps().table, Statement.of):
        with suppress(FetchError, SourceConfigurationError):
            decode(body)


@given(st.binary(max_size=200))
def test_any_bytes_as_json_end(body: bytes) -> None:
    # What `Table.rows` makes one clear error of.
    with suppress(ValueError, IndexError, RecursionError, ArithmeticError, struct.error):
        document(body)


# Values there and back: written as servers write them.


def decimal_bytes(number: int, is_negative: bool, precision: int, scale: int) -> bytes:
    digits = str(number).zfill(precision)
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    parts = [whole[: len(whole) % 9], *(whole[i : i + 9] for i in range(len(whole) % 9, len(whole), 9))]
    parts += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    raw = bytearray(b"".join(int(part).to_bytes(sizes[len(part)], "big") for part in parts if part))
    if is_negative:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    raw[0] ^= 0x80
    return bytes(raw)


@given(st.integers(1, 65), st.integers(0, 30), st.data())
def test_decimals_of_any_precision_keep_every_digit(precision: int, scale: int, data: st.DataObject) -> None:
    scale = min(scale, precision)
    number = data.draw(st.integers(0, 10**precision - 1))
    is_negative = bool(number) and data.draw(st.booleans())
    value = Decimal(f"{'-' if is_negative else ''}{number}e-{scale}")
    written = decimal_bytes(number, is_negative, precision, scale)
    read, end = decoding.decimal(precision, scale)(b"\xaa" + written + b"\xbb", 1)
    assert (read, end) == (value, 1 + len(written))
    assert -read.as_tuple().exponent == scale


@given(st.datetimes(), st.integers(0, 6))
def test_datetimes_keep_the_digits_that_their_column_has(moment: dt.datetime, digits: int) -> None:
    size = (digits + 1) // 2
    unit = 10 ** (6 - 2 * size)
    kept = moment.replace(microsecond=moment.microsecond // unit * unit if size else 0)
    day = (moment.year * 13 + moment.month) << 5 | moment.day
    packed = day << 17 | moment.hour << 12 | moment.minute << 6 | moment.second
    raw = (packed + 0x8000000000).to_bytes(5, "big") + (kept.microsecond // unit).to_bytes(size, "big")
    assert decoding.datetime(digits)(raw, 0) == (kept, 5 + size)


@given(st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838)), st.integers(0, 6))
def test_times_are_times_of_a_day_or_say_that_they_are_none(span: dt.timedelta, digits: int) -> None:
    size = (digits + 1) // 2
    unit = 10 ** (6 - 2 * size)
    whole = abs(span) // dt.timedelta(seconds=1)
    fraction = abs(span).microseconds // unit * unit if size else 0
    hours, minutes, seconds = whole // 3600, whole // 60 % 60, whole % 60
    packed = (hours << 12 | minutes << 6 | seconds) << 8 * size | fraction // unit
    is_negative = span < dt.timedelta() and packed
    raw = ((-packed if is_negative else packed) + (0x800000 << 8 * size)).to_bytes(3 + size, "big")
    read, end = decoding.time(digits)(raw, 0)
    assert end == 3 + size
    if is_negative or hours > 23:
        assert isinstance(read, str)
    else:
        assert read == dt.time(hours, minutes, seconds, fraction)


@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)))
def test_gtid_sets_are_sets(one: set[int], other: set[int]) -> None:
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"

    def gtids(numbers: set[int]) -> MySqlGtids:
        made = MySqlGtids("")
        for number in numbers:
            made.add(f"{server}:{number}")
        return made

    assert gtids(one).contains(gtids(other)) == (one >= other)
    assert str(MySqlGtids(str(gtids(one)))) == str(gtids(one))


@pytest.mark.parametrize("wrong", ["x", "0-1", "uuid:1", "3e11fa47-71ca-11e1-9e33-c80aa9429562:0", "1-2-x"])
def test_what_is_no_gtid_set_is_refused(wrong: str) -> None:
    for kind in (MySqlGtids, MariaDbGtids):
        with pytest.raises(ConfigurationError):
            kind(wrong)


@given(
    st.builds(
        BinlogPosition,
        file=st.just("binlog.000007"),
        offset=st.integers(4, 2**32),
        crc=st.none() | st.integers(0, 2**32 - 1),
        done=st.none() | st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
        gtids=st.none() | st.just("0-1-532"),
        server=st.sampled_from(["", "3e11fa47-71ca-11e1-9e33-c80aa9429562"]),
        time=st.integers(0, 2**31),
    )
)
def test_a_position_is_read_as_it_was_written(position: BinlogPosition) -> None:
    again = BinlogPosition.of(position.written())
    assert {name: getattr(again, name) for name in BinlogPosition.__slots__ if name != "end"} == {
        name: getattr(position, name) for name in BinlogPosition.__slots__ if name != "end"
    }


@pytest.mark.parametrize(
    "broken", [{}, {"file": "x"}, {"file": "x", "offset": "y"}, {"file": "x", "offset": 4, "done": 3}]
)
def test_a_position_that_is_none_is_refused_with_what_to_do(broken: dict[str, Any]) -> None:
    with pytest.raises(SourceConfigurationError, match="reset"):
        BinlogPosition.of(broken)


def test_positions_are_typed_as_they_are_shown() -> None:
    assert parsed("binlog.000003:411 0-1-5") == BinlogPosition(file="binlog.000003", offset=411, gtids="0-1-5")
    assert parsed("0-1-5") == BinlogPosition(gtids="0-1-5")


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("TRUNCATE TABLE `a``b`", ("db", "a`b")),
        ("truncate x.y", ("x", "y")),
        ('DROP TABLE IF EXISTS "t" /* generated by server */', ("db", "t")),
        ("-- why\nTRUNCATE t", ("db", "t")),
        ("CREATE TABLE t (a int)", None),
        ("INSERT INTO t VALUES ('TRUNCATE x')", None),
    ],
)
def test_what_empties_a_table_is_recognised(text: str, table: tuple[str, str] | None) -> None:
    assert Statement("db", text).emptied_table == table


# Tables of any columns, described as a server does with binlog_row_metadata=FULL.


def counted(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def field(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + counted(data)


SIGNS, DEFAULT_COLLATION, COLLATIONS, NAMES, SET_TEXTS, ENUM_TEXTS, SIMPLE_KEY, PREFIX_KEY = 1, 2, 3, 4, 5, 6, 8, 9
DEFAULT_OF_LISTED, COLLATIONS_OF_LISTED = 10, 11
KEY = field(SIMPLE_KEY, b"\0")


def map_of(kinds: bytes, meta: bytes, *fields: bytes, names: tuple[str, ...] = ("id", "x")) -> bytes:
    """A table map; its first column is the key unless the fields say otherwise."""
    named = field(NAMES, b"".join(counted(name.encode()) for name in names))
    return bytes(8) + b"\x01d\0\x01t\0" + counted(kinds) + counted(meta) + bytes(1) + b"".join((named, *fields))


def mapped(body: bytes, charset: str = "utf8mb4", **hints: str | int) -> Table:
    found = TableMaps(lambda *_: True, lambda _: charset, lambda *_: hints).table(body)
    assert found is not None
    return found


def written(*rows: bytes, columns: int = 2, kind: int = EventKind.WRITE_ROWS_V1) -> bytes:
    """A rows event with all columns; each row begins with the bits of its nulls."""
    extra = b"\x02\0" if kind >= EventKind.WRITE_ROWS else b""
    present = bytes([(1 << columns) - 1]) * (2 if kind in {EventKind.UPDATE_ROWS, EventKind.UPDATE_ROWS_V1} else 1)
    return bytes(8) + extra + bytes([columns]) + present + b"".join(rows)


def value_of(kind: int, meta: bytes, raw: bytes, *fields: bytes, charset: str = "utf8mb4", **hints: str | int) -> Any:
    """The value of a column beside the key that these bytes are; another row follows, so that its length counts."""
    signs = () if any(each[0] == SIGNS for each in fields) else (field(SIGNS, b"\0"),)
    table = mapped(map_of(bytes([1, kind]), meta, *signs, *fields, KEY), charset, **hints)
    [(_, first), (_, second)] = table.rows(EventKind.WRITE_ROWS_V1, written(b"\0\x07" + raw, b"\x02\x08"))
    assert first is not None
    assert second is not None
    assert (first[0], second) == (7, [8, None])
    return first[1]


def test_rows_of_mysql_are_read_as_those_of_mariadb_are() -> None:
    """Of MySQL, the second version of these events: with something more before the rows."""
    table = mapped(map_of(b"\1\1", b"", field(SIGNS, b"\0"), KEY))
    one, two = b"\0\x01\x0a", b"\0\x01\x0b"
    assert table.rows(EventKind.WRITE_ROWS, written(one, two, kind=EventKind.WRITE_ROWS)) == [
        (None, [1, 10]),
        (None, [1, 11]),
    ]
    assert table.rows(EventKind.DELETE_ROWS, written(one, kind=EventKind.DELETE_ROWS)) == [([1, 10], None)]
    assert table.rows(EventKind.DELETE_ROWS_V1, written(one)) == [([1, 10], None)]
    for kind in (EventKind.UPDATE_ROWS, EventKind.UPDATE_ROWS_V1):
        assert table.rows(kind, written(one, two, kind=kind)) == [([1, 10], [1, 11])]
    longer = written(one, kind=EventKind.WRITE_ROWS).replace(b"\x02\0\x02", b"\x05\0abc\x02")
    assert table.rows(EventKind.WRITE_ROWS, longer) == [(None, [1, 10])]


def test_rows_of_more_columns_than_their_table_map_has_are_refused() -> None:
    table = mapped(map_of(b"\1\1", b"", field(SIGNS, b"\0"), KEY))
    with pytest.raises(FetchError, match=r"d\.t cannot be decoded: 3 columns where the table map has 2"):
        table.rows(EventKind.WRITE_ROWS_V1, written(columns=3))


def test_an_update_that_was_logged_without_all_columns_after_it_is_refused() -> None:
    table = mapped(map_of(b"\1\1", b"", field(SIGNS, b"\0"), KEY))
    update = bytearray(written(b"\0\x01\x0a", b"\0\x01\x0b", kind=EventKind.UPDATE_ROWS_V1))
    update[10] = 0b01
    with pytest.raises(SourceConfigurationError, match="binlog_row_image = 'FULL'"):
        table.rows(EventKind.UPDATE_ROWS_V1, bytes(update))


def test_a_last_value_that_is_cut_short_is_refused() -> None:
    """A text may be as long as it likes, and be read without an error though it is not all there."""
    texts = mapped(map_of(b"\1\x0f", b"\x14\0", field(SIGNS, b"\0"), field(DEFAULT_COLLATION, b"\x2d"), KEY))
    with pytest.raises(FetchError, match="cut short"):
        texts.rows(EventKind.WRITE_ROWS_V1, written(b"\0\x01\x05abc"))


def test_what_is_invisible_is_left_out_as_select_does_and_a_key_never() -> None:
    body = map_of(b"\1\1\1\1", b"", field(SIGNS, b"\0"), KEY, names=("id", "a", "b", "c"))
    table = mapped(body, id="invisible", a="invisible", c="invisible")
    assert (table.columns, table.key) == (["id", "b"], ("id",))
    rows = written(b"\0\x01\x02\x03\x04", b"\x02\x05\x06\x07", columns=4)
    assert table.rows(EventKind.WRITE_ROWS_V1, rows) == [(None, [1, 3]), (None, [5, 6])]


def test_only_a_time_that_python_has_no_value_for_is_undecodable() -> None:
    meta, charset = b"\x14\0\0", field(DEFAULT_COLLATION, b"\x2d")
    body = map_of(b"\1\x0f\x13\x0b", meta, field(SIGNS, b"\0"), charset, KEY, names=("id", "v", "t", "old"))
    table = mapped(body)
    assert table.undecodable([1, "text", dt.time(1), dt.time(2)]) == []
    assert table.undecodable([1, "text", "25:00:00", "-01:00:00"]) == ["t", "old"]
    assert table.undecodable(None) == []


def test_a_table_that_nobody_asked_for_is_passed_over_whatever_its_columns() -> None:
    maps = TableMaps(lambda schema, name: (schema, name) != ("d", "t"), lambda _: "utf8mb4", lambda *_: {})
    assert maps.table(map_of(b"\0\0", b"", KEY)) is None


def test_a_key_of_several_columns_or_of_parts_of_them_is_known() -> None:
    kinds = b"\1\1\x0f"
    signs, charset = field(SIGNS, b"\0"), field(DEFAULT_COLLATION, b"\x2d")
    names = ("a", "b", "c")
    both = mapped(map_of(kinds, b"\x14\0", signs, charset, field(SIMPLE_KEY, b"\1\0"), names=names))
    assert both.key == ("b", "a")
    parts = mapped(map_of(kinds, b"\x14\0", signs, charset, field(PREFIX_KEY, b"\2\5\0\0"), names=names))
    assert parts.key == ("c", "a"), "each place is followed by the length of the part"
    with pytest.raises(SourceConfigurationError, match=r"d\.t has no primary key") as refused:
        mapped(map_of(kinds, b"\x14\0", signs, charset, names=names))
    assert refused.value.table == "d.t"


@pytest.mark.parametrize(
    ("signs", "raw", "values"),
    [(b"\0", b"\xff\xff", [-1, -1]), (b"\x40", b"\xff\xff", [-1, 255]), (b"\x80", b"\xff\xff", [255, -1])],
)
def test_which_numbers_are_unsigned_is_told_by_their_places(signs: bytes, raw: bytes, values: list[int]) -> None:
    [(_, row)] = mapped(map_of(b"\1\1", b"", field(SIGNS, signs), KEY)).rows(
        EventKind.WRITE_ROWS_V1, written(b"\0" + raw)
    )
    assert row == values


def test_the_sign_of_a_ninth_number_is_in_the_second_byte() -> None:
    names = tuple("abcdefghi")
    body = map_of(b"\1" * 9, b"", field(SIGNS, b"\0\x80"), KEY, names=names)
    body = body.replace(b"\1" * 9 + b"\0\0", b"\1" * 9 + b"\0\0\0")  # nine columns have two bytes of nulls
    row = bytes(8) + b"\x09\xff\x01" + b"\0\0" + b"\xff" * 9
    assert mapped(body).rows(EventKind.WRITE_ROWS_V1, row) == [(None, [-1] * 8 + [255])]
    with pytest.raises(FetchError, match="signs"):
        mapped(body.replace(b"\x01\x02\0\x80", b"\x01\x01\0"))


def test_each_text_has_the_character_set_of_its_column() -> None:
    texts = {8: "latin1", 45: "utf8mb4", 28: "gbk", 255: "gbk"}

    def rows(*collations: bytes) -> list[Any]:
        body = map_of(b"\1\xfe\xfe\xfe", b"\xfe\x14" * 3, field(SIGNS, b"\0"), *collations, KEY, names=tuple("iabc"))
        table = TableMaps(lambda *_: True, texts.__getitem__, lambda *_: {}).table(body)
        assert table is not None
        raw = b"\0\x01" + counted(b"\xe9") + counted("é".encode()) + counted("中".encode("gbk"))
        [(_, row)] = table.rows(EventKind.WRITE_ROWS_V1, written(raw, columns=4))
        assert row is not None
        return list(row[1:])

    assert rows(field(COLLATIONS, bytes([8, 45, 28]))) == ["é", "é", "中"]
    assert rows(field(COLLATIONS, bytes([8, 45, 252, 255, 0]))) == ["é", "é", "中"], "numbers of more than a byte"
    assert rows(field(DEFAULT_COLLATION, bytes([45, 0, 8, 2, 28]))) == ["é", "é", "中"]
    assert rows(field(DEFAULT_COLLATION, bytes([63, 1, 45, 2, 28])))[0] == b"\xe9".ljust(20, b"\0")
    assert rows()[1] == "é".encode().ljust(20, b"\0"), "bytes, where nothing is told"
    with pytest.raises(FetchError, match="character sets"):
        rows(field(COLLATIONS, bytes([8, 45])))


def test_a_character_set_that_python_does_not_know_is_told() -> None:
    with pytest.raises(SourceConfigurationError, match=r"'geostd8'.*CONVERT TO CHARACTER SET utf8mb4"):
        decoding.decoder_of("geostd8")
    assert decoding.decoder_of("latin1")(b"\x80\x81") == "€\x81"
    assert decoding.decoder_of("latin1")(b"\xe9") == "é"
    assert decoding.decoder_of("utf16")("😀".encode("utf-16-be")) == "😀"


LATIN = field(DEFAULT_COLLATION, b"\x08")
NEW_YEAR = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - what the log holds has no zone
ADDRESS = IPv6Address("2001:db8::ff00:42:8329")
UUID_V4 = UUID("f81d4fae-7dec-91d0-a765-00a0c91e6bf6")


@pytest.mark.parametrize(
    ("kind", "meta", "raw", "value"),
    [
        ("TINY", b"", b"\xff", -1),
        ("SHORT", b"", b"\xfe\xff", -2),
        ("INT24", b"", b"\xfd\xff\xff", -3),
        ("LONG", b"", b"\xfc\xff\xff\xff", -4),
        ("LONGLONG", b"", b"\xfb" + b"\xff" * 7, -5),
        ("FLOAT", b"\4", struct.pack("<f", 0.1), 0.1),
        ("DOUBLE", b"\x08", struct.pack("<d", 0.1), 0.1),
        ("NEWDECIMAL", b"\5\2", decimal_bytes(12345, True, 5, 2), Decimal("-123.45")),
        ("DATE", b"", (2026 << 9 | 1 << 5 | 2).to_bytes(3, "little"), dt.date(2026, 1, 2)),
        ("DATE", b"", bytes(3), "0000-00-00"),
        ("NEWDATE", b"", (2026 << 9 | 13 << 5 | 2).to_bytes(3, "little"), "2026-13-02"),
        ("YEAR", b"", b"\x7e", 2026),
        ("YEAR", b"", b"\0", 0),
        ("TIMESTAMP", b"", (1).to_bytes(4, "little"), NEW_YEAR.replace(second=1)),
        ("TIMESTAMP", b"", bytes(4), "0000-00-00 00:00:00"),
        ("DATETIME", b"", (20260102030405).to_bytes(8, "little"), NEW_YEAR.replace(2026, 1, 2, 3, 4, 5)),
        ("DATETIME", b"", bytes(8), "0000-00-00 00:00:00"),
        ("TIME", b"", bytes(3), dt.time(0)),
        ("TIME", b"", (103005).to_bytes(3, "little"), dt.time(10, 30, 5)),
        ("TIME", b"", (235959).to_bytes(3, "little"), dt.time(23, 59, 59)),
        ("TIME", b"", (240000).to_bytes(3, "little"), "24:00:00.000000"),
        ("TIME", b"", (-10001).to_bytes(3, "little", signed=True), "-01:00:01.000000"),
        ("TIMESTAMP2", b"\0", (1).to_bytes(4, "big"), NEW_YEAR.replace(second=1)),
        ("TIMESTAMP2", b"\0", bytes(4), "0000-00-00 00:00:00"),
        ("TIMESTAMP2", b"\3", bytes(6), "0000-00-00 00:00:00.000"),
        ("TIMESTAMP2", b"\1", bytes(4) + b"\x32", NEW_YEAR.replace(microsecond=500_000)),
        ("TIMESTAMP2", b"\1", (1).to_bytes(4, "big") + b"\0", NEW_YEAR.replace(second=1)),
        ("DATETIME2", b"\0", (0x8000000000 + ((2026 * 13) << 22)).to_bytes(5, "big"), "2026-00-00 00:00:00"),
        ("DATETIME2", b"\2", 0x8000000000.to_bytes(5, "big") + b"\x05", "0000-00-00 00:00:00.05"),
        ("BIT", b"\1\0", b"\1", 1),
        ("BIT", b"\0\1", b"\xff", 255),
        ("BIT", b"\2\1", b"\2\1", 513),
        ("GEOMETRY", b"\4", b"\2\0\0\0ab", b"ab"),
        ("VECTOR", b"\4", b"\4\0\0\0\0\0\0\0", bytes(4)),
        ("JSON", b"\4", b"\2\0\0\0\4\1", True),
        ("JSON", b"\4", b"\0\0\0\0", None),
        ("VARCHAR", b"\xff\0", b"\1a", "a"),
        ("VARCHAR", b"\0\1", b"\1\0a", "a"),
        ("VAR_STRING", b"\x14\0", b"\1a", "a"),
        ("STRING", b"\xfe\x14", b"\1a", "a"),
        ("STRING", b"\xce\xfc", b"\1\0a", "a"),
        ("BLOB", b"\2", b"\1\0\xe9", "é"),
        ("TINY_BLOB", b"\1", b"\1\xe9", "é"),
        ("MEDIUM_BLOB", b"\3", b"\1\0\0\xe9", "é"),
        ("LONG_BLOB", b"\4", b"\1\0\0\0\xe9", "é"),
    ],
)
def test_a_value_of_every_type_is_read_as_servers_write_it(kind: str, meta: bytes, raw: bytes, value: Any) -> None:
    read = value_of(decoding.Kind[kind], meta, raw, LATIN, charset="latin1")
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "meta", "raw", "value"),
    [
        ("uuid", b"\xfe\x10", counted(UUID_V4.bytes), UUID_V4),
        ("uuid", b"\xfe\x24", counted(str(UUID_V4).encode()), str(UUID_V4).encode().ljust(36, b"\0")),
        ("inet4", b"\xfe\x04", counted(bytes([1, 2, 3, 4])), "1.2.3.4"),
        ("inet4", b"\xfe\x04", counted(b"\x01"), "1.0.0.0"),
        ("inet6", b"\xfe\x10", counted(bytes(15) + b"\1"), "::1"),
        ("inet6", b"\xfe\x10", counted(bytes(12) + bytes([1, 2, 3, 4])), "::1.2.3.4"),
        ("inet6", b"\xfe\x10", counted(bytes(10) + b"\xff\xff" + bytes([1, 2, 3, 4])), "::ffff:1.2.3.4"),
        ("inet6", b"\xfe\x10", counted(ADDRESS.packed), "2001:db8::ff00:42:8329"),
        ("inet6", b"\xfe\x05", counted(b"12345"), b"12345"),
        ("json", b"\xfe\x14", counted(b'{"a": [1]}'), {"a": [1]}),
    ],
)
def test_what_only_the_database_knows_of_a_column_counts_where_the_log_agrees(
    hint: str, meta: bytes, raw: bytes, value: Any
) -> None:
    """The database is asked of the table as it is now: a column may have had another type when it was written."""
    assert value_of(decoding.Kind.STRING, meta, raw, x=hint) == value


@pytest.mark.parametrize(
    ("text", "is_turned"),
    [
        ("123e4567-e89b-12d3-a456-426614174000", True),
        ("123e4567-e89b-52d3-8456-426614174000", True),
        ("01890a5d-ac96-774b-bcce-b302099a8057", False),
        ("123e4567-e89b-82d3-a456-426614174000", False),
        ("123e4567-e89b-82d3-6056-426614174000", False),
        ("00000000-0000-8000-0000-000000000001", False),
        ("00000000-0000-0000-1000-000000000001", False),
    ],
)
def test_the_parts_of_a_uuid_are_turned_where_mariadb_turns_them(text: str, is_turned: bool) -> None:
    raw = UUID(text).bytes
    stored = raw[10:16] + raw[8:10] + raw[6:8] + raw[4:6] + raw[0:4] if is_turned else raw
    assert decoding.mariadb_uuid(stored) == UUID(text)


def test_a_uuid_that_is_a_key_is_one_all_the_same() -> None:
    table = mapped(map_of(b"\xfe\1", b"\xfe\x10", field(SIGNS, b"\0"), KEY), id="uuid")
    rows = table.rows(EventKind.WRITE_ROWS_V1, written(b"\0" + counted(UUID_V4.bytes) + b"\1"))
    assert rows == [(None, [UUID_V4, 1])]


def test_a_float_has_the_digits_that_its_column_was_declared_with() -> None:
    assert value_of(decoding.Kind.FLOAT, b"\4", struct.pack("<f", 12345.678), x=3) == 12345.678
    assert value_of(decoding.Kind.FLOAT, b"\4", struct.pack("<f", 12345.678)) == 12345.7
    assert value_of(decoding.Kind.FLOAT, b"\4", struct.pack("<f", 2.5), x="uuid") == 2.5, "it is no float any more"


def test_bytes_are_filled_up_where_their_length_is_fixed_and_only_there() -> None:
    assert value_of(decoding.Kind.STRING, b"\xfe\x04", b"\1a") == b"a\0\0\0"
    assert value_of(decoding.Kind.VAR_STRING, b"\4\0", b"\1a") == b"a"
    assert value_of(decoding.Kind.BLOB, b"\1", b"\1a") == b"a"


def listed(*texts: str, charset: str = "utf-8") -> bytes:
    return bytes([len(texts)]) + b"".join(counted(text.encode(charset)) for text in texts)


def test_labels_of_enums_and_sets_are_those_of_their_column() -> None:
    """Two of each, in an order that is not the one in which their labels are told, and with two character sets."""
    kinds, meta = b"\1\xfe\xfe\xfe\xfe", b"\xf7\1\xf8\1\xf7\1\xf8\2"
    fields = (
        field(SIGNS, b"\0"),
        field(SET_TEXTS, listed("x", "y") + listed("p", "q", "é")),
        field(ENUM_TEXTS, listed("b", "a") + listed("é", "f", charset="latin-1")),
        KEY,
    )
    charsets = {45: "utf8mb4", 8: "latin1"}
    for collations in (
        field(COLLATIONS_OF_LISTED, bytes([45, 45, 8, 45])),
        field(DEFAULT_OF_LISTED, bytes([45, 2, 8])),
    ):
        body = map_of(kinds, meta, *fields, collations, names=("id", "e", "s", "f", "t"))
        table = TableMaps(lambda *_: True, charsets.__getitem__, lambda *_: {}).table(body)
        assert table is not None
        raw = b"\0\x01" + b"\2" + b"\3" + b"\1" + b"\5\0"
        [(_, row)] = table.rows(EventKind.WRITE_ROWS_V1, written(raw, columns=5))
        assert row == [1, "a", {"x", "y"}, "é", {"p", "é"}]
        [(_, none)] = table.rows(EventKind.WRITE_ROWS_V1, written(b"\0\x01\0\0\0\0\0", columns=5))
        assert none == [1, "", set(), "", set()]


@pytest.mark.parametrize("kind", [decoding.Kind.DECIMAL, decoding.Kind.BLOB_COMPRESSED, 99])
def test_a_type_that_cannot_be_read_is_told_with_its_column(kind: int) -> None:
    meta = b"\1" if kind == decoding.Kind.BLOB_COMPRESSED else b""
    with pytest.raises(SourceConfigurationError, match=rf"Column 'x' has a type.*\({int(kind)}\)"):
        mapped(map_of(bytes([1, kind]), meta, field(SIGNS, b"\0"), KEY))


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_a_number_has_as_many_bytes_as_its_first_one_says(size: int) -> None:
    """A table of many columns or long names: a number of more than one byte."""
    name = "n" * 100
    count = {1: b"\x65", 3: b"\xfc\x65\0", 4: b"\xfd\x65\0\0", 9: b"\xfe\x65" + bytes(7)}[size]
    names = b"\x04" + count + counted(name.encode())
    body = bytes(8) + b"\x01d\0\x01t\0" + counted(b"\1") + counted(b"") + b"\0" + names + field(SIGNS, b"\0") + KEY
    assert mapped(body).columns == [name]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (bytes(8) + b"\x01d\0\x05t", "A table map cannot be decoded"),
        (bytes(8) + b"\x05d", "A table map cannot be decoded"),
        (bytes(8) + b"\x01d\0\x01t\0" + b"\x02\1", "table map cannot be decoded"),
        (bytes(8) + b"\x01d\0\x01t\0" + b"\x02\1\1\1\0", "table map cannot be decoded: its column types do not fit"),
        (bytes(8) + b"\x01d\0\x01t\0" + b"\x03\1\1", "table map cannot be decoded"),
        (
            map_of(b"\1\1", b"", field(SIGNS, b"\0"), b"\x08\x05\0"),
            r"d\.t cannot be decoded: its metadata is cut short",
        ),
        (map_of(b"\1\1", b"", b"\x08\xfc\1"), r"map of d\.t cannot be decoded: a number is cut short"),
        (map_of(b"\1\xfe", b"\xfe\x14", field(SIGNS, b"\0"), field(COLLATIONS, b"\xfb"), KEY), r"map of d\.t cannot"),
        (map_of(b"\1\1", b"", KEY), r"map of d\.t cannot be decoded: the signs of its numbers are missing"),
        (map_of(b"\1\1", b"", field(SIGNS, b"\0"), KEY, names=("id",)), r"map of d\.t cannot be decoded"),
        (map_of(b"\1\xfe", b"\xf7\1", field(SIGNS, b"\0"), field(ENUM_TEXTS, b"\1\5a"), KEY), "a text is cut short"),
    ],
)
def test_a_table_map_that_is_cut_short_is_one_clear_error(body: bytes, complaint: str) -> None:
    with pytest.raises(FetchError, match=complaint):
        mapped(body)


# Documents of MySQL, which has a binary form for them.


def document_bytes(value: Any, *, large: bool) -> bytes:
    kind, raw = typed(value, large=large)
    return bytes([kind]) + raw


def typed(value: Any, *, large: bool) -> tuple[int, bytes]:
    match value:
        case None | True | False:
            return 4, bytes([{None: 0, True: 1, False: 2}[value]])
        case int() if value < 0:
            return next((kind, struct.pack(f"<{code}", value)) for kind, code, bits in SIGNED if value >= -(1 << bits))
        case int():
            return next((kind, struct.pack(f"<{code}", value)) for kind, code, bits in UNSIGNED if value < 1 << bits)
        case float():
            return 11, struct.pack("<d", value)
        case str():
            data = value.encode()
            return 12, varied(len(data)) + data
        case list():
            return (3 if large else 2), container([], value, large=large)
    return (1 if large else 0), container(list(value), list(value.values()), large=large)


SIGNED = ((5, "h", 15), (7, "i", 31), (9, "q", 63))
UNSIGNED = ((6, "H", 16), (8, "I", 32), (10, "Q", 64))


def varied(length: int) -> bytes:
    low, rest = length & 0x7F, length >> 7
    return bytes([low | 0x80]) + varied(rest) if rest else bytes([low])


def container(keys: list[str], values: list[Any], *, large: bool) -> bytes:
    size = 4 if large else 2
    at = 2 * size + len(keys) * (size + 2) + len(values) * (size + 1)
    key_entries, value_entries, tail = b"", b"", b""
    for key in keys:
        data = key.encode()
        key_entries += (at + len(tail)).to_bytes(size, "little") + len(data).to_bytes(2, "little")
        tail += data
    for value in values:
        kind, raw = typed(value, large=large)
        if kind in {4, 5, 6} or (large and kind in {7, 8}):
            value_entries += bytes([kind]) + raw.ljust(size, b"\0")
        else:
            value_entries += bytes([kind]) + (at + len(tail)).to_bytes(size, "little")
            tail += raw
    head = len(values).to_bytes(size, "little") + (at + len(tail)).to_bytes(size, "little")
    return head + key_entries + value_entries + tail


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
ALL_KINDS = {"a": [None, True, False, 1, -1, 70_000, -70_000, 2**40, -(2**40), 1.5, "x" * 200], "é": {"b": {}}, "c": []}


@given(DOCUMENTS, st.booleans())
@example(ALL_KINDS, True)
@example(ALL_KINDS, False)
def test_documents_are_read_as_mysql_writes_them(value: Any, large: bool) -> None:
    read = document(document_bytes(value, large=large))
    assert (read, json.dumps(read)) == (value, json.dumps(value))


def test_what_json_does_not_know_comes_as_mysql_shows_it() -> None:
    def opaque(kind: int, raw: bytes) -> Any:
        return document(bytes([15, kind]) + varied(len(raw)) + raw)

    def packed(whole: int, micros: int = 0, sign: int = 1) -> bytes:
        return (sign * (whole << 24 | micros)).to_bytes(8, "little", signed=True)

    moment = (2026 * 13 + 1) << 22 | 2 << 17 | 3 << 12 | 4 << 6 | 5
    assert opaque(decoding.Kind.NEWDECIMAL, b"\5\2" + decimal_bytes(12345, True, 5, 2)) == -123.45
    whole = opaque(decoding.Kind.NEWDECIMAL, b"\3\0" + decimal_bytes(123, False, 3, 0))
    assert (whole, type(whole)) == (123, int)
    assert opaque(decoding.Kind.DATE, packed(moment)) == "2026-01-02"
    assert opaque(decoding.Kind.DATETIME, packed(moment, 6)) == "2026-01-02 03:04:05.000006"
    assert opaque(decoding.Kind.TIMESTAMP, packed(moment)) == "2026-01-02 03:04:05.000000"
    assert opaque(decoding.Kind.TIME, packed(10 << 12 | 30 << 6 | 5, 7)) == "10:30:05.000007"
    assert opaque(decoding.Kind.TIME, packed(10 << 12, sign=-1)) == "-10:00:00.000000"
    assert opaque(decoding.Kind.TIME, packed(0)) == "00:00:00.000000"
    assert opaque(decoding.Kind.VARCHAR, b"\0\xff") == "base64:type15:AP8="


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\x0d", "no type 13"),
        (b"\x02\x05\0\x04\0", "cut short"),
        (b"\x02\x01\0\x07\0\x02\0\0", "points back"),
        (b"\x02\x01\0\x07\0\x02\x04\0", "points back"),
    ],
)
def test_a_document_that_is_none_is_refused(raw: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        document(raw)


# Positions.

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_a_set_of_gtids_is_written_in_as_few_stretches_as_it_has() -> None:
    gtids = MySqlGtids(f"{OTHER}:7, {ONE}:4-5:1-2")
    assert str(gtids) == f"{ONE}:1-2:4-5,{OTHER}:7"
    gtids.add(f"{ONE}:6")
    assert str(gtids) == f"{ONE}:1-2:4-6,{OTHER}:7"
    gtids.add(f"{ONE}:3")
    assert str(gtids) == f"{ONE}:1-6,{OTHER}:7"
    gtids.insert(ONE, 2, 4)
    assert str(gtids) == f"{ONE}:1-6,{OTHER}:7"


def test_a_server_is_told_which_gtids_are_done_in_its_own_form() -> None:
    raw = MySqlGtids(f"{OTHER}:7,{ONE}:1-2:4").encoded()
    one, other = UUID(ONE).bytes, UUID(OTHER).bytes
    assert raw == struct.pack("<Q16sQQQQQ16sQQQ", 2, one, 2, 1, 3, 4, 5, other, 1, 7, 8)
    assert MariaDbGtids("1-1-7,0-1-5").encoded() == b"0-1-5,1-1-7"


def test_a_set_of_mariadb_holds_another_where_it_is_as_far_in_every_domain() -> None:
    gtids = MariaDbGtids("0-1-5,1-1-7")
    assert all(gtids.contains(MariaDbGtids(text)) for text in ("0-1-5", "0-2-4,1-1-7", ""))
    assert not any(gtids.contains(MariaDbGtids(text)) for text in ("0-1-6", "0-1-5,1-1-8", "2-1-1"))
    gtids.add("0-3-6")
    assert str(gtids) == "0-3-6,1-1-7"


@pytest.mark.parametrize("kind", [MySqlGtids, MariaDbGtids])
def test_a_copy_of_a_set_of_gtids_is_another_set(kind: Any) -> None:
    gtid, further = {MySqlGtids: (f"{ONE}:1", f"{ONE}:2"), MariaDbGtids: ("0-1-1", "0-1-2")}[kind]
    gtids = kind(gtid)
    copy = gtids.copy()
    copy.add(further)
    assert (str(gtids), copy.contains(kind(further))) == (gtid, True)


def test_what_a_position_does_not_know_is_not_written() -> None:
    assert BinlogPosition(file="b.000001", offset=8).written() == {
        "value": "b.000001:8",
        "file": "b.000001",
        "offset": 8,
    }
    assert BinlogPosition(gtids="0-1-5").written() == {"value": "0-1-5", "file": "", "offset": 4, "gtids": "0-1-5"}
    whole = BinlogPosition(file="b.000001", offset=8, end=9, crc=0, done=(1, 2), gtids="0-1-5", server="s", time=3)
    assert whole.written() == {
        "value": "b.000001:8+1.2 0-1-5", "file": "b.000001", "offset": 8, "end": 9, "crc": 0, "done": [1, 2],
        "gtids": "0-1-5", "server": "s", "time": 3,
    }  # fmt: skip
    assert BinlogPosition.of(whole.written()) == whole
    assert "end" not in BinlogPosition(file="b.000001", offset=8, end=8).written()
    assert BinlogPosition.of({"file": "b.000001", "offset": 8}).end == 8


def test_a_position_that_somebody_types_needs_a_place_or_gtids() -> None:
    assert parsed("b.000001:8") == BinlogPosition(file="b.000001", offset=8)
    for empty in ("", " "):
        with pytest.raises(ConfigurationError, match="file:offset, or a set of GTIDs"):
            parsed(empty)


def test_a_file_is_known_by_its_number() -> None:
    assert (BinlogPosition(file="my.log.000012").number, BinlogPosition(file="odd").number) == (12, 0)
    assert (stem("my.log.000012"), stem("odd")) == ("my.log", "")
