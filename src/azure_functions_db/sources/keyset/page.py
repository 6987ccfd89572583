"""Reads one page of raw rows, around the values that cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, SerializationError
from azure_functions_db.sources.keyset.plan import LIMIT
from azure_functions_db.sources.keyset.position import (
    BEGINNING,
    MOST_ROWS,
    NO_LAYOUT,
    Bound,
    Boundary,
    Position,
    are_alike,
    are_tied,
)
from azure_functions_db.sources.keyset.values import (
    SAME_IN_BINARY,
    Header,
    compiled_statement,
    header_of,
    rows_of,
    text_of,
)
from azure_functions_db.sql.failures import UNDECODABLE
from azure_functions_db.sql.transactions import driver_errors, has_left_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sqlalchemy import Connection, Select

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.keyset.plan import Plan
    from azure_functions_db.sources.keyset.position import Layout, Mark
    from azure_functions_db.sources.keyset.values import CompiledStatement

    Rows = tuple[Header, Sequence[Any]]
    Part = tuple[Header, Sequence[Any], bool]
    """Rows, and whether something behind them was left unread although they are fewer than wanted."""


# A share that only Python can pick is looked for among this many rows before a fetch returns what it has,
# in chunks that grow up to this size.
_SEARCHED_ROWS = 50_000
_CHUNK_ROWS = 5_000

_NOTHING = Boundary()


@dataclass(frozen=True)
class Page:
    """Rows as the driver gave them, where they end, and whether more is waiting there."""

    header: Header
    rows: Sequence[Any]
    end: Position
    more: bool
    revisions: Mapping[int, str] = field(default_factory=dict)
    """What tells a row from its earlier delivery at the same cursor value, by its place in the page."""
    cut: Callable[[int], Position] | None = field(default=None, compare=False, repr=False)
    """Gives the position behind the first so many of the rows."""

    def followed_by(self, rest: Page) -> Page:
        """Return both as one page; this one alone where a migration came between them."""
        if not rest.rows:
            return replace(self, end=rest.end, more=rest.more)
        if rest.header != self.header:
            return replace(self, more=True)
        count, cut_self, cut_rest = len(self.rows), self.cut, rest.cut

        def cut(first: int) -> Position:
            return cut_self(first) if first <= count else cut_rest(first - count)  # type: ignore[misc]  # there are rows

        revisions = {**self.revisions, **{count + place: label for place, label in rest.revisions.items()}}
        return Page(self.header, [*self.rows, *rest.rows], rest.end, rest.more, revisions, cut)


@dataclass(frozen=True)
class _Reading:
    """Rows of a source's share, the last position looked at, and whether there was nothing behind it."""

    header: Header
    layout: Layout
    rows: Sequence[Any]
    last: Position | None
    is_end: bool
    is_cut: bool
    """Whether it ends before a row whose cursor or key cannot be read."""


def empty_page(start: Position) -> Page:
    """Return a page without rows."""
    return Page(Header((), ()), (), start, more=False)


def read_page(connection: Connection, plan: Plan, start: Position, limit: int, bound: Bound | None = None) -> Page:
    """Read the rows after a position, at most up to a cursor value if a bound is given.

    Where the position has a boundary, the rows at its cursor value that were not delivered come first.
    """
    boundary = start.boundary
    if boundary is None:
        return _page(plan, start, _read(connection, plan, start, limit + 1, bound), limit)
    collates = isinstance(start.values[0], str) and plan.collates
    if len(boundary.marks) > limit or collates:
        # Within many rows of one value, the delivered ones are read again only when the value is to be passed.
        page = _page(plan, start, _read(connection, plan, start, limit + 1, bound), limit)
        if page.rows and page.more and are_tied(page.end.values[0], start.values[0]):
            return page
        if collates:
            page = _missed(connection, plan, start, limit, page, bound) or page
            is_stuck = page.more and page.end == start  # as below
            return read_page(connection, plan, replace(start, boundary=None), limit, bound) if is_stuck else page
    # A statement is compiled for each number of rows: few numbers are enough.
    delivered = 1 << len(boundary.marks).bit_length()
    read = _read(connection, plan, start.at_value, limit + delivered + 1, bound)
    page = _page(plan, start, read, limit)
    # The search for our share may have ended among others' rows at this value, a key behind the delivered ones may be
    # one that cannot be read, or the value's type may have changed.
    is_stuck = (page.more or read.is_cut) and page.end == start
    if is_stuck or not read.layout.begins_alike(read.rows, start.values[0]):
        return read_page(connection, plan, replace(start, boundary=None), limit, bound)
    return page


