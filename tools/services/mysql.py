"""A private MySQL, where `AZFDB_MYSQLD` names a server program."""

from __future__ import annotations

import getpass
import os
import secrets
from pathlib import Path

from tools.services.server import HOST, Server, free_port, run_quietly

PROGRAM = "AZFDB_MYSQLD"
OPTIONS = (
    "--log-bin=binlog",
    "--server-id=1",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--binlog-row-metadata=FULL",
    "--sync-binlog=0",
    "--innodb-doublewrite=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--character-set-server=utf8mb4",
    "--default-time-zone=+00:00",
    "--skip-name-resolve",
    f"--bind-address={HOST}",
    "--socket=mysql.sock",  # relative to the data folder, as the path of a socket is short
    "--pid-file=mysql.pid",
    "--mysqlx=OFF",
)


class MySql(Server):
    """MySQL that writes a full row binlog with GTIDs and does not wait for the disk."""

    name = "mysql"
    ready = "ready for connections"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.password = secrets.token_hex(12)
        self.first_statements = folder / "init.sql"
        self.program = [os.environ[PROGRAM], "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={self.data}"]

    def prepare(self) -> None:
        self.first_statements.touch(mode=0o600)
        self.first_statements.write_text(
            f"CREATE USER 'azfdb'@'%' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'azfdb'@'%' WITH GRANT OPTION;\n"
        )
        run_quietly([*self.program, "--initialize-insecure", f"--init-file={self.first_statements}"])

    def command(self) -> list[str]:
        return [*self.program, *OPTIONS, f"--port={self.port}"]

    def settings(self) -> dict[str, str]:
        return {"AZFDB_TEST_MYSQL_URL": f"mysql+pymysql://azfdb:{self.password}@{HOST}:{self.port}/mysql"}
