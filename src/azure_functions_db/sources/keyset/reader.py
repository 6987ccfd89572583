"""One tick's reading of a table: page after page, no further than late commits allow."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.clocks import lag_seconds
from azure_functions_db.core.errors import FetchError, SourceConfigurationError
from azure_functions_db.core.types import Backlog, FetchResult, NullCursors
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.horizon import (
    HORIZON,
    DrainingWatch,
    RowversionWatch,
    SettledWatch,
    logger,
    warn_of_late_commits,
    warn_of_running,
)
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch
from azure_functions_db.sources.keyset.indexes import warn_without_index
from azure_functions_db.sources.keyset.page import (
    Page,
    SalvagedRow,
    at_present,
    empty_page,
    failures_in,
    read_page,
    salvaged_records,
)
from azure_functions_db.sources.keyset.plan import Plan
from azure_functions_db.sources.keyset.position import (
    BEGINNING,
    BOUNDARY,
    MOST_ROWS,
    Bound,
    Position,
    checkpoint_after,
    position_after,
    position_in,
)
from azure_functions_db.sources.keyset.shape import described_shape, query_shape, renewed_table_shape, table_shape
from azure_functions_db.sources.keyset.values import in_utc
from azure_functions_db.sources.read_errors import may_be_migration, raise_read_error
from azure_functions_db.sql.transactions import leave_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine, Select

    from azure_functions_db.core.errors import SerializationError
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import CheckpointJson, RawRecord
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.horizon import Watch
    from azure_functions_db.sources.keyset.shape import Shape

    StartOf = Callable[[Plan, Connection], Position]


class Fetched(NamedTuple):
    """A page with the plan that it was read by, the position it was read from, and what is known besides."""

    plan: Plan
    watch: Watch | None
    start: Position
    page: Page
    is_salvaged: bool
    """Whether there are rows with values that could not be decoded."""
    facts: list[Fact]


class KeysetReader:
    """Reads the pages of one tick, and waits a little for transactions that may commit late."""

    _last: tuple[Plan, CheckpointJson, Position] | None = None
    """Where the last page has ended, and how that was written: the next one mostly begins there."""

    def __init__(self, relation: Relation, *, waits: bool = True) -> None:
        self._relation = relation
        self._name = relation.name
        self._waits = waits

    @property
    def reads_ahead(self) -> bool:
        """Whether another thread gets a connection of its own to the same database: not where there is but one."""
        from sqlalchemy.pool import SingletonThreadPool, StaticPool

        return not isinstance(self._relation.engine().pool, SingletonThreadPool | StaticPool)

    def close(self) -> None:
        """Do nothing: connections go back to the pool page by page."""

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Do nothing: the rows stay where they are."""

    def look(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Read without waiting for anybody: who asks will ask again."""
        return KeysetReader(self._relation, waits=False).fetch_changes(checkpoint, limit)

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Return at most ``limit`` records after the checkpoint, and the checkpoint after them."""

        def resumed(plan: Plan, connection: Connection) -> Position:
            watch = self._relation.watch(plan)
            if watch is not None:
                watch.resume(checkpoint.get(HORIZON))
            if self._last is not None and self._last[:2] == (plan, checkpoint):
                return self._last[2]
            return self._relation.position(plan, checkpoint, connection)

        try:
            fetched = self.fetched(resumed, limit)
            page = fetched.page
            following = self._next_checkpoint(checkpoint, fetched)
            self._last = fetched.plan, following, page.end
            return FetchResult(
                self.records(fetched),
                following,
                page.more or (not self._waits and _is_held_back(fetched)),
                revisions=page.revisions,
                undecodable=self.undecodable(page) if fetched.is_salvaged else {},
                facts=fetched.facts,
                cut=None if page.cut is None else _cutter(fetched.plan, page.cut, following),
            )
        except Exception as error:  # noqa: BLE001 - each becomes an error that a poller knows
            raise_read_error(self._name, error)

    def fetched(self, start_of: StartOf, limit: int) -> Fetched:
        """Read a page, by a new plan where the table has changed since the last one was made."""
        from sqlalchemy.exc import DBAPIError

        if limit < 1:
            raise SourceConfigurationError(f"A page has at least one row, not {limit}")
        try:
            return self._fetched(start_of, limit)
        except DBAPIError as failure:
            if not may_be_migration(failure):
                raise
        # Even where nothing has changed: the driver has let go of a statement prepared for what was before.
        self._relation.has_changed()
        return self._fetched(start_of, limit)

    def records(self, fetched: Fetched) -> list[RawRecord]:
        """Return the rows of a page as records."""
        plan, page = fetched.plan, fetched.page
        if not page.rows:
            return []
        if not fetched.is_salvaged:
            return plan.records(page.header, page.rows)
        return salvaged_records(plan, page.header, page.rows)

    def undecodable(self, page: Page) -> dict[int, SerializationError]:
        """Return why rows cannot be handed out, by their places."""
        return {} if self._relation.definition.undecodable == "text" else failures_in(page.rows, self._name)

    def _fetched(self, start_of: StartOf, limit: int) -> Fetched:
        relation = self._relation
        with relation.connected() as (plan, connection):
            start = start_of(plan, connection)
            watch = relation.watch(plan)
            page = self._page(watch, connection, plan, start, limit)
            facts = self._facts(watch, connection, plan)
        is_salvaged = SalvagedRow in set(map(type, page.rows))
        if page.rows and not is_salvaged and not plan.fits(page.header) and relation.has_changed():
            return self._fetched(start_of, limit)  # What was read is where it is, but its end may be told wrongly.
        if plan.reads_again and page.end.boundary is None:
            self._warn_of_ties(plan, start, page.end)
        return Fetched(plan, watch, start, page, is_salvaged, facts)

    def _facts(self, watch: Watch | None, connection: Connection, plan: Plan) -> list[Fact]:
        horizon = watch.horizon() if watch else None
        facts: list[Fact] = [] if horizon is None else [horizon]
        if self._relation.counts_nulls_now():
            facts.append(NullCursors(rows_without_cursor(connection, plan)))
        return facts

    def _next_checkpoint(self, checkpoint: CheckpointJson, fetched: Fetched) -> CheckpointJson:
        """Return the checkpoint after a page; one that did not move stays as it was written."""
        plan, watch, start, page, *_ = fetched
        written = checkpoint.get("cursor")
        moved = start != page.end or (written is None and self._relation.definition.start_at == "now")
        following = {name: checkpoint[name] for name in ("cursor", BOUNDARY) if checkpoint.get(name) is not None}
        if moved:
            following = checkpoint_after(plan, page.end)
        part = watch.saved(checkpoint.get(HORIZON), moved=moved) if watch else None
        return following if part is None else {**following, HORIZON: part}

    def _page(self, watch: Watch | None, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read the page after a position, as far as late commits allow."""
        if watch is None:
            return read_page(connection, plan, start, limit)
        relation, line = self._relation, _line(connection)
        page = empty_page(start)
        if relation.backlog_on is line and watch.bound is not None and start.values[:1] != (watch.bound,):
            # Below the bound of the last look nothing has changed; at its own value, rows may have come since.
            page = read_page(connection, plan, start, limit, Bound(watch.bound, inclusive=False))
            if page.more:
                return page
        if page.rows:
            page = _continued(page, watch, connection, plan, limit)
        else:
            page = self._settled(watch, connection, plan, start, limit)
        if relation.backlog_on is not None and page.rows and not watch.is_settled:
            page = replace(page, more=True)  # More has come while the backlog was read; it waits for others' end.
        relation.backlog_on = line if page.more else None
        return page

    def _settled(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read up to the horizon; wait a little when it hides all there is."""
        is_held_back = self._relation.held_back is not None and self._relation.held_back[0] == start
        asks_first = start.boundary is not None or (not self._waits and not watch.sees_rows)
        if asks_first and not is_held_back and read_page(connection, plan, start, 1).end == start:
            return empty_page(start)  # Nothing has come: nobody needs to be looked for.
        if not self._waits:
            return self._glimpsed(watch, connection, plan, start, limit)
        patience = self._relation.patience
        deadline = patience.clock() + patience.wait_seconds + watch.ripening_seconds
        while watch.look(connection, plan, start):
            connection.rollback()  # The rows must come from a snapshot that is younger than the look.
            page = _page_below(watch, connection, plan, start, limit)
            if page.rows or watch.is_settled or patience.clock() >= deadline:
                return page
            patience.sleep(STEP_SECONDS)
        return empty_page(start)

    def _glimpsed(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read up to the horizon as it is now; while it stands still, there is nothing new below it."""
        if not watch.look(connection, plan, start):
            return empty_page(start)
        seen = (start, watch.bound, watch.includes_bound)
        if seen == self._relation.held_back and not watch.is_settled:
            return empty_page(start)
        connection.rollback()
        page = _page_below(watch, connection, plan, start, limit)
        self._relation.held_back = None if page.rows or watch.is_settled else seen
        return page

    def _warn_of_ties(self, plan: Plan, start: Position, end: Position) -> None:
        """Warn once when a cursor value has too many rows to be read again."""
        if self._relation.has_warned_of_ties or (start.boundary is None and start.values[:1] == end.values[:1]):
            return
        self._relation.has_warned_of_ties = True
        logger.warning(
            "Source %r has more than %s rows of one %s: a row that gets this value later, with a smaller key, "
            "is missed until the value moves on. Give each change a value of its own",
            self._name,
            f"{MOST_ROWS:,}",
            plan.definition.cursor_column,
        )


def _cutter(plan: Plan, cut: Callable[[int], Position], following: CheckpointJson) -> Callable[[int], CheckpointJson]:
    """Return what gives the checkpoint behind the first so many rows; what it says of the horizon is the page's."""
    horizon = {name: part for name, part in following.items() if name == HORIZON}
    return lambda count: {**checkpoint_after(plan, cut(count)), **horizon}


def _is_held_back(fetched: Fetched) -> bool:
    """Tell whether something is there that waits for others' end."""
    return not fetched.page.rows and fetched.watch is not None and not fetched.watch.is_settled


def _continued(page: Page, watch: Watch, connection: Connection, plan: Plan, limit: int) -> Page:
    """Return the last page of a backlog with what has come since its bound was known; nobody is waited for."""
    left = limit - len(page.rows)
    if not left:
        return replace(page, more=True)
    if not watch.look(connection, plan, page.end):
        return page
    connection.rollback()  # as above
    try:
        rest = _page_below(watch, connection, plan, page.end, left)
    except FetchError:
        return page  # a row that cannot be read is told in its turn
    return page.followed_by(rest)


def _page_below(watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
    if watch.bound is None:
        return empty_page(start)
    return read_page(connection, plan, start, limit, Bound(watch.bound, watch.includes_bound))


_LINE = "azfdb_line"


def _line(connection: Connection) -> object:
    """Return what stands for the driver's connection as long as it lasts: another one may lead to another server."""
    return connection.info.setdefault(_LINE, object())


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

    backlog_on: object | None = None
    """The line on which the last page had more behind it: up to the bound of then nothing can appear there any more."""
    has_warned_of_ties = False
    held_back: tuple[Position, Any, bool] | None = None
    """A position and the bound of the last look, between which nothing was found, while more is there above it."""

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

    def position(self, plan: Plan, checkpoint: CheckpointJson, connection: Connection) -> Position:
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
            return table_shape(engine, self.definition.table, self.definition.schema, self.definition.needed_columns)
        with engine.connect() as connection:
            return query_shape(connection, self.definition)


def watch_for(name: str, plan: Plan, patience: Patience) -> Watch | None:
    """Return what finds the horizon on this database; None where there is nothing to watch."""
    definition, kind = plan.definition, plan.shape.types[plan.definition.cursor_column]
    if definition.in_flight == "wait":
        match plan.dialect.name:
            case "postgresql":
                draining: type[DrainingWatch] = PostgresWatch
            case "mysql" | "mariadb":
                from azure_functions_db.sources.keyset.horizon_mysql import MysqlWatch as draining  # noqa: N813 - a choice
            case "mssql" if values.type_name(kind) in {"ROWVERSION", "TIMESTAMP"}:
                return RowversionWatch()
            case _:
                return _settled_or_none(name, plan)
        return draining(
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
    last = connection.execute(plan.last(bounded=bound is not None), plan.parameters(BEGINNING, Bound(bound))).first()
    return BEGINNING if last is None else Position(tuple(map(values.storable, last)))


# Counting stops here: an operator needs no exact number beyond it.
_COUNTED = 100_000


def counted(connection: Connection, plan: Plan, start: Position, most: int | None = None) -> int:
    """Count the rows after a position; a share that only Python can pick is estimated."""
    return _share_of(plan, _rows_after(connection, plan, start, most))


def _rows_after(connection: Connection, plan: Plan, start: Position, most: int | None) -> int:
    return int(connection.execute(counting(plan, start, most), plan.parameters(start)).scalar_one())


def _share_of(plan: Plan, rows: int) -> int:
    partition = plan.definition.partition
    return rows if partition is None or plan.partitions_in_sql else rows // partition.count


def counting(plan: Plan, start: Position, most: int | None = None) -> Select[Any]:
    """Return the statement that counts the rows after such a position, up to a number."""
    from sqlalchemy import func, select

    # SQL Server takes neither an order inside a subquery nor, without one, a limit that is a parameter.
    page = plan.page(start).order_by(None).limit(most)
    return select(func.count()).select_from(page.subquery("azfdb_counted"))


def backlog_behind(connection: Connection, plan: Plan, start: Position) -> Backlog:
    """Count the rows after a position, up to where nobody needs the exact number, and tell the age of the first."""
    found = _rows_after(connection, plan, start, _COUNTED)
    rows, is_more = _share_of(plan, found), found >= _COUNTED
    page = read_page(connection, plan, start, 1)
    if not page.rows:
        return Backlog(rows, is_more=is_more, lag_seconds=None if rows else 0.0)
    [oldest] = plan.records(page.header, page.rows)
    lag = lag_seconds(oldest[plan.definition.cursor_column], dt.datetime.now(dt.UTC))
    return Backlog(rows, is_more=is_more, lag_seconds=lag)


def rows_without_cursor(connection: Connection, plan: Plan) -> int:
    """Count the rows that can never be delivered because their cursor is NULL."""
    if not plan.may_lack_cursor:
        return 0
    return int(connection.execute(plan.without_cursor()).scalar_one())