def _missed(
    connection: Connection, plan: Plan, start: Position, limit: int, ahead: Page, bound: Bound | None
) -> Page | None:
    """Read the rows at the cursor value alone, and return those neither delivered nor ahead; None: there are none."""
    is_open = bound is not None and not bound.inclusive and bound.value == start.values[0]
    read = _read(connection, plan, start.at_value, limit + MOST_ROWS + 1, Bound(start.values[0], not is_open))
    layout = read.layout
    rows = layout.rows_at(read.rows, start.values[0])
    waiting = {key for _, key, _ in layout.fresh(ahead.rows, _NOTHING)}
    fresh = [one for one in layout.fresh(rows, start.boundary or _NOTHING) if one[1] not in waiting]
    if not fresh:
        return None
    kept = fresh[:limit]

    def end(count: int) -> Position:
        marks = {key: mark for _, key, mark in kept[:count]}
        return replace(start, boundary=(start.boundary or _NOTHING).joined(marks, complete=False))

    more = ahead.more or bool(ahead.rows) or len(fresh) > limit
    return Page(read.header, [rows[place] for place, _, _ in kept], end(limit), more, _labels(kept), end)


def at_present(connection: Connection, plan: Plan, position: Position) -> Position:
    """Return the position with all rows that are at its cursor value now taken for delivered."""
    if not plan.reads_again or not position.values:
        return position
    page = read_page(
        connection, plan, Position(position.values[:1], inclusive=True), MOST_ROWS, Bound(position.values[0])
    )
    return replace(position, boundary=None if page.more else page.end.boundary)


def _read(connection: Connection, plan: Plan, start: Position, count: int, bound: Bound | None) -> _Reading:
    if plan.definition.partition is not None and not plan.partitions_in_sql:
        return _read_share(connection, plan, start, count, bound)
    header, rows, is_cut = _rows(connection, plan, start, count, bound)
    layout = plan.layout(header) if rows else NO_LAYOUT
    last = Position(layout.position(rows[-1])) if rows else None
    return _Reading(header, layout, rows, last, len(rows) < count, is_cut)


def _read_share(connection: Connection, plan: Plan, start: Position, count: int, bound: Bound | None) -> _Reading:
    """Read on until there are enough rows of this share: which rows belong to it is known only here."""
    taken: list[Any] = []
    header, layout, last = Header((), ()), NO_LAYOUT, None
    chunk, searched = count * plan.definition.partition.count, 0  # type: ignore[union-attr]  # only called with one
    while len(taken) < count and searched < _SEARCHED_ROWS:
        header, rows, is_cut = _rows(connection, plan, last or start, chunk, bound)
        layout = plan.layout(header) if rows else layout
        taken += _share(plan, layout, rows)
        last = Position(layout.position(rows[-1])) if rows else last
        if len(rows) < chunk:
            return _Reading(header, layout, taken, last, is_end=True, is_cut=is_cut)
        searched += chunk
        chunk = max(chunk, min(2 * chunk, _CHUNK_ROWS))
    return _Reading(header, layout, taken, last, is_end=False, is_cut=False)


def _share(plan: Plan, layout: Layout, rows: Sequence[Any]) -> list[Any]:
    takes = plan.definition.partition.takes  # type: ignore[union-attr]  # only called with one
    return [row for row in rows if takes(layout.share_values(row))]


