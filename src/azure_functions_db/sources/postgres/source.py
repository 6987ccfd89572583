"""PostgreSQL's write-ahead log as a source: every change of some tables, in the order of the commits."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Backlog, SourceDescriptor
from azure_functions_db.sources.postgres.pgoutput import lsn_of, lsn_text
from azure_functions_db.sources.postgres.server import defined
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sources.stream import LOG_CAPABILITY, LogSource, Place, StreamReader, quiet_at
from azure_functions_db.sql.engine import default_provider, parsed_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import AdapterCapability, CheckpointJson, FetchResult, Finding
    from azure_functions_db.sources.postgres.log import Histories, PostgresLog, Processors
    from azure_functions_db.sources.postgres.server import OnMaxRetained, Server, ServerState, Transport, Undecodable
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
        from azure_functions_db.sources.postgres.checks import validate

        with reading(self.name):
            validate(self._server(), self._definition, self.name)

    def examine(self) -> list[Finding]:
        """Return what an operator should know: wal_level, rights, keys, publication, slot, retention."""
        from azure_functions_db.sources.postgres.checks import examined

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
        from azure_functions_db.sources.postgres.checks import shown

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
