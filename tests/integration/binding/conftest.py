"""A real database of each kind, with what a test needs to look into it behind the library's back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from azure_functions_db import DbReader, DbSession, DbWriter, EngineProvider


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
