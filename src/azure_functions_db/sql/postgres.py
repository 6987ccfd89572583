"""PostgreSQL asked once where SQLAlchemy asks a dozen times: what the server is, and what a table is made of.

Of a table, columns, keys and what serves an order matter here. A column of a kind that is not known by its name
(a domain, a type of the user's own) is left to SQLAlchemy.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Computed, ForeignKeyConstraint, Identity, Index, PrimaryKeyConstraint, Table, text
from sqlalchemy.dialects.postgresql import ARRAY, ENUM, INTERVAL
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import NoSuchTableError

from azure_functions_db.sql.dialects import Greeted
from azure_functions_db.sql.reflection import KIND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection, MetaData, Row
    from sqlalchemy.types import TypeEngine


_FIRST_OF_TWO_PARTS = 100_000  # PostgreSQL 10; before, a version had three parts


class PostgresDialect(Greeted, PGDialect_psycopg):
    """PostgreSQL through psycopg, which has heard of version and strings at login."""

    supports_statement_cache = True
    _greeting = (
        "SELECT current_schema() AS schema, current_setting('transaction_isolation') AS isolation, "
        "to_regtype('hstore')::oid AS hstore, to_regtype('hstore[]')::oid AS hstores"
    )

    @contextmanager
    def _outside_transaction(self, connection: Connection) -> Iterator[None]:
        raw: Any = connection.connection.dbapi_connection
        before = raw.autocommit
        raw.autocommit = True
        try:
            yield
        finally:
            raw.autocommit = before

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        raw: Any = connection.connection.dbapi_connection
        number = int(raw.info.server_version)
        if number < _FIRST_OF_TWO_PARTS:
            return super()._get_server_version_info(connection)  # type: ignore[no-any-return, no-untyped-call]
        return divmod(number, 10_000)

    def _set_backslash_escapes(self, connection: Connection) -> None:
        raw: Any = connection.connection.dbapi_connection
        self._backslash_escapes = raw.info.parameter_status("standard_conforming_strings") == "off"

    def _type_info_fetch(self, _connection: Connection, name: str) -> Any:
        from psycopg.types import TypeInfo

        heard = self._heard
        return None if heard.hstore is None else TypeInfo(name, heard.hstore, heard.hstores, regtype=name)


# Few joins and few catalogs: in a fresh session, to plan a statement takes longer than to run it. Columns are told by
# their numbers. Only a btree has an order, which is the access method 403; one that is not valid promises nothing.
_DESCRIPTION = """
SELECT held.relkind AS kind, held.oid AS number,
    (SELECT coalesce(json_agg(json_build_array(
            attnum, attname, format_type(atttypid, atttypmod), atttypid::bigint,
            NOT attnotnull, attidentity, attgenerated,
            (SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = attrelid AND adnum = attnum)
        ) ORDER BY attnum), '[]')
     FROM pg_attribute WHERE attrelid = held.oid AND attnum > 0 AND NOT attisdropped) AS columns,
    (SELECT coalesce(json_agg(json_build_array(
            relname, indisprimary, indisunique, pg_get_expr(indpred, indrelid), indkey::int2[], indnkeyatts,
            CASE WHEN indexprs IS NOT NULL THEN
                (SELECT json_agg(pg_get_indexdef(indexrelid, place, true) ORDER BY place)
                 FROM generate_series(1, indnkeyatts) AS place) END
        ) ORDER BY relname), '[]')
     FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid AND relam = 403
     WHERE indrelid = held.oid AND (indisvalid OR indisprimary)) AS indexes,
    (SELECT coalesce(json_agg(json_build_array(conkey, confkey)), '[]')
     FROM pg_constraint WHERE contype = 'f' AND conrelid = held.oid AND confrelid = held.oid) AS self_references
FROM pg_class AS held
WHERE relname = %(name)s AND relkind IN ('r', 'p', 'f', 'v', 'm')
  AND CASE WHEN %(schema)s::text IS NULL
           THEN pg_table_is_visible(held.oid) AND relnamespace <> 'pg_catalog'::regnamespace
           ELSE relnamespace = to_regnamespace(quote_ident(%(schema)s)) END
"""
_ENUMS = """
SELECT attnum, named.typname,
    (SELECT nspname FROM pg_namespace WHERE oid = named.typnamespace AND NOT pg_type_is_visible(named.oid)),
    (SELECT json_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = named.oid)
