"""Cursor polling over any database that SQLAlchemy reaches."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.config import config_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.types import AdapterCapability, FetchResult, SourceDescriptor
from azure_functions_db.sources.keyset.boundary import BOUNDARY
from azure_functions_db.sources.keyset.bounds import HORIZON
from azure_functions_db.sources.keyset.counting import NullCursorCount
from azure_functions_db.sources.keyset.definition import InFlight, Partition, Undecodable, defined
from azure_functions_db.sources.keyset.page import Page, at_present, read_page
from azure_functions_db.sources.keyset.plan import Plan
from azure_functions_db.sources.keyset.position import (
    BEGINNING,
    Position,
    checkpoint_after,
    described,
    parsed,
    position_after,
    position_in,
)
from azure_functions_db.sources.keyset.read_errors import may_be_migration, reading
from azure_functions_db.sources.keyset.reader import PageReader, Patience, newest_settled, watch_for, writers_take_turns
from azure_functions_db.sources.keyset.shape import query_shape, renewed_table_shape, table_shape
from azure_functions_db.sources.keyset.undecodable import failures_in, salvaged_records
from azure_functions_db.sources.keyset.values import in_utc
from azure_functions_db.sql.autocommit import leave_transactions
from azure_functions_db.sql.engine import default_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Engine
    from sqlalchemy.exc import DBAPIError

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.errors import SerializationError
    from azure_functions_db.core.types import Backlog, Checkpoint, CursorValue, Finding, RawRecord
    from azure_functions_db.sources.keyset.horizon import Grade, Watch
    from azure_functions_db.sources.keyset.shape import Shape
    from azure_functions_db.sql.engine import EngineProvider


class SqlAlchemySource:
    """Reads the rows of a table or query that come after a checkpoint, in the order cursor, key.

    Making one only checks its arguments; the database and the environment are first looked at when
    something is read.

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``table``, ``query``:
      Exactly one of them. ``query`` is wrapped as a subquery; it must be deterministic.
    - ``cursor_column``:
      Grows with every change: an integer, a timestamp, a version.
    - ``pk_columns``:
      Tell rows with the same cursor apart; stable, and unique together.
    - ``where``, ``parameters``:
      A condition on the rows, with ``:name`` parameters; it stays a unit, whatever is in it.
    - ``columns``:
      The columns to read; cursor, key and the two columns below always come along.
    - ``created_column``, ``deleted_column``:
      Tell an insert from an update (equal to the cursor: insert) and a soft delete (true or not NULL).
    - ``partition``:
      ``(index, count)``: only this share of the rows, by a stable hash of the key.
    - ``start_at``:
      Where to begin without a checkpoint: "beginning", "now", a cursor value (its rows included), or
      ``(cursor, *key)`` (that row excluded).
    - ``in_flight``:
      "wait": do not read past what a running transaction may still write. "ignore": plain polling.
    - ``settle_seconds``:
      Keep this distance from the database's clock; for databases that do not show their running
      transactions, and for writers whose clocks are off.
    - ``horizon_wait_seconds``:
      How long a fetch that finds nothing it may read waits for running transactions to end.
    - ``horizon_cap_seconds``:
      After this time, running transactions that have not written anything are no longer waited for.
    - ``horizon_abandon_seconds``:
      After this time, those that have written are no longer waited for either, and what they commit later
      may be missed. None: they are waited for without end.
    - ``undecodable``:
      What becomes of a row with a value that Python cannot hold (a date before Christ, say). "error": it cannot be
      delivered and goes into quarantine. "text": that value is delivered as the database writes it.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | None = None,
        query: str | None = None,
        schema: str | None = None,
        cursor_column: str,
        pk_columns: Sequence[str],
        where: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        strategy: str = "cursor",
        operation_mode: str = "upsert_only",
        engine_provider: EngineProvider | None = None,
        columns: Sequence[str] | None = None,
        created_column: str | None = None,
        deleted_column: str | None = None,
        partition: tuple[int, int] | None = None,
        start_at: CursorValue = "beginning",
        in_flight: InFlight = "wait",
        settle_seconds: float | None = None,
        undecodable: Undecodable = "error",
        name: str | None = None,
        horizon_wait_seconds: float = 1.0,
        horizon_cap_seconds: float | None = 300.0,
        horizon_abandon_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            self._config = config_of(url, db_config)
        except ConfigurationError as error:
            raise SourceConfigurationError(str(error)) from None
        self._definition = defined(
            table=table,
            query=query,
            schema=schema,
            cursor_column=cursor_column,
            pk_columns=pk_columns,
            where=where,
            parameters=parameters,
            columns=columns,
            created_column=created_column,
            deleted_column=deleted_column,
            partition=partition,
            start_at=start_at,
            in_flight=in_flight,
            settle_seconds=settle_seconds,
            strategy=strategy,
            operation_mode=operation_mode,
            undecodable=undecodable,
        )
        self.name = name or self._definition.label
        self._provider = engine_provider
        self._patience = Patience(horizon_wait_seconds, horizon_cap_seconds, horizon_abandon_seconds, clock, sleep)
        self._null_cursors = NullCursorCount(clock)
        self._plan: Plan | None = None
        self._started: Position | None = None
        self._reader: PageReader | None = None

    @property
    def cursor_column(self) -> str:
        """The column whose value grows with every change."""
        return self._definition.cursor_column

    @property
    def pk_columns(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        return self._definition.pk_columns

    @cached_property
    def created_column(self) -> str | None:
        """The column that equals the cursor as long as a row has not been updated."""
        return self._definition.created_column

    @cached_property
    def deleted_column(self) -> str | None:
        """The column that marks a row as deleted."""
        return self._definition.deleted_column

    @cached_property
    def source_descriptor(self) -> SourceDescriptor:
        """Who this source is; the fingerprint changes when its definition does."""
        with reading(self.name):
            return SourceDescriptor(self.name, "sqlalchemy", self._definition.fingerprint(self._config))

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change."""
        return AdapterCapability(
            detects_deletes=self.deleted_column is not None,
            distinguishes_insert=self.created_column is not None,
            partitions=True,
        )

    def partitioned(self, index: int, count: int) -> SqlAlchemySource:
        """Return a source for one of several shares of the rows, to be polled under its own name."""
        share = copy(self)
        share._definition = replace(self._definition, partition=Partition.checked((index, count)))  # noqa: SLF001 - a copy
        share.name = f"{self.name}[{index}/{count}]"
        share._forget()  # noqa: SLF001 - a copy
        return share

    def ranged(self, start_at: CursorValue, end_at: CursorValue) -> SqlAlchemySource:
        """Return a source for the rows from one cursor value to another, both included; None is open.

        It keeps its name and fingerprint: an event read through it has the id that it always has.
        """
        part = copy(self)
        start = "beginning" if start_at is None else start_at
        part._definition = replace(self._definition, start_at=start, end_at=end_at)  # noqa: SLF001 - a copy
        part._forget()  # noqa: SLF001 - a copy
        return part

    def open(self) -> None:
        """Nothing to prepare: connections come from the pool, one page at a time."""

    def close(self) -> None:
        """Nothing to give back."""

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Nothing to let go: the rows stay where they are."""

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        with reading(self.name):
            self._forget()
            plan = self._current_plan()
            self._current_reader(plan)
            with self._connected(plan) as connection:
                read_page(connection, plan, BEGINNING, 1)

    def fetch(self, cursor: CursorValue, batch_size: int) -> Sequence[RawRecord]:
        """Return at most ``batch_size`` records after a cursor, or after ``(cursor, *key)``."""
        with reading(self.name):
            fetched = self._fetched(lambda plan, connection: position_after(plan, cursor, connection), batch_size)
            for reason in self._undecodable(fetched.page).values():
                raise reason
            return self._records(fetched)

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        """Return at most ``limit`` records after the checkpoint, and the checkpoint after them."""
        with reading(self.name):
            fetched = self._fetched(lambda plan, connection: self._resumed(plan, checkpoint, connection), limit)
            page, watch = fetched.page, fetched.watch
            return FetchResult(
                self._records(fetched),
                self._next_checkpoint(checkpoint, fetched),
                page.more,
                watch.horizon() if watch else None,
                self._null_cursors.due(self.null_cursor_rows),
                revisions=page.revisions,
                undecodable=self._undecodable(page) if page.is_salvaged else {},
            )

    def null_cursor_rows(self) -> int:
        """Return how many rows can never be delivered because their cursor is NULL."""
        with reading(self.name):
            plan = self._current_plan()
            if not plan.may_lack_cursor:
                return 0
            with self._connected(plan) as connection:
                return int(connection.execute(plan.without_cursor()).scalar_one())

    def late_commit_grade(self) -> Grade:
        """Say how well late commits are guarded against: "exact", "settled" (by distance) or "none"."""
        with reading(self.name):
            plan = self._current_plan()
            with self._connected(plan) as connection:
                return self._examined(plan, connection)[0]

    def grade(self) -> Grade:
        """Say how well late commits were guarded against when the last page was read, without asking the database."""
        plan = self._current_plan()
        watch = self._current_reader(plan).watch
        if watch is not None:
            return watch.grade
        return "exact" if writers_take_turns(plan) and self._definition.in_flight == "wait" else "none"

    def _examined(self, plan: Plan, connection: Connection) -> tuple[Grade, str | None]:
        """Return the grade and why it is not better."""
        watch = self._current_reader(plan).watch
        if watch is None:
            return self.grade(), None
        watch.examine(connection, plan)
        watch.look(connection, plan, BEGINNING)
        return watch.grade, watch.reason

    def examine(self) -> list[Finding]:
        """Return what an operator should know: index, cursor type, NULL cursors, clock, late commits."""
        from azure_functions_db.sources.keyset.checks import checked_up, late_commits

        with reading(self.name):
            plan = self._current_plan()
            with self._engine().connect() as connection:
                findings = list(checked_up(plan, connection))
            with self._connected(plan) as connection:
                return [*findings, late_commits(*self._examined(plan, connection))]

    checkup = examine

    def describe(self, checkpoint: Checkpoint) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        return described(self._definition, checkpoint)

    def parse(self, text: str) -> Checkpoint:
        """Return the checkpoint of a position that somebody has typed: ``cursor=value key=value``, or "beginning"."""
        with reading(self.name):
            return parsed(self._current_plan(), text)

    def revived(self, row: Mapping[str, Any], *, strict: bool = False) -> RawRecord:
        """Return a row that went through JSON or was typed, with values of its columns' types again."""
        from azure_functions_db.sources.keyset.values import revived_row

        with reading(self.name):
            return revived_row(row, self._current_plan().shape.types, strict=strict)

    def count_changes(self, checkpoint: Checkpoint, most: int | None = None) -> int:
        """Return how many rows follow the checkpoint; counting stops at ``most``."""
        from azure_functions_db.sources.keyset.counting import counted

        with reading(self.name):
            plan = self._current_plan()
            with self._connected(plan) as connection:
                return counted(connection, plan, self._position(plan, checkpoint, connection), most)

    def backlog(self, checkpoint: Checkpoint) -> Backlog:
        """Return how many rows follow the checkpoint, late commits left aside, and the age of the oldest."""
        from azure_functions_db.sources.keyset.counting import backlog_behind

        with reading(self.name):
            plan = self._current_plan()
            with self._connected(plan) as connection:
                return backlog_behind(connection, plan, self._position(plan, checkpoint, connection))

    def __repr__(self) -> str:
        return f"SqlAlchemySource({self.name!r})"

    def _fetched(self, start_of: Callable[[Plan, Connection], Position], limit: int) -> _Fetched:
        if limit < 1:
            raise SourceConfigurationError(f"A page has at least one row, not {limit}")
        try:
            return self._read(start_of, limit)
        except _schema_errors() as failure:
            if not may_be_migration(failure):
                raise
        # Even where nothing has changed: the driver has let go of a statement prepared for what was before.
        self._shape_changed()
        return self._read(start_of, limit)

    def _read(self, start_of: Callable[[Plan, Connection], Position], limit: int) -> _Fetched:
        plan = self._current_plan()
        reader = self._current_reader(plan)
        with self._connected(plan) as connection:
            start = start_of(plan, connection)
            page = reader.read(connection, plan, start, limit)
        if page.rows and not page.is_salvaged and not plan.fits(page.header) and self._shape_changed():
            return self._read(start_of, limit)  # What was read is where it is, but its end may be told wrongly.
        return _Fetched(plan, reader.watch, start, page)

    def _records(self, fetched: _Fetched) -> list[RawRecord]:
        plan, page = fetched.plan, fetched.page
        if not page.rows:
            return []
        if not page.is_salvaged:
            return plan.records(page.header, page.rows)
        return salvaged_records(plan, page.header, page.rows)

    def _undecodable(self, page: Page) -> dict[int, SerializationError]:
        return {} if self._definition.undecodable == "text" else failures_in(page.rows, self.name)

    def _next_checkpoint(self, checkpoint: Checkpoint, fetched: _Fetched) -> Checkpoint:
        """Return the checkpoint after a page; one that did not move stays as it was written."""
        plan, watch, start, page = fetched
        written = checkpoint.get("cursor")
        moved = start != page.end or (written is None and self._definition.start_at == "now")
        following = {name: checkpoint[name] for name in ("cursor", BOUNDARY) if checkpoint.get(name) is not None}
        if moved:
            following = checkpoint_after(plan, page.end)
        part = watch.saved(checkpoint.get(HORIZON), moved=moved) if watch else None
        return following if part is None else {**following, HORIZON: part}

    def _current_reader(self, plan: Plan) -> PageReader:
        if self._reader is None:
            self._reader = PageReader(self.name, watch_for(self.name, plan, self._patience), self._patience)
        return self._reader

    def _resumed(self, plan: Plan, checkpoint: Checkpoint, connection: Connection) -> Position:
        """Return where the next page begins, with what the watch of another process has remembered."""
        watch = self._current_reader(plan).watch
        if watch is not None:
            watch.resume(checkpoint.get(HORIZON))
        return self._position(plan, checkpoint, connection)

    def _position(self, plan: Plan, checkpoint: Checkpoint, connection: Connection) -> Position:
        position = position_in(plan, checkpoint, connection)
        if position is not None:
            return position
        if self._started is None:
            self._started = self._start(plan, connection)
        return self._started

    def _start(self, plan: Plan, connection: Connection) -> Position:
        match self._definition.start_at:
            case "beginning":
                return BEGINNING
            case "now":
                watch = self._current_reader(plan).watch
                newest = newest_settled(self.name, watch, connection, plan, self._patience)
                return at_present(connection, plan, newest)
            case value:
                return position_after(plan, value, connection, inclusive=True)

    def _engine(self) -> Engine:
        return (self._provider or default_provider()).get_engine(self._config)

    @contextmanager
    def _connected(self, plan: Plan) -> Iterator[Connection]:
        """Lend a connection without a transaction, which would cost two round trips."""
        with self._engine().connect() as connection:
            leave_transactions(connection)
            with in_utc(connection) if plan.utc_columns else nullcontext():
                if plan.end is None and self._definition.end_at is not None:
                    plan.end = position_after(plan, self._definition.end_at, connection).values[0]
                yield connection

    def _current_plan(self) -> Plan:
        engine = self._engine()
        if self._plan is None or self._plan.dialect is not engine.dialect:
            first = self._plan is None
            self._plan = Plan(self._definition, self._shape(engine), engine.dialect)
            if first:
                from azure_functions_db.sources.keyset.checks import warn_without_index

                warn_without_index(self.name, engine, self._plan)
        return self._plan

    def _shape(self, engine: Engine) -> Shape:
        if self._definition.table is not None:
            return table_shape(engine, self._definition.table, self._definition.schema)
        with engine.connect() as connection:
            return query_shape(connection, self._definition)

    def _shape_changed(self) -> bool:
        """Look at the table again and tell whether it is another than before."""
        earlier, engine = self._plan, self._engine()
        if earlier is None:
            return False
        table = earlier.shape.table
        shape = self._shape(engine) if table is None else renewed_table_shape(engine, table)
        self._plan = Plan(self._definition, shape, engine.dialect)
        return repr(shape.types) != repr(earlier.shape.types)

    def _forget(self) -> None:
        self._null_cursors = NullCursorCount(self._patience.clock)
        self._plan = self._started = self._reader = None


class _Fetched(NamedTuple):
    """A page with the plan that it was read by and the position it was read from."""

    plan: Plan
    watch: Watch | None
    start: Position
    page: Page


def _schema_errors() -> type[DBAPIError]:
    from sqlalchemy.exc import DBAPIError

    return DBAPIError
