"""Reads a page no further than late commits allow, and waits for them a little."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.adapter import values
from azure_functions_db.adapter.horizon import RowversionWatch, SettledWatch, warn_of_late_commits, warn_of_running
from azure_functions_db.adapter.page import Page, empty_page, read_page
from azure_functions_db.adapter.position import BEGINNING, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from azure_functions_db.adapter.horizon import Watch
    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.core.types import Horizon

_STEP_SECONDS = 0.02


@dataclass(frozen=True)
class Patience:
    """How long to wait for running transactions: within a fetch, and until idle ones no longer count."""

    wait_seconds: float
    cap_seconds: float | None
    clock: Callable[[], float] = field(repr=False)
    sleep: Callable[[float], None] = field(repr=False)


def watch_for(name: str, plan: Plan, patience: Patience) -> Watch | None:
    """Return what finds the horizon on this database; None where there is nothing to watch."""
    definition, kind = plan.definition, plan.shape.types[plan.definition.cursor_column]
    if definition.in_flight == "wait":
        match plan.dialect.name:
            case "postgresql":
                from azure_functions_db.adapter.horizon_postgres import PostgresWatch as Draining
            case "mysql" | "mariadb":
                from azure_functions_db.adapter.horizon_mysql import MysqlWatch as Draining  # type: ignore[assignment]
            case "mssql" if values.type_name(kind) in {"ROWVERSION", "TIMESTAMP"}:
                return RowversionWatch()
            case _:
                return _settled_or_none(name, plan)
        settle, cap = definition.settle_seconds, patience.cap_seconds
        return Draining(name, kind, settle_seconds=settle, cap_seconds=cap, clock=patience.clock)
    return None if definition.settle_seconds is None else SettledWatch(kind, definition.settle_seconds)


def writers_take_turns(plan: Plan) -> bool:
    """Tell whether cursor values appear in their order anyway: SQLite hands out integers under its one write lock."""
    return plan.dialect.name == "sqlite" and values.is_whole(plan.shape.types[plan.definition.cursor_column])


class Pages:
    """Reads page after page of one source; ``watch`` is None where there is nothing to watch."""

    def __init__(self, watch: Watch | None, patience: Patience) -> None:
        self.watch = watch
        self._patience = patience
        self._backlog = False

    def read(self, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read the page after a position, as far as late commits allow."""
        if self.watch is None:
            return read_page(connection, plan, start, limit)
        if self._backlog and self.watch.bound is not None:
            page = self._known(self.watch, connection, plan, start, limit)
            if page.rows or page.more:
                return page
        page = self._settled(self.watch, connection, plan, start, limit)
        self._backlog = page.more
        return page

    def horizon(self) -> Horizon | None:
        """Tell who holds the horizon, if somebody does."""
        return self.watch.horizon() if self.watch else None

    def _known(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read below the bound of the last look; where that ends, see whether there is more by now."""
        page = read_page(connection, plan, start, limit, watch.bound)
        self._backlog = page.more
        if page.more or not page.rows:
            return page
        connection.rollback()  # What has come since is not in the snapshot of what was read.
        newest = connection.execute(plan.newest(page.end), plan.parameters(page.end.values)).scalar()
        return replace(page, more=newest is not None)

    def _settled(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read up to the horizon; wait a little when it hides all there is."""
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
    parameters = {} if bound is None else plan.bounded(bound)
    last = connection.execute(plan.last(bounded=bound is not None), parameters).first()
    return BEGINNING if last is None else Position(tuple(map(values.storable, last)))


def _page_below(watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
    if watch.bound is None and not watch.is_blind:
        return empty_page(start)
    return read_page(connection, plan, start, limit, watch.bound)


def _settled_or_none(name: str, plan: Plan) -> Watch | None:
    if plan.definition.settle_seconds is not None:
        return SettledWatch(plan.shape.types[plan.definition.cursor_column], plan.definition.settle_seconds)
    if not writers_take_turns(plan):
        warn_of_late_commits(name, f"{plan.dialect.name} does not show its running transactions")
    return None
