"""The columns of an outbox, and the table that they make on each kind of database.

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

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from azure_functions_db.core.errors import ConfigurationError
from azure_functions_db.sql.own_tables import exact_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Column, Table
    from sqlalchemy.schema import SchemaItem

DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite", "mssql")

POSITION_DEFAULT = (
    "greatest(CAST(CAST(pg_current_xact_id() AS text) AS bigint), "
    "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) - 1)"
)
OLDEST_RUNNING = "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"
"""The lowest transaction id that may still write, as PostgreSQL tells it; all below have ended."""

_MYSQL = {"mysql", "mariadb"}
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
            if name is not None and not is_name(name):
                raise ConfigurationError(f"columns= maps {part} to {name!r}, which is no name of a column")
        return cls(**given)  # type: ignore[arg-type]  # checked above

    def on(self, dialect: str) -> dict[str, str]:
        """Return the columns by part, as far as a database of this kind has them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        if dialect not in _WITH_POSITION:
            del named["position"]
        return {part: name for part, name in named.items() if name is not None}


_NEEDED = {"id", "topic", "key", "payload", "sequence"}


def is_name(value: object) -> bool:
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
            kind = Unicode(_LONGEST) if dialect == "mssql" else exact_text(_LONGEST)
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
    from sqlalchemy.dialects import mssql, mysql, postgresql

    if dialect in _MYSQL:
        return mysql.CHAR(36, charset="ascii", collation="ascii_bin")
    return {"postgresql": postgresql.UUID(), "mssql": mssql.UNIQUEIDENTIFIER()}.get(dialect, CHAR(36))


def _json_type(dialect: str) -> Any:
    from sqlalchemy import JSON
    from sqlalchemy.dialects import mssql, postgresql

    match dialect:
        case "postgresql":
            return postgresql.JSONB(none_as_null=True)
        case "mssql":
            return mssql.NVARCHAR(None)
        case _:
            return JSON(none_as_null=True)


def _clock(dialect: str) -> tuple[Any, Any]:
    from sqlalchemy import DateTime, text
    from sqlalchemy.dialects import mssql, mysql

    match dialect:
        case "postgresql":
            return DateTime(timezone=True), text("clock_timestamp()")
        case "sqlite":
            return DateTime(), text("(strftime('%Y-%m-%d %H:%M:%f', 'now'))")
        case "mssql":
            return mssql.DATETIMEOFFSET(), text("SYSDATETIMEOFFSET()")  # type: ignore[no-untyped-call]
        case _:
            return mysql.TIMESTAMP(fsp=6), text("CURRENT_TIMESTAMP(6)")


def _sequence(name: str, dialect: str) -> Column[Any]:
    from sqlalchemy import BigInteger, Column, Identity, Integer

    if dialect == "postgresql":
        return Column(name, BigInteger, Identity(always=False), nullable=False)
    # SQLite numbers rows by themselves only where the type is exactly this; it holds 64 bits.
    kind = Integer() if dialect == "sqlite" else BigInteger()
    return Column(name, kind, primary_key=True, autoincrement=True)


def _position(name: str, dialect: str) -> Column[Any]:
    from sqlalchemy import BigInteger, Column, text
    from sqlalchemy.dialects import mssql

    if dialect == "mssql":
        return Column(name, mssql.ROWVERSION(), nullable=False)  # type: ignore[no-untyped-call]
    return Column(name, BigInteger, nullable=False, server_default=text(POSITION_DEFAULT))
