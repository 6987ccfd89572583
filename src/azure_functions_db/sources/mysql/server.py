"""What a server says of itself, and what an operator should know of it: settings, rights, retention, lag."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.mysql.position import BinlogPosition, MariaDbGtids, MySqlGtids, file_number
from azure_functions_db.sources.stream import Place, StreamHealth
from azure_functions_db.sql.failures import is_forbidden
from azure_functions_db.sql.reflection import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.sources.mysql.log import BinlogLog, TableName


_VARIABLES = (
    "binlog_checksum",
    "binlog_expire_logs_seconds",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_transaction_compression",
    "expire_logs_days",
    "gtid_binlog_pos",
    "gtid_executed",
    "gtid_mode",
    "log_bin",
    "log_bin_compress",
    "lower_case_table_names",
    "server_uuid",
    "version",
)


class _Demand(NamedTuple):
    """A setting that the log needs, and why."""

    variable: str
    value: str
    why: str


_DEMANDS = (
    _Demand("binlog_format", "ROW", "statements do not tell which rows they change"),
    _Demand("binlog_row_image", "FULL", "columns that did not change would be missing"),
    _Demand("binlog_row_metadata", "FULL", "names, signs and character sets of columns would be missing"),
    _Demand("log_bin_compress", "OFF", "compressed events cannot be read"),
    _Demand("binlog_transaction_compression", "OFF", "compressed transactions cannot be read"),
    _Demand("binlog_row_value_options", "", "JSON columns would be logged in part only"),
)


class LogFile(NamedTuple):
    """A file of the log."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Server:
    """The settings of a server at one moment."""

    variables: Mapping[str, str]

    @classmethod
    def asked(cls, connection: Connection) -> Server:
        """Ask for the settings, and where the log ends, in one statement."""
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        rows = connection.exec_driver_sql(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
        return cls({str(name).lower(): str(value) for name, value in rows})

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB rather than MySQL."""
        return "gtid_binlog_pos" in self.variables

    @property
    def uuid(self) -> str:
        """Who it is; MariaDB does not say."""
        return "" if self.is_mariadb else self.variables.get("server_uuid", "")

    @property
    def has_checksums(self) -> bool:
        """Whether events end with a checksum."""
        return self.variables.get("binlog_checksum", "NONE").upper() != "NONE"

    @property
    def folds_names(self) -> bool:
        """Whether the names of tables are the same in upper and lower case."""
        return self.variables.get("lower_case_table_names", "0") != "0"

    @property
    def gtids(self) -> MariaDbGtids | MySqlGtids | None:
        """The transactions that the log holds or has held; None where not all of them have GTIDs."""
        if self.is_mariadb:
            return MariaDbGtids(self.variables["gtid_binlog_pos"])
        return MySqlGtids(self.variables.get("gtid_executed", "")) if self._every_transaction_has_one else None

    def gtid_set(self, text: str) -> MariaDbGtids | MySqlGtids:
        """Return the set that a text names, as this server writes it."""
        return MariaDbGtids(text) if self.is_mariadb else MySqlGtids(text)

    def has_seen(self, gtids: str) -> bool:
        """Tell whether the log holds or has held all of these transactions."""
        present: Any = self.gtids
        return present is None or bool(present.contains(self.gtid_set(gtids)))

    @property
    def _every_transaction_has_one(self) -> bool:
        return self.variables.get("gtid_mode", "OFF").upper() == "ON"

    @property
    def retention_seconds(self) -> float | None:
        """How long the log is kept; None where it is kept until somebody purges it."""
        seconds = float(self.variables.get("binlog_expire_logs_seconds", 0))
        days = float(self.variables.get("expire_logs_days", 0))
        return seconds or days * 86_400 or None

    def is_idle_at(self, position: BinlogPosition) -> bool:
        """Tell whether nothing at all was committed after a position; False where that is not certain."""
        return bool(position.gtids) and position.done is None and position.gtids == str(self.gtids)

    def demand(self) -> None:
        """Refuse a server whose log does not hold every change as a whole row."""
        for finding in self.examined():
            if finding.grade == "error":
                raise SourceConfigurationError(f"{finding.text}: {finding.remedy}", setting=finding.check)

    def examined(self) -> Iterator[Finding]:
        """Return what is right and wrong with the settings of the log."""
        if self.variables.get("log_bin", "OFF") != "ON":
            yield Finding(
                "log_bin",
                "error",
                "the server writes no binary log",
                "start it with log_bin and a server_id of its own",
            )
            return
        for demand in _DEMANDS:
            found = self.variables.get(demand.variable)
            if found is None:
                continue
            if found.upper() in {demand.value, _OFF.get(demand.value, demand.value)}:
                yield Finding(demand.variable, "ok", found or "none")
                continue
            cure = f"SET GLOBAL {demand.variable} = {demand.value if demand.value == 'OFF' else repr(demand.value)}"
            yield Finding(demand.variable, "error", f"{demand.variable} is {found}, and {demand.why}", cure)


_OFF = {"OFF": "0"}


def log_files(connection: Connection) -> Sequence[LogFile]:
    """Return the files of the log, oldest first."""
    rows = connection.exec_driver_sql("SHOW BINARY LOGS")
    return [LogFile(str(row[0]), int(row[1])) for row in rows]


def bytes_after(position: BinlogPosition, files: Sequence[LogFile]) -> int:
    """Return how much of the log follows a position."""
    following = [file for file in files if file_number(file.name) >= position.number]
    total = sum(file.size for file in following)
    is_in_first = bool(following) and following[0].name == position.file
    return max(0, total - position.end) if is_in_first else total


def log_end(connection: Connection, server: Server) -> LogFile:
    """Return the newest file and where it ends."""
    statements = ["SHOW MASTER STATUS"] if server.is_mariadb else ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"]
    row = _first_that_works(connection, statements)
    if row is None:
        raise SourceConfigurationError("The server writes no binary log: start it with log_bin", setting="log_bin")
    return LogFile(str(row[0]), int(str(row[1])))


def _first_that_works(connection: Connection, statements: Sequence[str]) -> Sequence[object] | None:
    """Return the first row of the first statement that the server understands; the older word is for MySQL 8.0."""
    from sqlalchemy.exc import DBAPIError

    for place, statement in enumerate(statements):
        try:
            row = connection.exec_driver_sql(statement).first()
        except DBAPIError as error:
            if place == len(statements) - 1 or getattr(error.orig, "args", (0,))[0] != 1064:
                raise
            continue
        return None if row is None else tuple(row)
    return None


_DAY = 86_400
_GRANTS = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO …"
# Below this share of the retention the log may be gone before the poller has read it.
_SHORT_OF_TIME = 0.25


def examined(log: BinlogLog) -> Iterator[Finding]:
    """Return what is right and wrong with a log and its tables."""
    with log.connected() as connection:
        server = Server.asked(connection)
        yield from server.examined()
        if server.variables.get("log_bin", "OFF") != "ON":
            return
        yield _rights(log, connection, server)
        yield _retention(server)
        yield from _gtids(server)
        for table in log.tables:
            yield from _table(connection, log.engine, table)


def cured(log: BinlogLog, *, dry_run: bool) -> Sequence[str]:
    """Run the statements that cure the settings of a log, or only return them."""
    with log.connected() as connection:
        remedies = [str(finding.remedy) for finding in Server.asked(connection).examined()]
        statements = [remedy for remedy in remedies if remedy.startswith("SET GLOBAL")]
        for statement in () if dry_run else statements:
            connection.exec_driver_sql(statement)
    return statements


def shown(log: BinlogLog) -> dict[str, object]:
    """Return what an operator wants to see of a log."""
    with log.connected() as connection:
        server, files = Server.asked(connection), log_files(connection)
    settings = {finding.check: finding.text for finding in server.examined()}
    return {
        "server": server.variables.get("version"),
        "oldest_log": files[0].name,
        "newest_log": files[-1].name,
        "log_bytes": sum(file.size for file in files),
        "log_retention_seconds": server.retention_seconds,
        "gtids": None if server.gtids is None else str(server.gtids),
        **settings,
    }


def _rights(log: BinlogLog, connection: Connection, server: Server) -> Finding:
    """Read the end of the log, which consumes nothing."""
    from sqlalchemy.exc import DBAPIError

    try:
        log.probe(connection, server)
    except SourceConfigurationError as error:
        return Finding("rights", "error", str(error), _GRANTS)
    except DBAPIError as error:
        if not is_forbidden(error):
            raise
        return Finding("rights", "error", "this login may not look at the binary log", _GRANTS)
    return Finding("rights", "ok", "this login may read the log")


def _retention(server: Server) -> Finding:
    seconds = server.retention_seconds
    if seconds is None:
        return Finding("retention", "note", "the log is kept until somebody purges it: watch the disk")
    text = f"the log is kept for {seconds / 3600:.3g} hours"
    if seconds < _DAY:
        cure = f"SET GLOBAL binlog_expire_logs_seconds = {3 * _DAY}"
        return Finding(
            "retention", "warning", f"{text}: a poller that stands still for longer loses its position", cure
        )
    return Finding("retention", "ok", text)


def _gtids(server: Server) -> Iterator[Finding]:
    if server.gtids is None:
        yield Finding(
            "gtid_mode",
            "note",
            "transactions have no GTIDs: a position is a place in a file, and lost when that file is purged",
            "SET GLOBAL gtid_mode = … step by step to ON, with enforce_gtid_consistency = ON",
        )


def _table(connection: Connection, engine: Engine, name: TableName) -> Iterator[Finding]:
    check = f"table {name}"
    try:
        table = table_of(engine, name.name, name.schema)
    except ConfigurationError as error:
        yield Finding(check, "error", str(error), "correct tables=, or grant SELECT on it")
        return
    if not table.primary_key.columns:
        yield Finding(check, "error", f"table {name} has no primary key", f"ALTER TABLE {name} ADD PRIMARY KEY (…)")
        return
    if actions := _cascades(connection, name):
        yield Finding(
            check,
            "warning",
            f"rows that {', '.join(actions)} changes are not in the log: InnoDB does that by itself",
            "delete or update such rows by statements of their own",
        )
        return
    yield Finding(check, "ok", f"key {', '.join(column.name for column in table.primary_key.columns)}")


def _cascades(connection: Connection, name: TableName) -> Sequence[str]:
    from sqlalchemy import text

    query = text(
        "SELECT constraint_name FROM information_schema.referential_constraints "
        "WHERE constraint_schema = :schema AND table_name = :name "
        "AND (delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL'))"
    )
    return [str(row[0]) for row in connection.execute(query, {"schema": name.schema, "name": name.name})]


def health_of(log: BinlogLog, checkpoint: CheckpointJson, *, begins_now: bool) -> StreamHealth:
    """Return how far behind a checkpoint is; nothing is read from the log itself."""
    place = Place.of(checkpoint)
    position = BinlogPosition() if place is None else BinlogPosition.of(place.position)
    with log.connected() as connection:
        server, files = Server.asked(connection), log_files(connection)
    is_idle = server.is_idle_at(position) or (place is None and begins_now)
    lag = 0 if is_idle else bytes_after(position, files)
    details = {
        "oldest_log": files[0].name,
        "log_bytes": sum(file.size for file in files),
        "log_retention_seconds": server.retention_seconds,
    }
    health = health_at(position, lag, server.retention_seconds)
    return replace(health, details=details, warning=_warning(health, server, files, position))


def health_at(position: BinlogPosition, lag_bytes: int, retention_seconds: float | None) -> StreamHealth:
    """Return how far behind a position is, and for how long the server keeps what follows it."""
    age = _age(position) if lag_bytes else 0.0
    return StreamHealth(
        lag_bytes=lag_bytes,
        lag_seconds=age,
        retention_left_seconds=None if retention_seconds is None or age is None else retention_seconds - age,
        last_commit_at=dt.datetime.fromtimestamp(position.time, dt.UTC) if position.time else None,
    )


def _age(position: BinlogPosition) -> float | None:
    """Return the age of the last commit that was read; what follows is younger."""
    return max(0.0, dt.datetime.now(dt.UTC).timestamp() - position.time) if position.time else None


def _warning(health: StreamHealth, server: Server, files: Sequence[LogFile], position: BinlogPosition) -> str | None:
    if not health.lag_bytes:
        return None
    if position.file and position.number < file_number(files[0].name):
        return f"the log of the position ({position.file}) is gone: the oldest that is left is {files[0].name}"
    left = health.retention_left_seconds
    if left is not None and left < _SHORT_OF_TIME * (server.retention_seconds or 0):
        return f"the server keeps what the poller has not read for {max(0.0, left) / 3600:.2g} more hours only"
    return None
