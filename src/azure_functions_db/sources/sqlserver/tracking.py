"""One tick's reading of a tracked table: the rows that have changed since a version, with their newest state.

A version is the number of a transaction in the order of the commits. A changed row has the version of its last
change, and moves on to a later one when it changes again: pages that are read in the order version, key lose nothing.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import ConfigurationError, PositionLostError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_part, serialize_part
from azure_functions_db.core.types import Backlog, Change, Finding
from azure_functions_db.sources.keyset.values import require_orderable, storable
from azure_functions_db.sources.stream import LogPage, RowsPage, StreamHealth, key_text
from azure_functions_db.sql.reflection import refreshed, table_of
from azure_functions_db.sql.transactions import driver_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Column, Connection, Engine, Row, Table, TextClause
    from sqlalchemy.sql.selectable import TextualSelect

    from azure_functions_db.core.types import CursorPart, Operation
    from azure_functions_db.sources.keyset.source import SqlAlchemySource
    from azure_functions_db.sources.stream import LogPosition, OnPositionLost, SnapshotMode


MINIMUM = "SELECT CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(:name))"
CURRENT = "SELECT CHANGE_TRACKING_CURRENT_VERSION()"
TABLE = """\
SELECT OBJECT_ID(:name) AS object_id,
 (SELECT modify_date FROM sys.objects WHERE object_id = OBJECT_ID(:name)) AS modified_at,
 (SELECT is_track_columns_updated_on FROM sys.change_tracking_tables
  WHERE object_id = OBJECT_ID(:name)) AS with_columns,
 (SELECT snapshot_isolation_state FROM sys.databases WHERE database_id = DB_ID()) AS snapshots"""
ALLOW_SNAPSHOTS = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"

# Of these Python does not hold every value exactly: a position could not name its row again.
_INEXACT = {"FLOAT", "REAL", "DOUBLE_PRECISION", "SQL_VARIANT", "NULLTYPE"}
_FINE = {"DATETIME2", "DATETIMEOFFSET", "TIME"}
_MICROSECONDS = 6
# Before the columns of the table itself, a change has its version, its creation, its operation, and its key.
_FIRST_KEY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingOptions:
    """What the user of a source has chosen."""

    table: str
    schema: str = "dbo"
    pk_columns: tuple[str, ...] | None = None
    snapshot: SnapshotMode = "initial"
    start_at: str = "now"
    on_position_lost: OnPositionLost = "stop"
    retention_days: int = 3
    idle_versions: int = 1000
    idle_seconds: float = 60.0

    @property
    def label(self) -> str:
        """The table as people write it."""
        return f"{self.schema}.{self.table}"

    def started_at(self, minimum: int, current: int, text: str | None = None) -> int:
        """Return the version of a word or a number."""
        text = self.start_at if text is None else text
        return {"now": current, "beginning": minimum}[text] if text in {"now", "beginning"} else int(text)


@dataclass(frozen=True, slots=True)
class TrackingPosition:
    """Everything up to a version was read, or up to a key inside of it."""

    version: int
    key: tuple[CursorPart, ...] | None = None
    """The last key that was read of the version; None where all of them were."""
    base: int = 0
    """The version at which last nothing was left to read: whatever was there then was delivered."""
    object_id: int | None = None
    """The table that was read; another one may have its name by now."""
    at: float = 0.0
    """When it was read, by our own clock."""

    @property
    def since(self) -> int:
        """The last version of which nothing is left."""
        return self.version if self.key is None else self.version - 1

    @classmethod
    def of(cls, position: LogPosition) -> TrackingPosition:
        """Return the position that a checkpoint has."""
        try:
            version, key = int(position["version"]), position.get("key")
            read = None if key is None else tuple(deserialize_part(part) for part in key)
            return cls(version, read, int(position["base"]), position.get("object_id"), float(position.get("at", 0)))
        except (KeyError, TypeError, ValueError):
            raise SourceConfigurationError(
                "The checkpoint was written by another kind of source: reset the poller (azfdb reset --to-beginning)"
            ) from None

    def written(self) -> LogPosition:
        """Return the form that a checkpoint keeps."""
        key = None if self.key is None else [serialize_part(part) for part in self.key]
        return {
            "value": str(self.version) if key is None else f"{self.version} {json.dumps(key, separators=(',', ':'))}",
            "version": self.version,
            "key": key,
            "base": self.base,
            "object_id": self.object_id,
            "at": round(self.at),
        }


class TrackedTable(NamedTuple):
    """A table as it was when a tick began."""

    object_id: int
    table: Table
    key: list[str]
    with_columns: bool
    """Whether the server notes which columns an update has set."""


class TrackingServer:
    """The database of a tracked table: how it is asked, and what it says."""

    def __init__(self, engine: Engine, options: TrackingOptions) -> None:
        self.engine = engine
        self.options = options
        self.quoted = f"{_quoted(options.schema)}.{_quoted(options.table)}"

    @contextmanager
    def at_one_moment(self) -> Iterator[Connection]:
        """Lend a connection whose statements all see the same state of the database."""
        with self.connected("SNAPSHOT") as connection:
            yield connection

    @contextmanager
    def connected(self, isolation_level: str) -> Iterator[Connection]:
        """Lend a connection of some isolation, and give it back as it was.

        By the driver's own connection: what SQLAlchemy's option raises when it is set and unset is the driver's error.
        """
        with self.engine.connect() as connection:
            with driver_errors(connection):
                self.engine.dialect.set_isolation_level(_raw(connection), isolation_level)  # type: ignore[arg-type]  # the dialect's own
            try:
                yield connection
            finally:
                self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        if connection.invalidated:
            return
        try:
            connection.rollback()
            self.engine.dialect.reset_isolation_level(_raw(connection))
        except Exception as error:  # noqa: BLE001 - pymssql raises what is no error of its own; nobody gets this line again
            connection.invalidate(error)

    def asked(self, connection: Connection, statement: str) -> Row[Any] | None:
        """Return the one row that answers a question about the table, or None."""
        return connection.execute(_statement(statement), {"name": self.quoted}).one_or_none()

    def described(self) -> Row[Any]:
        """Return what the catalogue knows about the table."""
        with self.engine.connect() as connection:
            row = self.asked(connection, TABLE)
        if row is None or row.object_id is None:
            raise SourceConfigurationError(
                f"There is no table {self.options.label}, or this login may not see it", table=self.options.label
            )
        return row

    def versions(self, connection: Connection) -> tuple[int, int]:
        """Return the oldest version that changes can be asked for, then the current one; their order matters."""
        return self.minimum(connection), self.current(connection)

    def minimum(self, connection: Connection) -> int:
        """Return the version from which on the server has all changes."""
        row = self.asked(connection, MINIMUM)
        if row is None or row[0] is None:
            raise SourceConfigurationError(
                f"The changes of {self.options.label} cannot be read: they are not tracked (azfdb stream create), or "
                f"this login lacks a right (GRANT SELECT, VIEW CHANGE TRACKING ON {self.quoted} TO …)",
                table=self.options.label,
            )
        return int(row[0])

    def current(self, connection: Connection) -> int:
        """Return the version of the last commit."""
        row = self.asked(connection, CURRENT)
        return int(row[0] or 0) if row is not None else 0

    def require(self, connection: Connection, start: TrackingPosition, tracked: TrackedTable) -> int:
        """Refuse a position after which the server has already forgotten changes; return the oldest that it has."""
        label, minimum = self.options.label, self.minimum(connection)
        if start.object_id not in {None, tracked.object_id}:
            raise PositionLostError(f"{label} is not the table that was read so far: it was dropped and made anew")
        if start.since < minimum:
            raise PositionLostError(
                f"The changes of {label} after version {start.since} are gone, the oldest are those after {minimum}: "
                "they were cleaned up after the retention, or the table was truncated or tracked anew"
            )
        return minimum

    def table(self) -> TrackedTable:
        """Return the table as it is now, with the columns that it has got or lost since it was last looked at."""
        row = self.described()
        if row.snapshots != 1:
            raise SourceConfigurationError(
                f"The database does not allow snapshot isolation, without which rows could be missed: {ALLOW_SNAPSHOTS}"
            )
        table = self.reflected(str(row.modified_at))
        return TrackedTable(row.object_id, table, self.key_of(table), bool(row.with_columns))

    def reflected(self, modified_at: str) -> Table:
        """Return the description of the table, read again where that is older than the table."""
        table = table_of(self.engine, self.options.table, self.options.schema)
        if table.info.setdefault("azfdb_modified_at", modified_at) != modified_at:
            table = refreshed(self.engine, table)
            table.info["azfdb_modified_at"] = modified_at
        return table

    def key_of(self, table: Table) -> list[str]:
        """Return the key by which changes are tracked; refuse one that a position cannot hold."""
        key, chosen = [column.name for column in table.primary_key.columns], self.options.pk_columns
        if not key:
            raise SourceConfigurationError(f"{self.options.label} has no primary key: change tracking needs one")
        if chosen is not None and set(chosen) != set(key):
            raise SourceConfigurationError(f"pk_columns= is {list(chosen)}, but changes are tracked by {key}")
        for name in key:
            self._require_exact(table.columns[name])
        return key

    def _require_exact(self, column: Column[Any]) -> None:
        require_orderable(column.name, column.type, self.engine.dialect, described=True)
        name, digits = type(column.type).__name__.upper(), getattr(column.type, "precision", None)
        if name in _INEXACT or (name in _FINE and (digits is None or digits > _MICROSECONDS)):
            raise SourceConfigurationError(
                f"Column {column.name!r} cannot be a key here: Python does not hold every {name} exactly (of times it "
                "has six digits, as datetime2(6))"
            )


class TrackingLog:
    """The changes of one table, as a stream reads them."""

    def __init__(
        self,
        server: TrackingServer,
        rows_of: Callable[[Sequence[str]], SqlAlchemySource],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._server = server
        self._options = server.options
        self._rows_of = rows_of
        self._clock = clock
        self._tracked: TrackedTable | None = None

    def begin(self, *, anew: bool) -> LogPosition:
        """Fix where the stream begins."""
        tracked = self._table()
        with self._server.at_one_moment() as connection:
            minimum, current = self._server.versions(connection)
        if anew:
            version = minimum if self._options.on_position_lost == "continue" else current
        else:
            version = self._options.started_at(minimum, current) if self._options.snapshot == "never" else current
        return TrackingPosition(version, None, version, tracked.object_id, self._clock()).written()

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        """Return the next rows of the table; changes that are lost meanwhile are told now, not at its end."""
        tracked = self._table()
        with self._server.at_one_moment() as connection:
            self._server.require(connection, TrackingPosition.of(position), tracked)
        return RowsPage.of(self._rows_of(tracked.key), position, table, tracked.key, after, limit)

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        """Return the rows that have changed after a position."""
        start, tracked = TrackingPosition.of(position), self._table()
        with self._server.at_one_moment() as connection:
            minimum = self._server.require(connection, start, tracked)
            current = self._server.current(connection)
            _require_same_history(start, current)
            base = start.base if start.base >= minimum else start.since
            parameters = parameters_of(start, tracked, base, current) | {"most": limit + 1}
            found = connection.execute(changes_statement(tracked, self._server.quoted, start), parameters).all()
            # A cleanup may have run between two of these statements.
            minimum = self._server.require(connection, start, tracked)
        has_more, found = len(found) > limit, found[:limit]
        reached = self._reached(start, found[-1], tracked) if has_more else self._at(current, tracked)
        changes = [_change(row, tracked, start, knows_all=base == start.base) for row in found]
        is_news = bool(changes) or self._is_worth_a_write(start, reached)
        health = health_of(reached, minimum, current)
        return LogPage(changes, reached.written() if is_news else position, has_more, [health])

    def acknowledge(self, position: LogPosition) -> None:
        """Do nothing: the server cleans up by the clock, whoever reads."""

    def close(self) -> None:
        """Do nothing: connections come from the pool, one page at a time."""

    def _table(self) -> TrackedTable:
        if self._tracked is None:
            self._tracked = self._server.table()
        return self._tracked

    def _at(self, current: int, tracked: TrackedTable) -> TrackingPosition:
        return TrackingPosition(current, None, current, tracked.object_id, self._clock())

    def _reached(self, start: TrackingPosition, last: Row[Any], tracked: TrackedTable) -> TrackingPosition:
        key = tuple(storable(part) for part in last[_FIRST_KEY : _FIRST_KEY + len(tracked.key)])
        return TrackingPosition(int(last[0]), key, start.base, tracked.object_id, self._clock())

    def _is_worth_a_write(self, start: TrackingPosition, reached: TrackingPosition) -> bool:
        """Tell whether a position that moved by the changes of others has moved far enough to be written."""
        moved = reached.version - start.version
        is_due = reached.at - start.at >= self._options.idle_seconds
        return start.key is not None or moved >= self._options.idle_versions or (moved > 0 and is_due)


def changes_statement(tracked: TrackedTable, quoted: str, start: TrackingPosition) -> TextualSelect:
    """Return the statement for one page of changes, each with the row as it is now."""
    from sqlalchemy import BigInteger, Integer, String, column

    key, names = [_quoted(name) for name in tracked.key], [each.name for each in tracked.table.columns]
    listed = [
        "CT.SYS_CHANGE_VERSION",
        "CT.SYS_CHANGE_CREATION_VERSION",
        "CT.SYS_CHANGE_OPERATION",
        *(f"CT.{part}" for part in key),
        *(f"T.{_quoted(name)}" for name in names),
        *_changed_flags(tracked, quoted),
    ]
    joined = " AND ".join(f"T.{part} = CT.{part}" for part in key)
    statement = _statement(
        f"SELECT TOP (:most) {', '.join(listed)}\n"
        f"FROM CHANGETABLE(CHANGES {quoted}, :since) AS CT LEFT JOIN {quoted} AS T ON {joined}\n"
        f"WHERE {_after(tracked, start)}\n"
        f"ORDER BY {', '.join(['CT.SYS_CHANGE_VERSION', *(f'CT.{part}' for part in key)])}"
    ).bindparams(*_typed_key(tracked, start))
    types = [tracked.table.columns[name].type for name in [*tracked.key, *names]]
    shapes: list[Any] = [BigInteger(), BigInteger(), String(), *types, *(Integer() for _ in _changed_names(tracked))]
    return statement.columns(*(column(f"azfdb_{place}", kind) for place, kind in enumerate(shapes)))


def count_statement(tracked: TrackedTable, quoted: str, start: TrackingPosition) -> TextClause:
    """Return the statement that counts changes, and stops at a number."""
    return _statement(
        "SELECT COUNT(*) FROM (SELECT TOP (:most) CT.SYS_CHANGE_VERSION AS version\n"  # noqa: S608 - names are quoted
        f"FROM CHANGETABLE(CHANGES {quoted}, :since) AS CT\nWHERE {_after(tracked, start)}) AS counted"
    ).bindparams(*_typed_key(tracked, start))


def parameters_of(start: TrackingPosition, tracked: TrackedTable, since: int, current: int) -> dict[str, Any]:
    """Return what both statements bind."""
    if start.key is not None and len(start.key) != len(tracked.key):
        raise PositionLostError(f"{tracked.table.fullname} has another key than before")
    key = {f"key_{place}": part for place, part in enumerate(start.key or ())}
    return {"since": since, "current": current, "version": start.version, **key}


def health_of(position: TrackingPosition, minimum: int, current: int) -> StreamHealth:
    """Return how far a position is from where the server has forgotten changes."""
    details = {"current_version": current, "oldest_version": minimum, "versions_behind": current - position.since}
    is_lost = position.since < minimum
    warning = f"the changes after version {position.since} are gone: the oldest are those after {minimum}"
    return StreamHealth(details=details, warning=warning if is_lost else None)


def _after(tracked: TrackedTable, start: TrackingPosition) -> str:
    """Return the condition for changes after a position, up to the version that was current before they are read."""
    bounded = "CT.SYS_CHANGE_VERSION <= :current AND "
    if start.key is None:
        return f"{bounded}CT.SYS_CHANGE_VERSION > :version"
    key = [f"CT.{_quoted(name)}" for name in tracked.key]
    places = range(len(key))
    later = " OR ".join(
        "("
        + " AND ".join([*(f"{key[before]} = :key_{before}" for before in range(at)), f"{key[at]} > :key_{at}"])
        + ")"
        for at in places
    )
    return f"{bounded}(CT.SYS_CHANGE_VERSION > :version OR (CT.SYS_CHANGE_VERSION = :version AND ({later})))"


def _typed_key(tracked: TrackedTable, start: TrackingPosition) -> list[Any]:
    from sqlalchemy import bindparam

    types = [tracked.table.columns[name].type for name in tracked.key]
    return [] if start.key is None else [bindparam(f"key_{place}", type_=kind) for place, kind in enumerate(types)]


def _changed_names(tracked: TrackedTable) -> list[str]:
    """Return the columns of which the server says whether an update has set them."""
    names = [each.name for each in tracked.table.columns if each.name not in tracked.key and each.computed is None]
    return names if tracked.with_columns else []


def _changed_flags(tracked: TrackedTable, quoted: str) -> list[str]:
    """Return an expression for each such column; a mask that is missing says that all of them were set."""
    return [
        f"CASE WHEN CT.SYS_CHANGE_COLUMNS IS NULL THEN 1 ELSE CHANGE_TRACKING_IS_COLUMN_IN_MASK("
        f"COLUMNPROPERTY(OBJECT_ID({_literal(quoted)}), {_literal(name)}, 'ColumnId'), CT.SYS_CHANGE_COLUMNS) END"
        for name in _changed_names(tracked)
    ]


def _quoted(name: str) -> str:
    return f"[{name.replace(']', ']]')}]"


def _literal(value: str) -> str:
    return "N'" + value.replace("'", "''") + "'"


def _statement(sql: str) -> TextClause:
    """Return a statement; where a name has a colon, no parameter begins."""
    from sqlalchemy import text

    return text(_COLON_IN_NAME.sub(lambda name: name[0].replace(":", "\\:"), sql))


_COLON_IN_NAME = re.compile(r"\[(?:[^\]]|\]\])+\]|'(?:[^']|'')*'")


def _raw(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


def _require_same_history(start: TrackingPosition, current: int) -> None:
    if start.version > current:
        raise PositionLostError(
            f"The position is version {start.version}, but the database is at {current} only: it was restored to an "
            "earlier moment, or is another one"
        )


def _change(row: Row[Any], tracked: TrackedTable, start: TrackingPosition, *, knows_all: bool) -> Change:
    version, first = int(row[0]), _FIRST_KEY + len(tracked.key)
    names = [column.name for column in tracked.table.columns]
    key = dict(zip(tracked.key, row[_FIRST_KEY:first], strict=True))
    after: dict[str, Any] | None = dict(zip(names, row[first : first + len(names)], strict=True))
    op = _operation(row, start, knows_all=knows_all)
    if op == "delete" or row[first + names.index(tracked.key[0])] is None:
        op, after = "delete", None
    metadata: dict[str, Any] = {"table": tracked.table.fullname, "version": version}
    if op == "update" and tracked.with_columns:
        flags = zip(_changed_names(tracked), row[first + len(names) :], strict=True)
        metadata["changed"] = [name for name, is_set in flags if is_set]
    return Change(op, f"{version} {key_text(key, tracked.key)}", key, after, cursor=version, metadata=metadata)


def _operation(row: Row[Any], start: TrackingPosition, *, knows_all: bool) -> Operation:
    """Return what a change is to the reader, who may or may not have got the row before.

    The server tells what happened since the base, at which everything had been delivered. A row that is younger than
    that, but older than the position, has changed while pages were read: it is an insert or an update.
    """
    version, creation, letter = row[:_FIRST_KEY]
    if letter == "D":
        return "delete"
    if letter == "U":
        return "update" if knows_all else "upsert"
    is_new = creation is None or creation > start.version or creation == version
    return "insert" if is_new else "upsert"


DATABASE = """\
SELECT retention_period, retention_period_units, is_auto_cleanup_on
FROM sys.change_tracking_databases WHERE database_id = DB_ID()"""

_COUNTED = 100_000
_DAY = 86_400
_UNIT_SECONDS = {1: 60, 2: 3600, 3: _DAY}


def examined(server: TrackingServer) -> Iterator[Finding]:
    """Return what is right and wrong with the database and the table."""
    from azure_functions_db.sources.keyset.checks import tested_against

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
