"""Writers that overlap in every way, and a poller that fails in every way, on one outbox.

`AZFDB_SOAK_SECONDS` says for how long. Each event tells the version that its key had got, under the lock of that key's
row: the order that a reader has to see.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import DBAPIError

from azure_functions_db import EngineProvider, MemoryStateStore, Outbox, OutboxSource, PollTrigger
from azure_functions_db.sql.failures import code_of
from tests.integration.traffic import DEADLOCKS, Worker

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from azure_functions_db import RowChange
    from azure_functions_db.core.types import CheckpointJson

SECONDS = float(os.environ.get("AZFDB_SOAK_SECONDS", "6"))
KEYS = 6
WRITERS = 6
OUTBOX = Outbox()
OTHER = Outbox("elsewhere")


class EventWriter(Worker):
    """Commits, rolls back, uses savepoints, writes late, and takes a transaction id long before it needs one."""

    def __init__(self, engine: Engine, seed: int, until: threading.Event) -> None:
        super().__init__(until, seed)
        self._engine = engine
        self.committed: set[str] = set()
        self.undone: set[str] = set()

    def work(self) -> None:
        while not self._until.is_set():
            with self._engine.connect() as connection:
                try:
                    self._transaction(connection)
                except DBAPIError as failure:
                    if code_of(failure) not in DEADLOCKS:
                        raise

    def _transaction(self, connection: Connection) -> None:
        marks: set[str] = set()
        try:
            if self._random.random() < 0.3:
                OTHER.add(connection, topic="other", key="none", payload=None)
            if self._random.random() < 0.3:
                self.pause()
            for key in sorted(self._random.sample(range(KEYS), self._random.randint(1, 3))):
                self._change(connection, key, marks)
            time.sleep(self._random.uniform(0, 0.3) if self._random.random() < 0.2 else 0)
        except DBAPIError:
            self.undone |= marks
            raise
        if self._random.random() < 0.15:
            connection.rollback()
            self.undone |= marks
        else:
            connection.commit()
            self.committed |= marks

    def _change(self, connection: Connection, key: int, marks: set[str]) -> None:
        if self._random.random() < 0.3:
            inner = connection.begin_nested()
            tried = self._add(connection, key)
            self.pause()
            if self._random.random() < 0.5:
                inner.rollback()
                self.undone.add(tried)
            else:
                inner.commit()
                marks.add(tried)
        marks.add(self._add(connection, key))

    def _add(self, connection: Connection, key: int) -> str:
        connection.execute(text("UPDATE things SET version = version + 1 WHERE id = :key"), {"key": key})
        version = connection.execute(text("SELECT version FROM things WHERE id = :key"), {"key": key}).scalar_one()
        mark = uuid.uuid4().hex
        OUTBOX.add(connection, topic="things", key=key, payload={"version": version, "mark": mark})
        return mark


class FailingSource(OutboxSource):
    """Cannot remove what was delivered every now and then, as if the process had ended before."""

    chance = random.Random(1)

    def open(self) -> Any:
        reader = super().open()
        acknowledge = reader.acknowledge

        def fails(checkpoint: CheckpointJson) -> None:
            if self.chance.random() < 0.2:
                raise OSError("the process has ended")
            acknowledge(checkpoint)

        reader.acknowledge = fails  # type: ignore[method-assign]
        return reader


class EventPoller(Worker):
    """Delivers with a handler that fails every now and then, after it has done its work."""

    def __init__(self, sources: list[OutboxSource], until: threading.Event) -> None:
        super().__init__(until, 7)
        self.seen: set[str] = set()
        self.repeated = self.ticks = 0
        self.versions: dict[str, int] = {}
        self.disorder: list[str] = []
        self._stores = [MemoryStateStore() for _ in sources]
        self._sources = sources

    def work(self) -> None:
        while not self._until.is_set():
            self.tick()
            time.sleep(0.01)

    def tick(self, *, fails: bool = True) -> int:
        return sum(
            self._tick(source, store, fails=fails) for source, store in zip(self._sources, self._stores, strict=True)
        )

    def _tick(self, source: OutboxSource, store: MemoryStateStore, *, fails: bool) -> int:
        self.ticks += 1
        size = self._random.choice([1, 7, 50])
        trigger = PollTrigger(
            name="events", source=source, checkpoint_store=store, batch_size=size, max_batches_per_tick=50
        )
        try:
            return trigger.run(timer=None, handler=lambda events: self._handle(events, fails=fails))
        except Exception as error:
            if "has ended" not in str(error):
                raise
            return 0

    def _handle(self, events: list[RowChange], *, fails: bool) -> None:
        for event in events:
            self._note(event)
        if fails and self._random.random() < 0.1:
            raise OSError("the process has ended")

    def _note(self, event: RowChange) -> None:
        row: Any = event.after
        key, payload = row["aggregateid"], row["payload"]
        if payload["mark"] in self.seen:
            self.repeated += 1
            return
        self.seen.add(payload["mark"])
        if payload["version"] != self.versions.get(key, 0) + 1:
            self.disorder.append(f"{key}: {payload['version']} after {self.versions.get(key, 0)}")
        self.versions[key] = payload["version"]


@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("shares", [1, 3], ids=["alone", "in three partitions"])
@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_every_committed_event_comes_in_the_order_of_its_key_and_none_of_a_rollback(
    database: str, shares: int, request: pytest.FixtureRequest, provider: EngineProvider
) -> None:
    url = str(request.getfixturevalue(f"{database}_database"))
    engine = create_engine(url, pool_size=WRITERS)
    for outbox in (OUTBOX, OTHER):
        outbox.create(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE things (id int PRIMARY KEY, version int NOT NULL)"))
        rows = [{"id": key} for key in range(KEYS)]
        connection.execute(text("INSERT INTO things VALUES (:id, 0)"), rows)
    seconds = SECONDS if shares == 1 else SECONDS / 2
    writing, polling = threading.Event(), threading.Event()
    whole = FailingSource(url=url, engine_provider=provider)
    sources: list[OutboxSource] = (
        [whole] if shares == 1 else [whole.partitioned(share, shares) for share in range(shares)]
    )
    poller = EventPoller(sources, polling)
    writers = [EventWriter(engine, seed, writing) for seed in range(WRITERS)]
    for worker in (poller, *writers):
        worker.start()
    time.sleep(seconds)
    writing.set()
    for writer in writers:
        writer.join(60)
    polling.set()
    poller.join(60)
    for worker in (poller, *writers):
        if worker.failure:
            raise worker.failure
    _catch_up(poller, engine)

    committed = set().union(*(writer.committed for writer in writers))
    undone = set().union(*(writer.undone for writer in writers))
    left = _rows(engine)
    print(  # noqa: T201 - the measure of a soak
        f"{database}, {shares} share(s), {seconds:g} s: {len(committed)} committed, {len(undone)} undone, "
        f"{poller.ticks} ticks, {poller.repeated} repeated, lost {len(committed - poller.seen)}, "
        f"of rollbacks {len(undone & poller.seen)}, out of order {len(poller.disorder)}, rows left {left}"
    )
    engine.dispose()
    assert len(committed) > 2 * seconds
    assert committed - poller.seen == set()
    assert undone & poller.seen == set()
    assert poller.disorder == []
    assert left == 0


def _catch_up(poller: EventPoller, engine: Engine) -> None:
    """Tick until nothing comes and nothing is left; each tick may fail to remove what was delivered."""
    for _ in range(50):
        if not poller.tick(fails=False) and not _rows(engine):
            return


def _rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(text("outbox"))).scalar_one())
