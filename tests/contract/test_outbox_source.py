from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from azure_functions_db import DbConfig, EngineProvider, Outbox, OutboxSource
from azure_functions_db.core.types import Change as OutboxChange
from azure_functions_db.sources.outbox.table import OLDEST_RUNNING
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact
from tests.contract.test_sqlalchemy_source import OnMariaDb, OnPostgres, OnSqlite
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from sqlalchemy import Engine


def nobody_is_in_the_way(engine: Engine) -> bool:
    """Tell whether every row that was written so far may be read: other tests run on the same server."""
    if engine.dialect.name != "postgresql":
        return True
    with engine.connect() as connection:
        return bool(connection.execute(text(f"SELECT max(position) < {OLDEST_RUNNING} FROM outbox")).scalar_one())


class OutboxContract(SourceContract):
    """Each change is an event; what was delivered is removed."""

    reads_by_cursor = False
    keeps_history = True

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
            wait_for(lambda: nobody_is_in_the_way(engine), 20, "a transaction of another test does not end")

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


class TestSqlite(OnSqlite, OutboxContract):
    pass


class TestPostgres(OnPostgres, OutboxContract):
    pass


class TestMariaDb(OnMariaDb, OutboxContract):
    pass
