"""Writers whose transactions overlap in every way, and a poller that looks at them all the time."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db import SqlAlchemySource

CREATE = {
    "postgresql": (
        "CREATE TABLE changes (id bigserial PRIMARY KEY, version int NOT NULL, stamp timestamptz NOT NULL)",
        "CREATE INDEX changes_stamp ON changes (stamp, id)",
    ),
    "mysql": (
        "CREATE TABLE changes (id bigint AUTO_INCREMENT PRIMARY KEY, version int NOT NULL, stamp datetime(6) NOT NULL)",
        "CREATE INDEX changes_stamp ON changes (stamp, id)",
    ),
}
LONGEST_PAUSE = 0.03


class Writer(threading.Thread):
    """Writes in transactions of random length and kind, and remembers what it has committed."""

    def __init__(self, url: str, seed: int, until: threading.Event) -> None:
        super().__init__(daemon=True)
        self.committed: dict[int, int] = {}
        self.failure: BaseException | None = None
        self._random = random.Random(seed)
        self._engine = create_engine(url, pool_size=1)
        self._until = until
        self._versions = itertools.count(1)
        self._written: dict[int, int] = {}

    def run(self) -> None:
        try:
            self.write()
        except BaseException as failure:  # noqa: BLE001 - reported by the test
            self.failure = failure
        self._engine.dispose()

    def write(self) -> None:
        kinds = [self.insert_at_once, self.insert_late, self.insert_in_savepoint, self.update]
        with self._engine.connect() as connection:
            while not self._until.is_set():
                self._one_transaction(connection, self._random.choice(kinds))

    def _one_transaction(self, connection: Connection, work: Callable[[Connection], None]) -> None:
        self._written = {}
        work(connection)
        self.pause()
        if self._random.random() < 0.15:
            connection.rollback()
        else:
            connection.commit()
            self.committed |= self._written

    def insert_at_once(self, connection: Connection) -> None:
        self._insert(connection, self._stamp(connection))

    def insert_late(self, connection: Connection) -> None:
        """Take the stamp, and on PostgreSQL the number as well, long before the first write."""
        connection.execute(text("SELECT id FROM changes LIMIT 1"))
        stamp = self._stamp(connection)
        number = None
        if connection.dialect.name == "postgresql":
            number = connection.execute(text("SELECT nextval('changes_id_seq')")).scalar_one()
        self.pause()
        self._insert(connection, stamp, number)

    def insert_in_savepoint(self, connection: Connection) -> None:
        connection.execute(text("SAVEPOINT a"))
        self._insert(connection, self._stamp(connection))
        self.pause()
        if self._random.random() < 0.5:
            connection.execute(text("ROLLBACK TO SAVEPOINT a"))
            self._written = {}
        connection.execute(text("SAVEPOINT b"))
        self._insert(connection, self._stamp(connection))

    def update(self, connection: Connection) -> None:
        if not self.committed:
            return self.insert_at_once(connection)
        number = self._random.choice(list(self.committed))
        version = next(self._versions)
        stamp = self._stamp(connection)
        connection.execute(
            text("UPDATE changes SET version = :v, stamp = :s WHERE id = :i"), {"v": version, "s": stamp, "i": number}
        )
        self._written[number] = version
        return None

    def pause(self) -> None:
        time.sleep(self._random.uniform(0, LONGEST_PAUSE))

    def _stamp(self, connection: Connection) -> dt.datetime:
        if connection.dialect.name == "mysql":
            # A transaction is known to others once it has touched a table.
            connection.execute(text("SELECT id FROM changes LIMIT 1"))
            return connection.execute(text("SELECT now(6)")).scalar_one()  # type: ignore[no-any-return]
        source = self._random.choice(["now()", "clock_timestamp()", "client"])
        # The first statement begins the transaction, also for a stamp that the client takes.
        clock = connection.execute(text(f"SELECT {'1' if source == 'client' else source}")).scalar_one()
        return dt.datetime.now(dt.UTC) if source == "client" else clock

    def _insert(self, connection: Connection, stamp: dt.datetime, number: int | None = None) -> None:
        version = next(self._versions)
        values: dict[str, Any] = {"v": version, "s": stamp}
        if number is not None:
            statement = "INSERT INTO changes (id, version, stamp) VALUES (:i, :v, :s)"
            values["i"] = number
        else:
            statement = "INSERT INTO changes (version, stamp) VALUES (:v, :s)"
        if connection.dialect.name == "postgresql":
            number = connection.execute(text(f"{statement} RETURNING id"), values).scalar_one()
        else:
            number = connection.execute(text(statement), values).lastrowid
        assert number is not None
        self._written[number] = version


class Poller(threading.Thread):
    """Fetches every ten milliseconds and remembers the newest version of each row that it was given."""

    def __init__(self, source: SqlAlchemySource, until: threading.Event) -> None:
        super().__init__(daemon=True)
        self.seen: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.fetches = 0
        self._source = source
        self._until = until
        self._checkpoint: dict[str, Any] = {}

    def run(self) -> None:
        try:
            while not self._until.is_set():
                self.fetch()
                time.sleep(0.01)
            self._drain()
        except BaseException as failure:  # noqa: BLE001 - reported by the test
            self.failure = failure

    def fetch(self) -> int:
        result = self._source.fetch_changes(self._checkpoint, 100)
        self._checkpoint = result.next_checkpoint
        self.fetches += 1
        for record in result.records:
            self.seen[record["id"]] = record["version"]
        return len(result.records)

    def _drain(self) -> None:
        """Fetch on until nothing has come for a while: the last rows may still be waiting to be settled."""
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 1.5:
            if self.fetch():
                quiet_since = time.monotonic()
            time.sleep(0.01)


def create_table(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in CREATE[engine.dialect.name]:
            connection.execute(text(statement))
    engine.dispose()


def run_traffic(url: str, sources: list[SqlAlchemySource], seconds: float) -> tuple[dict[int, int], list[Poller]]:
    """Let four writers and the pollers run; return what was committed, and the pollers."""
    writing_over, polling_over = threading.Event(), threading.Event()
    writers = [Writer(url, seed, writing_over) for seed in range(4)]
    pollers = [Poller(source, polling_over) for source in sources]
    threads: list[Writer | Poller] = [*writers, *pollers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    writing_over.set()
    for writer in writers:
        writer.join(30)
    polling_over.set()
    for poller in pollers:
        poller.join(60)
    failures = [thread.failure for thread in threads if thread.failure]
    if failures:
        raise failures[0]
    committed: dict[int, int] = {}
    for writer in writers:
        committed |= writer.committed
    return committed, pollers
