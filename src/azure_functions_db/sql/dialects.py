"""SQLAlchemy's dialects, asking a server in one statement for what they want to know before the first one.

They would ask one thing at a time, in a transaction: up to nine round trips before a function that has
just started gets its first row. What the server has told at login is not asked for again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Connection, Row


class _Greeted:
    """Asks once; SQLAlchemy's questions are then answered from what was heard."""

    supports_statement_cache = True
    _greeting: ClassVar[str]
    _heard: Row[Any]

    def initialize(self, connection: Connection) -> None:
        """Find out what the server is, as SQLAlchemy wants it done on the first connection."""
        with self._outside_transaction(connection):
            self._heard = connection.exec_driver_sql(self._greeting).one()
            super().initialize(connection)  # type: ignore[misc]  # of the dialect beside it

    @contextmanager
    def _outside_transaction(self, _connection: Connection) -> Iterator[None]:
        yield

    def _get_default_schema_name(self, _connection: Connection) -> Any:
        return self._heard.schema

    def get_default_isolation_level(self, dbapi_conn: Any) -> Any:  # noqa: ARG002 - it was asked already
        """Return the isolation level that sessions begin with."""
        return self._heard.isolation.upper().replace("-", " ")


_FIRST_OF_TWO_PARTS = 100_000  # PostgreSQL 10; before, a version had three parts


class PostgresDialect(_Greeted, PGDialect_psycopg):
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


class MysqlDialect(_Greeted, MySQLDialect_pymysql):
    """MySQL through PyMySQL. What a proxy says of itself at login is not believed."""

    supports_statement_cache = True
    # Each server reads its own one of the two comments.
    _greeting = (
        "SELECT version() AS version, database() AS `schema`, @@sql_mode AS sql_mode, "
        "@@lower_case_table_names AS lower_case_table_names, "
        "/*!50720 @@transaction_isolation */ /*M! @@tx_isolation */ AS isolation"
    )

    def on_connect(self) -> None:  # type: ignore[override]  # as the generic dialect has it
        """Do nothing: PyMySQL itself has named the character set."""

    def _get_server_version_info(self, _connection: Connection) -> tuple[int, ...]:
        return self._parse_server_version(self._heard.version)

    def _fetch_setting(self, connection: Connection, setting_name: str) -> Any:
        heard = self._heard._mapping  # noqa: SLF001 - the documented name
        if setting_name in heard:
            return heard[setting_name]
        return super()._fetch_setting(connection, setting_name)


class MariadbDialect(MariaDBDialect, MysqlDialect):
    """MariaDB through PyMySQL."""

    supports_statement_cache = True


_OWN = {
    "postgresql+psycopg": PostgresDialect,
    "mysql+pymysql": MysqlDialect,
    "mariadb+pymysql": MariadbDialect,
}
for _name, _dialect in _OWN.items():
    registry.register(f"{_name.replace('+', '.')}_greeted", __name__, _dialect.__name__)


def greeted(url: URL) -> URL:
    """Return the URL for the dialect that asks once, where there is one for it."""
    name = f"{url.get_backend_name()}+{url.get_driver_name()}"
    return url.set(drivername=f"{name}_greeted") if name in _OWN else url
