"""PostgreSQL's write-ahead log as a source: every change of some tables, in the order of the commits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import clock_finding
from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Backlog, Finding, SourceDescriptor
from azure_functions_db.sources.postgres.pgoutput import lsn_of, lsn_text
from azure_functions_db.sources.postgres.server import PLUGIN, defined
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sources.stream import LOG_CAPABILITY, LogSource, Place, StreamReader, quiet_at
from azure_functions_db.sql.engine import default_provider, parsed_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import AdapterCapability, CheckpointJson, FetchResult
    from azure_functions_db.sources.postgres.log import Histories, PostgresLog, Processors
    from azure_functions_db.sources.postgres.server import (
        Definition,
        OnMaxRetained,
        Server,
        ServerState,
        Table,
        Transport,
        Undecodable,
    )
    from azure_functions_db.sources.stream import OnPositionLost, SnapshotMode, StreamHealth
    from azure_functions_db.sql.engine import EngineProvider


KIND = "postgres-logical"


class PostgresLogicalSource(LogSource):
    """Reads the changes of tables from a logical replication slot, decoded by PostgreSQL's own pgoutput.

    Making one only checks its arguments; the database and the environment are first looked at when
    something is read. Needs psycopg 3 and a login with REPLICATION.

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``tables``:
      The tables, as ``name`` or ``schema.name``.
    - ``slot``, ``publication``:
      Their names on the server; a publication has the slot's name unless it is given another.
    - ``create``:
      Make slot and publication where they are missing; otherwise that is an error.
    - ``snapshot``:
      "initial": the rows that are there, then the changes. "never": changes from the slot's beginning.
      "only": the rows alone, without a slot.
    - ``columns``, ``row_filter``:
      Of a table that is published for this source; for several tables a mapping by their names.
    - ``refetch_toast``:
      Read large values that an update did not touch from the table, as they are now.
    - ``transport``:
      "stream": the replication protocol. "sql": functions, where only SQL gets through (PgBouncer).
    - ``max_retained_mb``, ``on_max_retained``:
      How much log the slot may hold back; past that it is warned about, and with "drop" the slot is dropped.
    - ``heartbeat_seconds``, ``idle_commit_mb``:
      A position that moved though nothing changed is committed after this time (with a message in the log, so
      that the server can let go of it) or when it has moved this far.
    - ``on_position_lost``:
      "stop": raise `PositionLostError`. "snapshot": read the tables anew. "continue": go on from what is left.
    - ``patience_seconds``, ``create_timeout_seconds``:
      How long the server may be silent before that is an error, and how long a new slot may wait for open
      transactions.
    - ``undecodable``:
      What becomes of a row with a value that Python cannot hold: an "error" for the quarantine, or a "text".
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        tables: str | Sequence[str],
        slot: str,
        publication: str | None = None,
        create: bool = True,
        snapshot: SnapshotMode = "initial",
        columns: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        row_filter: Mapping[str, str] | str | None = None,
        refetch_toast: bool = False,
        transport: Transport = "stream",
        max_retained_mb: float = 1024,
        on_max_retained: OnMaxRetained = "warn",
        heartbeat_seconds: float | None = 300,
        idle_commit_mb: float = 16,
        on_position_lost: OnPositionLost = "stop",
        undecodable: Undecodable = "error",
        engine_provider: EngineProvider | None = None,
        name: str | None = None,
        patience_seconds: float = 60,
        create_timeout_seconds: float = 60,
    ) -> None:
        try:
            self._config = config_of(url, db_config)
        except ConfigurationError as error:
            raise SourceConfigurationError.of(error) from None
        self._definition = defined(
            tables=tables,
            slot=slot,
            publication=publication,
            create=create,
            snapshot=snapshot,
            columns=columns,
            row_filter=row_filter,
            refetch_toast=refetch_toast,
            transport=transport,
            max_retained_mb=max_retained_mb,
            on_max_retained=on_max_retained,
            heartbeat_seconds=heartbeat_seconds,
            idle_commit_mb=idle_commit_mb,
            on_position_lost=on_position_lost,
            undecodable=undecodable,
            patience_seconds=patience_seconds,
            create_timeout_seconds=create_timeout_seconds,
        )
        self.name = name or slot
        self._provider = engine_provider
        self._processors: Processors = {}
        self._passed: dict[str, int] = {}
        self._histories: Histories = {}

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            return SourceDescriptor(self.name, KIND, self._definition.fingerprint(self._config))

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return replace(LOG_CAPABILITY, acknowledges=True)

    def open(self) -> StreamReader:
        """Become the slot's only reader."""
        with reading(self.name):
            log = self._log()
            log.hold()
            return StreamReader(
                log,
                kind=KIND,
                tables=self._definition.table_names,
                snapshot=self._definition.snapshot,
                on_position_lost=self._definition.on_position_lost,
                source=self.name,
            )

    def quiet(self, checkpoint: CheckpointJson) -> FetchResult | None:
        """Return an empty result where the log has nothing for this source and its slot stands at the checkpoint."""
        return quiet_at(checkpoint, lambda position: self._log().quiet(position))

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        with reading(self.name):
            check_definition(self._server(), self._definition, self.name)

    def examine(self) -> list[Finding]:
        """Return what an operator should know: wal_level, rights, keys, publication, slot, retention."""
        with reading(self.name):
            return list(examined(self._server(), self._definition, self._config))

    checkup = examine

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many bytes of log follow the checkpoint, and how old they can be; other tables' are among them."""
        health = self._health(checkpoint)
        return Backlog(health.lag_bytes or 0, "bytes", lag_seconds=health.lag_seconds)

    def report(self, checkpoint: CheckpointJson) -> Sequence[Fact]:
        """Return how far behind a poller is that stands at the checkpoint, and what its slot holds."""
        return [self._health(checkpoint)]

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        place = Place.of(checkpoint)
        if place is None:
            return "beginning"
        if place.table is not None:
            return f"{place.position['value']} (reading {place.table})"
        return str(place.position["value"])

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed: a place in the log, "now" or "beginning"."""
        if text == "beginning":
            return {}
        if text == "now":
            with reading(self.name):
                return Place(self._log().end()).checkpoint(KIND)
        try:
            return {"cursor": {"kind": KIND, "value": lsn_text(lsn_of(text.split(maxsplit=1)[0]))}}
        except (ValueError, IndexError):
            raise SourceConfigurationError(
                f"{text!r} is no place in the log: it should look like 0/16B3748", source=self.name
            ) from None

    def create_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Make publication and slot where they are missing; return the statements."""
        with reading(self.name):
            server = self._server()
            statements = server.creation(server.look(), server.tables())
            if not dry_run:
                server.execute(statements)
            return statements

    def drop_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Drop slot and publication where they are; return the statements."""
        with reading(self.name):
            server = self._server()
            statements = server.removal(server.look())
            if not dry_run:
                server.execute(statements)
            return statements

    def show_stream(self) -> Mapping[str, Any]:
        """Return what is there."""
        with reading(self.name):
            return shown(self._server(), self._definition)

    def __repr__(self) -> str:
        return f"PostgresLogicalSource({self.name!r})"

    def _health(self, checkpoint: CheckpointJson) -> StreamHealth:
        from azure_functions_db.sources.postgres.log import age_of, committed_at, health

        with reading(self.name):
            state = self._server().look()
            waiting, place = self._waiting(checkpoint, state), Place.of(checkpoint)
            position = {} if place is None else place.position
            age = age_of(position, state) if waiting else 0.0
            return health(self._definition, state, waiting, age, committed_at(position))

    def _waiting(self, checkpoint: CheckpointJson, state: ServerState) -> int:
        place = Place.of(checkpoint)
        if place is None:
            confirmed = None if state.slot is None else state.slot.confirmed_lsn
            return 0 if confirmed is None else max(0, state.flushed_lsn - confirmed)
        if self._definition.snapshot != "only":
            self._log().check(place.position, state)
        return max(0, state.flushed_lsn - lsn_of(place.position["value"]))

    def _log(self) -> PostgresLog:
        from azure_functions_db.sources.postgres.log import PostgresLog

        return PostgresLog(self._server(), self._config, self._definition, self.name, *self._known())

    def _known(self) -> tuple[Processors, dict[str, int], Histories]:
        """Return what one tick leaves to the next."""
        return self._processors, self._passed, self._histories

    def _server(self) -> Server:
        from azure_functions_db.sources.postgres.server import Server

        url = parsed_url(self._config.resolved().connection_url)
        if url.drivername != "postgresql+psycopg":
            raise SourceConfigurationError(
                f"The log is read by psycopg 3: the URL has to begin with postgresql+psycopg://, not {url.drivername}://",
                source=self.name,
            )
        engine = (self._provider or default_provider()).get_engine(self._config)
        return Server(engine, self._definition, self.name)


_OLDEST = 140000
_IDENTITIES = {"d": "primary key", "i": "index", "f": "the full row", "n": "nothing"}
_SETTINGS = """
SELECT rolname AS login, rolreplication OR rolsuper AS may_replicate,
       has_database_privilege(current_database(), 'CREATE') AS may_publish,
       current_setting('max_replication_slots')::int AS slots, (SELECT count(*) FROM pg_replication_slots) AS used,
       current_setting('max_wal_senders')::int AS senders, current_setting('max_slot_wal_keep_size') AS keep
