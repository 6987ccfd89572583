"""A real database of each kind, with what a test needs to look into it behind the library's back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from azure_functions_db import DbReader, DbSession, DbWriter, EngineProvider
from tests.support.waiting import wait_for


@dataclass
class Place:
    """A database, the readers and writers under test, and a side door."""

    kind: str
    url: str
    provider: EngineProvider
    side_door: Engine

    def reader(self, table: str | None = "items", **options: Any) -> DbReader:
        return DbReader(url=self.url, table=table, engine_provider=self.provider, **options)

    def writer(self, table: str = "items", **options: Any) -> DbWriter:
        return DbWriter(url=self.url, table=table, engine_provider=self.provider, **options)

    def session(self, **options: Any) -> DbSession:
        return DbSession(url=self.url, engine_provider=self.provider, **options)

    def execute(self, *statements: str) -> None:
        with self.side_door.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def rows(self, sql: str = "SELECT * FROM items ORDER BY id") -> list[dict[str, Any]]:
        with self.side_door.connect() as connection:
            return [dict(row) for row in connection.execute(text(sql)).mappings()]

    def count(self) -> int:
        return int(self.rows("SELECT count(*) AS n FROM items")[0]["n"])

    def kill_other_sessions(self) -> None:
        """End every connection to the database as a failover does, and wait until they are gone."""
        others, kill = _SESSIONS[self.kind]
        for row in self.rows(others):
            self.execute(kill.format(row["id"]))
        wait_for(lambda: not self.rows(others), 30, "a killed session lives on")


_SESSIONS = {
    "postgres": (
        "SELECT pid AS id FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "SELECT pg_terminate_backend({})",
    ),
    "mariadb": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        "KILL {}",
    ),
}


@pytest.fixture
def open_place() -> Iterator[Callable[[str, str], Place]]:
    provider = EngineProvider()
    opened: list[Engine] = []

    def open_(kind: str, url: str) -> Place:
        opened.append(create_engine(url, poolclass=NullPool))
        return Place(kind, url, provider, opened[-1])

    yield open_
    provider.dispose_all()
    for engine in opened:
        engine.dispose()


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def place(request: pytest.FixtureRequest, open_place: Callable[[str, str], Place]) -> Place:
    """A database of each kind with a table of items: a key, a unique code, a text and a default."""
    kind = str(request.param)
    made = open_place(kind, str(request.getfixturevalue(f"{kind}_database")))
    made.execute(ITEMS)
    return made


@pytest.fixture
def postgres(postgres_database: str, open_place: Callable[[str, str], Place]) -> Place:
    made = open_place("postgres", postgres_database)
    made.execute(ITEMS)
    return made


@pytest.fixture
def mariadb(mariadb_database: str, open_place: Callable[[str, str], Place]) -> Place:
    made = open_place("mariadb", mariadb_database)
    made.execute(ITEMS)
    return made


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Place:
    made: Place = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def sqlite(sqlite_database: str, open_place: Callable[[str, str], Place]) -> Place:
    made = open_place("sqlite", sqlite_database)
    made.execute(ITEMS)
    return made


ITEMS = """
    CREATE TABLE items (
        id INTEGER PRIMARY KEY,
        code VARCHAR(50),
        name VARCHAR(200),
        size INTEGER NOT NULL DEFAULT 7,
        CONSTRAINT items_code UNIQUE (code)
    )
"""
