"""Servers of a test's own, whose logs may be reset and which may be taken down."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.servers import LastingMariaDb
from tools.services.instance import ROOT, Instance, exclusive
from tools.services.mysql import PROGRAM, MySql

if TYPE_CHECKING:
    from tools.services.processes import Process
    from tools.services.server import Server


class LastingMySql(MySql):
    """A commit is with the operating system before it is acknowledged."""

    def command(self) -> list[str]:
        return [*super().command(), "--innodb-flush-log-at-trx-commit=2"]


class MySqlWithoutGtids(LastingMySql):
    """As Azure's is until somebody turns them on."""

    def command(self) -> list[str]:
        return [*super().command(), "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]


KINDS: dict[str, type[LastingMariaDb | LastingMySql]] = {"mariadb": LastingMariaDb}
if os.environ.get(PROGRAM):
    KINDS |= {"mysql": LastingMySql, "mysql_without_gtids": MySqlWithoutGtids}


class OwnServer:
    """One server, which can be taken down and comes back at the same place."""

    def __init__(self, instance: Instance, server: Server, process: Process) -> None:
        self._instance = instance
        self._server = server
        self._process = process
        self.url = next(iter(server.settings().values()))
        self.has_gtids = not isinstance(server, MySqlWithoutGtids)

    def restart(self, *, crash: bool = False) -> None:
        replace(self._process, stop_signal=signal.SIGKILL if crash else signal.SIGTERM).stop()
        self._reap()
        again = self._instance.launch(self._server)
        assert again is not None, self._server.log.read_text(errors="replace")[-3000:]
        self._process = again

    def _reap(self) -> None:
        """Let the process that was stopped go for good: the server may take what is left of it for its living self."""
        for child in self._instance._children:
            if child.pid == self._process.pid:
                child.wait()


@contextmanager
def own_server(kind: str) -> Iterator[OwnServer]:
    """A server that nobody else uses."""
    instance = Instance(ROOT / f"binlog-{kind}-{secrets.token_hex(4)}")
    with exclusive():
        instance.claim()
    try:
        yield OwnServer(instance, *instance.start_one(KINDS[kind]))
    finally:
        instance.stop()
