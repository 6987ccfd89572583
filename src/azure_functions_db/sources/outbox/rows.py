"""The rows of an outbox in the order of their delivery, found by the keyset source underneath; what holds them back."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from azure_functions_db.core.errors import PositionLostError, SerializationError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position, serialize_position, shown
from azure_functions_db.core.types import Change, FetchResult, Finding, Horizon, HorizonHolder, OpenChange
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.sources.outbox.table import OLDEST_RUNNING
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sql.engine import default_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Select, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import CheckpointJson, CursorPart, CursorValue, RawRecord
    from azure_functions_db.sources.keyset.definition import Partition
    from azure_functions_db.sources.outbox.table import Outbox
    from azure_functions_db.sql.engine import EngineProvider

# A share of the keys is looked for among this many rows before a page returns what it has, in chunks of this size.
_SEARCHED_ROWS = 50_000
_CHUNK_ROWS = 5_000
_NEXT_ID = "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)"
_HOLDERS = """
SELECT pid::text, usename, extract(epoch FROM clock_timestamp() - xact_start)
FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL SELECT 'prepared ' || transaction::text, owner, extract(epoch FROM clock_timestamp() - prepared)
FROM pg_prepared_xacts ORDER BY 3 DESC NULLS LAST LIMIT 10
"""


class Page(NamedTuple):
    """What was read, and how many rows were looked at for it."""

    result: FetchResult
    searched: int


class OutboxRows:
    """Reads an outbox: on PostgreSQL by its positions, elsewhere by its sequence or, at a distance, by its clock."""

    def __init__(
        self,
        outbox: Outbox,
        config: DbConfig,
        provider: EngineProvider | None,
        *,
        name: str,
        settle_seconds: float | None,
        partition_by: str | None,
        **options: Any,
    ) -> None:
        self.name = name
        self.partition: Partition | None = None
        self.partition_by = partition_by or outbox.columns.key
        self._outbox = outbox
        self._config = config
        self._provider = provider
        self._settle = settle_seconds
        self._options = options
        self._range: tuple[CursorValue, CursorValue] | None = None

    def shared(self, partition: Partition | None, name: str) -> OutboxRows:
        """Return the rows of one share of the keys, read by itself."""
        share = self._copied()
        share.partition, share.name = partition, name
        return share

    def ranged(self, start_at: CursorValue, end_at: CursorValue) -> OutboxRows:
        """Return the rows from one value of the leading column to another, both included."""
        some = self._copied()
        some._range = (start_at, end_at)  # noqa: SLF001 - a copy
        return some

    def _copied(self) -> OutboxRows:
        other = copy(self)
        for made in ("plain", "events", "thin"):
            vars(other).pop(made, None)
        return other

    def engine(self) -> Engine:
        """Return the engine of the outbox's database."""
        return (self._provider or default_provider()).get_engine(self._config)

    @property
    def by_position(self) -> bool:
        """Whether the rows have positions made of transaction ids: PostgreSQL's."""
        return self.engine().dialect.name == "postgresql" and self._outbox.columns.position is not None

    @property
    def is_safe(self) -> bool:
        """Whether the rows before the end of the last page were all delivered: late commits were seen."""
        return self.by_position or self.events.grade() != "none"

    @cached_property
    def plain(self) -> SqlAlchemySource:
        """The rows by their order alone; it tells one outbox from another."""
        return self._keyset()

    @cached_property
    def events(self) -> SqlAlchemySource:
        """The rows that may be delivered, with all their columns."""
        if not self.by_position:
            return self._keyset(in_flight="wait", settle_seconds=self._settle)
        quoted = self.engine().dialect.identifier_preparer.quote(str(self._outbox.columns.position))
        return self._keyset(where=f"{quoted} < {OLDEST_RUNNING}")

    @property
    def counted(self) -> SqlAlchemySource:
        """The rows to count: of a range also those that are still held back, for it is complete only with them."""
        return self.events if self._range is None else self.plain

    @cached_property
    def thin(self) -> SqlAlchemySource:
        """The same rows without their payloads, and without waiting for anybody."""
        columns = self._outbox.columns
        named = [columns.id, columns.key, self.partition_by, columns.created_at, columns.sequence]
        return self._keyset(columns=tuple(dict.fromkeys(filter(None, named))))

    def takes(self, record: RawRecord) -> bool:
        """Tell whether a row belongs to this share."""
        return self.partition is None or self.partition.takes([record[self._partition_column]])

    def validate(self) -> None:
        """Raise where the table is no outbox, or lacks the column of the partitions."""
        with reading(self.name):
            self._partition_column  # noqa: B018 - asking is what checks it, and the table
        self.events.validate()

    def page(self, checkpoint: CheckpointJson, limit: int, *, waits: bool = True) -> Page:
        """Read the rows of this share after a checkpoint; late commits are waited for a little where that is wanted."""
        reader = self.events.open()
        fetch = reader.fetch_changes if waits else reader.look
        if self.partition is None:
            result = fetch(checkpoint, limit)
            return Page(result, len(result.records))
        return self._share(fetch, checkpoint, limit, self.partition.count)

    def changes(self, result: FetchResult, following: CheckpointJson, horizon: Horizon | None) -> FetchResult:
        """Return the rows of a page as the events they are; a payload that is no JSON makes its row undecodable."""
        undecodable = dict(result.undecodable)
        if not self._holds_json:
            undecodable |= _decode(result.records, self._outbox.columns.payload, self.name)
        return FetchResult(
            _changes(result.records, self._outbox),
            following,
            result.more,
            undecodable=undecodable,
            facts=[*result.facts, *([horizon] if horizon is not None else [])],
        )

    def horizon(self, checkpoint: CheckpointJson) -> Horizon | None:
        """Tell what keeps rows after a checkpoint from being read; a position that was lost is an error."""
        with reading(self.name), self.engine().connect() as connection:
            if self.by_position:
                return _horizon_of(connection, self._outbox, self.events, checkpoint)
            _require_position(self.events, checkpoint, _newest_number(connection, self._outbox))
            return None

    def position_of(self, text: str) -> CheckpointJson:
        """Return the checkpoint behind the row that has an id or a number, or before the first row since a time."""
        row, since = self._meant(text), _moment(text)
        if row is None:
            raise SourceConfigurationError(f"The outbox {self._outbox.label!r} has no row written since {text}")
        cursor_column, pk_columns = self._order
        if since is not None:
            row |= {name: _less(row[name]) for name in {self._outbox.columns.sequence, *pk_columns} & set(row)}
        return {"cursor": serialize_position(row[cursor_column], {name: row[name] for name in pk_columns})}

    def cursor_of(self, text: str) -> CursorPart:
        """Return the cursor of the row that has an id or a number, of the first row since a time, or of the last."""
        row = self._meant(text) or self._first_row(None)
        cursor: CursorPart = None if row is None else row[self._order[0]]
        return cursor

    def _meant(self, text: str) -> RawRecord | None:
        """Return the row that a person means; None where nothing was written since a time."""
        row = self._first_row(lambda table: self._condition(table, text))
        if row is None and _moment(text) is None:
            raise SourceConfigurationError(
                f"The outbox {self._outbox.label!r} has no row {shown(text)}, or no longer: give the id or the number "
                "of a row that is there, or a time"
            )
        return row

    def _first_row(self, condition: Callable[[Table], ColumnElement[bool]] | None) -> RawRecord | None:
        """Return the order columns of the first row that fulfils a condition, without one those of the last row."""
        with reading(self.name), self.engine().connect() as connection, _telling_utc(connection):
            table = self._outbox.reflected(connection.engine)
            found = connection.execute(self._one(table, condition and condition(table))).mappings().first()
        if found is None:
            return None
        stamps = {column.name for column in table.columns if values.type_name(column.type) == "TIMESTAMP"}
        in_utc = stamps if _is_mysql(connection) else set()
        return {name: values.aware_utc(value) if name in in_utc else value for name, value in found.items()}

    def _one(self, table: Table, condition: ColumnElement[bool] | None) -> Select[Any]:
        from sqlalchemy import select

        cursor_column, pk_columns = self._order
        columns = [table.columns[name] for name in dict.fromkeys((cursor_column, *pk_columns))]
        if condition is None:
            return select(*columns).order_by(*(column.desc() for column in columns)).limit(1)
        return select(*columns).where(condition).order_by(*columns).limit(1)

    def _condition(self, table: Table, text: str) -> ColumnElement[bool]:
        """Return what tells the rows that a text can mean."""
        columns, since = self._outbox.columns, _moment(text)
        if text.isdecimal():
            return table.columns[columns.sequence] == int(text)
        if since is None:
            own = table.columns[columns.id]
            is_it: ColumnElement[bool]
            is_it = own == values.revived_row({own.name: text}, {own.name: own.type}, strict=True)[own.name]
            return is_it
        if columns.created_at is None:
            raise SourceConfigurationError("A time says nothing here: the outbox has no created_at column")
        return _since(table.columns[columns.created_at], since, self.engine().dialect.name)

    def _share(
        self, fetch: Callable[[CheckpointJson, int], FetchResult], checkpoint: CheckpointJson, limit: int, count: int
    ) -> Page:
        """Read on until there are rows of this share: which ones belong to it is known only here."""
        chunk, searched = min(limit * count, max(limit, _CHUNK_ROWS)), 0
        while True:
            page = fetch(checkpoint, chunk)
            mine = [place for place, record in enumerate(page.records) if self.takes(record)]
            searched += len(page.records)
            if mine or not page.more or not page.records or searched >= _SEARCHED_ROWS:
                return Page(self._cut(page, mine, limit), searched)
            checkpoint = page.next_checkpoint

    def _cut(self, page: FetchResult, mine: Sequence[int], limit: int) -> FetchResult:
        """Return the rows of a share, and of these no more than wanted."""
        kept, following, more = list(mine[:limit]), page.next_checkpoint, page.more
        if len(mine) > limit:
            last = page.records[kept[-1]]
            key = {name: last[name] for name in self.events.pk_columns}
            following, more = {**following, "cursor": serialize_position(last[self.events.cursor_column], key)}, True
        undecodable = {new: page.undecodable[old] for new, old in enumerate(kept) if old in page.undecodable}
        records = [page.records[place] for place in kept]
        return FetchResult(records, following, more, undecodable=undecodable, facts=page.facts)

    def _keyset(self, in_flight: Any = "ignore", **own: Any) -> SqlAlchemySource:
        cursor_column, pk_columns = self._order
        source = SqlAlchemySource(
            db_config=self._config,
            table=self._outbox.table,
            schema=self._outbox.schema,
            cursor_column=cursor_column,
            pk_columns=pk_columns,
            in_flight=in_flight,
            name=self.name,
            engine_provider=self._provider,
            **own,
            **self._options,
        )
        return source if self._range is None else source.ranged(*self._range)

    @property
    def _order(self) -> tuple[str, tuple[str, ...]]:
        """The columns by which rows are ordered on this database: a cursor and its key."""
        columns, dialect = self._outbox.columns, self.engine().dialect.name
        if columns.position is not None and dialect in {"postgresql", "mssql"}:
            if self._settle is not None:
                raise SourceConfigurationError(f"settle_seconds= is not for {dialect}, which tells who is running")
            return columns.position, (columns.position if dialect == "mssql" else columns.sequence,)
        if self._settle is None:
            return columns.sequence, (columns.sequence,)
        if columns.created_at is None:
            raise SourceConfigurationError("settle_seconds= needs a created_at column to compare with the clock")
        return columns.created_at, (columns.sequence,)

    @cached_property
    def _partition_column(self) -> str:
        engine = self.engine()
        column = self._outbox.reflected(engine).columns.get(self.partition_by)
        if column is None:
            raise SourceConfigurationError(
                f"partition_by= names {self.partition_by!r}, which is no column of the table"
            )
        if engine.dialect.name in {"mysql", "mariadb"} and values.type_name(column.type) == "TIMESTAMP":
            raise SourceConfigurationError(
                f"partition_by= names {self.partition_by!r}, a TIMESTAMP, which each session tells in its own time "
                "zone: name a column that has the same value for all of them"
            )
        return self.partition_by

    @cached_property
    def _holds_json(self) -> bool:
        """Whether the database itself keeps payloads as JSON, so that they come decoded."""
        from sqlalchemy import JSON

        return isinstance(self._outbox.reflected(self.engine()).columns[self._outbox.columns.payload].type, JSON)


