"""What a server says of itself: whether its log can be read, and how much of it there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from azure_functions_db.core.errors import SourceConfigurationError
from azure_functions_db.core.types import Finding
from azure_functions_db.sources.mysql.gtids import MariaDbGtids, MySqlGtids
from azure_functions_db.sources.mysql.position import file_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from azure_functions_db.sources.mysql.position import BinlogPosition

_VARIABLES = (
    "binlog_checksum",
    "binlog_expire_logs_seconds",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_transaction_compression",
    "expire_logs_days",
    "gtid_binlog_pos",
    "gtid_executed",
    "gtid_mode",
    "log_bin",
    "log_bin_compress",
    "lower_case_table_names",
    "server_uuid",
    "version",
)


class _Demand(NamedTuple):
    """A setting that the log needs, and why."""

    variable: str
    value: str
    why: str


_DEMANDS = (
    _Demand("binlog_format", "ROW", "statements do not tell which rows they change"),
    _Demand("binlog_row_image", "FULL", "columns that did not change would be missing"),
    _Demand("binlog_row_metadata", "FULL", "names, signs and character sets of columns would be missing"),
    _Demand("log_bin_compress", "OFF", "compressed events cannot be read"),
    _Demand("binlog_transaction_compression", "OFF", "compressed transactions cannot be read"),
    _Demand("binlog_row_value_options", "", "JSON columns would be logged in part only"),
)


class LogFile(NamedTuple):
    """A file of the log."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Server:
    """The settings of a server at one moment."""

    variables: Mapping[str, str]

    @classmethod
    def asked(cls, connection: Connection) -> Server:
        """Ask for the settings, and where the log ends, in one statement."""
        names = ", ".join(f"'{name}'" for name in _VARIABLES)
        rows = connection.exec_driver_sql(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})")
        return cls({str(name).lower(): str(value) for name, value in rows})

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB rather than MySQL."""
        return "gtid_binlog_pos" in self.variables

    @property
    def uuid(self) -> str:
        """Who it is; MariaDB does not say."""
        return "" if self.is_mariadb else self.variables.get("server_uuid", "")

    @property
    def has_checksums(self) -> bool:
        """Whether events end with a checksum."""
        return self.variables.get("binlog_checksum", "NONE").upper() != "NONE"

    @property
    def folds_names(self) -> bool:
        """Whether the names of tables are the same in upper and lower case."""
        return self.variables.get("lower_case_table_names", "0") != "0"

    @property
    def gtids(self) -> MariaDbGtids | MySqlGtids | None:
        """The transactions that the log holds or has held; None where not all of them have GTIDs."""
        if self.is_mariadb:
            return MariaDbGtids(self.variables["gtid_binlog_pos"])
        return MySqlGtids(self.variables.get("gtid_executed", "")) if self._every_transaction_has_one else None

    def gtid_set(self, text: str) -> MariaDbGtids | MySqlGtids:
        """Return the set that a text names, as this server writes it."""
        return MariaDbGtids(text) if self.is_mariadb else MySqlGtids(text)

    def has_seen(self, gtids: str) -> bool:
        """Tell whether the log holds or has held all of these transactions."""
        present: Any = self.gtids
        return present is None or bool(present.contains(self.gtid_set(gtids)))

    @property
    def _every_transaction_has_one(self) -> bool:
        return self.variables.get("gtid_mode", "OFF").upper() == "ON"

    @property
    def retention_seconds(self) -> float | None:
        """How long the log is kept; None where it is kept until somebody purges it."""
        seconds = float(self.variables.get("binlog_expire_logs_seconds", 0))
        days = float(self.variables.get("expire_logs_days", 0))
        return seconds or days * 86_400 or None

    def is_idle_at(self, position: BinlogPosition) -> bool:
        """Tell whether nothing at all was committed after a position; False where that is not certain."""
        present = self.gtids
        return bool(position.gtids) and position.done is None and present is not None and position.gtids == str(present)

    def demand(self) -> None:
        """Refuse a server whose log does not hold every change as a whole row."""
        for finding in self.examined():
            if finding.grade == "error":
                raise SourceConfigurationError(f"{finding.text}: {finding.remedy}", setting=finding.check)

    def examined(self) -> Iterator[Finding]:
        """Return what is right and wrong with the settings of the log."""
        if self.variables.get("log_bin", "OFF") != "ON":
            yield Finding(
                "log_bin",
                "error",
                "the server writes no binary log",
                "start it with log_bin and a server_id of its own",
            )
            return
        for demand in _DEMANDS:
            found = self.variables.get(demand.variable)
            if found is None:
                continue
            if found.upper() in {demand.value, _OFF.get(demand.value, demand.value)}:
                yield Finding(demand.variable, "ok", found or "none")
                continue
            cure = f"SET GLOBAL {demand.variable} = {demand.value if demand.value == 'OFF' else repr(demand.value)}"
            yield Finding(demand.variable, "error", f"{demand.variable} is {found}, and {demand.why}", cure)


_OFF = {"OFF": "0"}


def log_files(connection: Connection) -> Sequence[LogFile]:
    """Return the files of the log, oldest first."""
    rows = connection.exec_driver_sql("SHOW BINARY LOGS")
    return [LogFile(str(row[0]), int(row[1])) for row in rows]


def bytes_after(position: BinlogPosition, files: Sequence[LogFile]) -> int:
    """Return how much of the log follows a position."""
    following = [file for file in files if not position.file or file_number(file.name) >= position.number]
    total = sum(file.size for file in following)
    is_in_first = bool(following) and following[0].name == position.file
    return max(0, total - position.end) if is_in_first else total


def log_end(connection: Connection, server: Server) -> LogFile:
    """Return the newest file and where it ends."""
    statements = ["SHOW MASTER STATUS"] if server.is_mariadb else ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"]
    row = _first_that_works(connection, statements)
    if row is None:
        raise SourceConfigurationError("The server writes no binary log: start it with log_bin", setting="log_bin")
    return LogFile(str(row[0]), int(str(row[1])))


def _first_that_works(connection: Connection, statements: Sequence[str]) -> Sequence[object] | None:
    """Return the first row of the first statement that the server understands; the older word is for MySQL 8.0."""
    from sqlalchemy.exc import DBAPIError

    for place, statement in enumerate(statements):
        try:
            row = connection.exec_driver_sql(statement).first()
        except DBAPIError as error:
            if place == len(statements) - 1 or getattr(error.orig, "args", (0,))[0] != 1064:
                raise
            continue
        return None if row is None else tuple(row)
    return None
