"""Reads a page no further than late commits allow, and waits for them a little."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.boundary import MOST_ROWS
from azure_functions_db.sources.keyset.horizon import (
    RowversionWatch,
    SettledWatch,
    logger,
    warn_of_late_commits,
    warn_of_running,
)
from azure_functions_db.sources.keyset.page import Page, empty_page, read_page
from azure_functions_db.sources.keyset.position import BEGINNING, Bound, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from azure_functions_db.sources.keyset.horizon import Watch
    from azure_functions_db.sources.keyset.plan import Plan

_STEP_SECONDS = 0.02


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


class PageReader:
    """Reads page after page of one source; ``watch`` is None where there is nothing to watch."""

    def __init__(self, name: str, watch: Watch | None, patience: Patience) -> None:
        self.watch = watch
        self._name = name
        self._patience = patience
        self._backlog = False
        self._has_warned = False

    def read(self, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read the page after a position, as far as late commits allow."""
        page = self._read(connection, plan, start, limit)
        if plan.reads_again and page.end.boundary is None and page.end != start:
            self._warn_of_ties(plan, start, page.end)
        return page

    def _warn_of_ties(self, plan: Plan, start: Position, end: Position) -> None:
        """Warn once when a cursor value has too many rows to be read again."""
        if self._has_warned or (start.boundary is None and start.values[:1] == end.values[:1]):
            return
        self._has_warned = True
        logger.warning(
            "Source %r has more than %s rows of one %s: a row that gets this value later, with a smaller key, "
            "is missed until the value moves on. Give each change a value of its own",
            self._name,
            f"{MOST_ROWS:,}",
            plan.definition.cursor_column,
        )

    def _read(self, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        if self.watch is None:
            return read_page(connection, plan, start, limit)
        if self._backlog and self.watch.bound is not None and start.values[:1] != (self.watch.bound,):
            # Below the bound of the last look nothing has changed; at its own value, rows may have come since.
            page = read_page(connection, plan, start, limit, Bound(self.watch.bound, inclusive=False))
            if page.more:
                return page
        page = self._settled(self.watch, connection, plan, start, limit)
        if self._backlog and page.rows and not self.watch.is_settled:
            page = replace(page, more=True)  # More has come while the backlog was read; it waits for others' end.
        self._backlog = page.more
        return page

    def _settled(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read up to the horizon; wait a little when it hides all there is."""
        if start.boundary is not None and read_page(connection, plan, start, 1) == empty_page(start):
            return empty_page(start)  # Nothing has come: nobody needs to be looked for.
        patience = self._patience
        deadline = patience.clock() + patience.wait_seconds + watch.ripening_seconds
        while watch.look(connection, plan, start):
            connection.rollback()  # The rows must come from a snapshot that is younger than the look.
            page = _page_below(watch, connection, plan, start, limit)
            if page.rows or watch.is_settled or patience.clock() >= deadline:
                return page
            patience.sleep(_STEP_SECONDS)
        return empty_page(start)


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
        patience.sleep(_STEP_SECONDS)
    return True


def _newest(connection: Connection, plan: Plan, bound: Any) -> Position:
    parameters = plan.parameters(BEGINNING, None if bound is None else Bound(bound))
    last = connection.execute(plan.last(bounded=bound is not None), parameters).first()
    return BEGINNING if last is None else Position(tuple(map(values.storable, last)))


def _page_below(watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
    if watch.bound is not None:
        return read_page(connection, plan, start, limit, Bound(watch.bound, watch.includes_bound))
    return read_page(connection, plan, start, limit) if watch.is_blind else empty_page(start)


def _settled_or_none(name: str, plan: Plan) -> Watch | None:
    if plan.definition.settle_seconds is not None:
        return SettledWatch(plan.shape.types[plan.definition.cursor_column], plan.definition.settle_seconds)
    if not writers_take_turns(plan):
        warn_of_late_commits(name, f"{plan.dialect.name} does not show its running transactions")
    return None
