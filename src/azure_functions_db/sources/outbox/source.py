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
from itertools import islice
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import lag_seconds, utc_now
from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.core.types import AdapterCapability, Backlog, SourceDescriptor
from azure_functions_db.sources.keyset.definition import Partition
from azure_functions_db.sources.outbox.rows import OutboxRows, checked_up
from azure_functions_db.sources.outbox.table import Outbox, writing
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sql.transactions import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import (
        CheckpointJson,
        CursorPart,
        CursorValue,
        FetchResult,
        Finding,
        Horizon,
        RawRecord,
    )
    from azure_functions_db.sources.outbox.rows import Page
    from azure_functions_db.sql.engine import EngineProvider

_logger = logging.getLogger("azure_functions_db")

REMOVED = "removed"
"""The part of a checkpoint that says up to where delivered rows have gone; without it nothing before it is touched."""
_COUNTED = 100_000
_STEP_SECONDS = 0.02
# How many rows one statement removes at most.
_STEP = 1000
# What is left after so many steps waits for the next acknowledgement.
_STEPS = 100
# How many rows are looked at first where it is not known whether any were left behind.
_LOOK = 100

_BEGINNING: dict[str, Any] = {}
"""The written position before every row."""


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
            config = config_of(url, db_config)
            self.outbox = Outbox(outbox) if isinstance(outbox, str) else _checked_outbox(outbox)
        except ConfigurationError as error:
            raise SourceConfigurationError.of(error) from None
        self.name = name or self.outbox.label
        self._retention = _checked_retention(retention, self.outbox)
        self._rows = OutboxRows(
            self.outbox,
            config,
            engine_provider,
            name=self.name,
            settle_seconds=settle_seconds,
            partition_by=partition_by,
            horizon_wait_seconds=horizon_wait_seconds,
            clock=clock,
            sleep=sleep,
        ).shared(None if partition is None else Partition.checked(partition), self.name)
        self._patience = (horizon_wait_seconds, clock, sleep)

    def __repr__(self) -> str:
        return f"OutboxSource({self.name!r})"

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            parts = [self._rows.plain.source_descriptor.fingerprint]
        if self._rows.partition is not None:
            parts += [self._rows.partition_by, str(self._rows.partition)]
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

    def partitioned(self, index: int, count: int, by: str | Sequence[str] | None = None) -> OutboxSource:
        """Return a source for one of several shares of the keys, to be polled under its own name."""
        if by is not None:
            raise SourceConfigurationError("What belongs together in an outbox is said by OutboxSource(partition_by=)")
        share = copy(self)
        vars(share).pop("source_descriptor", None)
        share.name = f"{self.name}[{index}/{count}]"
        share._rows = self._rows.shared(Partition.checked((index, count)), share.name)  # noqa: SLF001 - a copy
        return share

    def ranged(self, start_at: CursorValue, end_at: CursorValue) -> OutboxSource:
        """Return a source for the rows that are still there from one cursor value to another; it removes none.

        The cursor is the position on PostgreSQL, the number in the sequence elsewhere. Events keep their ids.
        """
        some = copy(self)
        some._rows, some._retention = self._rows.ranged(start_at, end_at), None  # noqa: SLF001 - a copy
        return some

    def cursor_from(self, text: str) -> CursorPart:
        """Return the cursor of the row that is meant by its id, its number, or a time: the first row since then."""
        return self._rows.cursor_of(text)

    def cursor_at(self, checkpoint: CheckpointJson) -> CursorPart:
        """Return the cursor value that a checkpoint has come to."""
        return self._rows.plain.cursor_at(checkpoint)

    def lowest(self, checkpoints: Sequence[CheckpointJson]) -> CheckpointJson | None:
        """Return where to begin so as to miss nothing that follows any of these; None where that cannot be told."""
        return self._rows.events.lowest([_position(checkpoint) for checkpoint in checkpoints])

    def is_behind(self, checkpoint: CheckpointJson, other: CheckpointJson) -> bool:
        """Tell whether a position is certainly behind another one."""
        return self._rows.events.is_behind(_position(checkpoint), _position(other))

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        self._rows.validate()

    def open(self) -> OutboxReader:
        """Return the reader of one tick."""
        removal = None if self._retention is None else self._removal(self._retention)
        return OutboxReader(self._rows, removal, *self._patience)

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return the events after the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            return reader.fetch_changes(checkpoint, limit)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Remove what was delivered up to the checkpoint, as a reader for this once."""
        with closing(self.open()) as reader:
            reader.acknowledge(checkpoint)

    def count_changes(self, checkpoint: CheckpointJson, most: int | None = None) -> int:
        """Return how many events follow the checkpoint, late commits left aside; a share is estimated."""
        rows, partition = self._rows.counted.count_changes(_position(checkpoint), most), self._rows.partition
        return rows if partition is None else -(-rows // partition.count)

    def count_rows(self, checkpoint: CheckpointJson, most: int | None = None) -> int:
        """Return how many rows of the whole table follow the checkpoint, whoever may read them."""
        return self._rows.thin.count_changes(_position(checkpoint), most)

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many events follow the checkpoint, the age of the first, and who holds others back."""
        rows = self.count_changes(checkpoint, _COUNTED)
        first = self._rows.thin.fetch_changes(_position(checkpoint), 1).records
        written_at = first[0].get(self.outbox.columns.created_at or "") if first else None
        lag = lag_seconds(written_at, utc_now()) if rows else 0.0
        horizon = self._rows.horizon(checkpoint) or self._rows.events.backlog(_position(checkpoint)).horizon
        return Backlog(rows, "rows", is_more=rows >= _COUNTED, lag_seconds=lag, horizon=horizon)

    def prune(self, checkpoint: CheckpointJson, older_than: dt.timedelta, *, dry_run: bool = False) -> int:
        """Remove what was delivered up to the checkpoint and is older than this; return how many rows that were."""
        position = checkpoint.get("cursor")
        return 0 if position is None else self._removal(older_than).sweep(position, dry_run=dry_run)

    def examine(self) -> list[Finding]:
        """Return what an operator should know about the table, its order and its writers."""
        rows = self._rows
        with reading(self.name):
            return list(checked_up(self.outbox, self.engine(), rows.events.examine(), by_position=rows.by_position))

    checkup = examine

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        return self._rows.plain.describe(checkpoint)

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed.

        That is behind the row with an id or a number, or before the first row since a time; or a position as
        `describe` writes it, or "beginning".
        """
        if "=" in text or text.strip() == "beginning":
            return self._rows.plain.parse(text)
        return self._rows.position_of(text.strip())

    def engine(self) -> Engine:
        """Return the engine of the outbox's database."""
        return self._rows.engine()

    def _removal(self, retention: dt.timedelta) -> Removal:
        _checked_retention(retention, self.outbox)
        return Removal(self.outbox, self._rows, retention)


