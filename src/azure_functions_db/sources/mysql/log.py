"""One tick's reading of a binary log and of its tables."""

from __future__ import annotations

import re
import secrets
import struct
import time
import zlib
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from azure_functions_db.core.errors import ConfigurationError, FetchError, PositionLostError, SourceConfigurationError
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.sources.mysql.decoding import HEADER, HEADER_SIZE, EventKind, TableMaps
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, file_number, parsed, stem
from azure_functions_db.sources.mysql.server import Server, bytes_after, health_at, log_end, log_files
from azure_functions_db.sources.mysql.transactions import TransactionReader
from azure_functions_db.sources.stream import LogPage, RowsPage
from azure_functions_db.sql.failures import is_forbidden
from azure_functions_db.sql.reflection import refreshed, table_of
from azure_functions_db.sql.transactions import driver_errors, leave_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Change
    from azure_functions_db.sources.mysql.position import GtidSet
    from azure_functions_db.sources.mysql.server import LogFile
    from azure_functions_db.sources.stream import LogPosition, OnPositionLost, SnapshotMode, StreamHealth
    from azure_functions_db.sql.engine import EngineProvider


# A fetch that finds nothing for so long hands back where it has come to.
_PATIENCE_SECONDS = 10.0
# For so long an answer about the length of the log is good enough.
_FRESH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TableName:
    """A table with the schema that it lies in."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogOptions:
    """What the user of a source has chosen."""

    tables: tuple[str, ...]
    snapshot: SnapshotMode = "initial"
    on_position_lost: OnPositionLost = "stop"
    start_at: str = "now"
    server_id: int | None = None
    idle_bytes: int = 1 << 20
    idle_seconds: float = 60.0
    undecodable: Literal["error", "text"] = "error"


class BinlogLog:
    """The log of one server, as far as it concerns some tables."""

    def __init__(
        self,
        engine: Engine,
        options: BinlogOptions,
        snapshot_of: Callable[[TableName, Sequence[str]], SqlAlchemySource],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._options = options
        self._snapshot_of = snapshot_of
        self._clock = clock
        self.tables = names_of(options.tables, engine)
        self._charsets: dict[int, str] = {}
        self._folds_names = False
        self._retention_seconds: float | None = None
        self._maps = TableMaps(self._is_wanted, self._charset_of, self._hints_of)
        self._replica: Replica | None = None
        self._reader: TransactionReader | None = None
        self._expected: BinlogPosition | None = None
        self._files: Sequence[LogFile] | None = None
        self._files_seen = 0.0
        self._snapshots: dict[str, SqlAlchemySource] = {}

    # The port.

    def begin(self, *, anew: bool) -> LogPosition:
        """Fix where the stream begins: at a moment from which on the tables show all that lies before it."""
        with self.connected() as connection:
            server = self._examined(connection)
            self.probe(connection, server)
            wants_rows = self._options.snapshot != "never" and not anew
            if wants_rows or (anew and self._options.on_position_lost == "snapshot"):
                position = self._visible(connection, server)
            elif anew:
                position = oldest(connection)
            else:
                position = self.started_at(connection, server, self._options.start_at)
        return replace(position, server=server.uuid).written()

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        """Return the next rows of a table in the order of its key."""
        name = next(each for each in self.tables if str(each) == table)
        key = self._key_of(name)
        if table not in self._snapshots:
            self._snapshots[table] = self._snapshot_of(name, key)
        return RowsPage.of(self._snapshots[table], position, table, key, after, limit)

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        """Return the changes after a position."""
        start = BinlogPosition.of(position)
        if start != self._expected:
            self.close()
            self._reader = self._opened(start)
        reader = self._reader
        if reader is None:
            return LogPage([], position, more=False, facts=[health_at(start, 0, self._retention_seconds)])
        changes = self._taken(reader, limit)
        reached = self._expected = reader.position
        page = LogPage(
            changes,
            reached.written() if changes or self._is_worth_a_write(start, reached, reader) else position,
            more=not reader.is_over,
            facts=[health_at(reached, 0 if reader.is_over else self._bytes_after(reached), self._retention_seconds)],
            undecodable=_by_place(changes, reader.undecodable),
        )
        if reader.is_over:
            self.close()
        return page

    def _taken(self, reader: TransactionReader, limit: int) -> list[Change]:
        until = self._clock() + _PATIENCE_SECONDS
        try:
            return reader.take(limit, lambda: self._clock() > until)
        except BaseException:
            # What it had taken so far is lost with it: whoever tries again begins where the position is.
            self.close()
            raise

    def acknowledge(self, position: LogPosition) -> None:
        """Do nothing: the server keeps its log for as long as it was told to, whoever reads it."""

    def close(self) -> None:
        """End the connection to the log."""
        if self._replica is not None:
            self._replica.close()
        self._replica = self._reader = self._expected = None

    # Beginning.

    def started_at(self, connection: Connection, server: Server, text: str) -> BinlogPosition:
        """Return the position of a word or of a text."""
        if text == "beginning":
            return oldest(connection)
        if text != "now":
            position = parsed(text)
            server.gtid_set(position.gtids or "")  # refuses what is none
            return position
        if server.gtids is not None and not server.is_mariadb:
            return BinlogPosition(gtids=str(server.gtids))
        end = log_end(connection, server)
        return self._at_place(connection, server, end.name, end.size)

    def _visible(self, connection: Connection, server: Server) -> BinlogPosition:
        """Return a position before which everything shows in the tables.

        A transaction is in the log a moment before others see its rows: the end of the log will not do.
        """
        if server.is_mariadb:
            connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            status = connection.exec_driver_sql("SHOW STATUS LIKE 'binlog_snapshot%%'").all()
            connection.exec_driver_sql("ROLLBACK")
            place = {str(name).lower(): str(value) for name, value in status}
            file, offset = place["binlog_snapshot_file"], int(place["binlog_snapshot_position"])
            return self._at_place(connection, server, file, offset)
        if server.gtids is not None:
            return BinlogPosition(gtids=str(server.gtids))
        with self._locked(connection):
            end = log_end(connection, server)
        return BinlogPosition(file=end.name, offset=end.size)

    @contextmanager
    def _locked(self, connection: Connection) -> Iterator[None]:
        """Keep writers out of the tables for a moment: without GTIDs nothing else tells what shows in them."""
        from sqlalchemy.exc import DBAPIError

        quote = self.engine.dialect.identifier_preparer.quote_identifier
        names = ", ".join(f"{quote(table.schema)}.{quote(table.name)} READ" for table in self.tables)
        try:
            connection.exec_driver_sql(f"LOCK TABLES {names}")
        except DBAPIError as error:
            if not is_forbidden(error):
                raise
            raise SourceConfigurationError(
                "Without GTIDs the tables are locked for a moment before they are read, and this login may not do so: "
                "GRANT LOCK TABLES on them, or turn gtid_mode ON"
            ) from error
        try:
            yield
        finally:
            connection.exec_driver_sql("UNLOCK TABLES")

    @staticmethod
    def _at_place(connection: Connection, server: Server, file: str, offset: int) -> BinlogPosition:
        gtids = _gtids_at(connection, file, offset) if server.is_mariadb else None
        return BinlogPosition(file=file, offset=offset, gtids=gtids)

    def probe(self, connection: Connection, server: Server) -> None:
        """Ask for the end of the log, as a reader does: whoever may not read it learns of it before there is a need."""
        end = log_end(connection, server)
        with closing(self._new_replica(server)) as replica, suppress(PositionLostError):
            next(replica.dump(end.name, end.size), None)

    def _new_replica(self, server: Server) -> Replica:
        return Replica(
            self.engine,
            self._options.server_id or random_server_id(),
            is_mariadb=server.is_mariadb,
            checksums=server.has_checksums,
        )

    # Going on.

    def _opened(self, start: BinlogPosition) -> TransactionReader | None:
        """Return a reader that stands at the position; None where nothing has happened since."""
        with self.connected() as connection:
            server = self._examined(connection)
            if self._is_quiet(connection, server, start):
                return None
        try:
            return self._dumped(server, start)
        except PositionLostError:
            if not (start.gtids and self._is_purged(start.file)):
                raise
        # The file has gone, but perhaps nothing of it was left to read: the server knows by the GTIDs.
        self.close()
        return self._dumped(server, replace(start, file="", crc=None, offset=4))

    def quiet(self, position: LogPosition) -> StreamHealth | None:
        """Return how things stand where nothing has been committed since the position; else None."""
        start = BinlogPosition.of(position)
        with self.connected() as connection:
            is_quiet = self._is_quiet(connection, self._examined(connection), start)
        return health_at(start, 0, self._retention_seconds) if is_quiet else None

    def _is_quiet(self, connection: Connection, server: Server, start: BinlogPosition) -> bool:
        self._require_same_server(connection, server, start)
        return server.is_idle_at(start) or self._is_at_end(connection, server, start)

    def _dumped(self, server: Server, start: BinlogPosition) -> TransactionReader:
        replica = self._replica = self._new_replica(server)
        return TransactionReader(
            replica,
            self._events(replica, server, start),
            start,
            self._maps,
            is_mariadb=server.is_mariadb,
            is_wanted=self._is_wanted,
            is_mentioned=self._is_mentioned,
            undecodable_as_text=self._options.undecodable == "text",
        )

    @staticmethod
    def _events(replica: Replica, server: Server, start: BinlogPosition) -> Iterator[Event]:
        """Ask for the events after a position, and read the first: a server that no longer has them says so instead."""
        if start.file:
            events = replica.dump(start.file, start.offset)
        else:
            events = replica.dump_after(server.gtid_set(start.gtids or ""))
        return chain(list(islice(events, 1)), events)

    def _examined(self, connection: Connection) -> Server:
        server = Server.asked(connection)
        server.demand()
        self._folds_names = server.folds_names
        self._retention_seconds = server.retention_seconds
        return server

    @staticmethod
    def _require_same_server(connection: Connection, server: Server, start: BinlogPosition) -> None:
        if start.server and start.server != server.uuid:
            raise PositionLostError(
                f"The position is one of the server {start.server}; behind this address is now {server.uuid}"
            )
        if start.gtids and not server.has_seen(start.gtids):
            raise PositionLostError(
                f"The server has not seen all transactions before the position ({start.gtids}), only {server.gtids}: "
                "its log was reset, or it was restored to an earlier moment or replaced by another one"
            )
        if server.is_mariadb and start.file and start.gtids and start.crc is None:
            found = _gtids_at(connection, start.file, start.offset)
            if found is not None and found != start.gtids:
                raise PositionLostError(f"At {start.file}:{start.offset} the log is another one than before")

    @staticmethod
    def _is_at_end(connection: Connection, server: Server, start: BinlogPosition) -> bool:
        """Tell whether the log ends at a position; GTIDs would have told already."""
        return server.gtids is None and log_end(connection, server) == (start.file, start.end)

    def _is_purged(self, file: str) -> bool:
        """Tell whether a file is older than all that are left."""
        with self.connected() as connection:
            first = log_files(connection)[0].name
        return stem(file) == stem(first) and file_number(file) < file_number(first)

    def _is_worth_a_write(self, start: BinlogPosition, reached: BinlogPosition, reader: TransactionReader) -> bool:
        """Tell whether a position that moved past changes of others has moved far enough to be written."""
        moved_long = reached.time - start.time >= self._options.idle_seconds
        return moved_long or not start.file or reader.read_bytes >= self._options.idle_bytes

    def _bytes_after(self, reached: BinlogPosition) -> int:
        """Return how much of the log is left; the server is asked every few seconds, as its answer costs a question."""
        if self._files is None or self._clock() - self._files_seen > _FRESH_SECONDS:
            with self.connected() as connection:
                self._files, self._files_seen = log_files(connection), self._clock()
        return bytes_after(reached, self._files)

    # The tables.

    def _is_wanted(self, schema: str, name: str) -> bool:
        if self._folds_names:
            return any((schema.lower(), name.lower()) == (t.schema.lower(), t.name.lower()) for t in self.tables)
        return any((schema, name) == (table.schema, table.name) for table in self.tables)

    def _is_mentioned(self, statement: str) -> bool:
        names = "|".join(re.escape(table.name) for table in self.tables)
        return re.search(rf"(?<![\w$])(?:{names})(?![\w$])", statement, re.IGNORECASE) is not None

    def _charset_of(self, collation: int) -> str:
        if not self._charsets:
            with self.connected() as connection:
                self._charsets = _charsets(connection)
        try:
            return self._charsets[collation]
        except KeyError:
            raise SourceConfigurationError(f"The server does not know the collation {collation} of its log") from None

    def _hints_of(self, schema: str, name: str) -> Mapping[str, str | int]:
        """Return what the log does not say about columns: it is asked of the table as it is now."""
        with self.connected() as connection:
            hints = _hints(connection, schema, name)
        is_mariadb = getattr(self.engine.dialect, "is_mariadb", False)
        return {**hints, **self._documents_of(schema, name)} if is_mariadb else hints

    def _documents_of(self, schema: str, name: str) -> Mapping[str, str]:
        """Return the columns of MariaDB that are declared as JSON and kept as texts."""
        from sqlalchemy import JSON

        try:
            table = refreshed(self.engine, table_of(self.engine, name, schema))
        except ConfigurationError:
            return {}  # it was dropped since
        return {column.name: "json" for column in table.columns if isinstance(column.type, JSON)}

    def _key_of(self, name: TableName) -> list[str]:
        table = self._reflected(name)
        key = [column.name for column in table.primary_key.columns]
        if not key:
            raise SourceConfigurationError(f"Table {name} has no primary key: ALTER TABLE … ADD PRIMARY KEY …")
        return key

    def _reflected(self, name: TableName) -> Table:
        return table_of(self.engine, name.name, name.schema)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Lend a connection on which each statement stands alone."""
        with self.engine.connect() as connection:
            leave_transactions(connection)
            yield connection


