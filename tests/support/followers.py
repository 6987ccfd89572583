"""Servers that follow the tests' own ones, until they are promoted: a standby of PostgreSQL, a replica of MariaDB."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from sqlalchemy import URL, Connection, create_engine, make_url, text

from tests.support.waiting import wait_for
from tools.services.instance import ROOT, Instance, exclusive
from tools.services.mariadb import MariaDb
from tools.services.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.services.server import Server

S = TypeVar("S", bound="Server")
P = TypeVar("P", bound=Postgres)


class Follower(ABC):
    """A server that has the databases of another one; the URLs are those of one database on both."""

    def __init__(self, primary: URL, here: URL) -> None:
        self.primary = primary
        self.here = here.set(database=primary.database)

    def at(self, database: str | None) -> Self:
        """Return the same server, at another database."""
        return type(self)(self.primary.set(database=database), self.here)

    @property
    def url(self) -> str:
        return self.here.render_as_string(hide_password=False)

    @abstractmethod
    def catch_up(self) -> None:
        """Wait until all is shown here that the primary has committed so far."""

    @abstractmethod
    def promote(self) -> None:
        """Make it a server of its own."""


class Standby(Follower):
    """A PostgreSQL that reads the log of another one."""

    def catch_up(self) -> None:
        with alone(self.primary) as there, alone(self.here) as here:
            written = there.execute(text("SELECT pg_current_wal_insert_lsn()")).scalar_one()
            replayed = text("SELECT pg_last_wal_replay_lsn() >= CAST(:lsn AS pg_lsn)")

            def is_here() -> bool:
                there.execute(text("SELECT pg_current_xact_id()"))  # a commit sends what has been written so far
                return bool(here.execute(replayed, {"lsn": written}).scalar_one())

            wait_for(is_here, 60, "the standby does not catch up")

    def wait_for_log(self) -> None:
        """Wait until the primary sends its log here as it writes it."""
        streams = text("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")
        with alone(self.primary) as there:
            wait_for(lambda: there.execute(streams).scalar_one(), 60, "the standby reads no log")

    def cut_off(self) -> None:
        """Let nothing more come from the primary."""
        with alone(self.here) as here:
            here.execute(text("ALTER SYSTEM SET primary_conninfo = ''"))
            here.execute(text("SELECT pg_reload_conf()"))
            receives = text("SELECT count(*) FROM pg_stat_wal_receiver")
            wait_for(lambda: not here.execute(receives).scalar_one(), 60, "the standby still reads")

    def promote(self) -> None:
        with alone(self.here) as connection:
            assert connection.execute(text("SELECT pg_promote()")).scalar_one()


class Replica(Follower):
    """A MariaDB that reads the log of another one, from the moment on at which it is told to."""

    def follow(self) -> None:
        primary = self.primary
        with alone(primary) as there, alone(self.here.set(database="mysql")) as here:
            file, position, *_ = there.execute(text("SHOW MASTER STATUS")).one()
            here.exec_driver_sql(
                f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, "
                f"MASTER_USER = '{primary.username}', MASTER_PASSWORD = '{primary.password}', "
                f"MASTER_LOG_FILE = '{file}', MASTER_LOG_POS = {position}, MASTER_CONNECT_RETRY = 1"
            )
            here.exec_driver_sql("START SLAVE")

    def catch_up(self) -> None:
        with alone(self.primary) as there, alone(self.here.set(database="mysql")) as here:
            file, position, *_ = there.execute(text("SHOW MASTER STATUS")).one()
            arrived = text("SELECT master_pos_wait(:file, :position, 60)")
            waited = here.execute(arrived, {"file": file, "position": position}).scalar_one()
            assert waited is not None, here.execute(text("SHOW SLAVE STATUS")).mappings().one()["Last_SQL_Error"]
            assert waited >= 0, "the replica does not catch up"

    def promote(self) -> None:
        with alone(self.here.set(database="mysql")) as connection:
            for statement in ("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = OFF"):
                connection.exec_driver_sql(statement)


class SecondMariaDb(MariaDb):
    """MariaDB with a number of its own, that follows in the tests' databases only."""

    name = "second-mariadb"

    def command(self) -> list[str]:
        return [*super().command(), "--server-id=2", "--replicate-wild-do-table=test\\_%.%", "--slave-skip-errors=1008"]


def following(primary: URL, kind: type[P], slot: str, **options: str) -> type[P]:
    """Return a kind of server that begins as a copy of the primary and reads its log.

    Without a slot, another's checkpoint may take away the log that was written since the copy.
    """

    class Follows(kind):  # type: ignore[valid-type,misc]  # any version of PostgreSQL
        name = f"standby-{secrets.token_hex(4)}"
        ready = "ready to accept read-only connections"

        def command(self) -> list[str]:
            return [*super().command(), *(f"--{name}={value}" for name, value in options.items())]

        def _initdb(self, secret: Path) -> list[str]:
            login = f"host={primary.host} port={primary.port} user={primary.username} password={primary.password}"
            copy = [str(self.programs / "pg_basebackup"), f"--pgdata={self.data}", f"--dbname={login} dbname=postgres"]
            follow = ["--create-slot", f"--slot={slot}", "--write-recovery-conf"]
            return [*copy, *follow, "--checkpoint=fast", "--no-sync"]

    return Follows


@contextmanager
def standby_of(
    primary: str, kind: type[Postgres] = Postgres, slot: str | None = None, **options: str
) -> Iterator[Standby]:
    """A server that follows the one of this URL, which is that of a superuser, by a slot that is dropped afterwards."""
    url, slot = make_url(primary), slot or f"standby_{secrets.token_hex(4)}"
    try:
        with started(following(url, kind, slot, **options)) as server:
            yield Standby(url, url.set(port=server.port))
    finally:
        _drop(url, slot)


def _drop(primary: URL, slot: str) -> None:
    named = {"slot": slot}
    is_free = text("SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = :slot AND active")
    drop = text("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = :slot")
    with alone(primary) as there:
        wait_for(lambda: there.execute(is_free, named).scalar_one(), 30, "the standby holds its slot")
        there.execute(drop, named)


@contextmanager
def second_mariadb() -> Iterator[URL]:
    """A server that can become a `Replica`."""
    with started(SecondMariaDb) as server:
        yield make_url(server.settings()["AZFDB_TEST_MARIADB_URL"])


@contextmanager
def alone(url: URL) -> Iterator[Connection]:
    """Lend a connection outside of transactions."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def started(kind: type[S]) -> Iterator[S]:
    """A server that belongs to the caller alone."""
    with exclusive():
        instance = Instance(ROOT / f"{kind.name}-{secrets.token_hex(4)}")
        instance.claim()
    try:
        server, _ = instance.start_one(kind)
        yield server
    finally:
        instance.stop()