class OutboxReader:
    """One tick's reading of an outbox; it knows up to where rows have gone."""

    def __init__(
        self,
        rows: OutboxRows,
        removal: Removal | None,
        wait_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._rows = rows
        self._removal = removal
        self._wait = wait_seconds
        self._clock = clock
        self._sleep = sleep
        self._removed: Any = None
        self._passed = 0
        """How many rows were read since then."""
        self._has_looked = self._has_warned = False

    def close(self) -> None:
        """Do nothing: connections come from the pool, one page at a time."""

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return at most ``limit`` events after the checkpoint, and the checkpoint after them."""
        page, horizon = self._settled(checkpoint, limit)
        self._passed += page.searched
        return self._rows.changes(page.result, self._following(checkpoint, page.result), horizon)

    def look(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Read without waiting for anybody; what is still to be removed is left for the next tick."""
        page = self._rows.page(checkpoint, limit, waits=False)
        if not page.result.records:
            return self._rows.changes(page.result, {**checkpoint, **page.result.next_checkpoint}, None)
        self._passed += page.searched
        return self._rows.changes(page.result, self._following(checkpoint, page.result), None)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Remove the rows up to the checkpoint that were delivered and are not to be kept."""
        start, end = checkpoint.get(REMOVED), checkpoint.get("cursor")
        if self._removal is None or start is None or not end:
            return
        if self._removed is None:
            self._removed = self._removal.between(start, end)
        else:
            self._removed, self._passed = self._removal.between(self._removed, end, self._passed), 0

    def _settled(self, checkpoint: CheckpointJson, limit: int) -> tuple[Page, Horizon | None]:
        """Read a page; where rows are there and held back, wait a little for them, once in a tick."""
        page, deadline = self._rows.page(checkpoint, limit), self._clock() + self._wait
        while not page.result.records and not page.result.more and not self._has_looked:
            # Behind what was looked at: the rows of other shares hold nobody back.
            horizon = self._rows.horizon({**checkpoint, **page.result.next_checkpoint})
            if horizon is None or self._clock() >= deadline:
                self._has_looked = True
                return page, horizon
            self._sleep(_STEP_SECONDS)
            page = self._rows.page(checkpoint, limit)
        return page, None

    def _following(self, checkpoint: CheckpointJson, result: FetchResult) -> CheckpointJson:
        """Return the next checkpoint with the position from which on rows are to be removed."""
        following = result.next_checkpoint
        if following.get("cursor") is None or self._removal is None:
            return following
        if result.records and not self._rows.is_safe:
            # What commits late was not seen, and cannot be told from what was delivered: nothing is removed.
            self._warn_of_rows_left()
            return {**following, REMOVED: following["cursor"]}
        start = self._start(checkpoint)
        if not result.records and not result.more and self._removal.is_due(start, following["cursor"]):
            # News, so that the tick takes the lease and acknowledges once more.
            return {**following, REMOVED: start, "removing_since": utc_now().isoformat()}
        return {**following, REMOVED: start}

    def _start(self, checkpoint: CheckpointJson) -> Any:
        """Return the position after which rows may still be there that were delivered."""
        if self._removed is not None:
            return self._removed
        # Whoever has set the position by hand has not delivered what lies before it.
        return checkpoint.get(REMOVED, checkpoint.get("cursor") or _BEGINNING)

    def _warn_of_rows_left(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "Source %r leaves delivered rows where they are: the database does not show its running transactions, "
                "so that a row which commits late cannot be told from them. Grant PROCESS, or give settle_seconds=",
                self._rows.name,
            )


class Removal:
    """Deletes the delivered rows of one outbox, or of one share of its keys, once they have been kept long enough.

    They go row by row as they were read, in bounded steps, never as a range that others may write into: the rows
    between two positions are read once more, without their payloads, and deleted by their ids. Of a range that was
    read while late commits could be seen, every row was delivered; from any other, nothing is removed.
    """

    def __init__(self, outbox: Outbox, rows: OutboxRows, retention: dt.timedelta) -> None:
        self._outbox = outbox
        self._rows = rows
        self._retention = retention

    def between(self, start: Any, end: Any, expected: int | None = None) -> Any:
        """Remove the rows after one written position up to another; return up to where all of them have gone.

        ``expected`` is how many there should be, where that is known, so that no more are read.
        """
        for rows, position in islice(self._steps(start, end, min(expected or _LOOK, _STEP)), _STEPS):
            old = self._old_enough(rows)
            self._delete(old)
            if len(old) < len(rows):
                break  # Some are to be kept for now: the next time begins here again.
            start = position
        return start

    def sweep(self, end: Any, *, dry_run: bool = False) -> int:
        """Remove every row up to a position; return how many that were, or would be."""
        swept = 0
        for rows, _ in self._steps(_BEGINNING, end, _STEP):
            old = self._old_enough(rows)
            swept += len(old)
            if not dry_run:
                self._delete(old)
        return swept

    def is_due(self, start: Any, end: Any) -> bool:
        """Tell whether there is a row between two positions that should have gone by now."""
        rows, _ = next(self._steps(start, end, _LOOK))
        return bool(self._old_enough(rows))

    def _steps(self, start: Any, end: Any, limit: int) -> Iterator[tuple[list[RawRecord], Any]]:
        """Give our rows between two positions in steps, each with the position behind it."""
        last, is_last = self._place(end), False
        while not is_last:
            page = self._rows.thin.fetch_changes({"cursor": start} if start else {}, limit)
            due = [row for row in page.records if self._place_of(row) <= last]
            is_last = len(due) < limit or self._place_of(due[-1]) == last
            start, limit = end if is_last else page.next_checkpoint["cursor"], _STEP
            yield list(filter(self._rows.takes, due)), start

    def _old_enough(self, rows: list[RawRecord]) -> list[RawRecord]:
        """Return the rows that need not be kept any longer, by the database's clock."""
        column = self._outbox.columns.created_at
        if not rows or not self._retention or column is None:
            return rows
        with self._rows.engine().connect() as connection:
            now = _now(connection, aware=rows[0][column].tzinfo is not None)
        return [row for row in rows if row[column] < now - self._retention]

    def _delete(self, rows: Sequence[RawRecord]) -> None:
        from sqlalchemy import delete

        if not rows:
            return
        label, name = self._outbox.label, self._outbox.columns.id
        with writing(f"Removing delivered rows of {label}", label), self._rows.engine().connect() as connection:
            leave_transactions(connection)
            table = self._outbox.reflected(self._rows.engine())
            connection.execute(delete(table).where(table.columns[name].in_([row[name] for row in rows])))
            connection.commit()

    def _place(self, written: Any) -> tuple[Any, ...]:
        """Return a written position as rows have it: SQLite's texts of times as the times that they are."""
        thin = self._rows.thin
        cursor, *key = deserialize_position(written, thin.pk_columns)
        return thin.revived({thin.cursor_column: cursor})[thin.cursor_column], *key

    def _place_of(self, row: RawRecord) -> tuple[Any, ...]:
        return tuple(row[name] for name in (self._rows.thin.cursor_column, *self._rows.thin.pk_columns))


def _now(connection: Connection, *, aware: bool) -> dt.datetime:
    """Return the database's clock as its columns tell times: with a zone, or without one and in the session's."""
    from sqlalchemy import func, select

    match connection.dialect.name:
        case "postgresql":
            clock: Any = func.clock_timestamp()
        case "mysql" | "mariadb":
            clock = func.utc_timestamp(6) if aware else func.now(6)
        case "mssql":
            clock = func.sysdatetimeoffset()
        case _:
            return dt.datetime.now(dt.UTC).replace(tzinfo=None)
    now: dt.datetime = connection.execute(select(clock)).scalar_one()
    return now.replace(tzinfo=dt.UTC) if aware and now.tzinfo is None else now


def _position(checkpoint: CheckpointJson) -> CheckpointJson:
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
