"""A private MariaDB."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
from pathlib import Path

from tools.services.server import HOST, Server, free_port, run_quietly

OPTIONS = (
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--binlog-row-metadata=FULL",
    "--server-id=1",
    "--sync-binlog=0",
    "--innodb-doublewrite=0",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--character-set-server=utf8mb4",
    "--default-time-zone=+00:00",
    "--max-connections=300",
    "--skip-name-resolve",
    f"--bind-address={HOST}",
    "--socket=mariadb.sock",  # relative to the data folder, as the path of a socket is short
    "--pid-file=mariadb.pid",
)


def program(name: str) -> str | None:
    """The path of one of MariaDB's programs; the server is kept off an ordinary user's path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")


class MariaDb(Server):
    """MariaDB that writes a full row binlog and does not wait for the disk."""

    name = "mariadb"
    ready = "ready for connections"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.password = secrets.token_hex(12)
        self.first_statements = folder / "init.sql"
        # A server that starts clears away the temporary tables in its folder, and so those of others who share it.
        self.temporary = folder / "tmp"
        place = [f"--datadir={self.data}", f"--tmpdir={self.temporary}"]
        self.common = ["--no-defaults", f"--user={getpass.getuser()}", *place]

    def prepare(self) -> None:
        self.temporary.mkdir(exist_ok=True)
        self.first_statements.touch(mode=0o600)
        self.first_statements.write_text(
            f"CREATE USER 'azfdb'@'%' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'azfdb'@'%' WITH GRANT OPTION;\n"
        )
        run_quietly(["mariadb-install-db", *self.common, "--skip-test-db", "--innodb-flush-method=nosync"])

    def command(self) -> list[str]:
        server = program("mariadbd") or "mariadbd"
        return [server, *self.common, *OPTIONS, f"--port={self.port}", f"--init-file={self.first_statements}"]

    def settings(self) -> dict[str, str]:
        # For a connection that may be encrypted PyMySQL reads all certificates of the system, in 20 to 50 ms.
        address = f"{HOST}:{self.port}/mysql?ssl_disabled=true"
        return {"AZFDB_TEST_MARIADB_URL": f"mysql+pymysql://azfdb:{self.password}@{address}"}
