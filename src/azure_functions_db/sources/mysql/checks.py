"""What an operator should know of a log: its settings, rights and retention, and how far a poller is behind."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.mysql.position import BinlogPosition, file_number
from azure_functions_db.sources.mysql.server import Server, bytes_after, log_files
from azure_functions_db.sources.stream import Place, StreamHealth
from azure_functions_db.sql.failures import is_forbidden
from azure_functions_db.sql.reflection import table_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.sources.mysql.log import BinlogLog, TableName
    from azure_functions_db.sources.mysql.server import LogFile

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
        wrong = [finding for finding in Server.asked(connection).examined() if finding.grade == "error"]
        statements = [str(finding.remedy) for finding in wrong if str(finding.remedy).startswith("SET GLOBAL")]
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
    return StreamHealth(
        lag_bytes=lag,
        lag_seconds=_age(position) if lag else 0.0,
        retained_bytes=None,
        last_commit_at=dt.datetime.fromtimestamp(position.time, dt.UTC) if position.time else None,
        details=_details(server, files, position),
        warning=_warning(server, files, position, lag),
    )


def _age(position: BinlogPosition) -> float | None:
    """Return the age of the last commit that was read; what follows is younger."""
    return max(0.0, dt.datetime.now(dt.UTC).timestamp() - position.time) if position.time else None


def _details(server: Server, files: Sequence[LogFile], position: BinlogPosition) -> dict[str, object]:
    left = _seconds_left(server, position)
    return {
        "oldest_log": files[0].name if files else None,
        "log_bytes": sum(file.size for file in files),
        "log_retention_seconds": server.retention_seconds,
        "retention_left_seconds": left,
    }


def _seconds_left(server: Server, position: BinlogPosition) -> float | None:
    """Return how long the server will still keep what follows a position, by its clock and settings."""
    if server.retention_seconds is None or not position.time:
        return None
    return server.retention_seconds - (_age(position) or 0.0)


def _warning(server: Server, files: Sequence[LogFile], position: BinlogPosition, lag: int) -> str | None:
    if position.file and files and position.number < file_number(files[0].name) and lag:
        return f"the log of the position ({position.file}) is gone: the oldest that is left is {files[0].name}"
    left = _seconds_left(server, position)
    if lag and left is not None and left < _SHORT_OF_TIME * (server.retention_seconds or 0):
        return f"the server keeps what the poller has not read for {max(0.0, left) / 3600:.2g} more hours only"
    return None
