"""What a process knows of a source's table or query: how to read it, who writes to it, how much waits in it."""

from __future__ import annotations

import datetime as dt
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import Backlog
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.horizon import (
    RowversionWatch,
    SettledWatch,
    warn_of_late_commits,
    warn_of_running,
)
from azure_functions_db.sources.keyset.page import at_present, read_page
from azure_functions_db.sources.keyset.plan import LIMIT, Plan
from azure_functions_db.sources.keyset.position import BEGINNING, Bound, Position, position_after, position_in
from azure_functions_db.sources.keyset.shape import described_shape, query_shape, renewed_table_shape, table_shape
from azure_functions_db.sources.keyset.values import in_utc
from azure_functions_db.sql.autocommit import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

    from azure_functions_db.core.types import Checkpoint
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.horizon import Watch
    from azure_functions_db.sources.keyset.shape import Shape

STEP_SECONDS = 0.02
"""How long to wait between two looks at the running transactions."""
_COUNT_NULLS_EVERY_SECONDS = 3600.0


@dataclass(frozen=True)
class Patience:
    """How long to wait for running transactions: within a fetch, until idle ones no longer count, until none does."""

    wait_seconds: float
    cap_seconds: float | None
    abandon_seconds: float | None
    clock: Callable[[], float] = field(repr=False)
    sleep: Callable[[float], None] = field(repr=False)

    def __post_init__(self) -> None:
        limit: object = self.abandon_seconds
        if limit is not None and (not isinstance(limit, int | float) or isinstance(limit, bool) or not limit > 0):
            raise SourceConfigurationError("horizon_abandon_seconds= must be a number above 0, or None")


class Relation:
    """A source's table or query with the plan to read it, and the watch over those who write to it.

    Both outlive a tick: to reflect a table, or to learn who is running, costs more than a page.
    """

    has_backlog = False
    """Whether the last page had more behind it: up to the bound of then nothing can appear any more."""
    has_warned_of_ties = False

    def __init__(self, name: str, definition: Definition, engine: Callable[[], Engine], patience: Patience) -> None:
        self.name = name
        self.definition = definition
        self.patience = patience
        self.engine = engine
        self._plan: Plan | None = None
        self._watch: Watch | None = None
        self._is_watched = False
        self._started: Position | None = None
        self._count_nulls_at = float("-inf")

    def plan(self, engine: Engine) -> Plan:
        """Return the plan; the table is looked at when it is first asked for."""
        if self._plan is None or self._plan.dialect is not engine.dialect:
            first = self._plan is None
            self._plan = Plan(self.definition, self._shape(engine), engine.dialect)
            if first and self.definition.described is None:  # whose indexes would have to be asked for
                from azure_functions_db.sources.keyset.checks import warn_without_index

                warn_without_index(self.name, engine, self._plan)
        return self._plan

    def has_changed(self) -> bool:
        """Look at the table again and tell whether it is another than before."""
        earlier, engine = self._plan, self.engine()
        if earlier is None:
            return False
        table = earlier.shape.table if earlier.shape.is_reflected else None
        shape = self._shape(engine) if table is None else renewed_table_shape(engine, table)
        self._plan = Plan(self.definition, shape, engine.dialect)
        return repr(shape.types) != repr(earlier.shape.types)

    def watch(self, plan: Plan) -> Watch | None:
        """Return what finds the late-commit horizon; None where there is nothing to watch."""
        if not self._is_watched:
            self._watch = watch_for(self.name, plan, self.patience)
            self._is_watched = True
        return self._watch

    @contextmanager
    def connected(self) -> Iterator[tuple[Plan, Connection]]:
        """Lend the plan and a connection without a transaction, which would cost two round trips."""
        engine = self.engine()
        plan = self.plan(engine)
        with engine.connect() as connection:
            leave_transactions(connection)
            with in_utc(connection) if plan.utc_columns else nullcontext():
                if plan.end is None and self.definition.end_at is not None:
                    plan.end = position_after(plan, self.definition.end_at, connection).values[0]
                yield plan, connection

    def position(self, plan: Plan, checkpoint: Checkpoint, connection: Connection) -> Position:
        """Return where a checkpoint stands; without one, where the source begins."""
        position = position_in(plan, checkpoint, connection)
        if position is not None:
            return position
        if self._started is None:
            self._started = self._start(plan, connection)
        return self._started

    def counts_nulls_now(self) -> bool:
        """Tell whether it is time to count the rows without a cursor: at first, and every hour after that."""
        now = self.patience.clock()
        is_due = now >= self._count_nulls_at
        if is_due:
            self._count_nulls_at = now + _COUNT_NULLS_EVERY_SECONDS
        return is_due

    def _start(self, plan: Plan, connection: Connection) -> Position:
        match self.definition.start_at:
            case "beginning":
                return BEGINNING
            case "now":
                newest = newest_settled(self.name, self.watch(plan), connection, plan, self.patience)
                return at_present(connection, plan, newest)
            case value:
                return position_after(plan, value, connection, inclusive=True)

    def _shape(self, engine: Engine) -> Shape:
        if self.definition.described is not None:
            return described_shape(self.definition.described)
        if self.definition.table is not None:
            return table_shape(engine, self.definition.table, self.definition.schema)
        with engine.connect() as connection:
            return query_shape(connection, self.definition)