def _less(value: Any) -> Any:
    """Return the number before a number of the sequence, or before one of SQL Server's row versions."""
    return (int.from_bytes(value) - 1).to_bytes(len(value)) if isinstance(value, bytes) else value - 1


def _moment(text: str) -> dt.datetime | None:
    """Return the time that a text says, in UTC unless it has a zone; None for any other text."""
    if text.isdecimal():  # which could be the short form of a date
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
        return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
    except (ValueError, OverflowError):  # the last hours of the calendar have no form in UTC
        return None


def _since(column: ColumnElement[Any], moment: dt.datetime, dialect: str) -> ColumnElement[bool]:
    """Return whether a row was written at a moment or later; the session tells times in UTC."""
    from sqlalchemy import Text, type_coerce

    match dialect:
        case "sqlite":  # as the column's default writes it
            text = moment.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
            return type_coerce(column, Text()) >= text
        case "mysql" | "mariadb":
            return column >= moment.replace(tzinfo=None)
        case _:
            return column >= moment


def _is_mysql(connection: Connection) -> bool:
    return connection.dialect.name in {"mysql", "mariadb"}


@contextmanager
def _telling_utc(connection: Connection) -> Iterator[None]:
    if _is_mysql(connection):
        with values.in_utc(connection):
            yield
    else:
        yield


