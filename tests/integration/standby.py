"""A standby of the tests' PostgreSQL, which can be promoted."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, make_url, text

from tools.services.instance import ROOT, Instance, exclusive
from tools.services.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Engine


@contextmanager
def standby_of(primary: str, kind: type[Postgres] = Postgres, slot: str | None = None, **options: str) -> Iterator[str]:
    """A server that follows the one of this URL, by a slot of this name; the URL of the same database there."""
    url = make_url(primary)

    class Standby(kind):  # type: ignore[valid-type,misc]  # any version of PostgreSQL
        ready = "ready to accept read-only connections"

        def command(self) -> list[str]:
            return [*super().command(), *(f"--{name}={value}" for name, value in options.items())]

        def _initdb(self, secret: Path) -> list[str]:
            place = f"host={url.host} port={url.port} user={url.username} password={url.password} dbname=postgres"
            copy = [str(self.programs / "pg_basebackup"), f"--pgdata={self.data}", f"--dbname={place}"]
            follow = [] if slot is None else ["--create-slot", f"--slot={slot}"]
            return [*copy, *follow, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]

    with exclusive():
        instance = Instance(ROOT / f"standby-{os.getpid()}-{secrets.token_hex(4)}")
        instance.claim()
    try:
        server, _ = instance.start_one(Standby)
        yield url.set(port=server.port).render_as_string(hide_password=False)
    finally:
        instance.stop()


def catch_up(primary: Engine, standby: Engine) -> None:
    """Wait until the standby shows all that its primary has committed."""
    with primary.connect() as connection:
        written = connection.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
    replayed = text("SELECT pg_last_wal_replay_lsn() >= CAST(:lsn AS pg_lsn)")
    while not _answer(standby, replayed, written):
        with primary.begin() as connection:
            connection.execute(text("SELECT pg_current_xact_id()"))  # a commit sends what has been written so far


def _answer(engine: Engine, question: object, lsn: object) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(question, {"lsn": lsn}).scalar_one())  # type: ignore[call-overload]


def promote(url: str) -> None:
    """Make the standby a server of its own."""
    engine = create_engine(url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT pg_promote()")).scalar_one()
    engine.dispose()
