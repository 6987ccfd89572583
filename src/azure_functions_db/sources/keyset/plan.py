"""The statements of one source on one shape of its table, made once and used for every page.

The condition "after this position" has the form that each database turns into an index range. PostgreSQL, SQLite
and DuckDB compare rows, ``(c, p) > (:c, :p)``, and start in the index there. MySQL and MariaDB see no range in that,
SQL Server and Oracle do not know it; they get it spelled out, led by ``c >= :c`` so that the range has a lower end.
So does a key that may be NULL where NULL comes last.

What is spelled out begins at the first row of a cursor value, however many rows share it. Where a page has not got
past its value, the next one is looked for among the rows of that value alone, ``c = :c AND p > :p``, where the index
leads to the very row; only the page that leaves the value is read in the longer form.
"""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from azure_functions_db.core.garbage import uncollected
from azure_functions_db.sources.keyset import values
from azure_functions_db.sources.keyset.position import BEGINNING, Layout
from azure_functions_db.sources.keyset.shape import bound_text
from azure_functions_db.sources.keyset.values import aware_utc, compiled_statement, row_builder, rows_of
from azure_functions_db.sql.transactions import has_left_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from sqlalchemy import BindParameter, ColumnElement, Connection, Dialect, Select
    from sqlalchemy.types import TypeEngine

    from azure_functions_db.core.types import RawRecord
    from azure_functions_db.sources.keyset.definition import Definition
    from azure_functions_db.sources.keyset.page import SalvagedRow
    from azure_functions_db.sources.keyset.position import Bound, Position
    from azure_functions_db.sources.keyset.shape import Shape
    from azure_functions_db.sources.keyset.values import CompiledStatement, Header


Recurrence = Literal["ignored", "unique", "ripens", "read again"]

BOUND = "azfdb_bound"
END = "azfdb_end"
LIMIT = "azfdb_limit"
MOMENT = "azfdb_moment"


def _written_out(limit: int) -> BindParameter[int]:
    """Return a limit as a number in the statement: PostgreSQL plans one that is told beside it each time anew."""
    from sqlalchemy import bindparam

    return bindparam(None, limit, literal_execute=True)


