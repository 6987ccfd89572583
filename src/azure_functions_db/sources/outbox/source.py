"""The consuming side: delivers the events of an outbox in order, and removes what was delivered."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import time
from contextlib import closing
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from azure_functions_db.core.clocks import lag_seconds, utc_now
from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SerializationError, SourceConfigurationError
from azure_functions_db.core.serializers import serialize_position
from azure_functions_db.core.types import AdapterCapability, Backlog, Change, FetchResult, OpenChange, SourceDescriptor
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.keyset.read_errors import reading
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.sources.outbox.health import checked_up, horizon_of, newest_number, require_position
from azure_functions_db.sources.outbox.layout import OLDEST_RUNNING
from azure_functions_db.sources.outbox.removal import BEGINNING, Removal
from azure_functions_db.sources.outbox.table import Outbox
from azure_functions_db.sql.engine import default_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import Checkpoint, Finding, Horizon, RawRecord
    from azure_functions_db.sql.engine import EngineProvider

_logger = logging.getLogger("azure_functions_db")

REMOVED = "removed"
"""The part of a checkpoint that says up to where delivered rows have gone; without it nothing before it is touched."""
_COUNTED = 100_000
_STEP_SECONDS = 0.02
# A share of the keys is looked for among this many rows before a fetch returns what it has.
_SEARCHED_ROWS = 50_000
_CHUNK_ROWS = 5_000


class OutboxSource:
    """Reads an outbox as a queue: each event once it is committed, the events of one key in their order.

    Making one only checks its arguments; the database and the environment are first looked at when
    something is read.

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``outbox``:
      The `Outbox`, or the name of its table.
    - ``retention``:
      How long delivered rows are kept, by the time they were written. Zero: they are removed as soon as they are
      delivered. None: they are kept until somebody prunes them.
    - ``partition_by``:
      The column whose value decides to which partition an event belongs; the key unless given.
    - ``partition``:
      ``(index, count)``: only this share of the keys.
    - ``settle_seconds``:
      Keep this distance from the database's clock, for databases that neither have transaction ids of their own to
      order by nor show their running transactions.
    - ``horizon_wait_seconds``:
      How long a fetch that finds nothing it may read waits for running transactions to end.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        outbox: Outbox | str = "outbox",
        retention: dt.timedelta | None = dt.timedelta(0),
        partition_by: str | None = None,
        partition: tuple[int, int] | None = None,
        settle_seconds: float | None = None,
        horizon_wait_seconds: float = 1.0,
        name: str | None = None,
        engine_provider: EngineProvider | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            self._config = config_of(url, db_config)
            self.outbox = Outbox(outbox) if isinstance(outbox, str) else _checked_outbox(outbox)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from None
        self._retention = _checked_retention(retention, self.outbox)
        self._partition_by = partition_by or self.outbox.columns.key
        self._partition = None if partition is None else Partition.checked(partition)
        self._settle = settle_seconds
        self._wait = horizon_wait_seconds
        self._provider = engine_provider
        self._clock = clock
        self._sleep = sleep
        self.name = name or self.outbox.label

    def __repr__(self) -> str:
        return f"OutboxSource({self.name!r})"

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            place = self._keyset(where=None).source_descriptor.fingerprint
        parts = [place, self._partition_by if self._partition else None, str(self._partition or "")]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return SourceDescriptor(self.name, "outbox", f"sha256:{digest}")

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change, and what it needs."""
        return AdapterCapability(
            distinguishes_insert=True,
            every_change=True,
            partitions=True,
            acknowledges=self._retention is not None,
        )

    def partitioned(self, index: int, count: int) -> OutboxSource:
        """Return a source for one of several shares of the keys, to be polled under its own name."""
        share = copy(self)
        for made in ("source_descriptor", "removal", "_events", "_rows"):  # what was made for the whole
            vars(share).pop(made, None)
        share._partition = Partition.checked((index, count))  # noqa: SLF001 - a copy
        share.name = f"{self.name}[{index}/{count}]"
        return share

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        with reading(self.name):
            self.outbox.reflected(self.engine())
            self._partition_column  # noqa: B018 - asking is what checks it
        self._events.validate()

    def open(self) -> OutboxReader:
        """Return the reader of one tick."""
        return OutboxReader(self)

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        """Return the events after the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Remove what was delivered up to the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            reader.acknowledge(checkpoint)

    def count_changes(self, checkpoint: Checkpoint, most: int | None = None) -> int:
        """Return how many events follow the checkpoint, late commits left aside; a share is estimated."""
        rows = self._events.count_changes(checkpoint, most)
        return rows if self._partition is None else rows // self._partition.count

    def backlog(self, checkpoint: Checkpoint) -> Backlog:
        """Return how many events follow the checkpoint, and the age of the first."""
        rows = self.count_changes(checkpoint, _COUNTED)
        with reading(self.name):
            first = self._rows.fetch_changes(_position(checkpoint), 1).records
        written_at = first[0].get(self.outbox.columns.created_at or "") if first else None
        lag = lag_seconds(written_at, utc_now()) if rows else 0.0
        return Backlog(rows, "rows", is_more=rows >= _COUNTED, lag_seconds=lag)

    def examine(self) -> list[Finding]:
        """Return what an operator should know about the table, its order and its writers."""
        with reading(self.name):
            return list(checked_up(self.outbox, self.engine(), self._events.examine(), by_position=self.by_position))

    checkup = examine

    def describe(self, checkpoint: Checkpoint) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        return self._events.describe(checkpoint)

    def parse(self, text: str) -> Checkpoint:
        """Return the checkpoint of a position that somebody has typed."""
        return self._events.parse(text)

    def engine(self) -> Engine:
        """Return the engine of the outbox's database."""
        return (self._provider or default_provider()).get_engine(self._config)

    @property
    def by_position(self) -> bool:
        """Whether rows are ordered by transaction ids of their own: PostgreSQL's."""
        return self.engine().dialect.name == "postgresql" and self.outbox.columns.position is not None

    def page(self, checkpoint: Checkpoint, limit: int) -> _Page:
        """Read the rows of this share after a checkpoint."""
        if self._partition is None:
            result = self._events.fetch_changes(checkpoint, limit)
            return _Page(result, len(result.records))
        result, searched = self._share(checkpoint, limit)
        return _Page(result, searched)

    def changes(self, result: FetchResult) -> FetchResult:
        """Return the rows of a page as the events they are; a payload that is no JSON makes its row undecodable."""
        undecodable = dict(result.undecodable)
        if result.records and not self._holds_json:
            undecodable |= _decode(result.records, self.outbox.columns.payload, self.name)
        records = _changes(result.records, self.outbox)
        return FetchResult(
            records,
            result.next_checkpoint,
            result.more,
            result.horizon,
            result.null_cursor_rows,
            undecodable=undecodable,
        )

    def horizon(self, checkpoint: Checkpoint) -> Horizon | None:
        """Tell what keeps rows after a checkpoint from being read; a position that was lost is an error."""
        with reading(self.name), self.engine().connect() as connection:
            if self.by_position:
                return horizon_of(connection, self.outbox, self._events, checkpoint)
            require_position(self._events, checkpoint, newest_number(connection, self.outbox))
            return None

    def pause(self) -> Callable[[], bool]:
        """Return what waits a moment and tells whether there is patience for another one."""
        deadline = self._clock() + self._wait

        def wait() -> bool:
            if self._clock() >= deadline:
                return False
            self._sleep(_STEP_SECONDS)
            return True

        return wait

    @property
    def is_safe(self) -> bool:
        """Whether the rows behind a page were all delivered: late commits were seen when it was read."""
        return self.by_position or self._events.grade() != "none"

    @cached_property
    def removal(self) -> Removal | None:
        """What removes delivered rows; None where they are kept."""
        return None if self._retention is None else self.removal_after(self._retention)

    def removal_after(self, retention: dt.timedelta) -> Removal:
        """Return what removes delivered rows that are older than this."""
        _checked_retention(retention, self.outbox)
        return Removal(self.outbox, self._rows, self.engine, retention, self._takes)

    def count_rows(self, checkpoint: Checkpoint, most: int) -> int:
        """Return how many rows of the table follow a checkpoint, whoever may read them."""
        return self._rows.count_changes(_position(checkpoint), most)

    def _takes(self, record: RawRecord) -> bool:
        return self._partition is None or self._partition.takes([record[self._partition_column]])

    @cached_property
    def _partition_column(self) -> str:
        if self._partition_by not in self.outbox.reflected(self.engine()).columns:
            raise SourceConfigurationError(
                f"partition_by= names {self._partition_by!r}, which is no column of the table"
            )
        return self._partition_by

    def _share(self, checkpoint: Checkpoint, limit: int) -> tuple[FetchResult, int]:
        """Read on until there are rows of this share: which ones belong to it is known only here."""
        count, searched = self._partition.count, 0  # type: ignore[union-attr]  # only called with one
        chunk = min(limit * count, max(limit, _CHUNK_ROWS))
        while True:
            page = self._events.fetch_changes(checkpoint, chunk)
            mine = [place for place, record in enumerate(page.records) if self._takes(record)]
            searched += len(page.records)
            if mine or not page.more or searched >= _SEARCHED_ROWS:
                return self._cut(page, mine, limit), searched
            checkpoint = page.next_checkpoint

    def _cut(self, page: FetchResult, mine: Sequence[int], limit: int) -> FetchResult:
        """Return the rows of a share, and of these no more than wanted."""
        kept, following, more = list(mine[:limit]), page.next_checkpoint, page.more
        if len(mine) > limit:
            last = page.records[kept[-1]]
            events = self._events
            key = {name: last[name] for name in events.pk_columns}
            following, more = {**following, "cursor": serialize_position(last[events.cursor_column], key)}, True
        undecodable = {new: page.undecodable[old] for new, old in enumerate(kept) if old in page.undecodable}
        records = [page.records[place] for place in kept]
        return FetchResult(records, following, more, page.horizon, page.null_cursor_rows, undecodable=undecodable)

    @cached_property
    def _events(self) -> SqlAlchemySource:
        """The rows that may be delivered, with all their columns."""
        where = None
        if self.by_position:
            quoted = self.engine().dialect.identifier_preparer.quote(str(self.outbox.columns.position))
            where = f"{quoted} < {OLDEST_RUNNING}"
        return self._keyset(where=where)

    @cached_property
    def _rows(self) -> SqlAlchemySource:
        """The same rows without their payloads, and without waiting for anybody."""
        columns = self.outbox.columns
        named = [columns.id, columns.key, self._partition_by, columns.created_at, columns.sequence]
        return self._keyset(where=None, columns=tuple(dict.fromkeys(filter(None, named))), plain=True)

    def _keyset(
        self, *, where: str | None, columns: Sequence[str] | None = None, plain: bool = False
    ) -> SqlAlchemySource:
        cursor_column, pk_columns = self._order
        in_flight: Any = "ignore" if plain or self.by_position else "wait"
        return SqlAlchemySource(
            db_config=self._config,
            table=self.outbox.table,
            schema=self.outbox.schema,
            cursor_column=cursor_column,
            pk_columns=pk_columns,
            where=where,
            columns=columns,
            in_flight=in_flight,
            settle_seconds=None if plain else self._settle,
            name=self.name,
            engine_provider=self._provider,
            horizon_wait_seconds=self._wait,
            clock=self._clock,
            sleep=self._sleep,
        )

    @property
    def _order(self) -> tuple[str, tuple[str, ...]]:
        """The columns by which rows are ordered on this database."""
        columns, dialect = self.outbox.columns, self.engine().dialect.name
        if columns.position is not None and dialect in {"postgresql", "mssql"}:
            if self._settle is not None:
                raise SourceConfigurationError(f"settle_seconds= is not for {dialect}, which tells who is running")
            return columns.position, (columns.position,) if dialect == "mssql" else (columns.sequence,)
        if self._settle is not None:
            if columns.created_at is None:
                raise SourceConfigurationError("settle_seconds= needs a created_at column to compare with the clock")
            return columns.created_at, (columns.sequence,)
        return columns.sequence, (columns.sequence,)

    @cached_property
    def _holds_json(self) -> bool:
        """Whether the database itself keeps payloads as JSON, so that they come decoded."""
        from sqlalchemy import JSON

        return isinstance(self.outbox.reflected(self.engine()).columns[self.outbox.columns.payload].type, JSON)


