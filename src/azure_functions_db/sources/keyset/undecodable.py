"""Reads a page around the values that cannot be decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import FetchError, SerializationError
from azure_functions_db.sources.keyset.position import Position
from azure_functions_db.sources.keyset.rows import Header

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.keyset.plan import Plan

    Rows = tuple[Header, Sequence[Any]]


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
        return isinstance(error, ValueError | ArithmeticError | RecursionError)
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

    def rows(self, start: Position, count: int) -> tuple[Header, list[Any]]:
        """Return the rows after a position; one whose cursor or key cannot be read ends them."""
        layout: Header | None = None
        rows: list[Any] = []
        size = count
        while len(rows) < count:
            part = self._part(start, min(size, count - len(rows)), is_first=not rows)
            if part is None:
                size = min(size, count - len(rows)) // 2
                continue
            header, taken = part
            if not taken or (layout is not None and header.names != layout.names):
                break  # The end, or a migration between two reads: what comes next is another page.
            if layout is None or not isinstance(taken[-1], SalvagedRow):
                layout = header
            rows += taken
            start = Position(self.plan.layout(header).position(taken[-1]))
            size *= 2
        return layout or Header((), ()), rows

    def _part(self, start: Position, size: int, *, is_first: bool) -> Rows | None:
        """Return the next rows, None where they have to be fewer."""
        try:
            return self.read_page(start, size)
        except Exception as error:
            if not is_undecodable(error):
                raise
            return None if size > 1 else self._single(start, error, is_first=is_first)

    def _single(self, start: Position, error: Exception, *, is_first: bool) -> Rows:
        """Return the next row alone; none where its cursor or key cannot be read and others come before it."""
        if self._failure(start, self.plan.definition.order_columns) is None:
            return self._salvaged(start)
        if not is_first:
            return Header((), ()), ()
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
    return [
        value.decode(errors="backslashreplace") if name in texts and isinstance(value, bytes | bytearray) else value
        for name, value in zip(header.names, row, strict=True)
    ]


def _shown(start: Position) -> str:
    return f"position {start.values!r}" if start.values else "the beginning"
