"""A source on a PostgreSQL standby: it cannot see who writes, until the standby is promoted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from tests.integration.traffic import create_table
from tests.support.followers import Standby, standby_of


@pytest.fixture
def primary(postgres_database: str) -> Iterator[Engine]:
    create_table(postgres_database)
    engine = create_engine(postgres_database)
    yield engine
    engine.dispose()


@pytest.fixture
def follower(primary: Engine, postgres_database: str) -> Iterator[Standby]:
    with standby_of(postgres_database) as follower:
        yield follower


@pytest.fixture
def url(follower: Standby) -> str:
    return follower.url


@pytest.fixture
def standby(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


def source_on(url: str, provider: EngineProvider, **options: Any) -> SqlAlchemySource:
    return SqlAlchemySource(
        url=url,
        table="changes",
        cursor_column="stamp",
        pk_columns=["id"],
        engine_provider=provider,
        horizon_wait_seconds=0.3,
        **options,
    )


def insert(engine: Engine, stamp: str = "now()") -> None:
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO changes (version, stamp) VALUES (1, {stamp})"))


def ids(source: SqlAlchemySource, checkpoint: dict[str, Any]) -> list[int]:
    result = source.fetch_changes(checkpoint, 10)
    checkpoint |= result.next_checkpoint
    return [record["id"] for record in result.records]


def test_a_standby_is_read_at_the_distance_that_was_asked_for(
    primary: Engine, follower: Standby, url: str, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    insert(primary, "now() - interval '2 hours'")
    insert(primary)
    follower.catch_up()
    settled, plain = source_on(url, provider, settle_seconds=3600), source_on(url, provider)
    assert (settled.late_commit_grade(), plain.late_commit_grade()) == ("settled", "none")
    assert ids(settled, {}) == [1]
    assert ids(plain, {}) == [1, 2]
    now = source_on(url, provider, settle_seconds=3600, start_at="now")
    assert now.fetch_changes({}, 10).next_checkpoint["cursor"]["tiebreaker"] == {"id": 1}
    assert caplog.text.count("may miss rows that commit later than settle_seconds=3600") == 2  # two sources
    assert caplog.text.count("may miss rows that commit late:") == 1


def test_a_standby_that_is_promoted_is_watched_again(
    primary: Engine,
    follower: Standby,
    standby: Engine,
    url: str,
    provider: EngineProvider,
    caplog: pytest.LogCaptureFixture,
) -> None:
    insert(primary)
    follower.catch_up()
    source, checkpoint = source_on(url, provider), dict[str, Any]()
    with caplog.at_level(logging.WARNING):
        assert ids(source, checkpoint) == [1]
        assert ids(source, checkpoint) == []
        assert source.late_commit_grade() == "none"
        follower.promote()
        with standby.connect() as early:
            early.execute(text("INSERT INTO changes (version, stamp) VALUES (1, now())"))
            insert(standby)
            assert ids(source, checkpoint) == []
            assert source.late_commit_grade() == "exact"
            early.commit()
        assert len(ids(source, checkpoint)) == 2
    assert caplog.text.count("a standby does not know") == 1
    assert caplog.text.count("sees the running transactions again") == 1
