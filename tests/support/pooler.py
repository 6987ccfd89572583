"""PgBouncer in front of a PostgreSQL."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from tests.support.followers import started
from tools.services.mariadb import program
from tools.services.server import HOST, Server, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def pooler_of(url: str, mode: str = "transaction") -> Iterator[str]:
    """The URL by which a database is reached through a pooler."""
    place = make_url(url)

    class PgBouncer(Server):
        name = "pgbouncer"
        ready = "process up"

        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.port = free_port()
            self.file = folder / "pgbouncer.ini"

        def prepare(self) -> None:
            login = f"host={place.host} port={place.port} user={place.username} password={place.password}"
            listen = f"listen_addr = {HOST}\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            self.file.touch(mode=0o600)
            self.file.write_text(f"[databases]\n* = {login}\n[pgbouncer]\n{listen}pool_mode = {mode}\n")

        def command(self) -> list[str]:
            return [program("pgbouncer") or "pgbouncer", "--user=nobody", str(self.file)]  # it refuses to run as root

        def settings(self) -> dict[str, str]:
            return {"url": place.set(port=self.port).render_as_string(hide_password=False)}

    with started(PgBouncer) as server:
        yield server.settings()["url"]