class _Page(NamedTuple):
    """What was read, and how many rows were looked at for it."""

    result: FetchResult
    searched: int


class OutboxReader:
    """One tick's reading of an outbox; it knows up to where rows have gone."""

    def __init__(self, source: OutboxSource) -> None:
        self._source = source
        self._removed: Any = None
        self._passed = 0
        """How many rows were read since then."""
        self._has_looked = False
        self._has_warned = False

    def close(self) -> None:
        """Do nothing: connections come from the pool, one page at a time."""

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        """Return at most ``limit`` events after the checkpoint, and the checkpoint after them."""
        source, wait = self._source, self._source.pause()
        page, horizon = source.page(checkpoint, limit), None
        while not page.result.records and not page.result.more and not self._has_looked:
            horizon = source.horizon(checkpoint)
            if horizon is None or not wait():
                self._has_looked = True
                break
            page = source.page(checkpoint, limit)
        self._passed += page.searched
        result = source.changes(page.result)
        following = self._following(checkpoint, result)
        return FetchResult(
            result.records,
            following,
            result.more,
            result.horizon or horizon,
            result.null_cursor_rows,
            undecodable=result.undecodable,
        )

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Remove the rows up to the checkpoint that were delivered and are not to be kept."""
        removal, start, end = self._source.removal, checkpoint.get(REMOVED), checkpoint.get("cursor")
        if removal is None or start is None or not end:
            return
        if self._removed is None:
            self._removed = removal.between(start, end)
        else:
            self._removed, self._passed = removal.between(self._removed, end, self._passed), 0

    def _following(self, checkpoint: Checkpoint, result: FetchResult) -> Checkpoint:
        """Return the next checkpoint with the position from which on rows are to be removed."""
        following = result.next_checkpoint
        if following.get("cursor") is None or self._source.removal is None:
            return following
        if result.records and not self._source.is_safe:
            # What commits late was not seen, and has to be told from what was delivered: nothing is removed.
            self._warn_of_rows_left()
            return {**following, REMOVED: following["cursor"]}
        start = self._start(checkpoint)
        if not result.records and not result.more and self._source.removal.is_due(start, following["cursor"]):
            return {**following, REMOVED: start, "removing_since": utc_now().isoformat()}
        return {**following, REMOVED: start}

    def _warn_of_rows_left(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "Source %r leaves delivered rows where they are: the database does not show its running transactions, "
                "so that a row which commits late cannot be told from them. Grant PROCESS, or give settle_seconds=",
                self._source.name,
            )

    def _start(self, checkpoint: Checkpoint) -> Any:
        """Return the position after which rows may still be there that were delivered."""
        if self._removed is not None:
            return self._removed
        # Whoever has set the position by hand has not delivered what lies before it.
        return checkpoint.get(REMOVED, checkpoint.get("cursor") or BEGINNING)


def _changes(records: Sequence[RawRecord], outbox: Outbox) -> list[Change]:
    """Return each row as the event that it is; its id is what tells it from every other."""
    columns = outbox.columns
    key, event_id, sequence, metadata = columns.key, columns.id, columns.sequence, MappingProxyType[str, Any]({})
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
        change.metadata = metadata
        change.__class__ = Change
        changes.append(change)
    return changes


def _position(checkpoint: Checkpoint) -> Checkpoint:
    return {"cursor": checkpoint["cursor"]} if checkpoint.get("cursor") else {}


def _checked_outbox(outbox: object) -> Outbox:
    if not isinstance(outbox, Outbox):
        raise SourceConfigurationError(f"outbox= is an Outbox or the name of its table, not a {type(outbox).__name__}")
    return outbox


def _checked_retention(retention: object, outbox: Outbox) -> dt.timedelta | None:
    if retention is not None and (not isinstance(retention, dt.timedelta) or retention < dt.timedelta(0)):
        raise SourceConfigurationError("retention= must be a timedelta of zero or more, or None to keep every row")
    if retention and outbox.columns.created_at is None:
        raise SourceConfigurationError("retention= needs a created_at column that tells the age of a row")
    return retention


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
