from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import DbConfig, EngineProvider, PostgresLogicalSource
from azure_functions_db.core.types import Change as StreamChange
from azure_functions_db.testing.sources import Change, NewSource, SourceContract, Told, Transact
from tests.support.slots import SERVERS, logged_database

PUT = "INSERT INTO {} VALUES (:id, :value) ON CONFLICT (id) DO UPDATE SET value = excluded.value"
DELETE = "DELETE FROM {} WHERE id = :id"


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with logged_database(request.getfixturevalue(request.param)) as url:
        yield url


class TestPostgresLogicalSource(SourceContract):
    """A table whose changes are read from a slot."""

    reads_by_cursor = False
    keeps_history = True
    transport: Any = "stream"

    @pytest.fixture
    def table(self) -> str:
        return f"rows_{secrets.token_hex(4)}"

    @pytest.fixture
    def engine(self, url: str, provider: EngineProvider, table: str) -> Engine:
        engine = provider.get_engine(DbConfig(connection_url=url))
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {table} (id integer PRIMARY KEY, value text)"))
            connection.execute(text(f"ALTER TABLE {table} REPLICA IDENTITY FULL"))
        return engine

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

        source().create_stream()
        yield source
        source().drop_stream()

    @pytest.fixture
    def transact(self, engine: Engine, table: str) -> Transact:
        def transact(*changes: tuple[int, str | None]) -> None:
            with engine.begin() as connection:
                for key, value in changes:
                    statement = DELETE if value is None else PUT
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

    @pytest.fixture
    def lose(self, new_source: NewSource) -> Callable[[], None]:
        def lose() -> None:
            new_source().drop_stream()
            new_source().create_stream()

        return lose


class TestBySqlFunctions(TestPostgresLogicalSource):
    transport = "sql"
