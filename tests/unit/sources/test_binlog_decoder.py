"""The decoder of the binary log: bytes that a server wrote, and bytes that none would write."""

from __future__ import annotations

import datetime as dt
import struct
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azure_functions_db.core.errors import ConfigurationError, FetchError, SourceConfigurationError
from azure_functions_db.sources.mysql import decoding
from azure_functions_db.sources.mysql.decoding import EventKind, Statement, Table, TableMaps, document
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, MySqlGtids, parsed

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
