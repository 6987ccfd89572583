"""A server that speaks TDS 7.4 as far as drivers need it: login, batches, procedures, transactions, typed rows, errors.

What a statement means is not its business: a `Session` answers it. Written after Microsoft's description [MS-TDS].
There is no encryption: drivers have to be told not to ask for it.
"""

from __future__ import annotations

import datetime as dt
import socket
import socketserver
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

NEXT_CALL = 0xFF
DONE, DONE_PROCEDURE, DONE_IN_PROCEDURE = 0xFD, 0xFE, 0xFF
HAS_MORE, IS_ERROR, HAS_COUNT, IS_ATTENTION = 0x01, 0x02, 0x10, 0x20
PACKET = 4096
COLLATION = b"\x09\x04\xd0\x00\x34"
YEAR_ONE = dt.date(1, 1, 1)
OLD_EPOCH = dt.datetime(1900, 1, 1)  # noqa: DTZ001 - values of this type have no zone
RETURNED = b"\x79\0\0\0\0"


class ServerError(Exception):
    """What a server answers instead of rows."""

    def __init__(self, number: int, message: str, severity: int = 16) -> None:
        super().__init__(message)
        self.number, self.message, self.severity = number, message, severity


class Column(NamedTuple):
    """A column of a result: a name and a type of the server."""

    name: str
    type: str = "nvarchar"
    scale: int = 0


class Result(NamedTuple):
    """What one statement has answered: rows, or how many it has changed."""

    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    changed: int | None = None


