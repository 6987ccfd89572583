"""The writing side: an outbox table, the DDL that makes it on each kind of database, and events added to it.

Rows are delivered in the order of ``sequence``, a number that each of them draws when it is written. On PostgreSQL
``position`` comes before it: the highest of the writer's own transaction id and of those that had ended when its
statement began. It promises two things:

- Nothing is lost. It is never below the writer's own id, so that once every running transaction has a higher one, no
  further row can appear below it: the reader asks for rows below the oldest running transaction, in one statement.
- The order of a key is kept. Who writes about a key after another transaction has committed begins a statement that
  sees this transaction as ended, and gets no lower position, however early its own transaction began. By the plain
  transaction id, it could come first.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload, runtime_checkable

from azure_functions_db.core.errors import ConfigurationError, SerializationError, WriteConnectionError, WriteError
from azure_functions_db.core.serializers import json_safe
from azure_functions_db.sql.failures import code_of, is_connection_failure
from azure_functions_db.sql.own_tables import exact_text, own_types
from azure_functions_db.sql.reflection import table_with, unknown_columns
from azure_functions_db.sql.transactions import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Column, Connection, Engine, Table
    from sqlalchemy.orm import Session
    from sqlalchemy.schema import SchemaItem

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite", "mssql")

POSITION_DEFAULT = (
    "greatest(CAST(CAST(pg_current_xact_id() AS text) AS bigint), "
    "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) - 1)"
)
OLDEST_RUNNING = "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
"""The lowest transaction id that may still write, as PostgreSQL tells it; all below have ended."""

_LONGEST = 255
_WITH_POSITION = {"postgresql", "mssql"}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The column of the table that holds each part of an event; the names are those of Debezium's outbox."""

    id: str = "id"
    topic: str = "aggregatetype"
    key: str = "aggregateid"
    type: str | None = "type"
    payload: str = "payload"
    headers: str | None = "headers"
    created_at: str | None = "created_at"
    sequence: str = "sequence"
    position: str | None = "position"

    @classmethod
    def mapped(cls, given: Mapping[str, str | None]) -> Columns:
        """Return the columns with other names for some parts; None is a part that the table does not have."""
        by_name = {field.name: field for field in fields(cls)}
        if unknown := sorted(set(given) - set(by_name)):
            raise ConfigurationError(f"columns= has {', '.join(unknown)}: an event has the parts {', '.join(by_name)}")
        for part, name in given.items():
            if name is None and part in _NEEDED:
                raise ConfigurationError(f"columns= leaves out {part}, which every outbox needs")
            if name is not None and not _is_name(name):
                raise ConfigurationError(f"columns= maps {part} to {name!r}, which is no name of a column")
        return cls(**given)  # type: ignore[arg-type]  # checked above

    def on(self, dialect: str) -> dict[str, str]:
        """Return the columns by part, as far as a database of this kind has them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        if dialect not in _WITH_POSITION:
            del named["position"]
        return {part: name for part, name in named.items() if name is not None}


_NEEDED = {"id", "topic", "key", "payload", "sequence"}


def _is_name(value: object) -> bool:
    """Tell whether a value can be the name of a table or column."""
    return isinstance(value, str) and bool(value.strip())


def outbox_table(name: str, schema: str | None, columns: Columns, dialect: str) -> Table:
    """Return the definition of an outbox in a database of this kind."""
    from sqlalchemy import Index, MetaData, Table

    if dialect not in DIALECTS:
        raise ConfigurationError(f"There is no outbox for {dialect}: it is one of {', '.join(DIALECTS)}")
    named = columns.on(dialect)
    items: list[SchemaItem] = [_column(part, column, dialect) for part, column in named.items()]
    if "position" in named:
        items.append(Index(f"ix_{name}_{named['position']}", named["position"], named["sequence"]))
    return Table(name, MetaData(), *items, schema=schema, sqlite_autoincrement=True)


def _column(part: str, name: str, dialect: str) -> Column[Any]:
    from sqlalchemy import Column, Unicode

    match part:
        case "id":
            # Where rows are kept in the order of their key, that is the sequence.
            is_key = dialect == "postgresql"
            return Column(name, _id_type(dialect), primary_key=is_key, unique=None if is_key else True, nullable=False)
        case "topic" | "key" | "type":
            kind = Unicode(_LONGEST) if dialect == "mssql" else exact_text(_LONGEST, dialect)
            return Column(name, kind, nullable=False)
        case "payload" | "headers":
            return Column(name, _json_type(dialect))
        case "created_at":
            kind, default = _clock(dialect)
            return Column(name, kind, nullable=False, server_default=default)
        case "sequence":
            return _sequence(name, dialect)
        case _:
            return _position(name, dialect)


def _id_type(dialect: str) -> Any:
    from sqlalchemy import CHAR

    match dialect:
        case "postgresql":
            return own_types(dialect).UUID()
        case "mssql":
            return own_types(dialect).UNIQUEIDENTIFIER()
        case "sqlite":
            return CHAR(36)
        case _:
            return own_types(dialect).CHAR(36, charset="ascii", collation="ascii_bin")


def _json_type(dialect: str) -> Any:
    from sqlalchemy import JSON, NVARCHAR

    match dialect:
        case "postgresql":
            return own_types(dialect).JSONB(none_as_null=True)
        case "mssql":
            return NVARCHAR(None)
        case _:
            return JSON(none_as_null=True)


def _clock(dialect: str) -> tuple[Any, Any]:
    from sqlalchemy import DateTime, text

    match dialect:
        case "postgresql":
            return DateTime(timezone=True), text("clock_timestamp()")
        case "sqlite":
            return DateTime(), text("(strftime('%Y-%m-%d %H:%M:%f', 'now'))")
        case "mssql":
            return own_types(dialect).DATETIMEOFFSET(), text("SYSDATETIMEOFFSET()")
        case _:
            return own_types(dialect).TIMESTAMP(fsp=6), text("CURRENT_TIMESTAMP(6)")


def _sequence(name: str, dialect: str) -> Column[Any]:
    from sqlalchemy import BigInteger, Column, Identity, Integer

    if dialect == "postgresql":
        return Column(name, BigInteger, Identity(always=False), nullable=False)
    # SQLite numbers rows by themselves only where the type is exactly this; it holds 64 bits.
    kind = Integer() if dialect == "sqlite" else BigInteger()
    return Column(name, kind, primary_key=True, autoincrement=True)


def _position(name: str, dialect: str) -> Column[Any]:
    from sqlalchemy import BigInteger, Column, text

    if dialect == "mssql":
        return Column(name, own_types(dialect).ROWVERSION(), nullable=False)
    return Column(name, BigInteger, nullable=False, server_default=text(POSITION_DEFAULT))


T = TypeVar("T")


@runtime_checkable
class InTransaction(Protocol):
    """A writer or session of this library: it runs work on the connection of its open transaction."""

    def in_transaction(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns; `ConfigurationError` where no transaction is open."""