_NOTHING: Mapping[str, Any] = MappingProxyType({})


def _changes(records: Sequence[RawRecord], outbox: Outbox) -> list[Change]:
    """Return each row as the event that it is; its id is what tells it from every other."""
    columns = outbox.columns
    key, event_id, sequence = columns.key, columns.id, columns.sequence
    changes: list[Any] = []
    for record in records:
        own_id = record[event_id]
        change: Any = OpenChange()
        change.op = "insert"
        change.position = f"{own_id.int:032x}" if type(own_id) is UUID else str(own_id)  # quicker than its text
        change.key = {key: record[key]}
        change.after = record
        change.before = None
        change.cursor = record[sequence]
        change.metadata = _NOTHING
        change.__class__ = Change
        changes.append(change)
    return changes


def _decode(records: Sequence[RawRecord], payload: str, source: str) -> dict[int, Exception]:
    """Put the payloads that are texts into their decoded form; return why others have none, by their place."""
    failures: dict[int, Exception] = {}
    for place, record in enumerate(records):
        value = record[payload]
        if not isinstance(value, str | bytes | bytearray | memoryview):
            continue
        try:
            record[payload] = json.loads(bytes(value) if isinstance(value, memoryview) else value)
        except (ValueError, RecursionError) as error:
            reason = f"Source {source!r}: the payload in {payload!r} is no JSON: {type(error).__name__}"
            failures[place] = SerializationError(reason)
    return failures


