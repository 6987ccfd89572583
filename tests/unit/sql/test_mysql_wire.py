"""Packets of MySQL and MariaDB, whole, cut off and out of order."""

from __future__ import annotations

import datetime as dt
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.converters import convert_datetime

from azure_functions_db.sql import mysql_wire

PART = 0xFFFFFF
END = b"\xfe\0\0\2\0"


def sent(*payloads: bytes, first: int = 1) -> bytes:
    """Return packets as a server numbers them, from a first number on."""
    numbered = enumerate(payloads, first)
    return b"".join(len(each).to_bytes(3, "little") + bytes([number % 256]) + each for number, each in numbered)


def read(data: bytes, first: int = 1) -> Iterator[bytes]:
    return mysql_wire.packets(io.BytesIO(data), first)


def test_packets_are_numbered_round_and_round() -> None:
    payloads = [str(number).encode() for number in range(600)]
    packets = read(sent(*payloads, first=250), 250)
    assert [next(packets) for _ in payloads] == payloads


def test_the_parts_of_a_large_packet_are_joined() -> None:
    part = b"x" * PART
    packets = read(sent(part, part, b"end", b"next", part, b"", b"last"))
    assert [next(packets) for _ in range(4)] == [part + part + b"end", b"next", part, b"last"]


@given(st.lists(st.binary(max_size=9) | st.just(bytes(70_000)), max_size=9), st.integers(1, 9))
def test_it_does_not_matter_in_which_pieces_packets_come(payloads: list[bytes], piece: int) -> None:
    class Trickle(io.BytesIO):
        def read1(self, _size: int | None = -1) -> bytes:
            return self.read(piece)

    packets = mysql_wire.packets(Trickle(sent(*payloads)))
    assert list(itertools.islice(packets, len(payloads))) == payloads


@pytest.mark.parametrize("data", [b"", b"\5\0", b"\5\0\0\1", b"\5\0\0\1abc"])
def test_a_packet_that_is_cut_off_is_a_lost_connection(data: bytes) -> None:
    packets = read(sent(b"whole") + data, 1)
    assert next(packets) == b"whole"
    with pytest.raises(ConnectionError, match="cut the connection"):
        next(packets)


def test_a_packet_that_is_not_the_next_one_is_a_lost_connection() -> None:
    packets = read(sent(b"one") + sent(b"three", first=3))
    assert next(packets) == b"one"
    with pytest.raises(ConnectionError, match="packet 3 came in place of 2"):
        next(packets)


def written(value: bytes | None) -> bytes:
    """Return a value as a server writes it, its length in as few bytes as that takes."""
    if value is None:
        return b"\xfb"
    length = len(value)
    if length <= 250:
        return bytes([length]) + value
    code, size = next((code, size) for code, size in ((0xFC, 2), (0xFD, 3)) if length < 256**size)
    return bytes([code]) + length.to_bytes(size, "little") + value


Columns = Sequence[tuple[str | None, Callable[[Any], Any] | None]]


@pytest.fixture(params=["compiled", "Python"])
def row_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Columns], Any]:
    if request.param == "Python":
        monkeypatch.setattr(mysql_wire, "speedups", None)
    return mysql_wire._row_reader


@pytest.mark.parametrize(
    ("column", "texts", "values"),
    [
        (
            ("ascii", int),
            [b"0", b"-1", b"007", b"9" * 18, b"-" + b"9" * 19, None],
            [0, -1, 7, 10**18 - 1, 1 - 10**19, None],
        ),
        (("ascii", float), [b"0.1", b"1e300", b"-0"], [0.1, 1e300, -0.0]),
        (
            ("utf8", None),
            ["ä€😀".encode(), b"", b"x" * 251, b"y" * 70_000, None],
            ["ä€😀", "", "x" * 251, "y" * 70_000, None],
        ),
        (("latin-1", None), [b"\xe4"], ["ä"]),
        (("utf8", str.upper), ["ä".encode()], ["Ä"]),
        (("utf8", int), ["٣".encode()], [3]),
        ((None, None), [b"\0\xff", b""], [b"\0\xff", b""]),
        ((None, bytes.hex), [b"\0\xff"], ["00ff"]),
        (("ascii", convert_datetime), [b"2026-11-17 12:30:15.5"], [dt.datetime(2026, 11, 17, 12, 30, 15, 500_000)]),  # noqa: DTZ001
        (("ascii", convert_datetime), [b"0000-00-00 00:00:00"], ["0000-00-00 00:00:00"]),
        (("ascii", lambda text: f"<{text}>"), [b"2026-11-17 12:30:15"], ["<2026-11-17 12:30:15>"]),
    ],
)
def test_values_are_what_pymysql_makes_of_them(
    row_reader: Any, column: Any, texts: list[bytes | None], values: list[Any]
) -> None:
    encoding, convert = column
    packet = b"".join(map(written, texts))
    assert row_reader([column] * len(texts))(packet) == tuple(values)
    plain = [text if text is None or encoding is None else text.decode(encoding) for text in texts]
    assert [text if text is None or convert is None else convert(text) for text in plain] == values