class AsyncInTransaction(Protocol):
    """The same, awaited."""

    def in_transaction(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Return what the work returns."""


if TYPE_CHECKING:
    Where = InTransaction | Connection | Session
    AsyncWhere = AsyncInTransaction


class Outbox:
    """A table of events that are written in the transaction of the change they tell of.

    - ``table``, ``schema``:
      Where it is.
    - ``columns``:
      The names of its columns by the part of an event that they hold, where they are others than Debezium's:
      ``id``, ``topic``, ``key``, ``type``, ``payload``, ``headers``, ``created_at``, ``sequence``, ``position``.
      None for ``type``, ``headers``, ``created_at`` or ``position`` is a part that the table does not have.
    """

    def __init__(
        self, table: str = "outbox", schema: str | None = None, *, columns: Mapping[str, str | None] | None = None
    ) -> None:
        for name in (table, schema):
            if name is not None and not _is_name(name):
                raise ConfigurationError(f"{name!r} is no name of a table or schema")
        self.table = table
        self.schema = schema
        self.columns = Columns.mapped(columns or {})

    def __repr__(self) -> str:
        return f"Outbox({self.label!r})"

    @property
    def label(self) -> str:
        """The table's name with its schema."""
        return f"{self.schema}.{self.table}" if self.schema else self.table

    def ddl(self, dialect: str) -> str:
        """Return the statements that make the table on ``postgresql``, ``mysql``, ``sqlite`` or ``mssql``."""
        return "\n".join(f"{statement};" for statement in _creation(self._table(dialect), dialect))

    def pending(self, engine: Engine) -> list[str]:
        """Return the statements that are still to run: those of the whole table, or of the columns it lacks."""
        from sqlalchemy import inspect

        wanted, dialect = self._table(engine.dialect.name), engine.dialect.name
        with writing(f"The outbox {self.label}", self.label):
            if not inspect(engine).has_table(self.table, schema=self.schema):
                return _creation(wanted, dialect)
            present = {column["name"] for column in inspect(engine).get_columns(self.table, schema=self.schema)}
        missing = [column for column in wanted.columns if column.name not in present]
        return _completion(wanted, missing, dialect, self.columns) if missing else []

    def create(self, engine: Engine) -> list[str]:
        """Make the table, or add the columns that it lacks, and return the statements that were run."""
        from sqlalchemy import text

        statements = self.pending(engine)
        with writing(f"The outbox {self.label}", self.label), engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        return statements

    @overload
    def add(
        self,
        where: Where,
        *,
        topic: str,
        key: object,
        payload: Any,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: uuid.UUID | None = None,
    ) -> uuid.UUID: ...
    @overload
    def add(
        self,
        where: AsyncWhere,
        *,
        topic: str,
        key: object,
        payload: Any,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: uuid.UUID | None = None,
    ) -> Awaitable[uuid.UUID]: ...
    def add(
        self,
        where: Where | AsyncWhere,
        *,
        topic: str,
        key: object,
        payload: Any,
        type: str | None = None,  # noqa: A002 - the word of the table
        headers: Mapping[str, str] | None = None,
        id: uuid.UUID | None = None,  # noqa: A002 - the word of the table
    ) -> uuid.UUID | Awaitable[uuid.UUID]:
        """Write one event in the transaction that is open at ``where``, and return its id.

        ``where`` is a `DbWriter`, a `DbSession`, or a connection or session of SQLAlchemy. With one that is
        awaited, this is awaited as well.
        """
        event = _event(topic=topic, key=key, payload=payload, type=type, headers=headers, id=id)
        written: uuid.UUID | Awaitable[uuid.UUID]
        written = _run(where, lambda connection: self._written(connection, [event])[0])
        return written

    @overload
    def add_many(self, where: Where, events: Iterable[Mapping[str, Any]]) -> list[uuid.UUID]: ...
    @overload
    def add_many(self, where: AsyncWhere, events: Iterable[Mapping[str, Any]]) -> Awaitable[list[uuid.UUID]]: ...
    def add_many(
        self, where: Where | AsyncWhere, events: Iterable[Mapping[str, Any]]
    ) -> list[uuid.UUID] | Awaitable[list[uuid.UUID]]:
        """Write events, each given as a dict of what `add` takes, in their order; return their ids."""
        checked = [_checked_event(event) for event in events]
        written: list[uuid.UUID] | Awaitable[list[uuid.UUID]]
        written = _run(where, lambda connection: self._written(connection, checked))
        return written

    def reflected(self, engine: Engine) -> Table:
        """Return the table as the database has it; a column that it lacks is a `ConfigurationError`."""
        named = self.columns.on(engine.dialect.name)
        table = table_with(engine, self.table, self.schema, named.values())
        if missing := unknown_columns(table, named.values()):
            raise ConfigurationError(
                f"The table {self.label!r} lacks {', '.join(missing)}: run `azfdb outbox create`, or map the parts of "
                "an event to its own columns with Outbox(columns=...)",
                table=self.label,
            )
        return table

    def _table(self, dialect: str) -> Table:
        return outbox_table(self.table, self.schema, self.columns, dialect)

    def _written(self, connection: Connection, events: list[dict[str, Any]]) -> list[uuid.UUID]:
        from sqlalchemy import insert

        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            raise ConfigurationError("This belongs into a transaction: the connection commits each statement by itself")
        with joined(connection):
            table = self.reflected(connection.engine)
        named = self.columns.on(connection.dialect.name)
        if events:
            connection.execute(insert(table), [_row(event, named, table) for event in events])
        return [event["id"] for event in events]


@contextmanager
def writing(what: str, table: str) -> Iterator[None]:
    """Raise the library's errors for the driver's."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        kind = WriteConnectionError if is_connection_failure(error) else WriteError
        raise kind(f"{what} failed: {type(error.orig).__name__}, {code_of(error)}", table=table) from error


def _creation(table: Table, dialect: str) -> list[str]:
    from sqlalchemy.schema import CreateIndex, CreateTable

    made = [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]
    return [_compiled(part, dialect) for part in made]


def _completion(table: Table, missing: list[Column[Any]], dialect: str, columns: Columns) -> list[str]:
    """Return the statements that add columns, and the index on them, to a table that others write to."""
    from sqlalchemy.schema import CreateColumn, CreateIndex

    if dialect not in {"postgresql", "mysql", "mariadb"}:
        names = ", ".join(column.name for column in missing)
        raise ConfigurationError(f"The table {table.name!r} lacks {names}, which cannot be added on {dialect}")
    if refused := [column.name for column in missing if not _can_be_added(column)]:
        raise ConfigurationError(f"The table {table.name!r} is no outbox: it has no {', '.join(refused)}")
    name = _compiled_name(table, dialect)
    added = [
        f"ALTER TABLE {name} ADD COLUMN {_compiled(CreateColumn(column), dialect)}{_unique(column, dialect, columns)}"
        for column in missing
    ]
    orders = {columns.position, columns.sequence} & {column.name for column in missing}
    return [*added, *([_compiled(CreateIndex(index), dialect) for index in table.indexes] if orders else [])]


def _can_be_added(column: Column[Any]) -> bool:
    """Tell whether the rows that are there can do without a value, or get one by themselves."""
    return bool(column.nullable or column.server_default is not None or column.primary_key)


def _unique(column: Column[Any], dialect: str, columns: Columns) -> str:
    # InnoDB numbers rows by a column only if it leads an index.
    return " UNIQUE" if column.name == columns.sequence and dialect != "postgresql" else ""


def _compiled(part: Any, dialect: str) -> str:
    lines = str(part.compile(dialect=_dialect(dialect))).strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _compiled_name(table: Table, dialect: str) -> str:
    return str(_dialect(dialect).identifier_preparer.format_table(table))


def _dialect(name: str) -> Any:
    from sqlalchemy import URL

    return URL.create(name).get_dialect()()


def _session_class() -> Any:
    """Return the ORM's session, no class where the ORM is not loaded: then nobody has one.

    To load it here would take its time, and fail statements that other threads make of values meanwhile.
    """
    return getattr(sys.modules.get("sqlalchemy.orm"), "Session", ())


def _run(where: Any, work: Callable[[Connection], T]) -> Any:
    """Run work on the connection of the transaction at a place of any kind."""
    from sqlalchemy import Connection

    match where:
        case Connection():
            return work(where)
        case _ if isinstance(where, _session_class()):
            return work(where.connection())
        case InTransaction():
            return where.in_transaction(work)
    raise ConfigurationError(
        f"A {type(where).__name__} has no transaction to write an event in: give a DbWriter, a DbSession, "
        "or a connection or session of SQLAlchemy"
    )


_PARTS = {"topic", "key", "payload", "type", "headers", "id"}


def _checked_event(event: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(event, Mapping):
        raise ConfigurationError(f"An event is a dict of what add() takes, not a {type(event).__name__}")
    if unknown := sorted(set(event) - _PARTS):
        raise ConfigurationError(f"An event has no {', '.join(unknown)}: it has {', '.join(sorted(_PARTS))}")
    if missing := sorted({"topic", "key", "payload"} - set(event)):
        raise ConfigurationError(f"An event lacks {', '.join(missing)}")
    return _event(**{"type": None, "headers": None, "id": None, **event})


def _event(
    *,
    topic: Any,
    key: Any,
    payload: Any,
    type: Any,  # noqa: A002 - the word of the table
    headers: Any,
    id: Any,  # noqa: A002 - the word of the table
) -> dict[str, Any]:
    for part, value in (("topic", topic), ("key", key)):
        if value is None or not str(value):
            raise ConfigurationError(f"An event needs a {part}: it was {value!r}")
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers= is a dict, not {headers!r}")
    return {
        "id": id or uuid.uuid4(),
        "topic": str(topic),
        "key": str(key),
        "type": str(type or topic),
        "payload": _as_json(payload, "payload"),
        "headers": _as_json(headers, "headers"),
    }


def _as_json(value: Any, part: str) -> Any:
    """Return a value as JSON brings it back; one that JSON cannot hold is an error now, not a text for ever."""
    try:
        return json.loads(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"The {part} of an event cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, _WRITTEN_AS_TEXT):
        return json_safe(value)
    if hasattr(value, "model_dump"):  # a Pydantic model, which need not be importable here
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} has no form there")


_WRITTEN_AS_TEXT = (
    dt.date,
    dt.time,
    dt.timedelta,
    Decimal,
    uuid.UUID,
    bytes,
    bytearray,
    memoryview,
    set,
    frozenset,
    Enum,
)


def _row(event: Mapping[str, Any], named: Mapping[str, str], table: Table) -> dict[str, Any]:
    row = {
        column: _as_stored(event[part], part, table.columns[column]) for part, column in named.items() if part in event
    }
    if _is_numbered(table.columns[named["id"]]):
        del row[named["id"]]
    return row


def _is_numbered(column: Column[Any]) -> bool:
    """Tell whether the database numbers the rows in this column."""
    from sqlalchemy import Integer

    return isinstance(column.type, Integer)


def _as_stored(value: Any, part: str, column: Column[Any]) -> Any:
    """Return a part of an event as its column takes it."""
    from sqlalchemy import JSON, LargeBinary, Uuid, null

    if part == "id":
        return value if isinstance(column.type, Uuid) and column.type.as_uuid else str(value)
    if part not in {"payload", "headers"}:
        return value
    if isinstance(column.type, JSON):
        return null() if value is None else value  # None would be JSON's own null
    if value is None:
        return None
    text = json.dumps(value)
    return text.encode() if isinstance(column.type, LargeBinary) else text