def _require_position(rows: SqlAlchemySource, checkpoint: CheckpointJson, newest: int | None) -> None:
    """Raise `PositionLostError` where a checkpoint is ahead of everything that this database has handed out."""
    place = _place(rows, checkpoint)
    if place is not None and newest is not None and isinstance(place[0], int) and place[0] > newest:
        raise PositionLostError(
            f"Source {rows.name!r} stands at {rows.describe(checkpoint)}, but the database has only come to {newest}: "
            "it was restored, truncated or replaced. Rows written since then are not delivered: reset the poller "
            "(azfdb reset NAME --to-beginning)"
        )


def _horizon_of(
    connection: Connection, outbox: Outbox, rows: SqlAlchemySource, checkpoint: CheckpointJson
) -> Horizon | None:
    """Tell who keeps PostgreSQL's horizon below rows that are there, None where nothing is held back."""
    from sqlalchemy import select, text, tuple_

    table = outbox.reflected(connection.engine)
    position, sequence = table.columns[str(outbox.columns.position)], table.columns[outbox.columns.sequence]
    place = _place(rows, checkpoint)
    after = [] if place is None else [tuple_(position, sequence) > tuple_(*place)]
    waiting = select(position).where(*after).order_by(position.desc(), sequence.desc()).limit(1)
    statement = select(waiting.scalar_subquery(), text(OLDEST_RUNNING), text(_NEXT_ID))
    newest, oldest, following = connection.execute(statement).one()
    _require_position(rows, checkpoint, following - 1)
    if newest is None:
        return None
    if newest >= following:
        raise PositionLostError(
            f"The outbox {outbox.label!r} has rows of transaction {newest}, and this server has only come to "
            f"{following - 1}: they were written on another server. Give them a place on this one: set "
            f"{outbox.columns.position} = DEFAULT in every row"
        )
    holders = tuple(
        HorizonHolder(session, user, None if age is None else float(age))
        for session, user, age in connection.execute(text(_HOLDERS))
    )
    return Horizon(oldest, max((holder.age_seconds or 0.0 for holder in holders), default=0.0), holders)


