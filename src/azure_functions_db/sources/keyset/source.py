"""Cursor polling over any database that SQLAlchemy reaches."""

from __future__ import annotations

import time
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.config import config_of, former_arguments, warn_of
from azure_functions_db.core.errors import ConfigurationError, SourceConfigurationError
from azure_functions_db.core.serializers import deserialize_position
from azure_functions_db.core.types import AdapterCapability, SourceDescriptor
from azure_functions_db.sources.keyset.definition import InFlight, Partition, Undecodable, defined, share_columns_of
from azure_functions_db.sources.keyset.horizon import HORIZON
from azure_functions_db.sources.keyset.page import current_row, read_page
from azure_functions_db.sources.keyset.position import (
    BEGINNING,
    described,
    is_behind,
    lowest,
    parsed,
    position_after,
)
from azure_functions_db.sources.keyset.reader import (
    KeysetReader,
    Patience,
    Relation,
    backlog_behind,
    counted,
    rows_without_cursor,
    watch_for,
    writers_take_turns,
)
from azure_functions_db.sources.read_errors import reading
from azure_functions_db.sql.engine import engine_getter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from azure_functions_db.core.config import DbConfig
    from azure_functions_db.core.types import (
        Backlog,
        CheckpointJson,
        CursorPart,
        CursorValue,
        FetchResult,
        Finding,
        RawRecord,
    )
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.horizon import Grade, Watch
    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sql.engine import EngineProvider