def _page(plan: Plan, start: Position, read: _Reading, limit: int) -> Page:
    """Return what was read without what had been delivered, cut to the limit."""
    count = 0
    fresh: list[tuple[int, bytes, Mark]] = []
    if start.boundary is not None and start.boundary.marks:
        count = read.layout.count_at_start(read.rows, start.values[0])
        fresh = read.layout.fresh(read.rows[:count], start.boundary)
    rows = [*(read.rows[place] for place, _, _ in fresh), *read.rows[count:]] if count else read.rows

    def cut(first: int) -> Position:
        return _page(plan, start, read, first).end

    if len(rows) <= limit:
        stands = start.boundary is not None and (read.last is None or are_tied(read.last.values[0], start.values[0]))
        if stands and not rows:
            return replace(empty_page(start), more=not read.is_end)
        last = Position(start.values) if stands and not read.is_end else read.last
        end = _end(plan, start, read.layout, read.rows, last, more=not read.is_end)
        return Page(read.header, rows, end, not read.is_end, _labels(fresh) if fresh else {}, cut)
    # The end is the last row before the first one that stays behind, so that delivered ones in between count.
    stop = fresh[limit][0] if limit < len(fresh) else count + limit - len(fresh)
    last = Position(read.layout.position(read.rows[stop - 1]))
    end = _end(plan, start, read.layout, read.rows[:stop], last, more=True)
    return Page(read.header, rows[:limit], end, more=True, revisions=_labels(fresh[:limit]), cut=cut)


def _end(
    plan: Plan, start: Position, layout: Layout, passed: Sequence[Any], last: Position | None, *, more: bool
) -> Position:
    """Return the position behind the rows that were passed, which remembers those at its cursor value."""
    if last is None:
        return start
    if not plan.reads_again:
        return last
    cursor = last.values[0]
    stays = bool(start.values) and are_tied(start.values[0], cursor)
    is_another = bool(start.values) and not are_alike(start.values[0], cursor)
    if is_another or (stays and start.boundary is None and not start.inclusive):
        return last  # Which rows were delivered at this value is not known.
    earlier = (start.boundary if stays else None) or _NOTHING
    marks = layout.marks_at_end(passed, cursor, earlier)
    return replace(last, boundary=None if marks is None else earlier.joined(marks, complete=not more))


def _labels(fresh: Sequence[tuple[int, bytes, Mark]]) -> dict[int, str]:
    return {place: mark.label for place, (_, _, mark) in enumerate(fresh) if mark.label}


def _rows(connection: Connection, plan: Plan, start: Position, count: int, bound: Bound | None) -> Part:
    try:
        read = _rows_in_tie if plan.crawls_in_ties else _plain_rows
        return *read(connection, plan, start, count, bound), False
    except Exception as error:
        if not is_undecodable(error):
            raise
    return _salvage(connection, plan, bound).rows(start, count)


def _rows_in_tie(
    connection: Connection, plan: Plan, start: Position, count: int, bound: Bound | None
) -> tuple[Header, Sequence[Any]]:
    """Read a page, among the rows at its own cursor value first where the last one did not get past it."""
    if plan.tie == start.values[:1] and len(start.values) == len(plan.order):  # at a row, and not behind a cursor alone
        header, rows = _plain_rows(connection, plan, start, count, bound, in_tie=True)
        if len(rows) == count:
            return header, rows
    header, rows = _plain_rows(connection, plan, start, count, bound)
    last = plan.layout(header).position(rows[-1])[:1] if len(rows) == count else None
    plan.tie = last if last == start.values[:1] else None
    return header, rows


