"""Speaks to a server as its replicas do, on a connection of PyMySQL's: asks for its log, and takes it event by event.

Connections are made by the engine, so that TLS, tokens and options are those of every other connection. The log is
asked for without waiting: the server ends the answer where its log ends, and the connection with it.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import FetchError, PositionLostError, SourceConfigurationError
from azure_functions_db.sources.mysql.events import HEADER, HEADER_SIZE, EventKind
from azure_functions_db.sql.autocommit import driver_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from azure_functions_db.sources.mysql.position import GtidSet

_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
_DO_NOT_WAIT, _THROUGH_GTID = 1, 4
_OK, _EOF, _ERROR = 0, 0xFE, 0xFF
_LARGEST_PACKET = 0xFFFFFF
_CHECKSUM_SIZE = 4
_FIRST_EVENT = 4
"""Where the events of a file begin, after its magic number."""
# The server has nothing to say for long while it searches its files: it is made to say so.
_HEARTBEAT = 5 * 10**9
_SILENCE_SECONDS = 60.0
_PURGED = 1236
_RANDOM_BITS = 31


class Event(NamedTuple):
    """One event as it stands in the log."""

    kind: int
    timestamp: int
    server_id: int
    start: int
    """Where it begins in its file."""
    end: int
    body: bytes
    crc: int
    """The checksum of all its bytes."""


def random_server_id() -> int:
    """Return an id that no other reader has: of two with the same one, the server throws the first out."""
    return secrets.randbits(_RANDOM_BITS) | 1 << _RANDOM_BITS


class Replica:
    """A connection on which the server sends its log."""

    def __init__(self, engine: Engine, server_id: int, *, is_mariadb: bool, checksums: bool) -> None:
        self._lent = engine.connect()
        self._lent.detach()  # it ends with the log, and no longer counts for the pool
        self._connection: Any = self._lent.connection.dbapi_connection
        self._is_mariadb = is_mariadb
        self._server_id = server_id
        self._checksums = checksums
        self.file = ""
        """The file that the events come from."""
        try:
            with driver_errors(self._lent):
                self._introduce()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the server notices when it sends the next time."""
        with suppress(Exception):
            # There is no answer to a goodbye in the middle of a log.
            self._connection._force_close()  # noqa: SLF001 - PyMySQL's close() says one
            self._lent.invalidate()

    def dump(self, file: str, offset: int) -> Iterator[Event]:
        """Return the events from a place of a file on."""
        self.file = file
        self._command(_DUMP, struct.pack("<IHI", offset, _DO_NOT_WAIT, self._server_id) + file.encode())
        return self._events()

    def dump_after(self, done: GtidSet) -> Iterator[Event]:
        """Return the events of the transactions that are not done yet, as far as the server still has all of them."""
        if self._is_mariadb:
            state = str(done)
            self._execute(f"SET @slave_connect_state = '{state}', @slave_gtid_strict_mode = 0")
            return self.dump("", _FIRST_EVENT)
        encoded = done.encoded()
        flags = _DO_NOT_WAIT | _THROUGH_GTID
        head = struct.pack("<HIIQI", flags, self._server_id, 0, _FIRST_EVENT, len(encoded))
        self._command(_DUMP_GTID, head + encoded)
        return self._events()

    def _introduce(self) -> None:
        """Say what we understand: checksums, MariaDB's own events, and that we want to hear of it when all is quiet."""
        self._execute(
            "SET @mariadb_slave_capability = 4, "
            "@master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum, "
            f"@master_heartbeat_period = {_HEARTBEAT}, @source_heartbeat_period = {_HEARTBEAT}"
        )
        # No host, user or password of ours, port 0, no rank, our source's id.
        self._command(_REGISTER, struct.pack("<IBBBHII", self._server_id, 0, 0, 0, 0, 0, 0))
        self._answer()

    def _execute(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def _command(self, code: int, arguments: bytes) -> None:
        self._connection._execute_command(code, arguments)  # noqa: SLF001 - PyMySQL has no public way to send one
        self._connection._sock.settimeout(_SILENCE_SECONDS)  # noqa: SLF001 - as above
        self._connection._current_timeout = _SILENCE_SECONDS  # noqa: SLF001 - as above

    def _answer(self) -> None:
        _raise_for(self._packet())

    def _packet(self) -> bytes:
        """Return the next packet; the parts of a large one are joined."""
        read = self._connection._rfile.read  # noqa: SLF001 - PyMySQL's own reading makes an object of each packet
        parts: list[bytes] = []
        while True:
            try:
                head = read(4)
                length = int.from_bytes(head[:3], "little")
                data = read(length) if len(head) == 4 else b""
            except OSError as error:
                raise FetchError(f"The log does not go on: {error}", transient=True) from error
            if len(head) < 4 or len(data) < length:
                raise FetchError("The server cut the connection in the middle of its log", transient=True)
            if length < _LARGEST_PACKET and not parts:
                return bytes(data)
            parts.append(data)
            if length < _LARGEST_PACKET:
                return b"".join(parts)

    def _events(self) -> Iterator[Event]:
        unpack, crc32, form, rotation = HEADER.unpack_from, zlib.crc32, int(EventKind.FORMAT), int(EventKind.ROTATE)
        while True:
            packet = self._packet()
            if packet[:1] != b"\0":
                _raise_for(packet)
                return
            try:
                timestamp, kind, server_id, length, end, _ = unpack(packet, 1)
            except struct.error as broken:
                raise FetchError("An event has no header") from broken
            if length != len(packet) - 1:
                raise FetchError(f"An event is {len(packet) - 1} bytes long and claims to be {length}")
            if kind == form:
                self._checksums = packet[-_CHECKSUM_SIZE - 1] == 1
            if self._checksums:
                crc = crc32(packet[1:-_CHECKSUM_SIZE])
                if crc.to_bytes(4, "little") != packet[-_CHECKSUM_SIZE:] and kind != form:
                    raise FetchError(f"An event before {self.file}:{end} is damaged: its checksum does not fit")
                body = packet[1 + HEADER_SIZE : -_CHECKSUM_SIZE]
            else:
                crc, body = crc32(packet[1:]), packet[1 + HEADER_SIZE :]
            if kind == rotation:
                self.file = body[8:].decode(errors="replace")
            yield Event(kind, timestamp, server_id, end - length, end, body, crc)


def _raise_for(packet: bytes) -> None:
    """Raise what the server complains of; the end of its log is no complaint."""
    if packet[:1] != bytes([_ERROR]):
        return
    number = int.from_bytes(packet[1:3], "little")
    text = packet[9:].decode(errors="replace") if packet[3:4] == b"#" else packet[3:].decode(errors="replace")
    if number == _PURGED:
        raise PositionLostError(f"The server no longer has what follows the position: {text} ({number})")
    if number in {1045, 1227}:
        raise SourceConfigurationError(f"This login may not read the binary log: {text} ({number})")
    raise FetchError(f"The server refuses to send its log: {text} ({number})", transient=number in _PASSING)


_PASSING = frozenset({1053, 1927, 2006, 2013, 1040, 1203})