class Plan:
    """What to send to the database, and how to read what comes back."""

    def __init__(self, definition: Definition, shape: Shape, dialect: Dialect) -> None:
        from azure_functions_db.sources.keyset.expressions import Raw

        shape.require(definition.needed_columns)
        for name in {*definition.order_columns, *definition.share_columns}:
            values.require_orderable(name, shape.types[name], dialect, described=definition.table is not None)
        self.definition = definition
        self.shape = shape
        self.dialect = dialect
        self.reads_binary = False
        """Whether the last page had only columns that are the same in the driver's faster form."""
        self.tie: tuple[Any, ...] | None = None
        """The cursor that the last page began and ended at, where the next one is worth looking for at it alone."""
        self.end: Any = None
        """The driver's value of the last cursor to read, set before the first statement is made; None: no end."""
        self._untyped = Raw()
        self._statements: dict[Hashable, Select[Any]] = {}
        self._compiled: dict[tuple[Select[Any], int], CompiledStatement | None] = {}
        self._layouts: dict[Header, Layout] = {}
        self._builders: dict[Header, Callable[[Sequence[Any]], list[RawRecord]]] = {}

    @cached_property
    def cursor(self) -> ColumnElement[Any]:
        """The cursor column."""
        return self.order[0]

    @cached_property
    def order(self) -> list[ColumnElement[Any]]:
        """The columns of the position: cursor, then key."""
        return [self.shape.column(name) for name in self.definition.order_columns]

    @cached_property
    def utc_columns(self) -> frozenset[str]:
        """The TIMESTAMP columns of MySQL and MariaDB, where the cursor or key has one: they are read in UTC."""
        return frozenset() if self._stamps.isdisjoint(self.definition.order_columns) else self._stamps

    @cached_property
    def _stamps(self) -> frozenset[str]:
        """The columns of moments that a session of MySQL or MariaDB tells in its own zone."""
        if self.dialect.name not in {"mysql", "mariadb"}:
            return frozenset()
        return frozenset(name for name, kind in self.shape.types.items() if values.type_name(kind) == "TIMESTAMP")

    @cached_property
    def exact(self) -> dict[str, ColumnElement[Any]]:
        """What is read besides the record because the plain value is rounded, or told in the session's zone."""
        types = self.shape.types
        exact = {
            name: values.exact(self.shape.column(name), types[name], self.dialect)
            for name in self.definition.order_columns
        }
        rounded = {name: expression for name, expression in exact.items() if expression is not None}
        return rounded | self._share_moments()

    def _share_moments(self) -> dict[str, ColumnElement[Any]]:
        """Return the moments that tell a row's share as numbers: sessions in two zones must not share out twice.

        The session keeps its zone, in which the cursor may be held against its clock.
        """
        from sqlalchemy import func

        if self.utc_columns:
            return {}
        stamps = (name for name in self.definition.share_columns if name in self._stamps)
        return {name: func.unix_timestamp(self.shape.column(name)) for name in stamps}

    def kept(self, key: Hashable, make: Callable[[], Select[Any]]) -> Select[Any]:
        """Return the statement of this key, made when it is first asked for."""
        if key not in self._statements:
            self._statements[key] = make()
        return self._statements[key]

    def page(self, start: Position, bound: Bound | None = None) -> Select[Any]:
        """Return the statement for a page after such a position, up to a bound or just below it."""
        key = ("page", _form(start), bound and bound.inclusive)
        if key not in self._statements:
            self._statements[key] = self._page(start, bound)
        return self._statements[key]

    def _page(self, start: Position, bound: Bound | None) -> Select[Any]:
        return self._bounded(self._filtered(self._everything(), start), bound)

    def _bounded(self, page: Select[Any], bound: Bound | None) -> Select[Any]:
        from sqlalchemy import Integer, bindparam

        if bound is not None:
            page = page.where(self._below(at_bound=bound.inclusive))
        limit = bindparam(LIMIT, type_=Integer, literal_execute=True)
        return page.order_by(*self.order).limit(limit)

    @cached_property
    def crawls_in_ties(self) -> bool:
        """Whether the condition of a page is spelled out, so that the page begins at the first row of a tie."""
        if len(self.order) == 1:
            return False
        return self.dialect.name not in _COMPARE_ROWS or bool(self._null_keys(BEGINNING))

    def rest_of_tie(self, start: Position, bound: Bound | None = None) -> Select[Any]:
        """Return the statement for rows behind a position at its own cursor value: those that are sure to be next.

        Those whose key begins with NULL are not among them: where NULL comes last, they end the tie.
        """
        return self.kept(("tie", bound and bound.inclusive), lambda: self._rest_of_tie(start, bound))

    def _rest_of_tie(self, start: Position, bound: Bound | None) -> Select[Any]:
        cursor, *key = (self._bound(f"azfdb_p{i}", name) for i, name in enumerate(self.definition.order_columns))
        first, *_ = columns = self.order[1:]
        nullable = [column for column in self._null_keys(start) if column is not first]
        at_cursor = [self.cursor == cursor]
        if self.dialect.name in {"mysql", "mariadb"}:  # who look up an equal value, and walk through all its rows
            at_cursor = [self.cursor >= cursor, self.cursor <= cursor]
        rest = self._filtered(self._everything(), BEGINNING).where(*at_cursor)
        return self._bounded(rest.where(after(columns, key, self.dialect.name, nullable)), bound)

    @cached_property
    def own_columns(self) -> tuple[str, ...]:
        """The columns of a record, in their order."""
        if self.definition.columns is not None:
            return self.definition.needed_columns
        return (*(name for name in self.shape.types if name not in self.shape.hidden), *self._unstarred)

    def next_row(
        self,
        start: Position,
        names: Sequence[str],
        bound: Bound | None,
        *,
        texts: Collection[str] = (),
    ) -> Select[Any]:
        """Return the statement for columns of the row after such a position, some as the database writes them."""
        from sqlalchemy import select

        columns = [self.shape.column(name) for name in names]
        extras = self._extras() if len(names) > 1 else []
        shown = [
            values.as_text(column, self.dialect).label(name) if name in texts else column
            for name, column in zip(names, columns, strict=True)
        ]
        row = self._filtered(select(*shown, *extras), start)
        if bound is not None:
            row = row.where(self._below(at_bound=bound.inclusive))
        return row.order_by(*self.order).limit(_written_out(1))

    @cached_property
    def collates(self) -> bool:
        """Whether only the database knows which texts are the same."""
        return self.dialect.name != "sqlite"

    def compiled(self, page: Select[Any], limit: int) -> CompiledStatement | None:
        """Return a page's statement as the driver takes it, None where only SQLAlchemy can send it."""
        if (page, limit) not in self._compiled:
            self._compiled[page, limit] = compiled_statement(page, self.dialect, {LIMIT: limit})
        return self._compiled[page, limit]

    def seen(self, connection: Connection, statement: Select[Any], parameters: Mapping[str, Any]) -> Any:
        """Return the one row of a statement, straight from the driver where that is allowed."""
        compiled = self.compiled(statement, 1) if has_left_transactions(connection) else None
        if compiled is None:
            return connection.execute(statement, parameters).one()
        header, [row] = rows_of(connection, compiled, parameters)
        return SimpleNamespace(**dict(zip(header.names, row, strict=True)))

    def as_told(self, name: str, value: Any, connection: Connection) -> Any:
        """Return a moment with a zone if its column has one, and without if not, as PostgreSQL would convert it.

        It has to be comparable with the rows, so that those at its own value are known. What a user says of a column
        may be wrong, and is left to the comparison.
        """
        from sqlalchemy import select

        kind = self.shape.types[name]
        if self.dialect.name != "postgresql" or not self.shape.is_reflected or not values.is_temporal(kind):
            return value
        if not isinstance(value, dt.datetime) or (value.tzinfo is not None) == bool(getattr(kind, "timezone", False)):
            return value
        return connection.execute(select(self._bound(MOMENT, name)), {MOMENT: value}).scalar_one()

    def newest(self, start: Position, *, bounded: bool = False) -> Select[Any]:
        """Return the statement for the highest cursor after such a position, filters left aside.

        They are left aside because any visible cursor serves as a bound, and this one the index knows.
        """

        def newest() -> Select[Any]:
            after = [*self._after(start), *([self._below()] if bounded else [])]
            newest = self._raw([self.definition.cursor_column]).where(self.cursor.is_not(None), *after)
            return newest.order_by(*(column.desc() for column in self.order)).limit(_written_out(1))

        return self.kept(("newest", _form(start), bounded), newest)

    def cursors(self) -> Select[Any]:
        """Return the statement for the cursor of every row, as one to be explained."""
        return self._raw([self.definition.cursor_column]).where(*self._own_filter())

    def ties(self, newest: Select[Any], most: int) -> Select[Any]:
        """Return the statement that counts the rows which share a cursor value, up to a number."""
        from sqlalchemy import func, literal_column, select

        value = newest.correlate(None).scalar_subquery()
        alike: Select[Any] = select(literal_column("1").label("one")).where(self.cursor == value)
        return select(func.count()).select_from(alike.limit(_written_out(most)).subquery("azfdb_ties"))

    def last(self, *, bounded: bool = False) -> Select[Any]:
        """Return the statement for the highest position there is."""
        filters = [self.cursor.is_not(None), *([self._below()] if bounded else [])]
        newest = self._raw(self.definition.order_columns).where(*filters)
        return newest.order_by(*(column.desc() for column in self.order)).limit(_written_out(1))

    @cached_property
    def reads_again(self) -> bool:
        """Whether a cursor value may be handed out once more after it was passed, and so is read again."""
        return self.recurrence == "read again"

    @cached_property
    def recurrence(self) -> Recurrence:
        """Why a cursor value that was passed cannot come again, or what is done about it."""
        column = self.definition.cursor_column
        if self.definition.in_flight == "ignore":
            return "ignored"
        if self.definition.pk_columns == (column,) or self.shape.is_unique(column, self.dialect):
            return "unique"
        return "ripens" if self.shape.is_stamped(column, self.dialect) else "read again"

    @property
    def may_lack_cursor(self) -> bool:
        """Whether the cursor can be NULL at all."""
        table = self.shape.table
        return table is None or bool(table.columns[self.definition.cursor_column].nullable)

    def without_cursor(self) -> Select[Any]:
        """Return the statement that counts the rows whose cursor is NULL."""
        from sqlalchemy import func, select

        count = select(func.count()).select_from(self.shape.relation).where(self.cursor.is_(None))
        return count.where(*self._own_filter())

    def parameters(self, start: Position, bound: Bound | None = None) -> dict[str, Any]:
        """Return the values that a statement for such a position binds."""
        parameters = {f"azfdb_p{i}": value for i, value in enumerate(start.values)}
        if self.end is not None:
            parameters[END] = self.end
        if bound is not None:
            parameters[BOUND] = bound.value
        return parameters

    def records(self, header: Header, rows: Sequence[Any]) -> list[RawRecord]:
        """Return the records of a page."""
        if header not in self._builders:
            self._builders[header] = self._builder(header)
        try:
            with uncollected:  # which would look through rows that it is about to be kept from
                return self._builders[header](rows)
        except values.UNCONVERTIBLE:
            # SQLite keeps any value in any column: one that is not of the declared type is handed out as it is.
            return self._builder(header, lenient=True)(rows)

    def salvaged(self, row: SalvagedRow) -> RawRecord:
        """Return the record of a row some of whose values are texts, which stay as they are."""
        [record] = self._builder(row.header, lenient=True, texts=row.texts)([row])
        return record

    def fits(self, header: Header) -> bool:
        """Tell whether a result has the columns that this plan was made for, of the types it had before."""
        if self._builders and header not in self._builders:
            return False
        return self.own_columns == header.names[: len(header.names) - len(self.exact)]

    @cached_property
    def _unstarred(self) -> list[str]:
        """The columns that are needed and that a star does not bring."""
        return [name for name in self.definition.needed_columns if name in self.shape.hidden]

    def layout(self, header: Header) -> Layout:
        """Return where the rows of such a result have their position."""
        layout = self._layouts.get(header)
        if layout is None:
            layout = self._layouts[header] = self._layout(header)
        return layout

    def _layout(self, header: Header) -> Layout:
        own, order = self._own(header), self.definition.order_columns
        extra = {name: len(own) + i for i, name in enumerate(self.exact)}
        position, share = (
            [extra.get(name, header.names.index(name)) for name in names]
            for names in (order, self.definition.share_columns)
        )
        return Layout(position, [place for place, name in enumerate(own) if name not in order], share)

    def _raw(self, names: Sequence[str]) -> Select[Any]:
        """Select columns of the position, to be had as the driver gives them."""
        from sqlalchemy import select, type_coerce

        columns = [self.exact.get(name, self.shape.column(name)) for name in names]
        raw: Any = select(*(type_coerce(column, self._untyped) for column in columns))
        return raw  # type: ignore[no-any-return]  # the checker cannot count the columns

    def _below(self, *, at_bound: bool = True) -> ColumnElement[bool]:
        bound = self._bound(BOUND, self.definition.cursor_column)
        return self.cursor <= bound if at_bound else self.cursor < bound

    def _own(self, header: Header) -> tuple[str, ...]:
        return header.names[: len(header.names) - len(self.exact)]

    def _builder(
        self, header: Header, *, lenient: bool = False, texts: Collection[str] = ()
    ) -> Callable[[Sequence[Any]], list[RawRecord]]:
        names = self._own(header)
        converters = [
            None if name in texts else self._converter(name, code)
            for name, code in zip(names, header.codes, strict=False)
        ]
        if lenient:
            converters = [convert and values.lenient(convert) for convert in converters]
        return row_builder(names, converters, len(self.exact))

    def _converter(self, name: str, code: Any) -> Callable[[Any], Any] | None:
        if name in self.utc_columns:
            return aware_utc
        kind = self.shape.types.get(name)
        return None if kind is None else values.converter(kind, self.dialect, code)

    def _everything(self) -> Select[Any]:
        from sqlalchemy import select, text

        extras = self._extras()
        if self.definition.columns is None:
            # A star also brings the column that a migration added a minute ago.
            named = [self.shape.column(name) for name in self._unstarred]
            return select(text("*"), *named, *extras).select_from(self.shape.relation)
        return select(*(self.shape.column(name) for name in self.definition.needed_columns), *extras)

    def _extras(self) -> list[ColumnElement[Any]]:
        return [expression.label(f"azfdb_exact{i}") for i, expression in enumerate(self.exact.values())]

    def _filtered(self, everything: Select[Any], start: Position) -> Select[Any]:
        if not start.values or self.dialect.name == "duckdb":  # which takes a row that begins with NULL for a high one
            everything = everything.where(self.cursor.is_not(None))
        if self.end is not None:
            everything = everything.where(self.cursor <= self._bound(END, self.definition.cursor_column))
        return everything.where(*self._after(start), *self._own_filter())

    def _after(self, start: Position) -> list[ColumnElement[bool]]:
        if not start.values:
            return []
        names = self.definition.order_columns[: len(start.values)]
        parameters = [self._bound(f"azfdb_p{i}", name) for i, name in enumerate(names)]
        if start.inclusive:
            return [self.cursor >= parameters[0]]
        return [after(self.order[: len(names)], parameters, self.dialect.name, self._null_keys(start))]

    def _null_keys(self, start: Position) -> list[ColumnElement[Any]]:
        """Return the key columns whose NULLs could be passed over."""
        if self.dialect.name == "sqlite":
            # NULL comes first here: rows compare as they should, unless the position itself holds one.
            return [column for column, value in zip(self.order, start.values, strict=False) if value is None]
        return [self.shape.column(name) for name in self.definition.order_columns[1:] if self.shape.may_be_null(name)]

    def _own_filter(self) -> list[Any]:
        filters: list[Any] = []
        if self.definition.where is not None:
            # On a line of its own, the closing parenthesis cannot fall into a comment.
            filters.append(bound_text(f"({self.definition.where}\n)", self.definition))
        if self.definition.partition and self.partitions_in_sql:
            filters.append(self.definition.partition.condition(self.shape.column(self.definition.share_columns[0])))
        return filters

    @property
    def partitions_in_sql(self) -> bool:
        """Whether the database itself can pick the rows of a partition: by a single integer column."""
        columns = self.definition.share_columns
        return len(columns) == 1 and values.is_whole(self.shape.types[columns[0]])

    def _bound(self, parameter: str, name: str) -> ColumnElement[Any]:
        return typed_parameter(parameter, self.shape.types[name], self.dialect)