def names_of(tables: Sequence[str], engine: Engine) -> tuple[TableName, ...]:
    """Return the tables with their schemas: their own, or that of the URL."""
    return tuple(_name_of(table, engine.url.database) for table in tables)


def _name_of(table: str, database: str | None) -> TableName:
    schema, dot, name = table.rpartition(".")
    if not dot and not database:
        raise SourceConfigurationError(f"Table {table!r} needs its database: write database.{table}", table=table)
    return TableName(schema or str(database), name)


def oldest(connection: Connection) -> BinlogPosition:
    """Return the beginning of what the server still has of its log."""
    return BinlogPosition(file=log_files(connection)[0].name)


def _gtids_at(connection: Connection, file: str, offset: int) -> str | None:
    """Return MariaDB's GTIDs at a place of its log; None where it does not know."""
    from sqlalchemy import text

    found = connection.execute(text("SELECT BINLOG_GTID_POS(:file, :offset)"), {"file": file, "offset": offset})
    value = found.scalar_one()
    return None if value is None else str(MariaDbGtids(str(value)))


def _charsets(connection: Connection) -> dict[int, str]:
    """Return the character set of each collation; MariaDB has a fuller list than the standard view."""
    found = connection.exec_driver_sql(
        "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL"
    )
    charsets = {int(number): str(charset) for number, charset in found}
    if getattr(connection.dialect, "is_mariadb", False):
        fuller = connection.exec_driver_sql(
            "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability"
        )
        charsets |= {int(number): str(charset) for number, charset in fuller}
    return charsets


