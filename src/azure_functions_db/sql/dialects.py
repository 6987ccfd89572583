"""SQLAlchemy's dialects, asking a server in one statement for what they want to know before the first one.

They would ask one thing at a time, in a transaction: up to nine round trips before a function that has
just started gets its first row. What the server has told at login is not asked for again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.dialects import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Connection, Row

# Where each is kept: to load one of them takes longer than to connect.
_OWN = {
    "postgresql+psycopg": ("azure_functions_db.sql.postgres", "PostgresDialect"),
    "mysql+pymysql": ("azure_functions_db.sql.mysql", "MysqlDialect"),
    "mariadb+pymysql": ("azure_functions_db.sql.mysql", "MariadbDialect"),
}
for _name, _place in _OWN.items():
    registry.register(f"{_name.replace('+', '.')}_greeted", *_place)


def greeted(url: URL) -> URL:
    """Return the URL for the dialect that asks once, where there is one for it."""
    name = f"{url.get_backend_name()}+{url.get_driver_name()}"
    return url.set(drivername=f"{name}_greeted") if name in _OWN else url


class Greeted:
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
