"""PostgreSQL, MariaDB and Azurite of our own, that keep what they have acknowledged when they go down."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from tests.support.followers import Standby, following
from tools.services.azurite import Azurite
from tools.services.instance import ROOT, Instance, exclusive, sweep
from tools.services.mariadb import MariaDb
from tools.services.packages import install_missing
from tools.services.postgres import Postgres
from tools.services.server import Server, free_port

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

    def fail_over(self) -> None:
        """Let a standby take the place of PostgreSQL, with all that was committed and none of its slots."""
        primary, process = self._running["postgres"]
        assert isinstance(primary, LastingPostgres)
        address = make_url(next(iter(primary.settings().values())))
        standby, follower = self._instance.start_one(following(address, LastingPostgres, "standby"))
        here = Standby(address, address.set(port=standby.port))
        here.wait_for_log()
        replace(process, stop_signal=GENTLY["postgres"]).stop()  # it sends what is left of its log before it ends
        here.promote()
        self._running["postgres"] = (standby, follower)
        standby.port, standby.password, standby.ready = primary.port, primary.password, Postgres.ready
        self.restart("postgres", crash=False)


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