def _hints(connection: Connection, schema: str, name: str) -> dict[str, str | int]:
    """Return which columns are invisible or of types that only MariaDB has, and the digits of a FLOAT(m, d)."""
    from sqlalchemy import text

    query = text(
        "SELECT column_name, data_type, numeric_scale, extra LIKE '%INVISIBLE%' FROM information_schema.columns "
        "WHERE table_schema = :schema AND table_name = :name"
    )
    found = connection.execute(query, {"schema": schema, "name": name})
    hints = {str(column): _hint(str(kind), scale, is_invisible) for column, kind, scale, is_invisible in found}
    return {column: hint for column, hint in hints.items() if hint is not None}


def _hint(kind: str, scale: int | None, is_invisible: bool) -> str | int | None:
    if is_invisible:
        return "invisible"
    if kind == "float":
        return scale
    return kind if kind in {"uuid", "inet4", "inet6"} else None


def _by_place(changes: Sequence[Change], reasons: dict[str, Exception]) -> dict[int, Exception]:
    if not reasons:
        return {}
    found = {place: reasons[change.position] for place, change in enumerate(changes) if change.position in reasons}
    for place in found:
        del reasons[changes[place].position]
    return found


def in_utc(config: DbConfig) -> DbConfig:
    """Return the configuration for sessions in UTC, in which the log holds its moments."""
    arguments = dict(config.connect_args or {})
    first = str(arguments.get("init_command") or "").strip().rstrip(";")
    if first and not first.upper().startswith("SET "):
        return config
    arguments["init_command"] = f"{first}, time_zone = '+00:00'" if first else "SET time_zone = '+00:00'"
    return replace(config, connect_args=arguments)