FROM pg_roles WHERE rolname = current_user
"""


def check_definition(server: Server, definition: Definition, name: str) -> None:
    """Raise for the first thing that cannot work."""
    for finding in findings(server, definition):
        if finding.grade == "error":
            raise SourceConfigurationError(f"Source {name!r}: {finding.text}: {finding.remedy}", source=name)


def examined(server: Server, definition: Definition, config: DbConfig) -> Iterator[Finding]:
    """Look at everything that the source depends on."""
    yield from findings(server, definition)
    if definition.snapshot != "only":
        yield _transport(server, definition, config)
    yield clock_finding("database clock", server.look().now)


def findings(server: Server, definition: Definition) -> Iterator[Finding]:
    """Look at what can be wrong, with the statement that cures it."""
    state, tables, settings = server.look(), server.tables(), _settings(server)
    yield _version(state)
    if definition.snapshot != "only":
        yield _wal_level(state)
        yield _right(settings)
    yield from (_readable(server, table, settings) for table in tables)
    if definition.snapshot == "only":
        return
    yield from (_identity(server, table) for table in tables)
    yield from _publication(server, definition, state, tables, settings)
    yield _slot(definition, state, settings)
    yield _retention(definition, state, settings)


def shown(server: Server, definition: Definition) -> dict[str, Any]:
    """Return slot and publication as they are."""
    state = server.look()
    published = [table for table in server.tables() if table.published is not None]
    shown: dict[str, Any] = {
        "publication": definition.publication if state.has_publication else None,
        "tables": [str(table.name) for table in published],
        "slot": definition.slot if state.slot else None,
    }
    slot = state.slot
    if slot is None:
        return shown
    return shown | {
        "plugin": slot.plugin,
        "reader": f"process {slot.active_pid}" if slot.is_active else None,
        "status": slot.invalidation or slot.wal_status,
        "confirmed": None if slot.confirmed_lsn is None else lsn_text(slot.confirmed_lsn),
        "end_of_log": lsn_text(state.flushed_lsn),
        "retained_bytes": state.retained_bytes,
        "safe_wal_bytes": slot.safe_wal_bytes,
        "failover": slot.is_failover,
    }


def _settings(server: Server) -> Mapping[str, Any]:
    from sqlalchemy import text

    with server.connected() as connection:
        return dict(connection.execute(text(_SETTINGS)).mappings().one())


def _version(state: ServerState) -> Finding:
    major = f"PostgreSQL {state.version // 10000}"
    if state.version < _OLDEST:
        return Finding("version", "error", f"{major} is too old", "14 is the oldest that is supported")
    return Finding("version", "ok", major)


def _wal_level(state: ServerState) -> Finding:
    if state.wal_level == "logical":
        return Finding("wal_level", "ok", "logical")
    return Finding(
        "wal_level",
        "error",
        f"wal_level is {state.wal_level}: changes cannot be decoded",
        "ALTER SYSTEM SET wal_level = logical, then restart the server (on Azure: the server parameter wal_level)",
    )


def _right(settings: Mapping[str, Any]) -> Finding:
    if settings["may_replicate"]:
        return Finding("replication", "ok", f"{settings['login']} may replicate")
    return Finding(
        "replication",
        "error",
        f"{settings['login']} may not replicate",
        f'ALTER ROLE "{settings["login"]}" WITH REPLICATION',
    )


def _readable(server: Server, table: Table, settings: Mapping[str, Any]) -> Finding:
    if table.may_read:
        return Finding("rights", "ok", f"{table.name} can be read")
    schema, login = server.quoted(table.name.schema), settings["login"]
    return Finding(
        "rights",
        "error",
        f"{table.name} cannot be read by {login}",
        f'GRANT USAGE ON SCHEMA {schema} TO "{login}"; GRANT SELECT ON {server.quoted(*table.name)} TO "{login}"',
    )


def _identity(server: Server, table: Table) -> Finding:
    if not table.is_identified:
        return Finding(
            "replica identity",
            "error",
            f"{table.name} has none: once published, UPDATE and DELETE on it fail in the sessions of its writers",
            f"ALTER TABLE {server.quoted(*table.name)} ADD PRIMARY KEY (…), or … REPLICA IDENTITY FULL",
        )
    if not table.key:
        return Finding(
            "replica identity",
            "warning",
            f"{table.name} has no key: each change names its whole row, and no snapshot can be read",
            f"ALTER TABLE {server.quoted(*table.name)} ADD PRIMARY KEY (…)",
        )
    before = "rows before come whole" if table.identity == "f" else "of rows before, only changed keys are known"
    return Finding("replica identity", "ok", f"{table.name}: {_IDENTITIES[table.identity]}; {before}")


def _publication(
    server: Server, definition: Definition, state: ServerState, tables: Sequence[Table], settings: Mapping[str, Any]
) -> Iterator[Finding]:
    if not state.has_publication:
        yield _missing_publication(definition, state, settings)
        return
    for table in tables:
        if table.published is None:
            change = "SET (publish_via_partition_root = true)" if table.kind == "p" else "ADD TABLE"
            name = "" if table.kind == "p" else f" {server.quoted(*table.name)}"
            yield Finding(
                "publication",
                "error",
                f"{definition.publication} does not publish {table.name}",
                f"ALTER PUBLICATION {server.quoted(definition.publication)} {change}{name}",
            )
        elif (difference := _difference(definition, table)) is not None:
            yield Finding(
                "publication",
                "error",
                f"{definition.publication} publishes {table.name} {difference}",
                "ALTER PUBLICATION … SET TABLE …, or leave columns= and row_filter= out",
            )
        else:
            yield Finding("publication", "ok", f"{definition.publication} publishes {table.name}")
    missing = _unpublished_operations(server, definition)
    if missing:
        yield Finding(
            "publication",
            "warning",
            f"{definition.publication} does not publish {', '.join(missing)}",
            f"ALTER PUBLICATION {server.quoted(definition.publication)} "
            "SET (publish = 'insert, update, delete, truncate')",
        )


def _missing_publication(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    text = f"publication {definition.publication} does not exist"
    if state.slot is not None:
        return Finding(
            "publication",
            "error",
            f"{text}, and the slot is older than any that could be made now",
            "azfdb stream drop, then azfdb stream create",
        )
    if definition.create and settings["may_publish"]:
        return Finding("publication", "note", f"{text} yet: the first tick makes it")
    cure = "azfdb stream create, with a login that owns the tables and has CREATE on the database"
    return Finding("publication", "error", text, cure)


def _difference(definition: Definition, table: Table) -> str | None:
    """Return in what a publication differs from the columns and rows that were asked for."""
    columns, condition = definition.columns.get(table.name), definition.row_filter.get(table.name)
    if columns is not None and table.columns is not None and set(columns) != set(table.columns):
        return f"with the columns {', '.join(table.columns)}, not {', '.join(columns)}"
    if (condition is None) != (table.row_filter is None) and condition is not None:
        return "without a row filter"
    return None


def _unpublished_operations(server: Server, definition: Definition) -> list[str]:
    from sqlalchemy import text

    query = text("SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = :name")
    with server.connected() as connection:
        row = connection.execute(query, {"name": definition.publication}).one()
    return [name for name, is_on in zip(("insert", "update", "delete", "truncate"), row, strict=True) if not is_on]


def _slot(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    slot = state.slot
    if slot is None:
        if not definition.create:
            return Finding("slot", "error", f"{definition.slot} does not exist", "azfdb stream create")
        if settings["used"] >= settings["slots"]:
            return Finding(
                "slot",
                "error",
                f"all {settings['slots']} slots of the server are taken",
                f"ALTER SYSTEM SET max_replication_slots = {settings['slots'] + 10}, then restart the server; or drop "
                "one that nobody reads",
            )
        return Finding("slot", "note", f"{definition.slot} does not exist yet: the first tick makes it")
    if slot.plugin != PLUGIN or slot.database != state.database:
        return Finding(
            "slot", "error", f"{definition.slot} belongs to {slot.plugin} in {slot.database}", "another slot="
        )
    if slot.is_lost:
        return Finding(
            "slot",
            "error",
            f"{definition.slot} is invalid ({slot.invalidation or slot.wal_status}): changes are lost",
            f"SELECT pg_drop_replication_slot('{definition.slot}'), then a new snapshot (on_position_lost='snapshot')",
        )
    if state.version >= 170000 and not slot.is_failover:
        return Finding(
            "slot",
            "note",
            f"{definition.slot} does not survive a failover",
            "drop it and let it be made anew: a slot of this library is a failover slot",
        )
    return Finding("slot", "ok", f"{definition.slot} is {'in use' if slot.is_active else 'free'}")


def _retention(definition: Definition, state: ServerState, settings: Mapping[str, Any]) -> Finding:
    held, limit = state.retained_bytes >> 20, definition.max_retained_bytes >> 20
    keep = settings["keep"]
    unlimited = keep == "-1"
    server_limit = "the server sets no limit" if unlimited else f"the server gives up at {keep}"
    if state.retained_bytes > definition.max_retained_bytes:
        return Finding(
            "retention",
            "warning",
            f"the slot holds {held} MB of log, more than max_retained_mb={limit}; {server_limit}",
            f"let the poller run, or SELECT pg_drop_replication_slot('{definition.slot}')",
        )
    return Finding("retention", "ok", f"the slot holds {held} MB of log, of at most {limit}; {server_limit}")


def _transport(server: Server, definition: Definition, config: DbConfig) -> Finding:
    from psycopg import OperationalError

    from azure_functions_db.sources.postgres.replication import POOLED, UNPOOLED, is_from_pooler, replication_connection

    if definition.transport == "stream":
        try:
            replication_connection(server.engine, config).close()
        except OperationalError as error:
            if is_from_pooler(error):
                return Finding("transport", "error", POOLED, UNPOOLED)
            return Finding("transport", "error", f"no replication connection: {' '.join(str(error).split())}")
        return Finding("transport", "ok", "the replication protocol: memory is the same for transactions of any size")
    return Finding(
        "transport",
        "note",
        "SQL functions: the server keeps each transaction whole in temporary files while it is read, and reads it "
        "again for every tick",
    )