FROM pg_attribute
JOIN pg_type AS kind ON kind.oid = atttypid
JOIN pg_type AS named ON named.typtype = 'e' AND named.oid IN (kind.oid, kind.typelem)
WHERE attrelid = %(number)s AND attnum > 0 AND NOT attisdropped
"""
_FIRST_OF_USERS = 16_384  # the lowest number that a type gets which PostgreSQL does not bring along


def described(connection: Connection, name: str, schema: str | None, metadata: MetaData) -> Table | None:
    """Return the table, None where SQLAlchemy has to look at it; `NoSuchTableError` where there is none."""
    found = connection.exec_driver_sql(_DESCRIPTION, {"name": name, "schema": schema}).one_or_none()
    if found is None:
        raise NoSuchTableError(name)
    has_own_types = any(kind >= _FIRST_OF_USERS for _, _, _, kind, *_ in found.columns)
    enums = _enums(connection, found) if has_own_types else {}
    names = {number: column for number, column, *_ in found.columns}
    columns = []
    for number, column, declared, _, *about in found.columns:
        kind = _kind(connection.dialect, declared, enums.get(number))
        if kind is None:
            return None
        columns.append(_column(column, kind, *about))
    table = Table(name, metadata, *columns, schema=schema, info={KIND: found.kind})
    for index in found.indexes:
        _add_index(table, names, *index)
    for own, referred in found.self_references:
        for one, other in zip(own, referred, strict=True):
            table.append_constraint(ForeignKeyConstraint([names[one]], [table.columns[names[other]]]))
    return table


def _enums(connection: Connection, found: Row[Any]) -> dict[int, TypeEngine[Any]]:
    """Return the enumerations of a table by the numbers of their columns."""
    enums = connection.exec_driver_sql(_ENUMS, {"number": found.number})
    return {number: ENUM(*(labels or ()), name=name, schema=schema) for number, name, schema, labels in enums}


def _column(
    name: str, kind: TypeEngine[Any], nullable: bool, identity: str, generated: str, default: str | None
) -> Column[Any]:
    made: list[Any] = []
    if generated:
        made = [Computed(default or "", persisted=generated == "s")]
    elif identity:
        made = [Identity(always=identity == "a")]
    given = None if generated or default is None else text(default)
    return Column(name, kind, *made, nullable=nullable, server_default=given)


def _add_index(
    table: Table,
    names: Mapping[int, str],
    name: str,
    primary: bool,
    unique: bool,
    condition: str | None,
    numbers: list[int],
    count: int,
    written: list[str] | None,
) -> None:
    columns = [names.get(number) for number in numbers[:count]]  # what else an index carries has no order
    if primary:
        table.append_constraint(PrimaryKeyConstraint(*map(str, columns)))
        return
    parts = zip(columns, written or columns, strict=True)
    elements = [text(str(part)) if column is None else table.columns[column] for column, part in parts]
    where = None if condition is None else text(condition)
    Index(name, *elements, unique=unique, postgresql_where=where, _table=table)


def _kind(dialect: Any, declared: str, enum: TypeEngine[Any] | None) -> TypeEngine[Any] | None:
    """Return the type that PostgreSQL writes like this; None where its name says nothing."""
    single = declared.rstrip("[]")
    made = enum or _plain(dialect, single)
    return made if made is None or single == declared else ARRAY(made)


def _plain(dialect: Any, declared: str) -> TypeEngine[Any] | None:
    # As in "numeric(10,2)", "timestamp(3) with time zone" and "interval day to second(3)".
    before, _, behind = declared.partition("(")
    sizes, _, zone = behind.partition(")")
    if sizes.strip("0123456789,-"):
        return None
    size = [int(number) for number in sizes.split(",") if number]
    precision = size[0] if size else None
    name = before + zone
    word, _, fields = before.partition(" ")
    if word == "interval":
        return INTERVAL(precision=precision, fields=fields or None)
    kind = dialect.ischema_names.get(name)
    if kind is None:
        return None
    match word, name:
        case "timestamp" | "time", _:
            return kind(timezone=name.endswith(" with time zone"), precision=precision)  # type: ignore[no-any-return]
        case _, "bit varying":
            return kind(precision, varying=True)  # type: ignore[no-any-return]
        case _, "double precision":
            return kind(53)  # type: ignore[no-any-return]
        case _:
            return kind(*size)  # type: ignore[no-any-return]
