"""How each server is prepared and started, and how the tests reach it."""

from __future__ import annotations

import base64
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

CHECKOUT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"


class Server(Protocol):
    """A server program: `prepare` its folder, start `command`, wait for `ready` in its log, then ask for `settings`."""

    name: str
    ready: re.Pattern[str]
    user: str | None

    def prepare(self, folder: Path) -> None: ...

    def command(self, folder: Path) -> list[str]: ...

    def environment(self) -> dict[str, str]: ...

    def settings(self, log: str) -> dict[str, str]: ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def quiet(command: list[str], **options: object) -> None:
    """Run a preparation step and show its output only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}:\n{done.stdout}")


@dataclass
class Postgres:
    """PostgreSQL that decodes its log, accepts prepared transactions and does not wait for the disk."""

    name: str = "postgres"
    ready: re.Pattern[str] = re.compile(r"ready to accept connections")
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(12))

    OPTIONS = {
        "fsync": "off",
        "full_page_writes": "off",
        "listen_addresses": HOST,
        "max_connections": "300",
        "max_prepared_transactions": "10",
        "max_replication_slots": "50",
        "max_wal_senders": "20",
        "synchronous_commit": "off",
        "timezone": "UTC",
        "unix_socket_directories": "",
        "wal_level": "logical",
    }

    @cached_property
    def user(self) -> str | None:
        """PostgreSQL refuses to run as root; Debian's package brings a user for it."""
        return "postgres" if os.geteuid() == 0 else None

    @staticmethod
    def programs() -> Path | None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
        on_path = shutil.which("initdb")
        return found[-1].parent if found else Path(on_path).resolve().parent if on_path else None

    def program(self, name: str) -> str:
        folder = self.programs()
        if folder is None:
            raise RuntimeError("PostgreSQL is not installed")
        return str(folder / name)

    def prepare(self, folder: Path) -> None:
        data = self._data_folder(folder)
        secret = data.parent / f"{data.name}.password"
        secret.write_text(self.password)
        if self.user:
            shutil.chown(data, self.user)
            shutil.chown(secret, self.user)
        quiet(
            [self.program("initdb"), "--no-sync", "--username=azfdb", f"--pwfile={secret}", "--auth=scram-sha-256"]
            + ["--encoding=UTF8", "--locale=C.UTF-8", f"--pgdata={data}"],
            user=self.user,
            cwd="/",
        )
        secret.unlink()

    def command(self, folder: Path) -> list[str]:
        options = {"port": str(self.port)} | self.OPTIONS
        data = str((folder / "data").resolve())
        return [self.program("postgres"), "-D", data, *(f"--{name}={value}" for name, value in options.items())]

    def environment(self) -> dict[str, str]:
        return {}

    def settings(self, log: str) -> dict[str, str]:
        return {"AZFDB_TEST_POSTGRES_URL": f"postgresql+psycopg://azfdb:{self.password}@{HOST}:{self.port}/postgres"}

    def _data_folder(self, folder: Path) -> Path:
        """The data folder, elsewhere behind a link when our user may not walk into this checkout (say, below /root)."""
        data = folder / "data"
        if self.user is None or may_enter(self.user, folder):
            data.mkdir(mode=0o700)
            return data
        elsewhere = Path(tempfile.mkdtemp(prefix="azfdb-postgres-", dir="/var/tmp"))
        data.symlink_to(elsewhere)
        return elsewhere


def may_enter(user: str, folder: Path) -> bool:
    """Can this system user walk into the folder?"""
    account = pwd.getpwnam(user)
    probe = subprocess.run(
        ["test", "-x", str(folder)], user=account.pw_uid, group=account.pw_gid, extra_groups=[], cwd="/", check=False
    )
    return probe.returncode == 0


@dataclass
class MariaDb:
    """MariaDB with a full row binlog, which does not wait for the disk."""

    name: str = "mariadb"
    ready: re.Pattern[str] = re.compile(r"ready for connections")
    user: str | None = None
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(12))

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
        "--socket=mariadb.sock",  # relative to the data folder: a deep checkout would exceed the limit of socket paths
        "--pid-file=mariadb.pid",
    )

    @staticmethod
    def program() -> str | None:
        return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

    def prepare(self, folder: Path) -> None:
        (folder / "init.sql").write_text(
            f"CREATE USER 'azfdb'@'%' IDENTIFIED BY '{self.password}';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'azfdb'@'%' WITH GRANT OPTION;\n"
        )
        quiet(
            ["mariadb-install-db", "--no-defaults", f"--datadir={folder / 'data'}", *self._as_user()]
            + ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-method=nosync"]
        )

    def command(self, folder: Path) -> list[str]:
        program = self.program()
        if program is None:
            raise RuntimeError("MariaDB is not installed")
        places = [f"--datadir={folder / 'data'}", f"--init-file={folder / 'init.sql'}"]
        return [
            program,
            "--no-defaults",
            *self._as_user(),
            *places,
            f"--bind-address={HOST}",
            f"--port={self.port}",
        ] + [*self.OPTIONS]

    def environment(self) -> dict[str, str]:
        return {}

    def settings(self, log: str) -> dict[str, str]:
        return {"AZFDB_TEST_MARIADB_URL": f"mysql+pymysql://azfdb:{self.password}@{HOST}:{self.port}/mysql"}

    def _as_user(self) -> list[str]:
        return [f"--user={pwd.getpwuid(os.geteuid()).pw_name}"]


@dataclass
class Azurite:
    """Azurite's blob, queue and table services, in memory, on ports that it chooses itself."""

    name: str = "azurite"
    ready: re.Pattern[str] = re.compile(r"Table service is successfully listening")
    user: str | None = None
    account: str = "devstoreaccount1"
    key: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(64)).decode())

    OPTIONS = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent")

    def prepare(self, folder: Path) -> None:
        pass

    def command(self, folder: Path) -> list[str]:
        ports = [f"--{service}Port=0" for service in ("blob", "queue", "table")]
        script = CHECKOUT / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"
        return ["node", str(script), *ports, *self.OPTIONS]

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def settings(self, log: str) -> dict[str, str]:
        endpoints = re.findall(r"Azurite (Blob|Queue|Table) service is successfully listening at (\S+)", log)
        parts = ["DefaultEndpointsProtocol=http", f"AccountName={self.account}", f"AccountKey={self.key}"]
        parts += [f"{service}Endpoint={address}/{self.account}" for service, address in endpoints]
        return {"AZFDB_TEST_AZURITE": ";".join(parts) + ";"}