def _form(start: Position) -> Hashable:
    """Return what the statement for such a position depends on."""
    return (start.inclusive, *(value is None for value in start.values))


_COMPARE_ROWS = {"postgresql", "sqlite", "duckdb"}
_NULLS_LAST = {"postgresql", "duckdb", "oracle"}


def after(
    columns: Sequence[ColumnElement[Any]],
    values: Sequence[ColumnElement[Any]],
    dialect: str,
    nullable: Collection[ColumnElement[Any]] = (),
) -> ColumnElement[bool]:
    """Return the condition that a row comes after the position in the order of the columns.

    Those that are ``nullable`` are spelled out as well: a comparison of rows that meets a NULL is not true.
    """
    from sqlalchemy import and_, tuple_

    if len(columns) == 1:
        return columns[0] > values[0]
    if dialect in _COMPARE_ROWS and not nullable:
        return tuple_(*columns) > tuple_(*values)
    may_be_null = [any(column is other for other in nullable) for column in columns]
    pairs = list(zip(columns, values, may_be_null, strict=True))
    return and_(columns[0] >= values[0], _spelled(pairs, nulls_last=dialect in _NULLS_LAST))


_Pair = tuple["ColumnElement[Any]", "ColumnElement[Any]", bool]


def _spelled(pairs: Sequence[_Pair], *, nulls_last: bool) -> ColumnElement[bool]:
    from sqlalchemy import and_, or_

    first, *others = pairs
    higher = _higher(*first, nulls_last=nulls_last)
    if not others:
        return higher
    return or_(higher, and_(_same(*first), _spelled(others, nulls_last=nulls_last)))