_BYTES = st.none() | st.binary(max_size=4) | st.binary(min_size=249, max_size=258) | st.just(bytes(65_536))


@given(st.lists(_BYTES, max_size=5), st.integers(0, 5), st.binary(max_size=3))
def test_only_a_row_that_has_a_value_for_each_column_is_one(
    values: list[bytes | None], columns: int, rest: bytes
) -> None:
    packet = b"".join(map(written, values)) + rest
    made = [_outcome(reader, columns, packet) for reader in ("compiled", "Python")]
    assert made[0] == made[1]
    if columns == len(values):
        assert made[0] == (None if rest else tuple(values))


def _outcome(reader: str, columns: int, packet: bytes) -> tuple[Any, ...] | None:
    with pytest.MonkeyPatch.context() as patch:
        if reader == "Python":
            patch.setattr(mysql_wire, "speedups", None)
        try:
            return mysql_wire._row_reader([(None, None)] * columns)(packet)
        except EOFError:
            return None


@pytest.mark.parametrize(
    "packet", [b"", b"\2a", b"\xfc\1", b"\xfd\1\0", b"\xfe" + bytes(7), b"\xff", b"\xfe" + b"\xff" * 8]
)
def test_a_row_that_ends_too_soon_is_none(row_reader: Any, packet: bytes) -> None:
    with pytest.raises(EOFError):
        row_reader([(None, None)])(packet)


class Line:
    """PyMySQL's connection in the middle of an answer."""

    encoding = "utf8"
    _next_seq_id = 4
    is_closed = False
    unbuffered_active = True

    def __init__(self, data: bytes) -> None:
        self._rfile = io.BytesIO(data)

    def _force_close(self) -> None:
        self.is_closed = True

    def rows(self) -> Iterator[bytes]:
        return mysql_wire._packets_of_rows(self, self)


def test_rows_end_where_the_server_says_so() -> None:
    long = b"\xfe" + bytes(8)  # a row may begin as an end does
    line = Line(sent(b"\1a", long, END, first=4))
    assert list(line.rows()) == [b"\1a", long]
    assert (line.is_closed, line.unbuffered_active) == (False, False)


def test_an_error_behind_some_rows_is_the_servers_and_the_connection_stays() -> None:
    line = Line(sent(b"\1a", b"\xff\xda\x04#21000more than one row", first=4))
    with pytest.raises(pymysql.OperationalError, match="more than one row") as failed:
        list(line.rows())
    assert (failed.value.args[0], line.is_closed, line.unbuffered_active) == (1242, False, False)


@pytest.mark.parametrize("end", [b"\xfe", END, b"\xfe" + bytes(7)])
def test_an_end_may_say_more_than_that_it_is_one(end: bytes) -> None:
    assert list(Line(sent(b"\1a", end, first=4)).rows()) == [b"\1a"]


def test_an_error_may_have_few_words() -> None:
    with pytest.raises(pymysql.OperationalError, match="x") as failed:
        list(Line(sent(b"\xff\xda\x04x", first=4)).rows())
    assert failed.value.args[0] == 1242


def test_a_row_that_is_none_is_told_and_the_line_not_used_again() -> None:
    line: Any = Line(sent(b"\1a\1b", END, first=4))
    cursor = SimpleNamespace(connection=line, _result=line)
    line.converters = [(None, None)]
    with pytest.raises(pymysql.InternalError, match="does not have a value for each column"):
        mysql_wire._rows(cursor)
    assert line.is_closed


@pytest.mark.parametrize("data", [sent(b"\1a", first=4), sent(b"\1a", first=4) + sent(END, first=0)])
def test_an_answer_that_does_not_come_to_its_end_is_a_lost_connection(data: bytes) -> None:
    line = Line(data)
    with pytest.raises(pymysql.OperationalError, match="Lost connection") as failed:
        list(line.rows())
    assert (failed.value.args[0], line.is_closed, line.unbuffered_active) == (2013, True, False)


def test_a_line_that_is_left_in_the_middle_is_not_used_again() -> None:
    line = Line(sent(b"\1a", b"\1b", END, first=4))
    rows: Any = line.rows()
    next(rows)
    rows.close()
    assert (line.is_closed, line.unbuffered_active) == (True, False)