class Session(Protocol):
    """Who answers the statements of one connection."""

    def execute(self, sql: str, parameters: dict[str, Any]) -> Sequence[Result]:
        """Run a batch; `ServerError` where it fails."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Hangup(Exception):  # noqa: N818 - an order, not an error
    """Raised by a session to cut the line in the middle of an answer."""


# Writing.


def short_text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("utf-16le")


def long_text(text: str) -> bytes:
    return struct.pack("<H", len(text)) + text.encode("utf-16le")


def environment(kind: int, new: bytes, old: bytes = b"\0") -> bytes:
    body = bytes([kind]) + new + old
    return b"\xe3" + struct.pack("<H", len(body)) + body


def done(token: int = DONE, flags: int = 0, count: int | None = None) -> bytes:
    return struct.pack("<BHHQ", token, flags | (HAS_COUNT if count is not None else 0), 0xC1, max(count or 0, 0))


def failure(error: ServerError) -> bytes:
    body = struct.pack("<iBB", error.number, 1, error.severity) + long_text(error.message)
    body += short_text("standin") + short_text("") + struct.pack("<i", 1)
    return b"\xaa" + struct.pack("<H", len(body)) + body


def type_info(column: Column) -> bytes:
    match column.type:
        case "bit":
            return b"\x68\x01"
        case "int":
            return b"\x26\x04"
        case "bigint":
            return b"\x26\x08"
        case "float":
            return b"\x6d\x08"
        case "decimal":
            return bytes([0x6A, 17, 38, column.scale])
        case "binary":
            return b"\xad\x08\x00"
        case "varbinary":
            return b"\xa5\xff\xff"
        case "uniqueidentifier":
            return b"\x24\x10"
        case "date":
            return b"\x28"
        case "datetime":
            return b"\x6f\x08"
        case "time" | "datetime2" | "datetimeoffset":
            return bytes([{"time": 0x29, "datetime2": 0x2A, "datetimeoffset": 0x2B}[column.type], 7])
        case _:
            return b"\xe7\xff\xff" + COLLATION


def encoded(column: Column, value: Any) -> bytes:
    if column.type in {"nvarchar", "varbinary"}:
        return b"\xff" * 8 if value is None else in_chunks(value if isinstance(value, bytes) else utf16(value))
    if column.type == "binary":
        return b"\xff\xff" if value is None else struct.pack("<H", len(value)) + value
    if value is None:
        return b"\0"
    body = ENCODERS[column.type](value, column)
    return bytes([len(body)]) + body


def utf16(value: Any) -> bytes:
    return str(value).encode("utf-16le")


def in_chunks(body: bytes) -> bytes:
    chunk = struct.pack("<I", len(body)) + body if body else b""
    return struct.pack("<Q", len(body)) + chunk + b"\0\0\0\0"


def decimal_bytes(value: Decimal, column: Column) -> bytes:
    number = int(abs(Decimal(value)).scaleb(column.scale))
    return bytes([value >= 0]) + number.to_bytes(16, "little")


def clock_bytes(value: dt.time | dt.datetime) -> bytes:
    ticks = ((value.hour * 60 + value.minute) * 60 + value.second) * 10**7 + value.microsecond * 10
    return ticks.to_bytes(5, "little")


def day_bytes(value: dt.date) -> bytes:
    return (dt.date(value.year, value.month, value.day) - YEAR_ONE).days.to_bytes(3, "little")


def old_moment_bytes(value: dt.datetime) -> bytes:
    since = value - OLD_EPOCH
    return struct.pack("<ii", since.days, round((since.seconds + since.microseconds / 1e6) * 300))


def zoned_bytes(value: dt.datetime) -> bytes:
    moment, offset = value.astimezone(dt.UTC), value.utcoffset() or dt.timedelta()
    return clock_bytes(moment) + day_bytes(moment) + struct.pack("<h", int(offset.total_seconds() // 60))


ENCODERS: dict[str, Callable[[Any, Column], bytes]] = {
    "bit": lambda value, _: bytes([bool(value)]),
    "int": lambda value, _: struct.pack("<i", value),
    "bigint": lambda value, _: struct.pack("<q", value),
    "float": lambda value, _: struct.pack("<d", value),
    "decimal": decimal_bytes,
    "uniqueidentifier": lambda value, _: uuid.UUID(str(value)).bytes_le,
    "date": lambda value, _: day_bytes(value),
    "time": lambda value, _: clock_bytes(value),
    "datetime": lambda value, _: old_moment_bytes(value),
    "datetime2": lambda value, _: clock_bytes(value) + day_bytes(value),
    "datetimeoffset": lambda value, _: zoned_bytes(value),
}


def rows_of(result: Result) -> bytes:
    head = b"".join(struct.pack("<IH", 0, 1) + type_info(each) + short_text(each.name) for each in result.columns)
    body = (
        b"\xd1" + b"".join(encoded(column, value) for column, value in zip(result.columns, row, strict=True))
        for row in result.rows
    )
    return b"\x81" + struct.pack("<H", len(result.columns)) + head + b"".join(body)


# Reading.


class Buffer:
    """The bytes of a request, read from the front."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, form: str = "<B") -> str:
        return self.take(2 * self.number(form)).decode("utf-16le")

    def skip_headers(self) -> None:
        self.at += struct.unpack_from("<I", self.data, self.at)[0]

    def value(self) -> Any:
        """Return the value of a parameter, which its type stands before."""
        kind = self.number("<B")
        if kind in {0xE7, 0xEF, 0xA7, 0xAF, 0xA5, 0xAD}:
            return self._sized(kind)
        if kind in {0x63, 0x23, 0x22}:
            return self._old_text(kind)
        if kind in {0x28, 0x29, 0x2A, 0x2B}:
            return self._temporal(kind)
        return self._short(kind)

    def _sized(self, kind: int) -> Any:
        longest = self.number("<H")
        self.take(5 if kind not in {0xA5, 0xAD} else 0)
        body = self._chunks() if longest == 0xFFFF else self._counted()
        if body is None or kind in {0xA5, 0xAD}:
            return body
        return body.decode("utf-16le" if kind in {0xE7, 0xEF} else "cp1252")

    def _chunks(self) -> bytes | None:
        if self.number("<Q") == 2**64 - 1:
            return None
        parts = []
        while size := self.number("<I"):
            parts.append(self.take(size))
        return b"".join(parts)

    def _counted(self) -> bytes | None:
        size = self.number("<H")
        return None if size == 0xFFFF else self.take(size)

    def _old_text(self, kind: int) -> Any:
        self.take(4 + (5 if kind != 0x22 else 0))
        size = self.number("<i")
        if size < 0:
            return None
        body = self.take(size)
        return body if kind == 0x22 else body.decode("utf-16le" if kind == 0x63 else "cp1252")

    def _temporal(self, kind: int) -> Any:
        scale = 0 if kind == 0x28 else self.number("<B")
        body = self.take(self.number("<B"))
        if not body:
            return None
        clock = len(body) - {0x28: 3, 0x29: 0, 0x2A: 3, 0x2B: 5}[kind]
        micros = int.from_bytes(body[:clock], "little") * 10**6 // 10**scale
        days = int.from_bytes(body[clock : clock + 3], "little")
        moment = dt.datetime.combine(YEAR_ONE, dt.time()) + dt.timedelta(days=days, microseconds=micros)
        if kind == 0x2B:
            zone = dt.timezone(dt.timedelta(minutes=struct.unpack("<h", body[-2:])[0]))
            return moment.replace(tzinfo=dt.UTC).astimezone(zone)
        return {0x28: moment.date(), 0x29: moment.time(), 0x2A: moment}[kind]

    def _short(self, kind: int) -> Any:
        if kind == 0x1F:
            return None
        fixed = {0x30: 1, 0x32: 1, 0x34: 2, 0x38: 4, 0x7F: 8, 0x3E: 8}
        if kind in fixed:
            return self._plain(0x6D if kind == 0x3E else 0x26, self.take(fixed[kind]))
        longest = self.number("<B")
        scale = self.take(2)[1] if kind in {0x6A, 0x6C} else longest
        body = self.take(self.number("<B"))
        if not body:
            return None
        if kind in {0x6A, 0x6C}:
            number = Decimal(int.from_bytes(body[1:], "little")).scaleb(-scale)
            return number if body[0] else -number
        return self._plain(kind, body)

    @staticmethod
    def _plain(kind: int, body: bytes) -> Any:
        match kind:
            case 0x26:
                # One byte is a number without a sign.
                return int.from_bytes(body, "little", signed=len(body) > 1)
            case 0x68:
                return bool(body[0])
            case 0x6D:
                return struct.unpack("<d" if len(body) == 8 else "<f", body)[0]
            case 0x24:
                return uuid.UUID(bytes_le=body)
            case 0x6F:
                days, ticks = struct.unpack("<ii", body) if len(body) == 8 else (0, 0)
                return OLD_EPOCH + dt.timedelta(days=days, milliseconds=round(ticks / 0.3))
            case 0x6E:
                high, low = struct.unpack("<iI", body)
                return Decimal((high << 32) | low).scaleb(-4)
        raise ServerError(8009, f"the stand-in knows no type {kind:#x}")


