"""One tick's reading of a table: page after page, no further than late commits allow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import FetchResult, NullCursors
from azure_functions_db.sources.keyset.bounds import HORIZON
from azure_functions_db.sources.keyset.horizon import logger
from azure_functions_db.sources.keyset.page import Page, empty_page, read_page
from azure_functions_db.sources.keyset.position import BOUNDARY, MOST_ROWS, Bound, Position, checkpoint_after
from azure_functions_db.sources.keyset.relation import STEP_SECONDS, rows_without_cursor
from azure_functions_db.sources.keyset.undecodable import failures_in, salvaged_records
from azure_functions_db.sources.read_errors import may_be_migration, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from azure_functions_db.core.errors import SerializationError
    from azure_functions_db.core.ports import Fact
    from azure_functions_db.core.types import Checkpoint, RawRecord
    from azure_functions_db.sources.keyset.horizon import Watch
    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.relation import Relation

    StartOf = Callable[[Plan, Connection], Position]


class Fetched(NamedTuple):
    """A page with the plan that it was read by, the position it was read from, and what is known besides."""

    plan: Plan
    watch: Watch | None
    start: Position
    page: Page
    facts: list[Fact]


class KeysetReader:
    """Reads the pages of one tick, and waits a little for transactions that may commit late."""

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._name = relation.name

    def close(self) -> None:
        """Do nothing: connections go back to the pool page by page."""

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Do nothing: the rows stay where they are."""

    def fetch_changes(self, checkpoint: Checkpoint, limit: int) -> FetchResult:
        """Return at most ``limit`` records after the checkpoint, and the checkpoint after them."""

        def resumed(plan: Plan, connection: Connection) -> Position:
            watch = self._relation.watch(plan)
            if watch is not None:
                watch.resume(checkpoint.get(HORIZON))
            return self._relation.position(plan, checkpoint, connection)

        with reading(self._name):
            fetched = self.fetched(resumed, limit)
            page = fetched.page
            return FetchResult(
                self.records(fetched),
                self._next_checkpoint(checkpoint, fetched),
                page.more,
                revisions=page.revisions,
                undecodable=self.undecodable(page) if page.is_salvaged else {},
                facts=fetched.facts,
            )

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
        if not page.is_salvaged:
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
        if page.rows and not page.is_salvaged and not plan.fits(page.header) and relation.has_changed():
            return self._fetched(start_of, limit)  # What was read is where it is, but its end may be told wrongly.
        if plan.reads_again and page.end.boundary is None and page.end != start:
            self._warn_of_ties(plan, start, page.end)
        return Fetched(plan, watch, start, page, facts)

    def _facts(self, watch: Watch | None, connection: Connection, plan: Plan) -> list[Fact]:
        horizon = watch.horizon() if watch else None
        facts: list[Fact] = [] if horizon is None else [horizon]
        if self._relation.counts_nulls_now():
            facts.append(NullCursors(rows_without_cursor(connection, plan)))
        return facts

    def _next_checkpoint(self, checkpoint: Checkpoint, fetched: Fetched) -> Checkpoint:
        """Return the checkpoint after a page; one that did not move stays as it was written."""
        plan, watch, start, page, _ = fetched
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
        if self._relation.has_backlog and watch.bound is not None and start.values[:1] != (watch.bound,):
            # Below the bound of the last look nothing has changed; at its own value, rows may have come since.
            page = read_page(connection, plan, start, limit, Bound(watch.bound, inclusive=False))
            if page.more:
                return page
        page = self._settled(watch, connection, plan, start, limit)
        if self._relation.has_backlog and page.rows and not watch.is_settled:
            page = replace(page, more=True)  # More has come while the backlog was read; it waits for others' end.
        self._relation.has_backlog = page.more
        return page

    def _settled(self, watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
        """Read up to the horizon; wait a little when it hides all there is."""
        if start.boundary is not None and read_page(connection, plan, start, 1) == empty_page(start):
            return empty_page(start)  # Nothing has come: nobody needs to be looked for.
        patience = self._relation.patience
        deadline = patience.clock() + patience.wait_seconds + watch.ripening_seconds
        while watch.look(connection, plan, start):
            connection.rollback()  # The rows must come from a snapshot that is younger than the look.
            page = _page_below(watch, connection, plan, start, limit)
            if page.rows or watch.is_settled or patience.clock() >= deadline:
                return page
            patience.sleep(STEP_SECONDS)
        return empty_page(start)

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


def _page_below(watch: Watch, connection: Connection, plan: Plan, start: Position, limit: int) -> Page:
    if watch.bound is not None:
        return read_page(connection, plan, start, limit, Bound(watch.bound, watch.includes_bound))
    return read_page(connection, plan, start, limit) if watch.is_blind else empty_page(start)