def checked_up(outbox: Outbox, engine: Engine, found: Iterable[Finding], *, by_position: bool) -> Iterator[Finding]:
    """Return what was found about the rows, and about the table as an outbox."""
    for finding in found:
        if not by_position or finding.check not in {"late commits", "cursor values"}:
            yield finding
    if by_position:
        yield from _positions(outbox, engine)


def _positions(outbox: Outbox, engine: Engine) -> Iterator[Finding]:
    column = outbox.reflected(engine).columns[str(outbox.columns.position)]
    default = str(getattr(column.server_default, "arg", ""))
    made_by_ids = "pg_current_xact_id" in default and "pg_snapshot_xmax" in default
    if made_by_ids and not column.nullable:
        yield Finding("late commits", "ok", "exact: rows are read below the oldest running transaction")
    else:
        yield Finding(
            "late commits",
            "error",
            f"{column.name} is not made of transaction ids by its default: rows can be missed, and removed unread",
            f"make it as Outbox.ddl('postgresql') does, and declare it NOT NULL: {outbox.ddl('postgresql')}",
        )


def _place(rows: SqlAlchemySource, checkpoint: CheckpointJson) -> tuple[Any, ...] | None:
    written = checkpoint.get("cursor")
    return None if written is None else deserialize_position(written, rows.pk_columns)


def _newest_number(connection: Connection, outbox: Outbox) -> int | None:
    """Return the highest number that this database has given to a row, None where it does not tell."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    dialect, named = connection.dialect, {"name": outbox.table, "place": outbox.schema}
    if _is_mysql(connection):
        if not getattr(dialect, "is_mariadb", False):  # else MySQL tells what it remembers, which may be long ago
            connection.exec_driver_sql("SET SESSION information_schema_stats_expiry = 0")
        counted = text(
            "SELECT auto_increment - 1 FROM information_schema.tables "
            "WHERE table_schema = coalesce(:place, database()) AND table_name = :name"
        )
        newest = connection.execute(counted, named).scalar()
    elif dialect.name == "sqlite" and outbox.schema is None:
        try:
            newest = connection.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), named).scalar()
        except DBAPIError:
            return None  # nothing here was ever numbered
    else:
        return None
    return None if newest is None else int(newest)