@former_arguments(SourceConfigurationError)
class SqlAlchemySource:
    """Reads the rows of a table or query that come after a checkpoint, in the order cursor, key.

    Making one only checks its arguments; the database and the environment are first looked at when
    something is read.

    - ``url``, ``db_config``:
      Exactly one of them; ``%NAME%`` stands for an environment variable.
    - ``table``, ``query``:
      Exactly one of them. ``table`` is a name, or a SQLAlchemy `Table`: its columns are then read as it
      describes them, and the database is not asked. ``query`` is wrapped as a subquery; it must be deterministic.
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
    - ``partition``, ``partition_by``:
      ``(index, count)``: only this share of the rows, by a stable hash of the key, or of the columns in
      ``partition_by``, a name or several: rows that are alike in them belong to one share.
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
    - ``cursor_types``:
      Not needed any more: the columns tell their types. Release 0.8 had it, and it is taken with a warning.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        db_config: DbConfig | None = None,
        table: str | Table | None = None,
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
        partition_by: str | Sequence[str] | None = None,
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
        cursor_types: Sequence[type] | None = None,
    ) -> None:
        if cursor_types is not None:
            warn_of("SqlAlchemySource(cursor_types=…)", "leave it out, the columns tell their types", stacklevel=3)
        self._former_parts = {"query": query, "cursor_types": [kind.__name__ for kind in cursor_types or ()]}
        try:
            self._config = config_of(url, db_config)
            self._engine = engine_getter(url, db_config, engine_provider)
        except ConfigurationError as error:
            raise SourceConfigurationError.of(error) from None
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
            partition_by=partition_by,
            start_at=start_at,
            in_flight=in_flight,
            settle_seconds=settle_seconds,
            strategy=strategy,
            operation_mode=operation_mode,
            undecodable=undecodable,
        )
        self.name = self._whole_name = name or self._definition.label
        self._patience = Patience(horizon_wait_seconds, horizon_cap_seconds, horizon_abandon_seconds, clock, sleep)
        self._relation = self._new_relation()

    @property
    def cursor_column(self) -> str:
        """The column whose value grows with every change."""
        return self._definition.cursor_column

    @property
    def pk_columns(self) -> tuple[str, ...]:
        """The columns that tell rows apart."""
        return self._definition.pk_columns

    @property
    def place(self) -> tuple[str, str | None, str | None]:
        """The connection URL as it is written, and the table with its schema; nothing is looked up."""
        return self._config.connection_url, self._definition.table, self._definition.schema

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
            own = SourceDescriptor(self.name, "sqlalchemy", self._definition.fingerprint(self._config))
            if self._definition.partition is None:
                former = self._definition.former_fingerprint(self._config, **self._former_parts)
                return replace(own, former=(former,))
            whole = replace(self._definition, partition=None).fingerprint(self._config)
            return replace(own, whole=SourceDescriptor(self._whole_name, own.kind, whole))

    def capability(self) -> AdapterCapability:
        """Say what this source can tell about a change."""
        return AdapterCapability(
            detects_deletes=self.deleted_column is not None,
            distinguishes_insert=self.created_column is not None,
            partitions=True,
        )

    def partitioned(self, index: int, count: int, by: str | Sequence[str] | None = None) -> SqlAlchemySource:
        """Return a source for one of several shares of the rows, to be polled under its own name.

        ``by`` is its ``partition_by`` where it has none of its own.
        """
        columns = self._definition.partition_by if by is None else share_columns_of(by)
        partition = Partition.checked((index, count))
        definition = replace(self._definition, partition=partition, partition_by=columns)
        return self._redefined(definition, f"{self.name}[{index}/{count}]")

    def ranged(self, start_at: CursorValue, end_at: CursorValue) -> SqlAlchemySource:
        """Return a source for the rows from one cursor value to another, both included; None is open.

        It keeps its name and fingerprint: an event read through it has the id that it always has.
        """
        return self._redefined(replace(self._definition, start_at=start_at, end_at=end_at), self.name)

    def cursor_from(self, text: str) -> CursorPart:
        """Return a typed text as a value of the cursor column."""
        value: CursorPart = self.revived({self.cursor_column: text}, strict=True)[self.cursor_column]
        return value

    def cursor_at(self, checkpoint: CheckpointJson) -> CursorPart:
        """Return the cursor value that a checkpoint has come to."""
        return deserialize_position(checkpoint["cursor"], self.pk_columns)[0]

    def lowest(self, checkpoints: Sequence[CheckpointJson]) -> CheckpointJson | None:
        """Return where to begin so as to miss nothing that follows any of these; None where that cannot be told."""
        with reading(self.name):
            return lowest(self._definition, checkpoints)

    def is_behind(self, checkpoint: CheckpointJson, other: CheckpointJson) -> bool:
        """Tell whether a position is certainly behind another one."""
        with reading(self.name):
            return is_behind(self._definition, checkpoint, other)

    def open(self) -> KeysetReader:
        """Return the reader of one tick."""
        return KeysetReader(self._relation)

    def close(self) -> None:
        """Do nothing: readers are closed, not the source."""

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Do nothing: the rows stay where they are."""

    def validate(self) -> None:
        """Raise `SourceConfigurationError` where the definition and the database disagree."""
        with reading(self.name):
            with self._relation.connected() as (plan, connection):
                self._relation.watch(plan)
                page = read_page(connection, plan, BEGINNING, 1)
            if not plan.fits(page.header):  # what the engine remembers of the table is old
                self._relation.has_changed()

    def fetch(self, cursor: CursorValue, batch_size: int) -> Sequence[RawRecord]:
        """Return at most ``batch_size`` records after a cursor, or after ``(cursor, *key)``."""
        reader = self.open()
        with reading(self.name):
            fetched = reader.fetched(lambda plan, connection: position_after(plan, cursor, connection), batch_size)
            for reason in reader.undecodable(fetched.page).values():
                raise reason
            return reader.records(fetched)

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return at most ``limit`` records after the checkpoint, and the checkpoint after them."""
        return self.open().fetch_changes(checkpoint, limit)

    def dispose(self) -> None:
        """Let go of what this source alone holds: what it knows of its table and of running transactions.

        Connections belong to the engine's provider and stay there. The source may be used again.
        """
        self._relation = self._new_relation()

    def null_cursor_rows(self) -> int:
        """Return how many rows can never be delivered because their cursor is NULL."""
        with reading(self.name), self._relation.connected() as (plan, connection):
            return rows_without_cursor(connection, plan)

    def late_commit_grade(self) -> Grade:
        """Say how well late commits are guarded against: "exact", "settled" (by distance) or "none"."""
        with reading(self.name), self._relation.connected() as (plan, connection):
            return self._examined(self._relation.watch(plan), plan, connection)[0]

    def grade(self) -> Grade:
        """Say how well late commits were guarded against when the last page was read, without asking the database."""
        plan = self._plan()
        watch = self._relation.watch(plan)
        return self._unwatched_grade(plan) if watch is None else watch.grade

    def examine(self) -> list[Finding]:
        """Return what an operator should know: index, cursor type, NULL cursors, clock, late commits."""
        from azure_functions_db.sources.keyset.checks import checked_up, late_commits

        with reading(self.name):
            # First as a poll is connected, which tells the plan where the source ends: its statements are made once.
            with self._relation.connected() as (plan, lent):
                own = watch_for(self.name, plan, self._patience)  # the poller's is not disturbed
                guarded = late_commits(*self._examined(own, plan, lent))
            with self._relation.engine().connect() as connection:
                return [*checked_up(plan, connection), guarded]

    checkup = examine

    def describe(self, checkpoint: CheckpointJson) -> str:
        """Return a checkpoint's position as people read it, and as `parse` takes it."""
        return described(self._definition, checkpoint)

    def parse(self, text: str) -> CheckpointJson:
        """Return the checkpoint of a position that somebody has typed: ``cursor=value key=value``, or "beginning"."""
        with reading(self.name):
            return parsed(self._plan(), text)

    def revived(self, row: Mapping[str, Any], *, strict: bool = False) -> RawRecord:
        """Return a row that went through JSON or was typed, with values of its columns' types again."""
        from azure_functions_db.sources.keyset.values import revived_row

        with reading(self.name):
            return revived_row(row, self._plan().shape.types, strict=strict)

    def count_changes(self, checkpoint: CheckpointJson, most: int | None = None) -> int:
        """Return how many rows follow the checkpoint; counting stops at ``most``."""
        with reading(self.name), self._relation.connected() as (plan, connection):
            return counted(connection, plan, self._relation.position(plan, checkpoint, connection), most)

    def current_row(self, key: Mapping[str, CursorPart]) -> RawRecord | None:
        """Return the row of a key as it is now; None where it is gone, or no row of this source any more."""
        with reading(self.name), self._relation.connected() as (plan, connection):
            return next(iter(current_row(connection, plan, key)), None)

    def backlog(self, checkpoint: CheckpointJson) -> Backlog:
        """Return how many rows follow the checkpoint, the age of the oldest, and who holds them back."""
        with reading(self.name), self._relation.connected() as (plan, connection):
            start = self._relation.position(plan, checkpoint, connection)
            waiting = backlog_behind(connection, plan, start)
            watch = watch_for(self.name, plan, self._patience)  # not the poller's own, which is not disturbed
            if watch is not None and waiting.amount:
                watch.resume(checkpoint.get(HORIZON))
                watch.look(connection, plan, start)
                waiting = replace(waiting, horizon=watch.horizon())
            return waiting

    def __repr__(self) -> str:
        return f"SqlAlchemySource({self.name!r})"

    def _examined(self, watch: Watch | None, plan: Plan, connection: Connection) -> tuple[Grade, str | None]:
        """Return the grade and why it is not better."""
        if watch is None:
            return self._unwatched_grade(plan), None
        watch.examine(connection, plan)
        watch.look(connection, plan, BEGINNING)
        return watch.grade, watch.reason

    def _unwatched_grade(self, plan: Plan) -> Grade:
        return "exact" if writers_take_turns(plan) and self._definition.in_flight == "wait" else "none"

    def _plan(self) -> Plan:
        return self._relation.plan(self._relation.engine())

    def _new_relation(self) -> Relation:
        return Relation(self.name, self._definition, self._engine, self._patience)

    def _redefined(self, definition: Definition, name: str) -> SqlAlchemySource:
        other = copy(self)
        vars(other).pop("source_descriptor", None)  # that of another definition
        other._definition, other.name = definition, name  # noqa: SLF001 - a copy
        other._relation = other._new_relation()  # noqa: SLF001 - a copy
        return other
