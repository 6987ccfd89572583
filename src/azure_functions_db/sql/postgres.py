"""PostgreSQL asked once where SQLAlchemy asks a dozen times: what the server is, and what a table is made of.

Of a table, columns, keys and what serves an order matter here. A column of a kind that is not known by its name
(a domain, a type of the user's own) is left to SQLAlchemy.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Computed, ForeignKeyConstraint, Identity, Index, PrimaryKeyConstraint, Table, text
from sqlalchemy.dialects.postgresql import ARRAY, ENUM, INTERVAL
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import NoSuchTableError

from azure_functions_db.sql.dialects import Greeted
from azure_functions_db.sql.reflection import KIND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, MetaData
    from sqlalchemy.types import TypeEngine


_FIRST_OF_TWO_PARTS = 100_000  # PostgreSQL 10; before, a version had three parts


class PostgresDialect(Greeted, PGDialect_psycopg):
    """PostgreSQL through psycopg, which has heard of version and strings at login."""

    supports_statement_cache = True
    _greeting = (
        "SELECT current_schema() AS schema, current_setting('transaction_isolation') AS isolation, "
        "oid, typarray, typdelim FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_type ON oid = to_regtype('hstore')"
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
        if heard.oid is None:
            return None
        return TypeInfo(name, heard.oid, heard.typarray, regtype=name, delimiter=heard.typdelim)


# Only a btree has an order, and one that is not valid promises nothing.
_DESCRIPTION = """
SELECT held.relkind AS kind,
    (SELECT coalesce(json_agg(json_build_array(
            one.attname, format_type(one.atttypid, one.atttypmod), NOT one.attnotnull, one.attidentity,
            one.attgenerated, pg_get_expr(given.adbin, given.adrelid),
            CASE WHEN named.oid IS NOT NULL THEN json_build_array(
                named.typname,
                (SELECT nspname FROM pg_namespace WHERE oid = named.typnamespace AND NOT pg_type_is_visible(named.oid)),
                (SELECT json_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = named.oid)) END
        ) ORDER BY one.attnum), '[]')
     FROM pg_attribute AS one
     JOIN pg_type AS kind ON kind.oid = one.atttypid
     LEFT JOIN pg_type AS named ON named.typtype = 'e' AND named.oid IN (kind.oid, kind.typelem)
     LEFT JOIN pg_attrdef AS given ON given.adrelid = held.oid AND given.adnum = one.attnum
     WHERE one.attrelid = held.oid AND one.attnum > 0 AND NOT one.attisdropped) AS columns,
    (SELECT coalesce(json_agg(json_build_array(
            index.relname, rule.indisprimary, rule.indisunique, pg_get_expr(rule.indpred, rule.indrelid),
            (SELECT json_agg(json_build_array(one.attname, pg_get_indexdef(rule.indexrelid, place::int, true))
                             ORDER BY place)
             FROM unnest(rule.indkey) WITH ORDINALITY AS part (number, place)
             LEFT JOIN pg_attribute AS one ON one.attrelid = held.oid AND one.attnum = nullif(part.number, 0)
             WHERE place <= rule.indnkeyatts)
        ) ORDER BY index.relname), '[]')
     FROM pg_index AS rule
     JOIN pg_class AS index ON index.oid = rule.indexrelid
     JOIN pg_am AS method ON method.oid = index.relam AND method.amname = 'btree'
     WHERE rule.indrelid = held.oid AND (rule.indisvalid OR rule.indisprimary)) AS indexes,
    (SELECT coalesce(json_agg(json_build_array(own.attname, referred.attname)), '[]')
     FROM pg_constraint AS rule
     CROSS JOIN unnest(rule.conkey, rule.confkey) AS part (own, referred)
     JOIN pg_attribute AS own ON own.attrelid = held.oid AND own.attnum = part.own
     JOIN pg_attribute AS referred ON referred.attrelid = held.oid AND referred.attnum = part.referred
     WHERE rule.contype = 'f' AND rule.conrelid = held.oid AND rule.confrelid = held.oid) AS self_references
