"""Change tracking of SQL Server and Azure SQL as a change source."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import AdapterCapability, SourceDescriptor
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sources.stream import OnPositionLost, Place, SnapshotMode, StreamReader, check_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import Backlog, CheckpointJson, FetchResult, Finding
    from azure_functions_db.sources.keyset.source import SqlAlchemySource
    from azure_functions_db.sources.sqlserver.tracking import TrackingPosition, TrackingServer
    from azure_functions_db.sql.engine import EngineProvider

_KIND = "change-tracking"


class SqlServerChangeTrackingSource:
    """Reads which rows of a table have changed, with their newest state, from SQL Server's change tracking.

    Making one only checks its arguments; the server is first looked at when something is read. The login needs SELECT
    and VIEW CHANGE TRACKING on the table; the database has change tracking on and allows snapshot isolation
    (``azfdb stream create``).

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``table``, ``schema``:
      The table; it needs a primary key.
    - ``pk_columns``:
      Not needed: changes are tracked by the primary key. Where it is given it must be that.
    - ``snapshot``:
      "initial": the rows that are there come first, then the changes. "never": changes only. "only": rows only.
    - ``start_at``:
      Where to begin without a checkpoint and with ``snapshot="never"``: "now", "beginning" (the oldest changes that
      are kept), or a version.
    - ``on_position_lost``:
      What to do when the server no longer has the changes that follow the checkpoint. "stop": raise
      `PositionLostError` until somebody decides. "snapshot": read the table anew. "continue": go on with the oldest
      changes that are left.
    - ``retention_days``:
      How long changes are kept where ``azfdb stream create`` turns tracking on.
    - ``idle_versions``, ``idle_seconds``:
      How many commits that do not concern this table are passed, or for how long, before that alone is worth writing a
      checkpoint; it has to be, as an old one is lost in the end.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str,
        schema: str = "dbo",
        pk_columns: Sequence[str] | None = None,
        snapshot: SnapshotMode = "initial",
        start_at: str | int = "now",
        on_position_lost: OnPositionLost = "stop",
        retention_days: int = 3,
        idle_versions: int = 1000,
        idle_seconds: float = 60.0,
        name: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        try:
            self._config = config_of(url, db_config)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from None
        check_choice("snapshot", snapshot, get_args(SnapshotMode))
        check_choice("on_position_lost", on_position_lost, get_args(OnPositionLost))
        self._options: dict[str, Any] = {
            "table": _checked_name("table", table),
            "schema": _checked_name("schema", schema),
            "pk_columns": _checked_key(pk_columns),
            "snapshot": snapshot,
            "start_at": _checked_start(start_at),
            "on_position_lost": on_position_lost,
            "retention_days": _checked_days(retention_days),
            "idle_versions": idle_versions,
            "idle_seconds": idle_seconds,
        }
        self.name = name or f"{schema}.{table}"
        self._provider = engine_provider

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            url = self._engine().url
        odbc = url.query.get("odbc_connect")
        place = [url.host, url.port, url.database, _place_of(odbc) if isinstance(odbc, str) else None]
        written = json.dumps([_KIND, *place, self._options["schema"], self._options["table"]])
        return SourceDescriptor(self.name, _KIND, f"sha256:{hashlib.sha256(written.encode()).hexdigest()}")

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return AdapterCapability(detects_deletes=True, distinguishes_insert=True, native_resume_token=True)

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """Where it reads; nothing is looked up."""
        return self._config.connection_url, self._options["table"], self._options["schema"]

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the database or the table are not as they have to be."""
        for finding in self.examine():
            if finding.grade == "error":
                raise SourceConfigurationError(
                    f"Source {self.name!r}: {finding.text}: {finding.remedy}", setting=finding.check
                )

    def open(self) -> StreamReader:
        """Begin to read; nothing is asked of the server yet."""
        from azure_functions_db.sources.sqlserver.tracking import TrackingLog

        with reading(self.name):
            return StreamReader(
                TrackingLog(self._server(), self._rows),
                kind=_KIND,
                tables=[f"{self._options['schema']}.{self._options['table']}"],
                snapshot=self._options["snapshot"],
                on_position_lost=self._options["on_position_lost"],
                source=self.name,
            )

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the changes after the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Do nothing: the server cleans up by the clock, whoever reads."""

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many rows have changed after the checkpoint."""
        from azure_functions_db.sources.sqlserver.tracking import backlog

        with reading(self.name):
            return backlog(self._server(), _position(checkpoint))

    def report(self, checkpoint: CheckpointJson) -> Sequence[Fact]:
        """Return how far behind the checkpoint is, and from where the server cleans up."""
        from azure_functions_db.sources.sqlserver.tracking import health

        with reading(self.name):
            return [health(self._server(), _position(checkpoint))]

    def examine(self) -> list[Finding]:
        """Return what an operator should know: retention, isolation, table and rights, and what was tested."""
        from azure_functions_db.sources.sqlserver.tracking import examined

        with reading(self.name):
            return list(examined(self._server()))

    checkup = examine

    def create_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Turn on change tracking and snapshot isolation where they are off; return the statements."""
        from azure_functions_db.sources.sqlserver.tracking import creation

        return self._changed(creation, dry_run=dry_run)

    def drop_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Stop tracking the table; return the statement."""
        from azure_functions_db.sources.sqlserver.tracking import removal

        return self._changed(removal, dry_run=dry_run)

    def show_stream(self) -> Mapping[str, Any]:
        """Return what is on, how long changes are kept, and the versions."""
        from azure_functions_db.sources.sqlserver.tracking import shown

        with reading(self.name):
            return shown(self._server())

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it; `parse` takes the version that it begins with."""
        place = Place.of(checkpoint)
        return "beginning" if place is None else str(place.position["value"])

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed: a version, "now" or "beginning"."""
        from azure_functions_db.sources.sqlserver.tracking import TrackingPosition

        if text.strip() == "beginning":
            return {}
        start = _checked_start(text.strip())
        with reading(self.name):
            server = self._server()
            tracked = server.table()
            with server.at_one_moment() as connection:
                version = server.options.started_at(*server.versions(connection), start)
        return Place(TrackingPosition(version, None, version, tracked.object_id).written()).checkpoint(_KIND)

    def __repr__(self) -> str:
        return f"SqlServerChangeTrackingSource({self.name!r})"

    def _changed(self, statements_for: Any, *, dry_run: bool) -> Sequence[str]:
        from azure_functions_db.sources.sqlserver.tracking import execute

        with reading(self.name):
            statements: list[str] = statements_for(self._server())
            if not dry_run:
                execute(self._server(), statements)
        return statements

    def _server(self) -> TrackingServer:
        from azure_functions_db.sources.sqlserver.tracking import TrackingOptions, TrackingServer

        return TrackingServer(self._engine(), TrackingOptions(**self._options))

    def _engine(self) -> Engine:
        from azure_functions_db.sql.engine import default_provider

        engine = (self._provider or default_provider()).get_engine(self._config)
        if engine.dialect.name != "mssql":
            raise SourceConfigurationError(
                f"Change tracking is SQL Server's; the URL is one of {engine.dialect.name}: use mssql+pyodbc://…"
            )
        return engine

    def _rows(self, key: Sequence[str]) -> SqlAlchemySource:
        """Return what reads the table in the order of its key."""
        from azure_functions_db.sources.keyset.source import SqlAlchemySource

        return SqlAlchemySource(
            db_config=self._config,
            engine_provider=self._provider,
            table=self._options["table"],
            schema=self._options["schema"],
            cursor_column=key[0],
            pk_columns=list(key),
            in_flight="ignore",
            name=self.name,
        )


def _position(checkpoint: CheckpointJson) -> TrackingPosition | None:
    from azure_functions_db.sources.sqlserver.tracking import TrackingPosition

    place = Place.of(checkpoint)
    return None if place is None else TrackingPosition.of(place.position)


def _place_of(odbc: str) -> list[str]:
    """Return the parts of an ODBC connection string that say which database it is."""
    parts = [part.partition("=")[::2] for part in odbc.split(";")]
    return sorted(f"{name.strip().lower()}={value.strip()}" for name, value in parts if name.strip().lower() in _WHERE)


_WHERE = {"server", "database", "dsn", "address", "addr"}


def _checked_name(argument: str, name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise SourceConfigurationError(f"{argument}= must be a name")
    return name


def _checked_key(key: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(key, str) or (key is not None and not key):
        raise SourceConfigurationError('pk_columns= is a list of names, such as ["id"]; it may be left out')
    return None if key is None else tuple(key)


def _checked_start(start: object) -> str:
    text = str(start)
    if text not in {"now", "beginning"} and not (text.isascii() and text.isdigit()):
        raise SourceConfigurationError(f'A position is a version, "now" or "beginning", not {text!r}')
    return text


def _checked_days(days: object) -> int:
    if type(days) is not int or days < 1:
        raise SourceConfigurationError(f"retention_days= is a whole number of days, not {days!r}")
    return days
