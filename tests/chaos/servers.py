"""PostgreSQL, MariaDB and Azurite of our own, that keep what they have acknowledged when they go down."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from tools.services.azurite import Azurite
from tools.services.instance import ROOT, Instance, exclusive, sweep
from tools.services.mariadb import MariaDb
from tools.services.packages import install_missing
from tools.services.postgres import Postgres, may_enter
from tools.services.server import HOST, Server, free_port, run_quietly

if TYPE_CHECKING:
    from tools.services.processes import Process


class LastingPostgres(Postgres):
    """A commit is with the operating system before it is acknowledged: a crash of the server does not lose it."""

    def command(self) -> list[str]:
        return [*super().command(), "--synchronous_commit=on"]


class LastingMariaDb(MariaDb):
    """As above; its user is made at the first start only."""

    def command(self) -> list[str]:
        return [*super().command(), "--innodb-flush-log-at-trx-commit=2"]

    def settings(self) -> dict[str, str]:
        self.first_statements.write_text("")
        return super().settings()


class LastingAzurite(Azurite):
    """Keeps its blobs in files and comes back on the same port. It writes its index when it is asked to end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def command(self) -> list[str]:
        ours = {"--blobPort=0": f"--blobPort={self.port}", "--inMemoryPersistence": f"--location={self.data}"}
        return [ours.get(option, option) for option in super().command()]


class Standby(Postgres):
    """A PostgreSQL that follows another one until it is promoted."""

    name = "standby"
    ready = "ready to accept read-only connections"

    def follow(self, primary: str) -> None:
        """Begin as a copy of another server; the URL is that of a superuser."""
        if self.user and not may_enter(self.user, self.folder):
            self._move_elsewhere(self.user)
        self.data.mkdir(mode=0o700)
        if self.user:
            shutil.chown(self.data, self.user)
        place = make_url(primary).set(drivername="postgresql").render_as_string(hide_password=False)
        copy = [f"--dbname={place}", f"--pgdata={self.data}", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        run_quietly([str(self.programs / "pg_basebackup"), *copy], self.user)


class Parent(Instance):
    """Keeps the processes that it starts, and waits for their end: in a test none may be left to the garbage."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._children: list[subprocess.Popen[bytes]] = []

    def _spawn(self, server: Server) -> subprocess.Popen[bytes]:  # type: ignore[override]  # of a static method
        self._children.append(Instance._spawn(server))
        return self._children[-1]

    def stop(self) -> None:
        super().stop()
        for child in self._children:
            child.wait()


@contextmanager
def standby_of(primary: str) -> Iterator[str]:
    """A standby of the server of a database; the URL is that of the same database there."""
    instance = Parent(ROOT / f"standby-{secrets.token_hex(4)}")
    with exclusive():
        instance.claim()
    try:
        server = Standby(instance.folder / "standby")
        server.folder.mkdir()
        server.follow(primary)
        if instance.launch(server) is None:
            raise RuntimeError(f"the standby does not start:\n{server.log.read_text(errors='replace')[-3000:]}")
        yield make_url(primary).set(host=HOST, port=server.port).render_as_string(hide_password=False)
    finally:
        instance.stop()


KINDS: dict[str, type[Server]] = {"postgres": LastingPostgres, "mariadb": LastingMariaDb, "azurite": LastingAzurite}
GENTLY = {"postgres": signal.SIGINT, "mariadb": signal.SIGTERM, "azurite": signal.SIGTERM}
CRASH = {"postgres": signal.SIGQUIT, "mariadb": signal.SIGKILL}


class Servers:
    """The three servers, by name."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        with ThreadPoolExecutor() as pool:
            started = pool.map(instance.start_one, KINDS.values())
            self._running: dict[str, tuple[Server, Process]] = dict(zip(KINDS, started, strict=True))
        self.settings = {
            name: value for server, _ in self._running.values() for name, value in server.settings().items()
        }

    def restart(self, name: str, *, crash: bool) -> None:
        """Take a server down, and bring it back at the same place with the same data."""
        server, process = self._running[name]
        replace(process, stop_signal=(CRASH if crash else GENTLY)[name]).stop()
        again = self._instance.launch(server)
        if again is None:
            raise RuntimeError(f"{name} does not come back:\n{server.log.read_text(errors='replace')[-3000:]}")
        self._running[name] = (server, again)


@contextmanager
def private_servers() -> Iterator[Servers]:
    """Servers that nobody else uses, so that nobody else is hurt."""
    with exclusive():
        install_missing()
        sweep()
        instance = Instance(ROOT / f"chaos-{os.getpid()}")
        instance.claim()
    try:
        yield Servers(instance)
    finally:
        instance.stop()