def _salvage(connection: Connection, plan: Plan, bound: Bound | None) -> Salvage:
    def read_page(start: Position, count: int) -> tuple[Header, Sequence[Any]]:
        return _plain_rows(connection, plan, start, count, bound)

    def read_row(start: Position, names: Sequence[str], texts: Collection[str]) -> tuple[Header, Sequence[Any]]:
        statement, parameters = plan.next_row(start, names, bound, texts=texts), plan.parameters(start, bound)
        compiled = compiled_statement(statement, plan.dialect, {}) if plan.dialect.driver == "pymysql" else None
        if compiled is not None:  # by itself PyMySQL stops in the middle of a bad row, and its connection is lost
            return _by_packets(connection, compiled, parameters)
        return _through_sqlalchemy(connection, statement, parameters)

    return Salvage(plan, read_page, read_row)


def current_row(connection: Connection, plan: Plan, key: Mapping[str, Any]) -> list[RawRecord]:
    """Return the row of a key as it is now; none where it is gone, or no row of the source any more."""
    conditions = [plan.shape.column(name) == value for name, value in key.items()]
    statement = plan.page(BEGINNING).where(*conditions)
    parameters = {**plan.parameters(BEGINNING), LIMIT: 1}
    header, rows = _through_sqlalchemy(connection, statement, parameters)
    return plan.records(header, rows)


def _plain_rows(
    connection: Connection, plan: Plan, start: Position, count: int, bound: Bound | None, *, in_tie: bool = False
) -> tuple[Header, Sequence[Any]]:
    may_use_driver = has_left_transactions(connection)
    statement = plan.rest_of_tie(start, bound) if in_tie else plan.page(start, bound)
    parameters = plan.parameters(start, bound)
    compiled = plan.compiled(statement, count) if may_use_driver else None
    if compiled is None:
        return _through_sqlalchemy(connection, statement, {**parameters, LIMIT: count})
    match connection.dialect.driver:
        case "psycopg":
            return _in_binary(connection, plan, compiled, parameters)
        case "pymysql":
            return _by_packets(connection, compiled, parameters)
        case _:
            return rows_of(connection, compiled, parameters)


def _in_binary(
    connection: Connection, plan: Plan, compiled: CompiledStatement, parameters: dict[str, Any]
) -> tuple[Header, Sequence[Any]]:
    """Read in the driver's faster form, as long as the columns are the same in it."""
    if plan.reads_binary:
        header, rows = rows_of(connection, compiled, parameters, binary=True)
        if SAME_IN_BINARY.issuperset(header.codes):
            return header, rows
    header, rows = rows_of(connection, compiled, parameters)
    plan.reads_binary = SAME_IN_BINARY.issuperset(header.codes)
    return header, rows


def _by_packets(
    connection: Connection, compiled: CompiledStatement, parameters: Mapping[str, Any]
) -> tuple[Header, Sequence[Any]]:
    from azure_functions_db.sql.mysql_wire import PageCursor

    return rows_of(connection, compiled, parameters, cursor=PageCursor)


def _through_sqlalchemy(
    connection: Connection, statement: Select[Any], parameters: dict[str, Any]
) -> tuple[Header, Sequence[Any]]:
    with driver_errors(connection), connection.execute(statement, parameters) as result:
        cursor = result.cursor  # the driver's own: its tuples need no further wrapping
        return header_of(connection.dialect, cursor.description), cursor.fetchall()


class SalvagedRow(tuple[Any, ...]):  # noqa: SLOT001 - a tuple has no slots for what is noted on this one
    """A row in which the values that cannot be decoded are texts."""

    header: Header
    texts: Mapping[str, Exception]
    """The columns that are texts, and why."""

    def failure(self, source: str) -> SerializationError:
        """Say what is wrong with the row; its values do not belong into messages."""
        columns = ", ".join(f"column {name!r} ({type(error).__name__})" for name, error in self.texts.items())
        return SerializationError(f"A value cannot be decoded: {columns}", source=source)


def salvaged_records(plan: Plan, header: Header, rows: Sequence[Any]) -> list[RawRecord]:
    """Return the records of a page that has rows with texts in place of values."""
    return [
        record
        for row in rows
        for record in ([plan.salvaged(row)] if isinstance(row, SalvagedRow) else plan.records(header, [row]))
    ]


