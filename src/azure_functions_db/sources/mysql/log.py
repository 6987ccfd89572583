"""One tick's reading of a binary log and of its tables."""

from __future__ import annotations

import datetime as dt
import re
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.errors import ConfigurationError, PositionLostError, SourceConfigurationError
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.sources.mysql.events import TableMaps
from azure_functions_db.sources.mysql.gtids import MariaDbGtids
from azure_functions_db.sources.mysql.position import BinlogPosition, file_number, parsed, stem
from azure_functions_db.sources.mysql.replica import Replica, random_server_id
from azure_functions_db.sources.mysql.server import Server, bytes_after, log_end, log_files
from azure_functions_db.sources.mysql.transactions import TransactionReader
from azure_functions_db.sources.stream import LogPage, RowsPage, StreamHealth
from azure_functions_db.sql.autocommit import leave_transactions
from azure_functions_db.sql.failures import is_forbidden
from azure_functions_db.sql.reflection import refreshed, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Change
    from azure_functions_db.sources.mysql.replica import Event
    from azure_functions_db.sources.mysql.server import LogFile
    from azure_functions_db.sources.stream import LogPosition, OnPositionLost, SnapshotMode
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
        if self._reader is None or start != self._expected:
            self.close()
            self._reader = self._opened(start)
        reader = self._reader
        if reader is None:
            return LogPage([], position, more=False, facts=[_health(start, 0)])
        changes = self._taken(reader, limit)
        reached = self._expected = reader.position
        page = LogPage(
            changes,
            reached.written() if changes or self._is_worth_a_write(start, reached, reader) else position,
            more=not reader.is_over,
            facts=[_health(reached, 0 if reader.is_over else self._bytes_after(reached))],
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
            return parsed(text)
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
            self._require_same_server(connection, server, start)
            if server.is_idle_at(start) or self._is_at_end(connection, server, start):
                return None
        try:
            return self._dumped(server, start)
        except PositionLostError:
            if not (start.file and start.gtids and self._is_purged(start.file)):
                raise
        # The file has gone, but perhaps nothing of it was left to read: the server knows by the GTIDs.
        self.close()
        return self._dumped(server, replace(start, file="", crc=None, offset=4))

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
        if start.file:
            return replica.dump(start.file, start.offset)
        return replica.dump_after(server.gtid_set(start.gtids or ""))

    def _examined(self, connection: Connection) -> Server:
        server = Server.asked(connection)
        server.demand()
        self._folds_names = server.folds_names
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
        return start.crc is not None and server.gtids is None and log_end(connection, server) == (start.file, start.end)

    def _is_purged(self, file: str) -> bool:
        """Tell whether a file is older than all that are left."""
        with self.connected() as connection:
            first = log_files(connection)[0].name
        return stem(file) == stem(first) and file_number(file) < file_number(first)

    def _is_worth_a_write(self, start: BinlogPosition, reached: BinlogPosition, reader: TransactionReader) -> bool:
        """Tell whether a position that moved past changes of others has moved far enough to be written."""
        if reached == start:
            return False
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


def _health(position: BinlogPosition, lag_bytes: int) -> StreamHealth:
    committed = dt.datetime.fromtimestamp(position.time, dt.UTC) if position.time else None
    age = (dt.datetime.now(dt.UTC) - committed).total_seconds() if committed is not None else 0.0
    return StreamHealth(lag_bytes=lag_bytes, lag_seconds=max(0.0, age) if lag_bytes else 0.0, last_commit_at=committed)


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
