"""All that can go wrong, in an order that only the seed knows."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError

from tests.chaos.record import entries
from tests.chaos.sky import Sky

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.chaos.fleet import Fleet
    from tests.chaos.servers import Servers


OUR_SLOTS = "FROM pg_replication_slots WHERE slot_type = 'logical'"  # a standby's is physical, and left alone
CUT_READERS = f"SELECT pg_terminate_backend(active_pid, 2000) {OUR_SLOTS} AND active"
DROP_SLOT = f"SELECT pg_drop_replication_slot(slot_name) {OUR_SLOTS} AND NOT active"
HOLD_SLOT = b"START_REPLICATION SLOT postgres_log LOGICAL 0/0 (proto_version '1', publication_names 'postgres_log')"
NOISE = "SELECT pg_logical_emit_message(true, 'noise', repeat('x', 1000000)) FROM generate_series(1, 20)"
RELOAD = "SELECT pg_reload_conf()"
SLOT_STATUS = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'postgres_log'"
LAST_REQUEST_SECONDS = 0.5
LOG_READERS = "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"


class Weather:
    """Deals every kind of trouble once, then again in another order, until the time is up."""

    def __init__(
        self, seed: int, ttl: float, fleet: Fleet, servers: Servers, folder: Path, databases: Mapping[str, str]
    ) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._ttl = ttl
        self._fleet = fleet
        self._servers = servers
        self._folder = folder
        self._databases = databases
        self._sky = Sky(folder)
        self._aside = ThreadPoolExecutor()
        self._restarts: dict[str, Future[None]] = {}

    def rage(self, seconds: float) -> None:
        began, deck = time.monotonic(), self._deck()
        while time.monotonic() < began + seconds:
            self._random.shuffle(deck)
            for trouble in deck:
                if time.monotonic() < began + seconds:
                    self._strike(trouble, began)

    def missing(self) -> set[str]:
        """The kinds of trouble that there was no time for."""
        return {trouble.__name__ for trouble in self._deck()} - self.seen.keys()

    def clear_up(self) -> None:
        """Let the sky be blue again; clocks stay as they are, they are all within the margin."""
        self._sky.turn(**{"storage faults": 0.0})
        for restart in self._restarts.values():
            restart.result()
        self._fleet.revive()

    def close(self) -> None:
        """Wait for servers that are on their way back: only then can they be stopped for good."""
        self._aside.shutdown()

    def kill(self) -> str:
        who = self._somebody_at_work()
        self._fleet.kill(who)
        return who

    def freeze(self) -> str:
        """Stop a process for longer than its lease lives, then let it go on as if nothing had happened."""
        who = self._somebody_at_work()
        self._fleet.freeze(who)
        time.sleep(self._ttl * self._random.uniform(1.5, 2))
        self._fleet.thaw(who)
        return who

    def clock_jump(self) -> str:
        """Put a process's clock off, back and forth, but no two further apart than their margins allow.

        Further off, a taker would steal a lease that is alive by the holder's clock: a commit is still
        fenced, but two handlers could be at work.
        """
        who, margin = self._random.choice(self._fleet.names), self._ttl / 4
        self._sky.turn(**{f"clock of {who}": self._random.uniform(-0.8, 0.8) * margin})
        return who

    def storage_faults(self) -> str:
        self._sky.turn(**{"storage faults": 0.5})
        time.sleep(self._random.uniform(1, 3))
        self._sky.turn(**{"storage faults": 0.0})
        return ""

    def cut_off(self) -> str:
        """Keep one process from the storage for longer than its lease lives, and its rival not.

        Only PostgreSQL's pollers keep their state there.
        """
        who = self._at_work_for(self._random.choice(["postgres", "postgres_log"]))
        self._sky.turn(**{"cut off": who})
        time.sleep(self._ttl * self._random.uniform(1.5, 2))
        self._sky.turn(**{"cut off": None})
        return who

    def postgres_restart(self) -> str:
        return self._restart("postgres", crash=self._random.random() < 0.5)

    def mariadb_restart(self) -> str:
        return self._restart("mariadb", crash=self._random.random() < 0.5)

    def azurite_restart(self) -> str:
        return self._aside_from_others("azurite", self._outage)

    def _outage(self) -> None:
        """Let the storage go down when no write is on its way.

        When Azurite ends it writes down where contents lie, then which blobs there are: one that is written between
        the two cannot be read ever again, which no storage account would do to us.
        """
        self._sky.turn(outage=True)
        time.sleep(LAST_REQUEST_SECONDS)
        self._servers.restart("azurite", crash=False)
        self._sky.turn(outage=False)

    def log_cut(self) -> str:
        """End the connections on which logs are read, whatever is on its way on them."""
        self._run("postgres", CUT_READERS)
        self._run("mariadb", *(f"KILL {number}" for number in self._run("mariadb", LOG_READERS)))
        return ""

    def slot_held(self) -> str:
        """Let a stranger read the slot for a while, if it gets hold of it."""
        url = make_url(self._databases["postgres"]).set(drivername="postgresql").render_as_string(hide_password=False)
        with suppress(psycopg.Error), psycopg.connect(url, replication="database", autocommit=True) as connection:
            is_held = connection.pgconn.exec_(HOLD_SLOT).status == psycopg.pq.ExecStatus.COPY_BOTH
            time.sleep(self._random.uniform(0.5, 1) if is_held else 0)
            return "and got hold of it" if is_held else ""
        return ""

    def slot_dropped(self) -> str:
        """Take the slot away: what was not read is lost, and the table is read anew."""
        self._run("postgres", CUT_READERS, DROP_SLOT)
        return ""

    def binlog_purged(self) -> str:
        """Throw the log away, as far as the server lets go of it."""
        self._run("mariadb", "FLUSH BINARY LOGS")
        if names := self._run("mariadb", "SHOW BINARY LOGS"):
            self._run("mariadb", f"PURGE BINARY LOGS TO '{names[-1]}'")
        return ""

    def log_limit_hit(self) -> str:
        """Let the server write more log than it keeps for a slot: what was not read is lost.

        Not while a standby is being made: it would lose its place as well.
        """
        self._wait_for("postgres")
        self._run("postgres", "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", RELOAD)
        excess = (NOISE, "SELECT pg_switch_wal()", "CHECKPOINT", SLOT_STATUS)
        is_lost = any("lost" in self._run("postgres", *excess) for _ in range(5))
        self._run("postgres", "ALTER SYSTEM RESET max_slot_wal_keep_size", RELOAD)
        return "and the slot has lost its place" if is_lost else ""

    def failover(self) -> str:
        """Let another server take PostgreSQL's place, which knows nothing of the slot."""
        return self._aside_from_others("postgres", self._servers.fail_over)

    def _run(self, server: str, *statements: str) -> list[Any]:
        """Run statements on a server, one by one; return the first column of the last. A server may be down."""
        found: list[Any] = []
        engine = create_engine(self._databases[server], isolation_level="AUTOCOMMIT")
        for statement in statements:
            with suppress(DBAPIError), engine.connect() as connection:
                result = connection.exec_driver_sql(statement)
                found = list(result.scalars()) if result.returns_rows else []
        engine.dispose()
        return found

    def _restart(self, name: str, *, crash: bool) -> str:
        self._aside_from_others(name, partial(self._servers.restart, name, crash=crash))
        return "by a crash" if crash else ""

    def _aside_from_others(self, name: str, change: Callable[[], None]) -> str:
        """Take a server down and bring it back; other troubles do not wait until it is there."""
        self._wait_for(name)
        self._restarts[name] = self._aside.submit(change)
        return ""

    def _wait_for(self, name: str) -> None:
        if name in self._restarts:
            self._restarts[name].result()

    def _deck(self) -> list[Callable[[], str]]:
        restarts = [self.postgres_restart, self.mariadb_restart, self.azurite_restart, self.failover]
        faults = [self.storage_faults, self.cut_off, self.clock_jump]
        losses = [self.log_cut, self.slot_held, self.slot_dropped, self.log_limit_hit, self.binlog_purged]
        return [self.kill, self.kill, self.freeze, self.freeze, *faults, *restarts, *losses]

    def _strike(self, trouble: Callable[[], str], began: float) -> None:
        details = trouble()
        self.seen[trouble.__name__] += 1
        print(f"{time.monotonic() - began:6.1f} s  {trouble.__name__} {details}", flush=True)  # noqa: T201 - its report
        self._fleet.revive()
        time.sleep(self._random.uniform(0.1, 0.5))

    def _somebody_at_work(self) -> str:
        return self._at_work_for(self._random.choice(self._fleet.names).rpartition("-")[0])

    def _at_work_for(self, poller: str) -> str:
        """Wait a moment for one of a poller's processes to begin with a batch."""
        before = len(self._begun(poller))
        deadline = time.monotonic() + self._ttl
        while len(begun := self._begun(poller)) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        return begun[-1] if begun else f"{poller}-1"

    def _begun(self, poller: str) -> list[str]:
        return [entry["who"] for entry in entries(self._folder, poller, "begin")]
