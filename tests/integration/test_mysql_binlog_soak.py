"""Writers at work, and a mirror that is killed again and again: nothing is lost, and all comes in commit order.

`AZFDB_SOAK_SECONDS` says for how long, `AZFDB_SOAK_KILLS` how often the mirror is killed, `AZFDB_SOAK_ROWS` how many
rows the transaction in between has.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text

from tests.conftest import temporary_database
from tests.integration.binlog_servers import KINDS, OwnServer, own_server
from tests.support.binlog import run
from tests.support.waiting import wait_for

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "5"))
KILLS = int(os.environ.get("AZFDB_SOAK_KILLS", "5"))
ROWS = int(os.environ.get("AZFDB_SOAK_ROWS", "20000"))
KEYS = 200
OLD_ROWS = 20_000  # the first kills come while they are read
BIG = 1_000_000


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    with own_server(request.param) as server:
        yield server


class Writer(threading.Thread):
    """Inserts, updates and deletes the same few rows, in transactions that last a while and often come to nothing."""

    def __init__(self, url: str, seed: int, versions: Iterator[int], until: threading.Event) -> None:
        super().__init__(daemon=True)
        self._engine = create_engine(url, isolation_level="READ COMMITTED")
        self._random = random.Random(seed)
        self._versions = versions
        self._until = until
        self.committed: list[int] = []
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._until.is_set():
                self.transact()
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error
        self._engine.dispose()

    def transact(self) -> None:
        from sqlalchemy.exc import OperationalError

        written: list[int] = []
        try:
            with self._engine.begin() as connection:
                for _ in range(self._random.randint(1, 4)):
                    written += self.change(connection)
                    time.sleep(self._random.choice([0, 0, self._random.uniform(0, 0.3)]))
                if self._random.random() < 0.2:
                    with connection.begin_nested() as inner:
                        self.change(connection)
                        inner.rollback()
                if self._random.random() < 0.2:
                    connection.rollback()
                    return
        except OperationalError as error:
            if getattr(error.orig, "args", (0,))[0] not in {1205, 1213}:  # they got into each other's way
                raise
            return
        self.committed += written

    def change(self, connection: Connection) -> list[int]:
        key, version = self._random.randrange(KEYS), next(self._versions)
        if self._random.random() < 0.25:
            connection.execute(text("DELETE FROM soaked WHERE id = :key"), {"key": key})
            return []
        statement = "INSERT INTO soaked VALUES (:key, :version) ON DUPLICATE KEY UPDATE version = :version"
        connection.execute(text(statement), {"key": key, "version": version})
        return [version]


class Victim:
    """The mirror's process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.file, self.stop = folder / "mirror.db", folder / "stop"
        self._command = [sys.executable, "-m", "tests.integration.binlog_mirror", url, str(self.file), str(self.stop)]
        self.process = subprocess.Popen(self._command)

    def kill(self) -> None:
        assert self.process.poll() is None, "the mirror has ended by itself"
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(self._command)

    def end(self, patience: float) -> None:
        self.stop.touch()
        assert self.process.wait(patience) == 0

    def get_on(self) -> None:
        """Wait until it has delivered something more."""
        before = self.delivered()
        wait_for(lambda: self.delivered() > before, 60, "the mirror does not get on")

    def delivered(self) -> int:
        if not self.file.exists():
            return 0
        with closing(sqlite3.connect(self.file)) as place:
            if not place.execute("SELECT 1 FROM sqlite_master WHERE name = 'checkpoint'").fetchone():
                return 0
            return int(place.execute("SELECT coalesce(max(number), 0) FROM delivered").fetchone()[0])


@pytest.mark.timeout(180 + 15 * SECONDS)
def test_a_mirror_that_is_killed_at_any_moment_equals_its_source(server: OwnServer, tmp_path: Path) -> None:
    dice = random.Random(7)
    with temporary_database(server.url, "DROP DATABASE {name}") as url:
        engine = create_engine(url)
        run(engine, "CREATE TABLE soaked (id int PRIMARY KEY, version bigint)")
        old = ", ".join(f"({KEYS + key}, 0)" for key in range(OLD_ROWS))
        run(engine, f"INSERT INTO soaked VALUES {old}")
        victim = Victim(url, tmp_path)
        victim.get_on()
        until, versions = threading.Event(), count(1)
        writers = [Writer(url, seed, versions, until) for seed in range(4)]
        for writer in writers:
            writer.start()
        began = time.monotonic()
        big = threading.Thread(target=write_much, args=(url,))
        for number in range(KILLS):
            if number == KILLS // 2:
                big.start()
            victim.get_on()
            time.sleep(dice.uniform(0, 0.3))
            victim.kill()
        time.sleep(max(0.0, began + SECONDS - time.monotonic()))
        victim.get_on()
        until.set()
        for thread in (*writers, big):
            thread.join(120)
        assert [writer.failure for writer in writers if writer.failure] == []
        victim.end(150 + 10 * SECONDS)
        committed = {version for writer in writers for version in writer.committed}
        judge(victim.file, dict(run(engine, "SELECT id, version FROM soaked")), committed)
        engine.dispose()


def write_much(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for start in range(0, ROWS, 10_000):
            rows = ", ".join(f"({BIG + key}, 0)" for key in range(start, min(start + 10_000, ROWS)))
            connection.exec_driver_sql(f"INSERT INTO soaked VALUES {rows}")
    engine.dispose()


def judge(file: Path, source: dict[int, int], committed: set[int]) -> None:
    with closing(sqlite3.connect(file)) as place:
        mirror = dict(place.execute("SELECT id, version FROM mirror"))
        delivered = place.execute("SELECT op, position, id, version FROM delivered ORDER BY number").fetchall()
    assert mirror == source
    streamed = [row for row in delivered if row[0] != "upsert"]
    assert committed <= {row[3] for row in streamed}, "a committed change never came"
    first = list(dict.fromkeys(row[1] for row in streamed))
    assert first == sorted(first, key=order_of), "a change came before one that was committed earlier"
    content: dict[str, tuple[object, ...]] = {}
    for op, position, key, version in streamed:
        assert content.setdefault(position, (op, key, version)) == (op, key, version), "one id for two changes"
    again = Counter(row[1] for row in streamed)
    report = (
        f"{len(first)} changes in the stream, {sum(again.values()) - len(first)} of them again after {KILLS} kills; "
        f"{len(delivered) - len(streamed)} rows in the snapshot"
    )
    print(report)  # noqa: T201 - for whoever runs it for long


def order_of(position: str) -> tuple[int, ...]:
    """Commits are numbered: the last number of a GTID, then the event and the row in it."""
    return tuple(int(number) for number in re.findall(r"[-:](\d+)@\d+:(\d+)\.(\d+)", position)[0])
