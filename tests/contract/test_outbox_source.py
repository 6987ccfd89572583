from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import DbConfig, EngineProvider, Outbox, OutboxSource
from azure_functions_db.core.types import Change as OutboxChange
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact

if TYPE_CHECKING:
    from sqlalchemy import Engine


class OutboxContract(SourceContract):
    """Each change is an event; what was delivered is removed."""

    reads_by_cursor = False
    keeps_history = True

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider) -> Engine:
        engine = provider.get_engine(DbConfig(connection_url=url))
        Outbox().create(engine)
        return engine

    @pytest.fixture
    def new_source(self, engine: Engine, url: str, provider: EngineProvider) -> NewSource:
        # Other tests on the same server may be in the way for a moment.
        return lambda: OutboxSource(url=url, outbox=Outbox(), engine_provider=provider, horizon_wait_seconds=20)

    @pytest.fixture
    def transact(self, engine: Engine) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            events = [{"topic": "rows", "key": key, "payload": {"value": value}} for key, value in changes]
            with engine.begin() as connection:
                Outbox().add_many(connection, events)

        return transact

    @pytest.fixture
    def change(self, transact: Transact) -> Change:
        return lambda key, value: transact((key, value))

    @pytest.fixture
    def told(self) -> Told:
        def told(record: Any) -> tuple[int, str]:
            row: Any = record.after if isinstance(record, OutboxChange) else record
            return int(row["aggregateid"]), row["payload"]["value"]

        return told


class TestSqlite(OutboxContract):
    @pytest.fixture
    def url(self, sqlite_database: str) -> str:
        return sqlite_database


class TestPostgres(OutboxContract):
    @pytest.fixture
    def url(self, postgres_database: str) -> str:
        return postgres_database


class TestMariaDb(OutboxContract):
    @pytest.fixture
    def url(self, mariadb_database: str) -> str:
        return mariadb_database
