"""The binary log of MySQL and MariaDB as a change source."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Backlog, SourceDescriptor
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sources.stream import (
    LOG_CAPABILITY,
    LogSource,
    OnPositionLost,
    Place,
    SnapshotMode,
    StreamReader,
    check_choice,
    quiet_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import AdapterCapability, CheckpointJson, FetchResult, Finding
    from azure_functions_db.sources.mysql.log import BinlogLog
    from azure_functions_db.sql.engine import EngineProvider

_KIND = "binlog"


class MySqlBinlogSource(LogSource):
    """Reads every change of some tables from the binary log of MySQL or MariaDB, in the order of the commits.

    Making one only checks its arguments; the server is first looked at when something is read. It needs
    PyMySQL (``mysql+pymysql://``), a login with REPLICATION SLAVE, REPLICATION CLIENT and SELECT on the tables, and a
    log with whole rows (``binlog_format=ROW``, ``binlog_row_image=FULL``, ``binlog_row_metadata=FULL``).

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``tables``:
      The tables to watch, each ``name`` or ``database.name``; each needs a primary key.
    - ``snapshot``:
      "initial": the rows that are there come first, then the changes. "never": changes only. "only": rows only.
    - ``start_at``:
      Where to begin without a checkpoint and with ``snapshot="never"``: "now", "beginning" (the oldest log that is
      left), ``file:offset``, or a set of GTIDs that are done.
    - ``on_position_lost``:
      What to do when the log no longer has what follows the checkpoint. "stop": raise `PositionLostError` until
      somebody decides. "snapshot": read the tables anew. "continue": go on with the oldest log that is left.
    - ``server_id``:
      The id under which the server knows this reader; by default a random one for each tick. Of two readers with the
      same id, the server throws the first one out.
    - ``idle_bytes``, ``idle_seconds``:
      How much of the changes of others, in bytes or in the time between commits, is passed before that alone is
      worth writing a checkpoint.
    - ``undecodable``:
      What becomes of a row with a TIME that Python cannot hold (negative, or a day and longer). "error": it cannot be
      delivered and goes into quarantine. "text": that value is delivered as the database writes it.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        tables: Sequence[str],
        snapshot: SnapshotMode = "initial",
        start_at: str = "now",
        on_position_lost: OnPositionLost = "stop",
        server_id: int | None = None,
        idle_bytes: int = 1 << 20,
        idle_seconds: float = 60.0,
        undecodable: Literal["error", "text"] = "error",
        name: str | None = None,
        engine_provider: EngineProvider | None = None,
    ) -> None:
        try:
            self._config = config_of(url, db_config)
        except ConfigurationError as error:
            raise SourceConfigurationError.of(error) from None
        check_choice("snapshot", snapshot, get_args(SnapshotMode))
        check_choice("on_position_lost", on_position_lost, get_args(OnPositionLost))
        check_choice("undecodable", undecodable, ("error", "text"))
        if server_id is not None and not 0 < server_id < 1 << 32:
            raise SourceConfigurationError("server_id= is a number from 1 to 4294967295")
        self._options: dict[str, Any] = {
            "tables": _checked_tables(tables),
            "snapshot": snapshot,
            "start_at": _checked_start(start_at),
            "on_position_lost": on_position_lost,
            "server_id": server_id,
            "idle_bytes": idle_bytes,
            "idle_seconds": idle_seconds,
            "undecodable": undecodable,
        }
        self.name = name or ",".join(self._options["tables"])
        self._provider = engine_provider

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            url = self._engine().url
            place = [url.get_backend_name(), url.host, url.port, url.database, sorted(self._options["tables"])]
        digest = hashlib.sha256(json.dumps([_KIND, *place]).encode()).hexdigest()
        return SourceDescriptor(self.name, _KIND, f"sha256:{digest}")

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return LOG_CAPABILITY

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the log or the tables are not as they have to be."""
        with reading(self.name):
            for finding in self._findings():
                if finding.grade == "error":
                    raise SourceConfigurationError(
                        f"Source {self.name!r}: {finding.text}: {finding.remedy}", setting=finding.check
                    )

    def open(self) -> StreamReader:
        """Begin to read; nothing is asked of the server yet."""
        with reading(self.name):
            log = self._log()
        return StreamReader(
            log,
            kind=_KIND,
            tables=[str(table) for table in log.tables],
            snapshot=self._options["snapshot"],
            on_position_lost=self._options["on_position_lost"],
            source=self.name,
        )

    def quiet(self, checkpoint: CheckpointJson) -> FetchResult | None:
        """Return an empty result where nothing has been committed since the checkpoint."""
        return quiet_at(checkpoint, lambda position: self._log().quiet(position))

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Do nothing: the server keeps its log whoever reads it."""

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many bytes of the log follow the checkpoint, and the age of the last commit before them."""
        health = self._health(checkpoint)
        return Backlog(health.lag_bytes or 0, "bytes", lag_seconds=health.lag_seconds)

    def report(self, checkpoint: CheckpointJson) -> Sequence[Fact]:
        """Return how far behind the checkpoint is, and how long the server keeps what follows it."""
        return [self._health(checkpoint)]

    def examine(self) -> list[Finding]:
        """Return what an operator should know: settings of the log, rights, retention, tables."""
        with reading(self.name):
            return list(self._findings())

    checkup = examine

    def create_stream(self, *, dry_run: bool = False) -> Sequence[str]:
        """Set what the log needs and has not; return the statements."""
        from azure_functions_db.sources.mysql.server import cured

        with reading(self.name):
            return cured(self._log(), dry_run=dry_run)

    def drop_stream(self, *, dry_run: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing to do either way
        """Do nothing: the log is the server's, and its settings may serve others."""
        return []

    def show_stream(self) -> Mapping[str, Any]:
        """Return the settings of the log, its files and how long they are kept."""
        from azure_functions_db.sources.mysql.server import shown

        with reading(self.name):
            return shown(self._log())

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        place = Place.of(checkpoint)
        return "beginning" if place is None else str(place.position["value"])

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed: file:offset, GTIDs, "now" or "beginning"."""
        from azure_functions_db.sources.mysql.server import Server

        if text.strip() == "beginning":
            return {}
        with reading(self.name):
            log = self._log()
            with log.connected() as connection:
                server = Server.asked(connection)
                position = log.started_at(connection, server, text.strip())
            return Place(position.written()).checkpoint(_KIND)

    def __repr__(self) -> str:
        return f"MySqlBinlogSource({self.name!r})"

    def _log(self) -> BinlogLog:
        from azure_functions_db.sources.mysql.log import BinlogLog, BinlogOptions, in_utc, snapshot_source

        options = BinlogOptions(**self._options)
        reads_rows = partial(snapshot_source, in_utc(self._config), self._provider, options)
        return BinlogLog(self._engine(), options, reads_rows)

    def _engine(self) -> Engine:
        from azure_functions_db.sources.mysql.log import in_utc
        from azure_functions_db.sql.engine import default_provider

        engine = (self._provider or default_provider()).get_engine(in_utc(self._config))
        if engine.dialect.driver != "pymysql":
            raise SourceConfigurationError(
                f"The binary log is read with PyMySQL, not with {engine.dialect.driver}: use mysql+pymysql://…"
            )
        return engine

    def _findings(self) -> Sequence[Finding]:
        from azure_functions_db.sources.mysql.server import examined

        return list(examined(self._log()))

    def _health(self, checkpoint: CheckpointJson) -> Any:
        from azure_functions_db.sources.mysql.server import health_of

        with reading(self.name):
            return health_of(self._log(), checkpoint, begins_now=self._options["start_at"] == "now")


def _checked_tables(tables: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tables, str) or not tables or not all(str(each).strip() for each in tables):
        raise SourceConfigurationError('tables= is a list of names, such as ["orders", "shop.customers"]')
    if len(set(tables)) < len(tables):
        raise SourceConfigurationError("tables= names a table twice")
    return tuple(tables)


def _checked_start(text: str) -> str:
    from azure_functions_db.sources.mysql.position import parsed

    try:
        parsed(text)
    except (ConfigurationError, AttributeError) as error:
        raise SourceConfigurationError(f"start_at=: {error}") from None
    return text
