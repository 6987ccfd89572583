"""PostgreSQL's dialect, greeted by one statement."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from azure_functions_db.sql.dialects import Greeted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


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