def _higher(
    column: ColumnElement[Any], value: ColumnElement[Any], may_be_null: bool, *, nulls_last: bool
) -> ColumnElement[bool]:
    from sqlalchemy import and_, or_

    higher = column > value
    if not may_be_null:
        return higher
    lower, upper = (value, column) if nulls_last else (column, value)
    return or_(higher, and_(upper.is_(None), lower.is_not(None)))


def _same(column: ColumnElement[Any], value: ColumnElement[Any], may_be_null: bool) -> ColumnElement[bool]:
    return column.is_not_distinct_from(value) if may_be_null else column == value


def typed_parameter(name: str, kind: TypeEngine[Any], dialect: Dialect) -> ColumnElement[Any]:
    """Return a parameter for a driver's value, compared as the column's own type."""
    from sqlalchemy import bindparam, cast, types

    from azure_functions_db.sources.keyset.expressions import Raw

    parameter = bindparam(name, type_=Raw())
    compared = (types.Numeric, types.Float, types.DateTime, types.Date, types.Time, types.Uuid)
    if dialect.name in {"postgresql", "mssql"} and isinstance(kind, compared):
        return cast(parameter, _uncut(kind) if dialect.name == "postgresql" else kind)
    return parameter


def _uncut(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type with all the digits it can have: a migration may have given the column more of them."""
    from sqlalchemy import types
    from sqlalchemy.dialects import postgresql

    match kind:
        case types.Float():
            return kind
        case types.Numeric():
            return types.Numeric()
        case types.DateTime():
            return postgresql.TIMESTAMP(timezone=kind.timezone)
        case types.Time():
            return postgresql.TIME(timezone=kind.timezone)
        case _:
            return kind