def watch_for(name: str, plan: Plan, patience: Patience) -> Watch | None:
    """Return what finds the horizon on this database; None where there is nothing to watch."""
    definition, kind = plan.definition, plan.shape.types[plan.definition.cursor_column]
    if definition.in_flight == "wait":
        match plan.dialect.name:
            case "postgresql":
                from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch as Draining
            case "mysql" | "mariadb":
                from azure_functions_db.sources.keyset.horizon_mysql import MysqlWatch as Draining  # type: ignore[assignment]
            case "mssql" if values.type_name(kind) in {"ROWVERSION", "TIMESTAMP"}:
                return RowversionWatch()
            case _:
                return _settled_or_none(name, plan)
        return Draining(
            name,
            kind,
            settle_seconds=definition.settle_seconds,
            cap_seconds=patience.cap_seconds,
            abandon_seconds=patience.abandon_seconds,
            clock=patience.clock,
        )
    return None if definition.settle_seconds is None else SettledWatch(kind, definition.settle_seconds)


def writers_take_turns(plan: Plan) -> bool:
    """Tell whether cursor values appear in their order anyway: SQLite hands out integers under its one write lock."""
    return plan.dialect.name == "sqlite" and values.is_whole(plan.shape.types[plan.definition.cursor_column])


def _settled_or_none(name: str, plan: Plan) -> Watch | None:
    if plan.definition.settle_seconds is not None:
        return SettledWatch(plan.shape.types[plan.definition.cursor_column], plan.definition.settle_seconds)
    if not writers_take_turns(plan):
        warn_of_late_commits(name, f"{plan.dialect.name} does not show its running transactions")
    return None


def newest_settled(name: str, watch: Watch | None, connection: Connection, plan: Plan, patience: Patience) -> Position:
    """Return the newest position behind which nothing can commit any more, as far as a short wait gets that."""
    if watch is None or not _settles(name, watch, connection, plan, patience):
        return _newest(connection, plan, None)
    return BEGINNING if watch.bound is None else _newest(connection, plan, watch.bound)


def _settles(name: str, watch: Watch, connection: Connection, plan: Plan, patience: Patience) -> bool:
    """Wait a little for a bound, and tell whether there is one, or nothing to bound."""
    deadline = patience.clock() + patience.wait_seconds + watch.ripening_seconds
    while watch.look(connection, plan, BEGINNING):
        connection.rollback()
        if watch.is_blind or watch.bound is not None:
            return watch.bound is not None
        if patience.clock() >= deadline:
            warn_of_running(name, watch.horizon())
            return False
        patience.sleep(STEP_SECONDS)
    return True


def _newest(connection: Connection, plan: Plan, bound: Any) -> Position:
    parameters = plan.parameters(BEGINNING, None if bound is None else Bound(bound))
    last = connection.execute(plan.last(bounded=bound is not None), parameters).first()
    return BEGINNING if last is None else Position(tuple(map(values.storable, last)))


_EVERYTHING = sys.maxsize
# Counting stops here: an operator needs no exact number beyond it.
_COUNTED = 100_000


def counted(connection: Connection, plan: Plan, start: Position, most: int | None = None) -> int:
    """Count the rows after a position; a share that only Python can pick is estimated."""
    from sqlalchemy import func, select

    page = plan.page(start)
    count = select(func.count()).select_from(page.subquery("azfdb_counted"))
    parameters = {**plan.parameters(start), LIMIT: _EVERYTHING if most is None else most}
    rows = int(connection.execute(count, parameters).scalar_one())
    partition = plan.definition.partition
    return rows if partition is None or plan.partitions_in_sql else rows // partition.count


def backlog_behind(connection: Connection, plan: Plan, start: Position) -> Backlog:
    """Count the rows after a position, up to where nobody needs the exact number, and tell the age of the first."""
    rows = counted(connection, plan, start, _COUNTED)
    page = read_page(connection, plan, start, 1)
    if not page.rows:
        return Backlog(rows, is_more=rows >= _COUNTED, lag_seconds=None if rows else 0.0)
    [oldest] = plan.records(page.header, page.rows)
    lag = lag_seconds(oldest[plan.definition.cursor_column], dt.datetime.now(dt.UTC))
    return Backlog(rows, is_more=rows >= _COUNTED, lag_seconds=lag)


def rows_without_cursor(connection: Connection, plan: Plan) -> int:
    """Count the rows that can never be delivered because their cursor is NULL."""
    if not plan.may_lack_cursor:
        return 0
    return int(connection.execute(plan.without_cursor()).scalar_one())
