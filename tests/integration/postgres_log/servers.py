"""PostgreSQL servers of a test's own, which can be stopped, killed and started again."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.waiting import wait_for
from tools.services.instance import ROOT, Instance, exclusive
from tools.services.postgres import Postgres, Postgres18

if TYPE_CHECKING:
    from tools.services.processes import Process

KINDS = {"postgres": Postgres, "postgres18": Postgres18}


class OwnServer:
    """A running server."""

    def __init__(self, instance: Instance, server: Postgres, process: Process) -> None:
        self._instance = instance
        self._server = server
        self._process = process
        [self.url] = server.settings().values()

    def crash(self) -> None:
        """Kill every process of the server at once, as a power cut does, and start it again."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._instance._children[-1].wait()
        (self._server.data / "postmaster.pid").unlink(missing_ok=True)
        self._start()

    def restart(self) -> None:
        """Stop the server in an orderly way and start it again."""
        os.kill(self._process.pid, signal.SIGINT)
        self._instance._children[-1].wait()
        self._start()

    def _start(self) -> None:
        # Sessions of a server that was killed end by themselves, and until then another one finds its memory in use.
        wait_for(self._has_started, 60, "the server does not start again")

    def _has_started(self) -> bool:
        process = self._instance.launch(self._server)
        self._process = process or self._process
        return process is not None


@contextmanager
def own_server(kind: str, **options: str) -> Iterator[OwnServer]:
    """A new server of this version, with further settings."""
    known: type[Postgres] = KINDS[kind]

    class Own(known):  # type: ignore[valid-type,misc]  # any version of PostgreSQL
        def command(self) -> list[str]:
            return [*super().command(), *(f"--{name}={value}" for name, value in options.items())]

    with exclusive():
        instance = Instance(ROOT / f"own-{os.getpid()}-{secrets.token_hex(4)}")
        instance.claim()
    try:
        server, process = instance.start_one(Own)
        yield OwnServer(instance, server, process)
    finally:
        instance.stop()