def declared_names(declarations: str | None) -> list[str]:
    """Return the names in ``@P1 nvarchar(10), @P2 decimal(10, 2)``."""
    return [part.split()[0] for part in (declarations or "").split(",") if part.strip().startswith("@")]


class Connection(socketserver.BaseRequestHandler):
    """One connection, from its first packet on."""

    server: TdsServer

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.session: Session | None = None
        self.prepared: dict[int, tuple[str, list[str]]] = {}
        self.server.lines.add(self.request)
        try:
            with suppress(OSError, Hangup):
                while True:
                    self.answer(*self.received())
        finally:
            self.server.lines.discard(self.request)
            if self.session is not None:
                self.session.close()

    def answer(self, kind: int, data: bytes) -> None:
        match kind:
            case 0x12:
                self.send(prelogin())
            case 0x10:
                self.session = self.server.new_session(database_in(data))
                self.send(logged_in(data[4:8]))
            case 0x01:
                buffer = Buffer(data)
                buffer.skip_headers()
                self.send(self.run(data[buffer.at :].decode("utf-16le"), {}))
            case 0x03:
                self.send(self.procedures(Buffer(data)))
            case 0x0E:
                self.transaction(Buffer(data))
            case 0x06:
                self.send(done(flags=IS_ATTENTION))

    def received(self) -> tuple[int, bytes]:
        parts = []
        while True:
            kind, status, length = struct.unpack(">BBH", self.exactly(8)[:4])
            parts.append(self.exactly(length - 8))
            if status & 1:
                return kind, b"".join(parts)

    def exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.request.recv(count)
            if not part:
                raise ConnectionResetError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        room = PACKET - 8
        pieces = [data[at : at + room] for at in range(0, len(data), room)] or [b""]
        packets = (
            struct.pack(">BBHHBB", 4, int(number == len(pieces)), len(piece) + 8, 51, number & 255, 0) + piece
            for number, piece in enumerate(pieces, start=1)
        )
        self.request.sendall(b"".join(packets))

    def run(self, sql: str, parameters: dict[str, Any], tail: bytes | None = None, more: int = 0) -> bytes:
        """Return the answer to a statement; a tail is what a procedure returns."""
        assert self.session is not None
        last = DONE if tail is None else DONE_PROCEDURE
        try:
            results = self.session.execute(sql, parameters)
        except ServerError as error:
            return failure(error) + done(last, IS_ERROR | more, 0)
        inner = DONE if tail is None else DONE_IN_PROCEDURE
        parts = []
        for place, result in enumerate(results, start=1):
            flags = HAS_MORE if tail is not None or place < len(results) else 0
            count = len(result.rows) if result.columns else result.changed
            parts.append((rows_of(result) if result.columns else b"") + done(inner, flags, count))
        return b"".join(parts) + (b"" if tail is None and results else (tail or b"") + done(last, more))

    def procedures(self, buffer: Buffer) -> bytes:
        """Return the answers to one call, or to several that came at once."""
        buffer.skip_headers()
        calls = []
        while buffer:
            calls.append(self.call(buffer))
        return b"".join(self.called(*call, HAS_MORE if call is not calls[-1] else 0) for call in calls)

    @staticmethod
    def call(buffer: Buffer) -> tuple[int | str, list[tuple[str, Any]]]:
        size = buffer.number("<H")
        name = buffer.number("<H") if size == 0xFFFF else buffer.take(2 * size).decode("utf-16le")
        buffer.take(2)
        given: list[tuple[str, Any]] = []
        while buffer and buffer.data[buffer.at] != NEXT_CALL:
            label = buffer.text()
            buffer.take(1)
            given.append((label, buffer.value()))
        buffer.take(1)
        return name, given

    def called(self, name: int | str, given: list[tuple[str, Any]], more: int) -> bytes:
        values = [value for _, value in given]
        match name:
            case 10 | "sp_executesql":
                names = declared_names(values[1]) if len(values) > 1 else []
                return self.run(values[0], dict(zip(names, values[2:], strict=False)), RETURNED, more)
            case 11 | "sp_prepare":
                return self.prepare(given, values) + done(DONE_PROCEDURE, more)
            case 13 | "sp_prepexec":
                tail = self.prepare(given, values)
                return self.run(values[2], dict(zip(declared_names(values[1]), values[3:], strict=False)), tail, more)
            case 12 | "sp_execute":
                sql, names = self.prepared[values[0]]
                return self.run(sql, dict(zip(names, values[1:], strict=False)), RETURNED, more)
            case _:
                return RETURNED + done(DONE_PROCEDURE, more)

    def prepare(self, given: list[tuple[str, Any]], values: list[Any]) -> bytes:
        handle = len(self.prepared) + 1
        self.prepared[handle] = values[2], declared_names(values[1])
        output = b"\xac\0\0" + short_text(given[0][0]) + b"\x01" + struct.pack("<IH", 0, 0)
        return RETURNED + output + b"\x26\x04\x04" + struct.pack("<i", handle)

    def transaction(self, buffer: Buffer) -> None:
        assert self.session is not None
        buffer.skip_headers()
        kind = buffer.number("<H")
        mark = b"\x08" + b"\1" + b"\0" * 7
        if kind == 5:
            self.session.begin()
            self.send(environment(8, mark) + done())
            return
        (self.session.commit if kind == 7 else self.session.rollback)()
        buffer.text("<B")
        begins_again = bool(buffer) and buffer.number("<B") & 1
        answer = environment(9 if kind == 7 else 10, b"\0", mark)
        if begins_again:
            self.session.begin()
            answer += environment(8, mark)
        self.send(answer + done())


