"""Writers in bad weather, a poller that is killed again and again: the mirror equals its table, nothing is missing.

``AZFDB_SOAK_SECONDS`` makes it longer, ``AZFDB_SOAK_KILLS`` kills more often, ``AZFDB_SOAK_ROWS`` is the size of the
large transaction.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from azure_functions_db import FileStateStore
from tests.integration.postgres_log.scene import COLUMNS, Scene
from tests.support.waiting import wait_for

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "4"))
KILLS = int(os.environ.get("AZFDB_SOAK_KILLS", "4"))
ROWS = int(os.environ.get("AZFDB_SOAK_ROWS", "5000"))
BIG = 10_000_000


class Writers:
    """Sessions that write to the same keys, and know what they have committed."""

    def __init__(self, scene: Scene, count: int) -> None:
        self._scene = scene
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.is_counting = False
        """Whether what is committed from now on has to come as a change of its own."""
        self.values: set[str] = set()
        self.deletes: Counter[int] = Counter()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        rng, engine, turn = random.Random(number), create_engine(self._scene.url), 0
        while not self._stop.is_set():
            turn += 1
            values, deletes, counts = set[str](), Counter[int](), self.is_counting
            with engine.connect() as connection:
                try:
                    for step in range(rng.randint(1, 5)):
                        self._change(connection, rng, f"{number}.{turn}.{step}", values, deletes)
                    time.sleep(rng.random() * 0.3)
                    if rng.random() < 0.2:
                        connection.rollback()
                        continue
                    connection.commit()
                except OperationalError:  # two writers can lock each other out
                    connection.rollback()
                    continue
            with self._lock:
                if not counts:
                    continue
                self.values |= values
                self.deletes.update(deletes)
        engine.dispose()

    def _change(self, connection: Any, rng: random.Random, value: str, values: set[str], deletes: Counter[int]) -> None:
        key, table = rng.randint(1, 200), self._scene.table
        nested = connection.begin_nested() if rng.random() < 0.3 else None
        kept = nested is None or rng.random() < 0.5
        if rng.random() < 0.3:
            done = connection.execute(text(f"DELETE FROM {table} WHERE id = :id"), {"id": key})
            if kept and done.rowcount:
                deletes[key] += 1
        else:
            put = f"INSERT INTO {table} VALUES (:id, :v) ON CONFLICT (id) DO UPDATE SET v = excluded.v"
            connection.execute(text(put), {"id": key, "v": value})
            if kept:
                values.add(value)
        if nested is not None:
            nested.commit() if kept else nested.rollback()


class Victim:
    """The poller, which comes back each time that it is killed."""

    def __init__(self, scene: Scene, mirror: str, state: Path) -> None:
        script = Path(__file__).with_name("poller.py")
        self._command = [sys.executable, str(script), scene.url, mirror, scene.table, str(state)]
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        self._store = FileStateStore(state)

    @property
    def has_snapshot(self) -> bool:
        """Whether all rows have been read, and what they show lies behind."""
        cursor = self._store.load_checkpoint("poller").get("cursor")
        return cursor is not None and not {"snapshot", "seen", "awaits"} & cursor.keys()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def come_back(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)


@pytest.mark.timeout(600 + 10 * SECONDS)
def test_a_poller_that_is_killed_again_and_again_mirrors_what_writers_do(
    scene: Scene, postgres_database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})", "INSERT INTO %t SELECT n, 'old' FROM generate_series(-3000, 0) n")
    there = create_engine(postgres_database)
    request.addfinalizer(there.dispose)
    with there.begin() as connection:
        connection.execute(text(f"CREATE TABLE mirror ({COLUMNS})"))
        connection.execute(
            text("CREATE TABLE delivered (seq bigserial, event_id text, op text, id int, v text, place bigint)")
        )
    writers, victim = Writers(scene, 6), Victim(scene, postgres_database, tmp_path / "state")
    writers.start()
    rng = random.Random(7)
    try:
        for kill in range(KILLS):
            time.sleep(rng.random() * 2 * SECONDS / KILLS)
            victim.kill()
            if kill == KILLS // 2:
                victim.come_back()
                wait_for(lambda: victim.has_snapshot, 60, "the poller does not read the rows")
                writers.is_counting = True
                time.sleep(SECONDS / 4)
                victim.kill()
                scene.run(f"INSERT INTO %t SELECT n, 'big' FROM generate_series({BIG + 1}, {BIG + ROWS}) n")
            victim.come_back()
        writers.stop()
        scene.run("INSERT INTO %t VALUES (-999999, 'the end')")
        last = "SELECT count(*) FROM mirror WHERE v = 'the end'"
        wait_for(lambda: answer(there, last), 120 + 10 * SECONDS, "the poller does not come to the end")
    finally:
        writers.stop()
        victim.kill()
    compare(scene, there, writers)


def answer(engine: Any, query: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


def compare(scene: Scene, there: Any, writers: Writers) -> None:
    with there.connect() as connection:
        mirror = {row.id: row.v for row in connection.execute(text("SELECT id, v FROM mirror"))}
        delivered = connection.execute(text("SELECT event_id, op, id, v, place FROM delivered ORDER BY seq")).all()
    assert mirror == {row["id"]: row["v"] for row in scene.rows()}
    firsts: dict[str, Any] = {}
    for note in delivered:
        firsts.setdefault(note.event_id, note)
    changes = [note for note in firsts.values() if note.place is not None]
    print(  # noqa: T201 - a long run is read by people
        f"\n{len(delivered)} deliveries of {len(firsts)} events ({len(changes)} of the stream); counted were "
        f"{len(writers.values)} values and {sum(writers.deletes.values())} deletes"
    )
    assert writers.values <= {note.v for note in changes}
    gone = Counter(note.id for note in changes if note.op == "delete")
    assert all(gone[key] >= count for key, count in writers.deletes.items())
    assert [note.place for note in changes] == sorted(note.place for note in changes)
    assert sum(note.v == "big" for note in changes) == ROWS
