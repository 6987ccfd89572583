"""What reading a backlog asks of the database: each page once, and no transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource

MOMENT = {"postgresql": "timestamptz", "mysql": "datetime(6)"}


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    """A database that shows its running transactions."""
    return str(request.getfixturevalue(f"{request.param}_database"))


@pytest.fixture
def engine(url: str, provider: EngineProvider) -> Engine:
    """Ten rows, one a second, all of them old; one connection for everything."""
    engine = provider.get_engine(config(url))
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE readings (id integer PRIMARY KEY, at {MOMENT[engine.dialect.name]})"))
        add(connection, *range(10))
    return engine


@pytest.fixture
def source(url: str, provider: EngineProvider) -> SqlAlchemySource:
    """A source that shares the engine's connection."""
    return SqlAlchemySource(
        db_config=config(url),
        table="readings",
        cursor_column="at",
        pk_columns=["id"],
        engine_provider=provider,
        horizon_wait_seconds=20,  # whatever else runs on MariaDB's server is waited for
    )


def config(url: str) -> DbConfig:
    return DbConfig(connection_url=url, pool_size=1, max_overflow=0)


def add(connection: Any, *numbers: int) -> None:
    rows = [{"id": number, "at": f"2026-01-01 12:00:{number:02}"} for number in numbers]
    connection.execute(text("INSERT INTO readings VALUES (:id, :at)"), rows)


def pages(source: SqlAlchemySource, limit: int) -> Iterator[list[int]]:
    checkpoint: dict[str, Any] = {}
    more = True
    while more:
        result = source.fetch_changes(checkpoint, limit)
        yield [record["id"] for record in result.records]
        checkpoint, more = result.next_checkpoint, bool(result.more)


@pytest.mark.parametrize("limit", [3, 5])
def test_each_page_of_a_backlog_is_read_once(source: SqlAlchemySource, engine: Engine, limit: int) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, statement, *_rest: asked.append(statement))
    read = list(pages(source, limit))
    assert [number for page in read for number in page] == list(range(10))
    # Rows at the bound itself want a look of their own: the two pages that end before and at it are read once more.
    assert len([statement for statement in asked if "* \nFROM readings" in statement]) <= len(read) + 2


def test_what_came_while_a_backlog_was_read_follows_at_once(source: SqlAlchemySource, engine: Engine) -> None:
    reading = pages(source, 4)
    assert [next(reading), next(reading)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with engine.begin() as connection:
        add(connection, 20, 21)
    assert [number for page in reading for number in page] == [8, 9, 20, 21]


def test_reading_begins_and_ends_no_transaction(source: SqlAlchemySource, engine: Engine) -> None:
    list(pages(source, 10))  # the first look may have to wait for a list of transactions
    before = rollbacks(engine)
    list(pages(source, 1))
    assert rollbacks(engine) == before


def rollbacks(engine: Engine) -> int:
    """How often a transaction was rolled back so far."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "mysql":
            return int(connection.execute(text("SHOW SESSION STATUS LIKE 'Com_rollback'")).one()[1])
        connection.execute(text("SELECT pg_stat_force_next_flush()"))
        mine = text("SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        return int(connection.execute(mine).scalar_one())