def database_in(login: bytes) -> str:
    """Return the database that a login asks for: the ninth of its texts."""
    start, length = struct.unpack_from("<HH", login, 36 + 8 * 4)
    return login[start : start + 2 * length].decode("utf-16le")


def prelogin() -> bytes:
    options = [(0, struct.pack(">BBHH", 16, 0, 1000, 0)), (1, b"\x02"), (2, b"\0"), (3, b""), (4, b"\0")]
    head, body, start = b"", b"", 5 * len(options) + 1
    for kind, value in options:
        head += struct.pack(">BHH", kind, start + len(body), len(value))
        body += value
    return head + b"\xff" + body


def logged_in(version: bytes) -> bytes:
    body = b"\x01" + version[::-1] + short_text("Microsoft SQL Server") + struct.pack(">BBH", 16, 0, 1000)
    acknowledged = b"\xad" + struct.pack("<H", len(body)) + body
    database = environment(1, short_text("shop"), short_text("master"))
    size = environment(4, short_text(str(PACKET)), short_text(str(PACKET)))
    return database + environment(7, b"\x05" + COLLATION) + acknowledged + size + done()


class TdsServer(socketserver.ThreadingTCPServer):
    """Listens on a free port of this machine."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, new_session: Callable[[str], Session]) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.new_session = new_session
        self.lines: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def cut_lines(self) -> None:
        """End all connections, as a failover does."""
        for line in list(self.lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(new_session: Callable[[str], Session]) -> Iterator[TdsServer]:
    with TdsServer(new_session) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.cut_lines()
            thread.join()
