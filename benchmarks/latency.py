"""From a commit to the handler: a tick that lingers beside the same schedule without, on the same commits.

MongoDB is among them where `AZFDB_MONGOD` names a server.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from common import databases, report, write_log_at_commit
from pymongo import MongoClient
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import (
    MemoryStateStore,
    MongoChangeStreamSource,
    MySqlBinlogSource,
    Outbox,
    OutboxSource,
    PollTrigger,
    PostgresLogicalSource,
    SqlAlchemySource,
)
from azure_functions_db.trigger.pace import end_lingering
from tests.support.mongo import IS_REAL, replica_set

SECONDS = 60.0
SCHEDULE = 5.0
LINGER = SCHEDULE - 0.5


class Poller(threading.Thread):
    """Ticks on the schedule, and notes how long after its commit each event has come."""

    def __init__(self, source: Any, committed: dict[str, float], over: threading.Event, **options: Any) -> None:
        super().__init__()
        self.delays: list[float] = []
        self._committed = committed
        self._over = over
        self._trigger = PollTrigger(
            name="latency", source=source, checkpoint_store=MemoryStateStore(), max_batches_per_tick=100, **options
        )

    def run(self) -> None:
        following = time.monotonic()
        while not self._over.wait(max(0.0, following - time.monotonic())):
            following += SCHEDULE
            self._trigger.run(timer=None, handler=self.handle)

    def handle(self, events: list[Any]) -> None:
        now = time.perf_counter()
        for event in events:
            at = self._committed.get(str(event.after.get("note") or event.after["payload"]["note"]))
            if at is not None:
                self.delays.append(max(0.0, now - at))


class Writer(threading.Thread):
    """Commits one row after the other, a second apart on average, and notes when each commit had returned."""

    def __init__(self, write: Callable[[int], object], over: threading.Event) -> None:
        super().__init__()
        self.committed: dict[str, float] = {}
        self._write = write
        self._over = over

    def run(self) -> None:
        number, pauses = 0, random.Random(1)
        while not self._over.wait(pauses.uniform(0.1, 1.9)):
            number += 1
            self.committed[str(number)] = float("inf")  # it may arrive before whoever commits it is told
            self._write(number)
            self.committed[str(number)] = time.perf_counter()


def write_row(engine: Engine, table: str, number: int) -> None:
    with engine.begin() as connection:
        row = {"number": number, "note": str(number)}
        connection.execute(text(f"INSERT INTO {table} VALUES (:number, :note)"), row)


def write_event(engine: Engine, outbox: Outbox, number: int) -> None:
    with engine.begin() as connection:
        outbox.add(connection, topic="orders", key="1", payload={"note": str(number)})


def write_document(client: MongoClient[Any], number: int) -> None:
    client["shop"]["orders"].insert_one({"_id": number, "note": str(number)})


def keyset(url: str, _name: str) -> SqlAlchemySource:
    return SqlAlchemySource(url=url, table="orders", cursor_column="id", pk_columns=["id"])


def slot(url: str, name: str) -> PostgresLogicalSource:
    return PostgresLogicalSource(url=url, tables=["logged"], slot=f"latency_{name}")


def binlog(url: str, _name: str) -> MySqlBinlogSource:
    return MySqlBinlogSource(url=url, tables=["logged"])


def events(url: str, _name: str) -> OutboxSource:
    return OutboxSource(url=url, outbox="outbox", retention=None)


def stream(uri: str, _name: str) -> MongoChangeStreamSource:
    return MongoChangeStreamSource(uri=uri, database="shop", collection="orders")


Case = tuple[str, Callable[[str], Any], Callable[[int], object]]


def cases(urls: dict[str, str], engines: dict[str, Engine]) -> Iterator[Case]:
    """Give each kind of source, and what writes for it."""
    for kind in ("postgres", "mariadb", "sqlite"):
        yield kind, partial(keyset, urls[kind]), partial(write_row, engines[kind], "orders")
    postgres, mariadb = engines["postgres"], engines["mariadb"]
    yield "outbox on postgres", partial(events, urls["postgres"]), partial(write_event, postgres, Outbox())
    yield "log of postgres", partial(slot, urls["postgres"]), partial(write_row, postgres, "logged")
    yield "binlog of mariadb", partial(binlog, urls["mariadb"]), partial(write_row, mariadb, "logged")


@contextmanager
def mongo_cases() -> Iterator[list[Case]]:
    if not IS_REAL:
        yield []
        return
    with replica_set() as [member], MongoClient[Any](member.uri) as client:
        yield [("change stream of mongodb", partial(stream, member.uri), partial(write_document, client))]


@contextmanager
def prepared(urls: dict[str, str]) -> Iterator[dict[str, Engine]]:
    write_log_at_commit(urls["postgres"])
    engines = {kind: create_engine(url) for kind, url in urls.items()}
    for engine in engines.values():
        with engine.begin() as connection:
            for table in ("orders", "logged"):
                connection.execute(text(f"CREATE TABLE {table} (id integer PRIMARY KEY, note varchar(20))"))
    with engines["postgres"].begin() as connection:
        for statement in filter(str.strip, Outbox().ddl("postgresql").split(";")):
            connection.execute(text(statement))
    yield engines
    for engine in engines.values():
        engine.dispose()


def drop_slots(sources: list[Any]) -> None:
    for source in sources:
        if isinstance(source, PostgresLogicalSource):
            source.drop_stream()


def percentile(delays: list[float], percent: int) -> float:
    return statistics.quantiles(delays, n=100, method="inclusive")[percent - 1]


def main() -> None:
    with databases() as urls, prepared(urls) as engines, mongo_cases() as more:
        over, measured, threads, sources = threading.Event(), {}, [], []
        for case, source_of, write in [*cases(urls, engines), *more]:
            writer = Writer(write, over)
            pair = [source_of(name) for name in ("lingers", "plain")]
            lingers = Poller(pair[0], writer.committed, over, linger_seconds=LINGER)
            plain = Poller(pair[1], writer.committed, over)
            measured[case] = (lingers, plain)
            sources += pair
            threads += [writer, lingers, plain]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        over.set()
        end_lingering()
        for thread in threads:
            thread.join()
        drop_slots(sources)
    for case, (lingers, plain) in measured.items():
        for percent in (50, 95):
            delays = percentile(lingers.delays, percent), percentile(plain.delays, percent)
            report(f"commit to handler, p{percent}", f"{case}, beside ticks every {SCHEDULE:g} s", *delays)


if __name__ == "__main__":
    main()
