"""Several processes, and processes that die: nothing is lost, and never are two handlers at work."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from azure_functions_db import FileStateStore
from tests.support.waiting import wait_for

WORKER = Path(__file__).with_name("worker.py")


def table(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER NOT NULL)"))
        connection.execute(text("CREATE INDEX orders_poll ON orders (version, id)"))
        connection.execute(text("CREATE SEQUENCE orders_version"))
    engine.dispose()


def start(folder: Path, url: str, *, ttl: float, handler_seconds: float = 0.0) -> subprocess.Popen[bytes]:
    arguments = [str(folder), url, str(ttl), str(handler_seconds)]
    return subprocess.Popen([sys.executable, str(WORKER), *arguments], stderr=subprocess.PIPE)


def journal(folder: Path) -> list[list[str]]:
    path = folder / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def insert(connection: Connection, first: int, count: int) -> None:
    rows = [{"id": number} for number in range(first, first + count)]
    connection.execute(text("INSERT INTO orders VALUES (:id, nextval('orders_version'))"), rows)


def update_some(connection: Connection, upto: int, chance: random.Random) -> None:
    rows = [{"id": chance.randrange(upto)} for _ in range(20)]
    connection.execute(text("UPDATE orders SET version = nextval('orders_version') WHERE id = :id"), rows)


def final_states(url: str) -> set[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = {f"{row.id}:{row.version}" for row in connection.execute(text("SELECT id, version FROM orders"))}
    engine.dispose()
    return found


def test_thirty_kills_lose_no_row(postgres_database: str, tmp_path: Path) -> None:
    total, kills, chance = 10_000, 30, random.Random(7)
    table(postgres_database)
    engine = create_engine(postgres_database)

    def write() -> None:
        for first in range(0, total, 50):
            with engine.begin() as connection:
                insert(connection, first, 50)
                update_some(connection, first + 50, chance)
            time.sleep(0.04)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(kills):
        worker = start(tmp_path, postgres_database, ttl=0.4)
        seen = len(journal(tmp_path))
        # A random moment of its working life, not of its start.
        wait_for(lambda: len(journal(tmp_path)) > seen or not writer.is_alive(), 30, "a worker does not work")  # noqa: B023 - called at once
        time.sleep(chance.uniform(0, 0.1))
        worker.kill()
        worker.communicate()
    writer.join()
    engine.dispose()

    last = start(tmp_path, postgres_database, ttl=0.4)
    wanted = final_states(postgres_database)
    wait_for(lambda: wanted <= seen_states(tmp_path), 60, "rows are lost")
    (tmp_path / "stop").touch()
    _, errors = last.communicate(timeout=30)
    assert last.returncode == 0, errors.decode()

    counted = Counter(state for line in journal(tmp_path) if line[0] == "saw" for state in line[2:])
    repeated = sum(count - 1 for count in counted.values())
    assert repeated <= (kills + 1) * 200, "a kill repeats one batch at most"


def test_a_process_that_was_stopped_and_goes_on_commits_nothing(postgres_database: str, tmp_path: Path) -> None:
    table(postgres_database)
    engine = create_engine(postgres_database)
    with engine.begin() as connection:
        insert(connection, 0, 10)
    stopped = start(tmp_path, postgres_database, ttl=1.0, handler_seconds=1.5)
    wait_for(lambda: journal(tmp_path), 30, "nobody works")
    stopped.send_signal(signal.SIGSTOP)
    other = start(tmp_path, postgres_database, ttl=1.0)
    wait_for(lambda: final_states(postgres_database) <= seen_states(tmp_path), 30, "the work was not taken over")
    with engine.begin() as connection:
        insert(connection, 10, 10)
    engine.dispose()
    stopped.send_signal(signal.SIGCONT)
    _, errors = stopped.communicate(timeout=30)
    assert b"LostLeaseError" in errors, "the holder is told, and stops"
    wait_for(lambda: final_states(postgres_database) <= seen_states(tmp_path), 30, "rows are lost")
    (tmp_path / "stop").touch()
    other.communicate(timeout=30)
    assert FileStateStore(tmp_path / "state").load_checkpoint("orders")["cursor"]["value"] == 20


def seen_states(folder: Path) -> set[str]:
    return {state for line in journal(folder) if line[0] == "saw" for state in line[2:]}


def test_four_processes_on_one_poller_never_run_two_handlers_at_once(postgres_database: str, tmp_path: Path) -> None:
    table(postgres_database)
    engine = create_engine(postgres_database)
    with engine.begin() as connection:
        insert(connection, 0, 20_000)
    engine.dispose()
    workers = [start(tmp_path, postgres_database, ttl=1.0, handler_seconds=0.02) for _ in range(4)]
    wanted = final_states(postgres_database)
    wait_for(lambda: wanted <= seen_states(tmp_path), 90, "rows are lost")
    (tmp_path / "stop").touch()
    for worker in workers:
        _, errors = worker.communicate(timeout=30)
        assert worker.returncode == 0, errors.decode()

    # The clock of these lines is the machine's: it counts for all processes alike.
    moments = sorted((int(line[2]), line[0], line[1]) for line in journal(tmp_path) if line[0] in {"enter", "leave"})
    inside: set[str] = set()
    for _, what, who in moments:
        if what == "enter":
            assert not inside, "two handlers at once"
            inside.add(who)
        else:
            inside.discard(who)
    counted = Counter(state for line in journal(tmp_path) if line[0] == "saw" for state in line[2:])
    assert set(counted.values()) == {1}, "nobody crashed, so nothing comes twice"
    assert len({who for _, _, who in moments}) > 1, "the work was shared"
    assert FileStateStore(tmp_path / "state").load_checkpoint("orders")["cursor"]["value"] == 20_000
