"""The dialects of MySQL and MariaDB, greeted by one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql

from azure_functions_db.sql.dialects import Greeted

if TYPE_CHECKING:
    from sqlalchemy import Connection


class MysqlDialect(Greeted, MySQLDialect_pymysql):
    """MySQL through PyMySQL. What a proxy says of itself at login is not believed."""

    supports_statement_cache = True
    # Each server reads its own one of the two comments; MariaDB's variable changes its name in 11.1.
    _greeting = (
        "SELECT version() AS version, database() AS `schema`, @@sql_mode AS sql_mode, "
        "@@lower_case_table_names AS lower_case_table_names, /*!50720 @@transaction_isolation */ "
        "/*M! (SELECT variable_value FROM information_schema.session_variables "
        "WHERE variable_name IN ('tx_isolation', 'transaction_isolation') LIMIT 1) */ AS isolation"
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
