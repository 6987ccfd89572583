"""What reading a backlog asks of the database: each page once, and no transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset.horizon_postgres import PostgresWatch

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
    # Rows at the bound itself want a look, and are read after it.
    assert len([statement for statement in asked if "* \nFROM readings" in statement]) <= len(read) + 1


def test_what_came_while_a_backlog_was_read_follows_at_once(source: SqlAlchemySource, engine: Engine) -> None:
    reading = pages(source, 4)
    assert [next(reading), next(reading)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with engine.begin() as connection:
        add(connection, 20, 21)
    assert [number for page in reading for number in page] == [8, 9, 20, 21]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # MariaDB tells later who has ended
def test_a_page_of_what_was_there_and_of_what_has_come_can_be_cut_anywhere(
    source: SqlAlchemySource, engine: Engine
) -> None:
    reader = source.open()
    first = reader.fetch_changes({}, 6)
    with engine.begin() as connection:
        add(connection, 20, 21, 22)
    page = reader.fetch_changes(first.next_checkpoint, 6)
    numbers = [record["id"] for record in page.records]
    assert numbers == [6, 7, 8, 9, 20, 21]
    assert page.cut is not None
    for count in range(1, 7):
        rest = source.fetch_changes(page.cut(count), 10)
        assert [record["id"] for record in rest.records] == [*numbers[count:], 22]


def test_what_is_committed_between_the_end_of_a_backlog_and_the_look_behind_it_is_read(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = {"isolation_level": "REPEATABLE READ"}  # the user's choice: all reads of a transaction see the same
    config = DbConfig(connection_url=postgres_database, engine_kwargs=level)
    engine = create_engine(postgres_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE readings (id integer PRIMARY KEY, at timestamptz)"))
        add(connection, *range(10))
    source = SqlAlchemySource(db_config=config, table="readings", cursor_column="at", pk_columns=["id"])
    reader = source.open()
    first = reader.fetch_changes({}, 8)
    with engine.connect() as late:
        add(late, 10)
        with engine.begin() as connection:
            add(connection, 20)
        look = PostgresWatch.look

        def look_later(*given: Any) -> bool:
            late.commit()
            return look(*given)

        monkeypatch.setattr(PostgresWatch, "look", look_later)
        page = reader.fetch_changes(first.next_checkpoint, 8)
    engine.dispose()
    assert [record["id"] for record in page.records] == [8, 9, 10, 20]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_what_comes_after_a_look_that_found_nothing_waits_for_the_next_one(
    source: SqlAlchemySource, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = source.open()
    first = reader.fetch_changes({}, 8)
    other = create_engine(engine.url)
    with other.begin() as connection:
        connection.execute(text("DELETE FROM readings WHERE id = 9"))
    look = PostgresWatch.look

    def look_first(*given: Any) -> bool:
        found = look(*given)
        with other.begin() as connection:
            connection.execute(text("INSERT INTO readings VALUES (30, '2026-01-01 12:00:09')"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(PostgresWatch, "look", look_first)
        page = reader.fetch_changes(first.next_checkpoint, 8)
    other.dispose()
    assert [record["id"] for record in page.records] == [8]
    rest = reader.fetch_changes(page.next_checkpoint, 8)
    assert [record["id"] for record in rest.records] == [30]


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_who_is_writing_is_asked_by_a_statement_that_is_planned_once(source: SqlAlchemySource, engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        rows = "SELECT i, date '2026-02-01' + i * interval '1 s' FROM generate_series(99, 99999) AS i"
        connection.execute(text(f"INSERT INTO readings {rows}"))
        connection.execute(text("CREATE INDEX ON readings (at, id)"))
        connection.execute(text("ANALYZE readings"))
    checkpoint = source.fetch_changes({}, 100_000).next_checkpoint
    for _ in range(15):  # driver and server look at five each before they settle on something
        source.fetch_changes(checkpoint, 1)
    with engine.connect() as connection:
        prepared = text("SELECT generic_plans FROM pg_prepared_statements WHERE statement LIKE '%pg_lock_status%'")
        assert connection.execute(prepared).scalar_one() > 0


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