def snapshot_source(
    config: DbConfig, provider: EngineProvider | None, options: BinlogOptions, name: TableName, key: Sequence[str]
) -> SqlAlchemySource:
    """Return what reads a table in the order of its key."""
    return SqlAlchemySource(
        db_config=config,
        engine_provider=provider,
        table=name.name,
        schema=name.schema,
        cursor_column=key[0],
        pk_columns=list(key),
        in_flight="ignore",
        undecodable=options.undecodable,
        name=str(name),
    )


# Speaks to a server as its replicas do, on a connection of PyMySQL's: asks for its log, and takes it event by event.
#
# Connections are made by the engine, so that TLS, tokens and options are those of every other connection. The log is
# asked for without waiting: the server ends the answer where its log ends, and the connection with it.

_REGISTER, _DUMP, _DUMP_GTID = 0x15, 0x12, 0x1E
_DO_NOT_WAIT, _THROUGH_GTID = 1, 4
_OK, _EOF, _ERROR = 0, 0xFE, 0xFF
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
        self._packets: Iterator[bytes] = iter(())
        try:
            with driver_errors(self._lent):
                self._introduce()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; the server notices when it sends the next time."""
        self._packets = iter(())  # as long as anybody has its stream, the connection stays open
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
        from azure_functions_db.sql.mysql_wire import packets

        self._connection._execute_command(code, arguments)  # noqa: SLF001 - PyMySQL has no public way to send one
        self._connection._sock.settimeout(_SILENCE_SECONDS)  # noqa: SLF001 - as above
        self._connection._current_timeout = _SILENCE_SECONDS  # noqa: SLF001 - as above
        self._packets = packets(self._connection._rfile)  # noqa: SLF001 - as above

    def _answer(self) -> None:
        _raise_for(self._packet())

    def _packet(self) -> bytes:
        try:
            return next(self._packets)
        except OSError as error:
            raise FetchError(f"The log does not go on: {error}", transient=True) from error

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