def failures_in(rows: Sequence[Any], source: str) -> dict[int, SerializationError]:
    """Return what is wrong with rows of a page, by their place in it."""
    return {place: row.failure(source) for place, row in enumerate(rows) if isinstance(row, SalvagedRow)}


def is_undecodable(error: Exception) -> bool:
    """Tell whether a read failed because Python has no such value, and not because of the database."""
    from sqlalchemy.exc import DBAPIError

    if not isinstance(error, DBAPIError):
        return isinstance(error, UNDECODABLE)
    cause = error.orig
    # A DataError of the server has a state; one without comes from the driver's own reading of a value.
    is_drivers = type(cause).__name__ == "DataError" and getattr(cause, "sqlstate", "") is None
    return is_drivers or str(cause).startswith("Could not decode to UTF-8")


@dataclass(frozen=True)
class Salvage:
    """Narrows a page down to the rows that cannot be decoded, and reads those as far as they can be."""

    plan: Plan
    read_page: Callable[[Position, int], Rows]
    read_row: Callable[[Position, Sequence[str], Collection[str]], Rows]
    """Reads columns of the next row, some of them as texts."""

    def rows(self, start: Position, count: int) -> Part:
        """Return the rows after a position; one whose cursor or key cannot be read ends them."""
        layout: Header | None = None
        rows: list[Any] = []
        size = count
        while len(rows) < count:
            part = self._part(start, min(size, count - len(rows)), is_first=not rows)
            if part is None:
                size = min(size, count - len(rows)) // 2
                continue
            header, taken, is_cut = part
            if not taken:
                return layout or Header((), ()), rows, is_cut
            if layout is not None and header.names != layout.names:
                return layout, rows, True  # A migration between two reads: what comes next is another page.
            if layout is None or not isinstance(taken[-1], SalvagedRow):
                layout = header
            rows += taken
            start = Position(self.plan.layout(header).position(taken[-1]))
            size *= 2
        return layout or Header((), ()), rows, False

    def _part(self, start: Position, size: int, *, is_first: bool) -> Part | None:
        """Return the next rows, None where they have to be fewer."""
        try:
            return *self.read_page(start, size), False
        except Exception as error:
            if not is_undecodable(error):
                raise
            return None if size > 1 else self._single(start, error, is_first=is_first)

    def _single(self, start: Position, error: Exception, *, is_first: bool) -> Part:
        """Return the next row alone; none where its cursor or key cannot be read and others come before it."""
        if self._failure(start, self.plan.definition.order_columns) is None:
            return *self._salvaged(start), False
        if not is_first:
            return Header((), ()), (), True
        raise FetchError(
            f"The row after {_shown(start)} has a cursor or key that Python cannot hold ({type(error).__name__}): the "
            "poller cannot get past it. Correct the row, or leave it out with where="
        ) from error

    def _salvaged(self, start: Position) -> Rows:
        plan = self.plan
        failures = {name: self._failure(start, [name]) for name in plan.own_columns}
        texts = {name: failure for name, failure in failures.items() if failure is not None}
        # All in one statement, so that the row is a row, whatever is written meanwhile.
        header, taken = self.read_row(start, plan.own_columns, texts)
        rows = [SalvagedRow(_texted(row, header, texts)) for row in taken]
        for row in rows:
            row.header, row.texts = header, texts
        return header, rows

    def _failure(self, start: Position, names: Sequence[str]) -> Exception | None:
        try:
            self.read_row(start, names, ())
        except Exception as error:
            if not is_undecodable(error):
                raise
            return error
        return None


def _texted(row: Sequence[Any], header: Header, texts: Mapping[str, Exception]) -> list[Any]:
    return [text_of(value) if name in texts else value for name, value in zip(header.names, row, strict=True)]


def _shown(start: Position) -> str:
    return f"position {start.values!r}" if start.values else "the beginning"