FROM pg_class AS held JOIN pg_namespace AS place ON place.oid = held.relnamespace
WHERE held.relname = %(name)s AND held.relkind IN ('r', 'p', 'f', 'v', 'm')
  AND CASE WHEN %(schema)s::text IS NULL THEN pg_table_is_visible(held.oid) AND place.nspname <> 'pg_catalog'
           ELSE place.nspname = %(schema)s END
"""
_KIND = re.compile(
    r"(?P<name>[^(\[]+?)(?:\((?P<size>\d+(?:,-?\d+)*)\))?(?P<zone> with(?:out)? time zone)?(?P<array>(?:\[\])*)"
)


def described(connection: Connection, name: str, schema: str | None, metadata: MetaData) -> Table | None:
    """Return the table, None where SQLAlchemy has to look at it; `NoSuchTableError` where there is none."""
    found = connection.exec_driver_sql(_DESCRIPTION, {"name": name, "schema": schema}).one_or_none()
    if found is None:
        raise NoSuchTableError(name)
    dialect = connection.dialect
    kinds = [_kind(dialect, declared, enum) for _, declared, *_, enum in found.columns]
    if any(kind is None for kind in kinds):
        return None
    columns = [_column(kind, *about) for kind, about in zip(kinds, found.columns, strict=True)]
    table = Table(name, metadata, *columns, schema=schema, info={KIND: found.kind})
    for index in found.indexes:
        _add_index(table, *index)
    for own, referred in found.self_references:
        table.append_constraint(ForeignKeyConstraint([own], [table.columns[referred]]))
    return table


def _column(
    kind: Any, name: str, _declared: str, nullable: bool, identity: str, generated: str, default: str | None, _enum: Any
) -> Column[Any]:
    made: list[Any] = []
    if generated:
        made = [Computed(default or "", persisted=generated == "s")]
    elif identity:
        made = [Identity(always=identity == "a")]
    given = None if generated or default is None else text(default)
    return Column(name, kind, *made, nullable=nullable, server_default=given)


def _add_index(
    table: Table, name: str, primary: bool, unique: bool, condition: str | None, parts: list[tuple[str | None, str]]
) -> None:
    if primary:
        table.append_constraint(PrimaryKeyConstraint(*(str(column) for column, _ in parts)))
        return
    elements = [text(written) if column is None else table.columns[column] for column, written in parts]
    where = None if condition is None else text(condition)
    Index(name, *elements, unique=unique, postgresql_where=where, _table=table)


def _kind(dialect: Any, declared: str, enum: tuple[str, str | None, list[str]] | None) -> TypeEngine[Any] | None:
    """Return the type that PostgreSQL writes like this; None where its name says nothing."""
    parts = _KIND.fullmatch(declared)
    if parts is None:
        return None
    made = _enum(*enum) if enum else _plain(dialect, parts)
    return ARRAY(made) if made is not None and parts["array"] else made


def _enum(name: str, schema: str | None, labels: list[str] | None) -> TypeEngine[Any]:
    return ENUM(*(labels or ()), name=name, schema=schema)


def _plain(dialect: Any, parts: re.Match[str]) -> TypeEngine[Any] | None:
    name, zone = parts["name"], parts["zone"] or ""
    size = [int(number) for number in parts["size"].split(",")] if parts["size"] else []
    precision = size[0] if size else None
    word, _, fields = name.partition(" ")
    if word == "interval":
        return INTERVAL(precision=precision, fields=fields or None)
    kind = dialect.ischema_names.get(name + zone)
    if kind is None:
        return None
    match name:
        case "timestamp" | "time":
            return kind(timezone=zone == " with time zone", precision=precision)  # type: ignore[no-any-return]
        case "bit varying":
            return kind(precision, varying=True)  # type: ignore[no-any-return]
        case "double precision":
            return kind(53)  # type: ignore[no-any-return]
        case _:
            return kind(*size)  # type: ignore[no-any-return]
