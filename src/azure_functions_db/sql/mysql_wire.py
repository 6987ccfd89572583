"""What MySQL and MariaDB answer, read packet by packet from a connection of PyMySQL's.

PyMySQL makes an object of each packet and asks that for each value, which is more than half of what a page takes.
"""

# ruff: noqa: SLF001 - there is no public way to have the packets

from __future__ import annotations

import codecs
import datetime as dt
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CR
from pymysql.converters import convert_datetime
from pymysql.cursors import SSCursor
from pymysql.protocol import MysqlPacket

from azure_functions_db.core.speedups import speedups
from azure_functions_db.sql.failures import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from io import BufferedIOBase

    Converter = Callable[[Any], Any]
    Reader = Callable[[bytes], Any]

IS_KNOWN = pymysql.VERSION[:2] in {(1, 1), (1, 2)}
"""Whether this PyMySQL keeps its connection and results, which are its own affair, as is expected here."""

_CHUNK = 1 << 16
_HEAD, _LARGEST_PART = 4, 0xFFFFFF
_END, _LONGEST_END = b"\xfe", 8
"""How the packet behind the last row begins, and how long it is at most: a row may begin with a very long value."""
_ERROR, _SHORTEST_ERROR = b"\xff", 4
_LONGEST_SHORT, _NULL = 0xFA, 0xFB
_BYTES_OF_LENGTH = {0xFC: 2, 0xFD: 3, 0xFE: 8}


def packets(stream: BufferedIOBase, number: int = 1) -> Iterator[bytes]:
    """Give packet after packet, the parts of a large one joined; `OSError` where the next one does not come.

    The first is the answer's, unless it has another number. As much is read at once as is there: each look at the
    connection lets other threads go first.
    """
    parts: list[bytes] = []
    held, at = b"", 0
    while True:
        while (end := at + _HEAD + int.from_bytes(held[at : at + 3], "little")) > len(held):
            missing = end - len(held)
            more = stream.read(missing) if missing > _CHUNK else stream.read1(_CHUNK)
            if not more:
                raise ConnectionError("the server cut the connection")
            held, at = held[at:] + more, 0
        if held[at + 3] != number:
            raise ConnectionError(f"packet {held[at + 3]} came in place of {number}")
        part, at = held[at + _HEAD : end], end
        number = (number + 1) % 256
        if len(part) < _LARGEST_PART and not parts:
            yield part
            continue
        parts.append(part)
        if len(part) < _LARGEST_PART:
            yield b"".join(parts)
            parts.clear()


class PageCursor(SSCursor):
    """A cursor that reads all rows at once, and their values straight from the packets.

    A row whose values Python cannot hold costs no connection: the others are read to the end of the answer.
    """

    def fetchall(self) -> list[tuple[Any, ...]]:  # type: ignore[override]  # typed as a tuple, which it is not
        """Return all rows."""
        try:
            return _rows(self) if IS_KNOWN else list(super().fetchall())
        except UNDECODABLE as error:
            refused: Any = pymysql.DataError(f"{type(error).__name__} while a row was read")
            refused.sqlstate = None  # it is not the server's
            raise refused from error


def _rows(cursor: Any) -> list[tuple[Any, ...]]:
    read_row = _row_reader(cursor._result.converters)
    with closing(_packets_of_rows(cursor.connection, cursor._result)) as packets_of_rows:
        try:
            return list(map(read_row, packets_of_rows))
        except EOFError as error:
            raise pymysql.InternalError("A row does not have a value for each column") from error
        except Exception:
            for _ in packets_of_rows:
                pass
            raise


def _packets_of_rows(connection: Any, result: Any) -> Generator[bytes]:
    end = b""
    try:
        for packet in packets(connection._rfile, connection._next_seq_id):
            first, size = packet[:1], len(packet)
            if first >= _END and (size >= _SHORTEST_ERROR if first == _ERROR else size <= _LONGEST_END):
                end = packet
                break
            yield packet
    except OSError as lost:
        reason = f"Lost connection to MySQL server during query ({lost})"
        raise pymysql.OperationalError(CR.CR_SERVER_LOST, reason) from lost
    finally:
        result.unbuffered_active = False  # or PyMySQL would read on to the end
        if not end:
            connection._force_close()  # what was not read would stand before the next answer
    if end.startswith(_ERROR):
        MysqlPacket(end, connection.encoding).raise_for_error()


def _row_reader(columns: Iterable[tuple[str | None, Converter | None]]) -> Callable[[bytes], tuple[Any, ...]]:
    readers = tuple(_reader(encoding, convert) for encoding, convert in columns)
    if speedups is not None:
        return partial(speedups.values, readers)
    return partial(_values, readers)


def _values(readers: tuple[Reader | None, ...], packet: bytes) -> tuple[Any, ...]:
    values: list[Any] = []
    at, size = 0, len(packet)
    for read in readers:
        if at >= size:
            raise EOFError
        length = packet[at]
        at += 1
        if length > _LONGEST_SHORT:
            if length == _NULL:
                values.append(None)
                continue
            begin = at + _BYTES_OF_LENGTH.get(length, size)
            length = int.from_bytes(packet[at:begin], "little")
            at = begin
        end = at + length
        value = packet[at:end]
        values.append(value if read is None else read(value))
        at = end
    if at != size:
        raise EOFError
    return tuple(values)


def _reader(encoding: str | None, convert: Converter | None) -> Reader | None:
    """Return what makes of bytes what PyMySQL makes of them: it decodes them first, and then converts the text."""
    if encoding is None or (encoding == "ascii" and (convert is int or convert is float)):  # which take bytes as well
        return convert
    decode: Reader = bytes.decode if codecs.lookup(encoding).name == "utf-8" else partial(str, encoding=encoding)
    if convert is None:
        return decode
    if convert is convert_datetime:
        return _moment
    return lambda value: convert(decode(value))


def _moment(value: bytes, read: Callable[[str], dt.datetime] = dt.datetime.fromisoformat) -> Any:
    """Return a moment as PyMySQL does, which leaves one that Python cannot hold (0000-00-00) a text.

    Its own reading by a pattern takes three times as long.
    """
    text = value.decode("ascii")
    try:
        return read(text)
    except ValueError:
        return convert_datetime(text)
