"""Reads one page of raw rows."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from azure_functions_db.adapter.plan import LIMIT
from azure_functions_db.adapter.position import Position
from azure_functions_db.adapter.salvage import Salvage, SalvagedRow, is_undecodable
from azure_functions_db.adapter.shape import Header, header_of
from azure_functions_db.adapter.wire import is_same_in_binary, rows_of
from azure_functions_db.core.single import has_left_transactions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection, Select

    from azure_functions_db.adapter.plan import Plan
    from azure_functions_db.adapter.wire import Wording

# A share of a partitioned source is looked for in this many chunks before a fetch returns what it has.
_CHUNKS = 8


@dataclass(frozen=True)
class Page:
    """Rows as the driver gave them, where they end, and whether more is waiting there."""

    header: Header
    rows: Sequence[Any]
    end: Position
    more: bool

    @cached_property
    def is_salvaged(self) -> bool:
        """Whether there are rows with values that could not be decoded."""
        return SalvagedRow in set(map(type, self.rows))


def empty_page(start: Position) -> Page:
    """Return a page without rows."""
    return Page(Header((), ()), (), start, more=False)


def read_page(connection: Connection, plan: Plan, start: Position, limit: int, bound: Any = None) -> Page:
    """Read the rows after a position, at most up to a cursor value if a bound is given."""
    partition = plan.definition.partition
    if partition is None or plan.partitions_in_sql:
        return _cut(plan, *_rows(connection, plan, start, limit + 1, bound), start, limit)
    return _read_share(connection, plan, start, limit, bound)


def _read_share(connection: Connection, plan: Plan, start: Position, limit: int, bound: Any) -> Page:
    """Read on until a page of this share is full: which rows belong to it is known only here."""
    chunk = limit * plan.definition.partition.count  # type: ignore[union-attr]  # only called with one
    taken: list[Any] = []
    header = Header((), ())
    for _ in range(_CHUNKS):
        header, rows = _rows(connection, plan, start, chunk + 1, bound)
        taken += _share(plan, header, rows[:chunk])
        if len(taken) > limit:
            return _cut(plan, header, taken, start, limit)
        if rows:
            start = Position(plan.positions(header)(rows[:chunk][-1]))
        if len(rows) <= chunk:
            return Page(header, taken, start, more=False)
    return Page(header, taken, start, more=True)


def _share(plan: Plan, header: Header, rows: Sequence[Any]) -> list[Any]:
    order = plan.definition.order_columns
    position_of = plan.positions(header)
    places = [order.index(name) for name in plan.definition.pk_columns]
    takes = plan.definition.partition.takes  # type: ignore[union-attr]  # only called with one
    return [row for row in rows if takes([position_of(row)[place] for place in places])]


def _cut(plan: Plan, header: Header, rows: Sequence[Any], start: Position, limit: int) -> Page:
    kept = rows[:limit]
    end = Position(plan.positions(header)(kept[-1])) if kept else start
    return Page(header, kept, end, more=len(rows) > limit)


def _rows(connection: Connection, plan: Plan, start: Position, count: int, bound: Any) -> tuple[Header, Sequence[Any]]:
    try:
        return _plain_rows(connection, plan, start, count, bound)
    except Exception as error:
        if not is_undecodable(error):
            raise
    return _salvage(connection, plan, bound).rows(start, count)


def _salvage(connection: Connection, plan: Plan, bound: Any) -> Salvage:
    def read_page(start: Position, count: int) -> tuple[Header, Sequence[Any]]:
        return _plain_rows(connection, plan, start, count, bound)

    def read_row(start: Position, statement: Select[Any]) -> tuple[Header, Sequence[Any]]:
        return _through_sqlalchemy(connection, statement, _parameters(plan, start, bound))

    return Salvage(plan, read_page, read_row, bounded=bound is not None)


def _parameters(plan: Plan, start: Position, bound: Any) -> dict[str, Any]:
    return plan.parameters(start.values) | ({} if bound is None else plan.bounded(bound))


def _plain_rows(
    connection: Connection, plan: Plan, start: Position, count: int, bound: Any
) -> tuple[Header, Sequence[Any]]:
    statement = plan.page(start, bounded=bound is not None)
    parameters = {**_parameters(plan, start, bound), LIMIT: count}
    worded = plan.worded(statement, count) if has_left_transactions(connection) else None
    if worded is None:
        return _through_sqlalchemy(connection, statement, parameters)
    return _straight(connection, plan, worded, parameters)


def _straight(
    connection: Connection, plan: Plan, worded: Wording, parameters: dict[str, Any]
) -> tuple[Header, Sequence[Any]]:
    if plan.reads_binary:
        header, rows = _worded_rows(connection, worded, parameters, binary=True)
        if is_same_in_binary(connection.dialect, header.codes):
            return header, rows
    header, rows = _worded_rows(connection, worded, parameters, binary=False)
    plan.reads_binary = is_same_in_binary(connection.dialect, header.codes)
    return header, rows


def _worded_rows(
    connection: Connection, worded: Wording, parameters: dict[str, Any], *, binary: bool
) -> tuple[Header, Sequence[Any]]:
    description, rows = rows_of(connection, worded, parameters, binary=binary)
    return header_of(connection.dialect, description), rows


def _through_sqlalchemy(
    connection: Connection, statement: Select[Any], parameters: dict[str, Any]
) -> tuple[Header, Sequence[Any]]:
    with connection.execute(statement, parameters) as result, _driver_errors(connection):
        cursor = result.cursor  # the driver's own: its tuples need no further wrapping
        return header_of(connection.dialect, cursor.description), cursor.fetchall()


@contextmanager
def _driver_errors(connection: Connection) -> Iterator[None]:
    """Let what the driver raises look as if SQLAlchemy had fetched the rows."""
    from sqlalchemy.exc import DBAPIError

    base = connection.dialect.loaded_dbapi.Error
    try:
        yield
    except base as error:
        raise DBAPIError.instance(None, None, error, base, hide_parameters=True) from error
