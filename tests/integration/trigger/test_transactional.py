"""The handler's writes and the checkpoint in one transaction: an effect that happens exactly once."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import (
    CommitError,
    ConfigurationError,
    DbConfig,
    EngineProvider,
    HandledFirst,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    MemoryStateStore,
    MySqlBinlogSource,
    PollTrigger,
    PostgresLogicalSource,
    RowsFailed,
    SqlStateStore,
    StateStoreError,
)
from azure_functions_db.quarantine import SqlQuarantine
from azure_functions_db.sql.transactions import ambient_connection
from azure_functions_db.state.sql import SqlLease
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine
from tests.unit.trigger.poller import ListSource, run
from tests.unit.trigger.test_undecodable import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from azure_functions_db import PollContext, RowChange
    from azure_functions_db.core.types import QuarantinedRow


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

    def poller(self, source: Any, **options: Any) -> PollTrigger:
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
    with pytest.raises(HandlerError) as caught:
        run(trigger, ledger.handler)
    assert isinstance(caught.value.__cause__, ValueError)
    assert ledger.ids == []
    ledger.bad = set()
    assert run(trigger, ledger.handler) == 3
    assert ledger.ids == [0, 1, 2]


@pytest.mark.parametrize("database", ["postgres_log_database", "mariadb_database"])
def test_changes_of_a_log_are_written_with_their_checkpoint_or_not_at_all(
    request: pytest.FixtureRequest, database: str
) -> None:
    url = str(request.getfixturevalue(database))
    ledger = Ledger(url)
    request.addfinalizer(ledger.provider.dispose_all)
    with ledger.engine.begin() as connection:
        connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY)"))
    options: dict[str, Any] = {"url": url, "tables": ["things"], "engine_provider": ledger.provider}
    is_postgres = ledger.engine.dialect.name == "postgresql"
    source: Any = PostgresLogicalSource(slot="things", **options) if is_postgres else MySqlBinlogSource(**options)
    trigger = ledger.poller(source, batch_size=2, max_batches_per_tick=2)
    assert run(trigger, ledger.handler) == 0
    with ledger.engine.begin() as connection:
        connection.execute(text("INSERT INTO things VALUES (1), (2), (3)"))
    ledger.bad = {2}
    with pytest.raises(HandlerError):
        run(trigger, ledger.handler)
    assert ledger.ids == []
    ledger.bad = set()
    assert run(trigger, ledger.handler) == 3
    assert run(trigger, ledger.handler) == 0
    assert ledger.ids == [1, 2, 3]


def test_nothing_is_read_inside_the_handlers_transaction(file_ledger: Ledger) -> None:
    class Source(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            inside.append(ambient_connection(file_ledger.engine))
            return super().fetch(cursor, batch_size)

    inside: list[Any] = []
    assert run(file_ledger.poller(Source(5), batch_size=10, max_batches_per_tick=3), file_ledger.handler) == 5
    assert inside == [None, None]


def test_a_failed_commit_takes_the_writes_back(ledger: Ledger) -> None:
    class FailingLease(SqlLease):
        def commit(self, *_: Any, **_options: Any) -> bool:
            raise OSError("down")

    class Failing(SqlStateStore):
        _lease_type = FailingLease

    store = Failing(db_config=ledger.config, engine_provider=ledger.provider)
    with pytest.raises(CommitError):
        run(ledger.poller(ListSource(3), store=store), ledger.handler)
    assert ledger.ids == []


def test_a_commit_whose_answer_was_lost_counts_once_it_is_found(file_ledger: Ledger) -> None:
    class Unanswered(SqlStateStore):
        @contextmanager
        def transaction(self) -> Iterator[Connection]:
            with super().transaction() as connection:
                yield connection
            raise OSError("no answer")

    store = Unanswered(db_config=file_ledger.config, engine_provider=file_ledger.provider)
    trigger = file_ledger.poller(ListSource(3), store=store)
    assert run(trigger, file_ledger.handler) == 3
    assert run(trigger, file_ledger.handler) == 0
    assert file_ledger.ids == [0, 1, 2]


def test_a_transaction_that_could_not_be_committed_is_told_and_comes_again(file_ledger: Ledger) -> None:
    class Down(SqlStateStore):
        @contextmanager
        def transaction(self) -> Iterator[Connection]:
            with super().transaction() as connection:
                yield connection
                raise OSError("disk full")

    store = Down(db_config=file_ledger.config, engine_provider=file_ledger.provider)
    with pytest.raises(CommitError, match="disk full"):
        run(file_ledger.poller(ListSource(3), store=store), file_ledger.handler)
    assert file_ledger.ids == []
    assert run(file_ledger.poller(ListSource(3)), file_ledger.handler) == 3
    assert file_ledger.ids == [0, 1, 2]


def test_what_a_handler_got_through_is_written_exactly_once_however_little_it_becomes(file_ledger: Ledger) -> None:
    """All was rolled back with the rest: the first rows are handed out again, alone."""
    given: list[int] = []
    through = iter([3, 2])

    def handler(events: Sequence[RowChange]) -> HandledFirst | None:
        given.append(len(events))
        file_ledger.handler(events)
        count = next(through, None)
        return None if count is None else HandledFirst(count)

    trigger = file_ledger.poller(ListSource(5))
    assert run(trigger, handler) == 2
    assert (given, file_ledger.ids) == ([5, 3, 2], [0, 1])
    assert run(trigger, handler) == 3
    assert file_ledger.ids == [0, 1, 2, 3, 4]


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


def test_rows_that_cannot_be_decoded_are_put_aside_before_the_transaction(file_ledger: Ledger) -> None:
    class Sink(MemoryQuarantine):
        def put(self, rows: Sequence[QuarantinedRow]) -> None:
            assert ambient_connection(file_ledger.engine) is None, "a sink in the same file would wait for it"
            super().put(rows)

    sink = Sink()
    assert run(file_ledger.poller(Numbers(3, 1), quarantine=sink), file_ledger.handler) == 2
    assert (file_ledger.ids, [row.event["pk"] for row in sink.entries("orders")]) == ([0, 2], [{"id": 1}])


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


@pytest.fixture
def file_ledger(sqlite_database: str) -> Iterator[Ledger]:
    ledger = Ledger(sqlite_database)
    yield ledger
    ledger.provider.dispose_all()


def test_one_sqlite_file_lets_a_handler_outlive_its_lease(file_ledger: Ledger) -> None:
    lost: list[bool] = []

    def slow(events: Sequence[RowChange], context: PollContext) -> None:
        file_ledger.handler(events)  # from here on no renewal gets past the handler's own transaction
        lost.append(context.lease_lost.wait(5))

    trigger = file_ledger.poller(ListSource(4), batch_size=2, max_batches_per_tick=2, lease_ttl_seconds=3)
    assert run(trigger, slow) == 4
    assert lost == [False, False]
    assert file_ledger.ids == [0, 1, 2, 3]


def test_nobody_takes_the_lease_while_the_files_write_lock_is_held(file_ledger: Ledger) -> None:
    clock = FakeClock()
    mine = SqlStateStore(db_config=file_ledger.config, engine_provider=file_ledger.provider, clock=clock)
    hasty = DbConfig(connection_url=file_ledger.config.connection_url, connect_args={"timeout": 0})
    rival = SqlStateStore(db_config=hasty, engine_provider=file_ledger.provider, clock=clock)
    lease_id = mine.acquire_lease("orders", 30)
    with mine.transaction() as connection:
        connection.execute(text("INSERT INTO ledger VALUES (1)"))
        clock.advance(3600)
        with pytest.raises(StateStoreError, match="azfdb_state"):
            rival.acquire_lease("orders", 30)
        mine.commit_checkpoint("orders", {"cursor": 1}, lease_id)
    assert rival.look("orders").checkpoint == {"cursor": 1}
    with pytest.raises(LeaseConflictError):  # the commit has pushed the expiry
        rival.acquire_lease("orders", 30)


def test_a_lease_that_was_taken_before_the_write_lock_is_lost_all_the_same(file_ledger: Ledger) -> None:
    clock = FakeClock()
    mine = SqlStateStore(db_config=file_ledger.config, engine_provider=file_ledger.provider, clock=clock)
    rival = SqlStateStore(db_config=file_ledger.config, engine_provider=file_ledger.provider, clock=clock)
    lease_id = mine.acquire_lease("orders", 30)
    clock.advance(3600)
    rival.acquire_lease("orders", 30)
    with pytest.raises(LostLeaseError), mine.transaction() as connection:
        connection.execute(text("INSERT INTO ledger VALUES (1)"))
        mine.commit_checkpoint("orders", {"cursor": 1}, lease_id)
    assert file_ledger.ids == []


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
