"""The handler's writes and the checkpoint in one transaction: an effect that happens exactly once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import (
    CommitError,
    ConfigurationError,
    DbConfig,
    EngineProvider,
    HandlerError,
    MemoryStateStore,
    PollTrigger,
    RowsFailed,
    SqlStateStore,
)
from azure_functions_db.core.transactions import ambient_connection
from azure_functions_db.quarantine import SqlQuarantine
from tests.unit.trigger.poller import ListSource, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from azure_functions_db import RowChange


class Ledger:
    """A table that the handler adds to, in the database that keeps the state."""

    def __init__(self, url: str) -> None:
        self.provider = EngineProvider()
        self.config = DbConfig(connection_url=url)
        self.bad: set[int] = set()
        self.store = SqlStateStore(db_config=self.config, engine_provider=self.provider)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE ledger (id INTEGER NOT NULL)"))

    @property
    def engine(self) -> Engine:
        return self.provider.get_engine(self.config)

    @property
    def ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT id FROM ledger")).scalars())

    def handler(self, events: Sequence[RowChange]) -> None:
        connection = ambient_connection(self.engine)
        assert connection is not None
        for event in events:
            connection.execute(text("INSERT INTO ledger VALUES (:id)"), {"id": event.pk["id"]})
            if event.pk["id"] in self.bad:
                raise ValueError("bad")

    def poller(self, source: ListSource, **options: Any) -> PollTrigger:
        store = options.pop("store", self.store)
        return PollTrigger(name="orders", source=source, checkpoint_store=store, transactional=True, **options)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    ledger = Ledger(database_url)
    yield ledger
    ledger.provider.dispose_all()


def test_writes_and_checkpoint_are_committed_together(ledger: Ledger) -> None:
    trigger = ledger.poller(ListSource(25), batch_size=10, max_batches_per_tick=2)
    assert run(trigger, ledger.handler) == 20
    assert run(trigger, ledger.handler) == 5
    assert ledger.ids == list(range(25))


def test_a_failed_handler_leaves_no_write_behind(ledger: Ledger) -> None:
    ledger.bad = {2}
    trigger = ledger.poller(ListSource(3))
    with pytest.raises(HandlerError):
        run(trigger, ledger.handler)
    assert ledger.ids == []
    ledger.bad = set()
    assert run(trigger, ledger.handler) == 3
    assert ledger.ids == [0, 1, 2]


def test_a_failed_commit_takes_the_writes_back(ledger: Ledger) -> None:
    class Failing(SqlStateStore):
        def commit_checkpoint(self, *_: Any) -> None:
            raise OSError("down")

    store = Failing(db_config=ledger.config, engine_provider=ledger.provider)
    with pytest.raises(CommitError):
        run(ledger.poller(ListSource(3), store=store), ledger.handler)
    assert ledger.ids == []


def test_poison_rows_are_put_aside_and_the_others_written_exactly_once(ledger: Ledger) -> None:
    ledger.bad = {7}
    sink = SqlQuarantine(db_config=ledger.config, engine_provider=ledger.provider)
    trigger = ledger.poller(ListSource(20), quarantine=sink, max_attempts=1)
    assert run(trigger, ledger.handler) == 19
    assert ledger.ids == [number for number in range(20) if number != 7]
    assert [row.event["pk"]["id"] for row in sink.entries()] == [7]


def test_rows_that_are_named_are_put_aside_and_the_others_written_exactly_once(ledger: Ledger) -> None:
    ledger.bad = {7}
    sink = SqlQuarantine(db_config=ledger.config, engine_provider=ledger.provider)

    def naming(events: Sequence[RowChange]) -> None:
        ledger.handler(events)
        if named := {event.event_id: "never" for event in events if event.pk["id"] in {3, 4, 12}}:
            raise RowsFailed(named)

    assert run(ledger.poller(ListSource(20), quarantine=sink, max_attempts=1), naming) == 16
    assert ledger.ids == [number for number in range(20) if number not in {3, 4, 7, 12}]
    assert sorted(row.event["pk"]["id"] for row in sink.entries("orders")) == [3, 4, 7, 12]


def test_an_async_handler_shares_the_transaction_too(ledger: Ledger) -> None:
    async def handler(events: Sequence[RowChange]) -> None:
        await asyncio.to_thread(ledger.handler, events)

    async def fail(events: Sequence[RowChange]) -> None:
        await asyncio.to_thread(ledger.handler, events)
        raise ValueError

    trigger = ledger.poller(ListSource(3))
    with pytest.raises(HandlerError):
        asyncio.run(trigger.run_async(timer=None, handler=fail))
    assert ledger.ids == []
    assert asyncio.run(trigger.run_async(timer=None, handler=handler)) == 3
    assert ledger.ids == [0, 1, 2]


def test_a_store_elsewhere_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="SqlStateStore"):
        ledger.poller(ListSource(3), store=MemoryStateStore())


def test_a_snapshot_that_a_renewal_has_left_behind_is_told_with_the_way_out(postgres_database: str) -> None:
    ledger = Ledger(postgres_database)
    config = DbConfig(connection_url=postgres_database, engine_kwargs={"isolation_level": "REPEATABLE READ"})
    store = SqlStateStore(db_config=config, engine_provider=ledger.provider)

    def slow(_events: Sequence[RowChange]) -> None:
        connection = ambient_connection(ledger.provider.get_engine(config))
        assert connection is not None
        connection.execute(text("SELECT 1"))
        store.renew_lease("orders", f"{store.owner_id}:1", 120)

    with pytest.raises(CommitError, match="READ COMMITTED, or a lease_ttl_seconds"):
        run(ledger.poller(ListSource(3), store=store), slow)
    ledger.provider.dispose_all()
