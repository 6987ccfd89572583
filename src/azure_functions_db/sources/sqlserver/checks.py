"""What an operator should know of change tracking, and the statements that turn it on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import Backlog, Finding
from azure_functions_db.sources.keyset.checks import tested_against
from azure_functions_db.sources.sqlserver.tracking import (
    ALLOW_SNAPSHOTS,
    TrackingPosition,
    count_statement,
    health_of,
    parameters_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Row

    from azure_functions_db.sources.sqlserver.tracking import TrackingServer
    from azure_functions_db.sources.stream import StreamHealth

DATABASE = """\
SELECT retention_period, retention_period_units, is_auto_cleanup_on
FROM sys.change_tracking_databases WHERE database_id = DB_ID()"""

_COUNTED = 100_000
_DAY = 86_400
_UNIT_SECONDS = {1: 60, 2: 3600, 3: _DAY}


def examined(server: TrackingServer) -> Iterator[Finding]:
    """Return what is right and wrong with the database and the table."""
    described, database = server.described(), _database(server)
    yield _retention(database, _enable_database(server))
    yield _snapshots(described.snapshots)
    yield from _table(server, described)
    yield from tested_against(server.engine.dialect)


def creation(server: TrackingServer) -> list[str]:
    """Return the statements that turn on what is off."""
    described = server.described()
    statements = [] if _database(server) is not None else [_enable_database(server)]
    statements += [] if described.snapshots == 1 else [ALLOW_SNAPSHOTS]
    return statements + ([] if described.with_columns is not None else [_enable_table(server)])


def removal(server: TrackingServer) -> list[str]:
    """Return the statement that stops tracking the table; the settings of the database may serve others."""
    is_tracked = server.described().with_columns is not None
    return [f"ALTER TABLE {server.quoted} DISABLE CHANGE_TRACKING"] if is_tracked else []


def execute(server: TrackingServer, statements: Sequence[str]) -> None:
    """Run statements one by one: the settings of a database cannot be changed inside a transaction."""
    with server.connected("AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def shown(server: TrackingServer) -> dict[str, Any]:
    """Return what is there."""
    described, database = server.described(), _database(server)
    is_tracked = described.with_columns is not None
    with server.engine.connect() as connection:
        minimum, current = server.versions(connection) if is_tracked else (None, None)
    return {
        "table": server.options.label,
        "tracked": is_tracked,
        "columns_tracked": bool(described.with_columns),
        "snapshot_isolation": described.snapshots == 1,
        "retention_seconds": None if database is None else _seconds(database),
        "auto_cleanup": None if database is None else bool(database.is_auto_cleanup_on),
        "oldest_version": minimum,
        "current_version": current,
    }


def backlog(server: TrackingServer, position: TrackingPosition | None) -> Backlog:
    """Return how many rows have changed after a position."""
    tracked = server.table()
    with server.at_one_moment() as connection:
        minimum, current = server.versions(connection)
        start = position or TrackingPosition(server.options.started_at(minimum, current))
        server.require(connection, start, tracked)
        parameters = parameters_of(start, tracked, start.since, current) | {"most": _COUNTED}
        statement = count_statement(tracked, server.quoted, start)
        changes = int(connection.execute(statement, parameters).scalar_one())
    return Backlog(changes, "changes", is_more=changes >= _COUNTED, lag_seconds=None if changes else 0.0)


def health(server: TrackingServer, position: TrackingPosition | None) -> StreamHealth:
    """Return how far a position is behind, and from where the server cleans up."""
    with server.engine.connect() as connection:
        minimum, current = server.versions(connection)
    return health_of(position or TrackingPosition(current), minimum, current)


def _database(server: TrackingServer) -> Row[Any] | None:
    with server.engine.connect() as connection:
        return server.asked(connection, DATABASE)


def _retention(database: Row[Any] | None, cure: str) -> Finding:
    if database is None:
        return Finding("change tracking", "error", "change tracking is off in this database", cure)
    hours = _seconds(database) / 3600
    if not database.is_auto_cleanup_on:
        return Finding("change tracking", "note", "on, and never cleaned up: watch the size of the database")
    text = f"on, changes are kept for {hours:.3g} hours"
    if hours < 24:
        text += ": a poller that stands still for longer loses its position"
        return Finding("change tracking", "warning", text, cure.replace(" = ON (", " ("))
    return Finding("change tracking", "ok", text)


def _snapshots(state: int | None) -> Finding:
    if state == 1:
        return Finding("snapshot isolation", "ok", "allowed")
    return Finding("snapshot isolation", "error", "not allowed: rows could be missed", ALLOW_SNAPSHOTS)


def _table(server: TrackingServer, described: Row[Any]) -> Iterator[Finding]:
    check = f"table {server.options.label}"
    if described.with_columns is None:
        yield Finding(check, "error", "its changes are not tracked", _enable_table(server))
        return
    if not described.with_columns:
        yield Finding("columns", "note", "which columns an update has set is not noted", _enable_table(server))
    try:
        key = server.key_of(server.reflected(str(described.modified_at)))
        with server.engine.connect() as connection:
            minimum = server.minimum(connection)
    except (ConfigurationError, SourceConfigurationError) as error:
        yield Finding(check, "error", str(error), "see what is new in the table, or the rights of the login")
        return
    yield Finding(check, "ok", f"key {', '.join(key)}; changes are kept from version {minimum} on")


def _seconds(database: Row[Any]) -> int:
    return int(database.retention_period) * _UNIT_SECONDS[int(database.retention_period_units)]


def _enable_database(server: TrackingServer) -> str:
    days = server.options.retention_days
    return f"ALTER DATABASE CURRENT SET CHANGE_TRACKING = ON (CHANGE_RETENTION = {days} DAYS, AUTO_CLEANUP = ON)"


def _enable_table(server: TrackingServer) -> str:
    return f"ALTER TABLE {server.quoted} ENABLE CHANGE_TRACKING WITH (TRACK_COLUMNS_UPDATED = ON)"
