from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import (
    DbConfig,
    EngineProvider,
    HandlerError,
    MySqlBinlogSource,
    PollTrigger,
    PostgresLogicalSource,
    RowChange,
)
from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact, delivered, opened
from tests.conftest import temporary_database
from tests.integration.binlog_servers import own_server
from tests.support.binlog import purge
from tests.support.slots import SERVERS, logged_database
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from azure_functions_db.core.ports import ChangeSource

DELETE = "DELETE FROM {} WHERE id = :id"


@pytest.fixture(scope="module", params=SERVERS)
def logged(request: pytest.FixtureRequest) -> Iterator[str]:
    with logged_database(request.getfixturevalue(request.param)) as url:
        yield url


@pytest.fixture(scope="module")
def purged() -> Iterator[str]:
    """A database of a server that nobody else uses: its log will be purged."""
    with own_server("mariadb") as server, temporary_database(server.url, "DROP DATABASE {name}") as url:
        yield url


class LogContract(SourceContract):
    """A table whose changes are read from the server's log."""

    reads_by_cursor = False
    keeps_history = True
    put: str

    @pytest.fixture
    def table(self) -> str:
        return f"rows_{secrets.token_hex(4)}"

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider, table: str) -> Engine:
        engine = provider.get_engine(DbConfig(connection_url=url))
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {table} (id integer PRIMARY KEY, value varchar(20))"))
        return engine

    @pytest.fixture
    def transact(self, engine: Engine, table: str) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            with engine.begin() as connection:
                for key, value in changes:
                    statement = DELETE if value is None else self.put
                    connection.execute(text(statement.format(table)), {"id": key, "value": value})

        return transact

    @pytest.fixture
    def change(self, transact: Transact) -> Change:
        return lambda key, value: transact((key, value))

    @pytest.fixture
    def told(self) -> Told:
        def told(record: Any) -> tuple[int, str]:
            row: Any = record.after if isinstance(record, StreamChange) else record
            return row["id"], row["value"]

        return told

    def test_what_was_handled_before_a_crash_and_is_gone_after_it_is_told_as_deleted(
        self, beginning: Callable[[], ChangeSource], transact: Transact
    ) -> None:
        transact((1, "a"), (2, "b"))
        store, copy = MemoryStateStore(), dict[Any, str]()

        def mirror(events: list[RowChange]) -> None:
            for event in events:
                if event.after is None:
                    copy.pop(event.pk["id"], None)
                else:
                    copy[event.pk["id"]] = event.after["value"]

        def die(events: list[RowChange]) -> None:
            mirror(events)
            raise RuntimeError("the power is off")

        with pytest.raises(HandlerError):
            PollTrigger(name="copy", source=beginning(), checkpoint_store=store).run(timer=None, handler=die)
        assert copy == {1: "a", 2: "b"}
        transact((1, None))
        poller = PollTrigger(name="copy", source=beginning(), checkpoint_store=store, max_batches_per_tick=10)
        wait_for(lambda: poller.run(timer=None, handler=mirror) == 0 and len(copy) == 1, 30, "the delete did not come")
        assert copy == {2: "b"}


class TestPostgresLogicalSource(LogContract):
    """A slot, read by the replication protocol."""

    put = "INSERT INTO {} VALUES (:id, :value) ON CONFLICT (id) DO UPDATE SET value = excluded.value"
    transport: Any = "stream"

    @pytest.fixture
    def url(self, logged: str) -> str:
        return logged

    @pytest.fixture
    def new_source(self, engine: Engine, url: str, provider: EngineProvider, table: str) -> Iterator[NewSource]:
        def source() -> PostgresLogicalSource:
            return PostgresLogicalSource(
                url=url,
                tables=table,
                slot=table,
                snapshot="never",
                transport=self.transport,
                engine_provider=provider,
            )

        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} REPLICA IDENTITY FULL"))
        source().create_stream()
        yield source
        source().drop_stream()

    @pytest.fixture
    def beginning(
        self, engine: Engine, url: str, provider: EngineProvider, table: str
    ) -> Iterator[Callable[[], ChangeSource]]:
        def source() -> PostgresLogicalSource:
            return PostgresLogicalSource(
                url=url, tables=table, slot=f"{table}_begun", transport=self.transport, engine_provider=provider
            )

        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} REPLICA IDENTITY FULL"))
        yield source
        source().drop_stream()

    @pytest.fixture
    def lose(self, new_source: NewSource) -> Callable[[], None]:
        def lose() -> None:
            new_source().drop_stream()
            new_source().create_stream()

        return lose


class TestBySqlFunctions(TestPostgresLogicalSource):
    transport = "sql"


class TestMySqlBinlog(LogContract):
    """The log of MariaDB; each test begins where the log ends."""

    put = "INSERT INTO {} VALUES (:id, :value) ON DUPLICATE KEY UPDATE value = :value"

    @pytest.fixture
    def url(self, purged: str) -> str:
        return purged

    @pytest.fixture
    def new_source(self, engine: Engine, url: str, provider: EngineProvider, table: str) -> NewSource:
        with engine.connect() as connection:
            start = connection.execute(text("SELECT @@gtid_binlog_pos")).scalar_one()
        return lambda: MySqlBinlogSource(
            url=url, tables=[table], snapshot="never", start_at=start, engine_provider=provider
        )

    @pytest.fixture
    def beginning(self, engine: Engine, url: str, provider: EngineProvider, table: str) -> Callable[[], ChangeSource]:
        assert engine is not None
        return lambda: MySqlBinlogSource(url=url, tables=[table], engine_provider=provider)

    @pytest.fixture
    def lose(self, engine: Engine) -> Callable[[], None]:
        return lambda: purge(engine)

    def test_a_second_reader_is_sent_away_and_harms_nothing(self, new_source: NewSource, change: Change) -> None:
        """Not this source: a log has as many readers as like to read it, and the lease sees to one for each poller."""
        change(1, "new")
        reader = opened(new_source())
        assert len(reader.fetch_changes({}, 10).records) == 1
        assert len(delivered(new_source(), MemoryStateStore())) == 1
        reader.close()
