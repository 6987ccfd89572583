"""A table that logical replication fills gets the late commits of its publisher, on a server that is no standby."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from tests.conftest import temporary_database
from tests.integration.test_late_commits import Poll, insert
from tests.integration.traffic import create_table
from tests.support.followers import alone
from tests.support.waiting import wait_for


@pytest.fixture
def publisher(postgres_database: str) -> Iterator[Engine]:
    create_table(postgres_database)
    engine = create_engine(postgres_database)
    yield engine
    engine.dispose()


@pytest.fixture
def subscriber(publisher: Engine, postgres_url: str) -> Iterator[Engine]:
    """A database of the same server that subscribes to the table of the other one."""
    name, there = f"test_{secrets.token_hex(4)}", publisher.url
    with temporary_database(postgres_url, "DROP DATABASE {name} WITH (FORCE)") as url:
        create_table(url)
        engine = create_engine(url)
        with alone(there) as connection:
            connection.execute(text(f"CREATE PUBLICATION {name} FOR TABLE changes"))
            connection.execute(text(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"))
        place = f"host={there.host} port={there.port} user={there.username} password={there.password}"
        with alone(make_url(url)) as connection:
            connection.execute(
                text(
                    f"CREATE SUBSCRIPTION {name} CONNECTION '{place} dbname={there.database}' PUBLICATION {name} "
                    f"WITH (create_slot = false, slot_name = '{name}', copy_data = false)"
                )
            )
            yield engine
            engine.dispose()
            connection.execute(text(f"DROP SUBSCRIPTION {name}"))


def source_on(engine: Engine, provider: EngineProvider, **options: Any) -> SqlAlchemySource:
    return SqlAlchemySource(
        url=engine.url.render_as_string(hide_password=False),
        engine_provider=provider,
        **{"table": "changes", "cursor_column": "stamp", "pk_columns": ["id"], **options},
    )


def until_shown(engine: Engine, *numbers: int) -> None:
    with alone(engine.url) as connection:
        shown = text("SELECT id FROM changes")
        wait_for(lambda: {*numbers} <= {*connection.execute(shown).scalars()}, 30, "the rows do not come over")


def test_a_subscriber_is_not_called_exact_and_keeps_the_distance(
    publisher: Engine, subscriber: Engine, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    poll = Poll(source_on(subscriber, provider, settle_seconds=3600))
    with publisher.connect() as early, publisher.connect() as late:
        first, second = insert(early), insert(late)
        late.commit()
        until_shown(subscriber, second)
        assert poll() == []
        assert poll.source.late_commit_grade() == "settled"
        assert "subscription" in caplog.text
        early.commit()
    until_shown(subscriber, first, second)
    poll.source = source_on(subscriber, provider, settle_seconds=0.001)
    assert poll() == [first, second]


@pytest.mark.parametrize(
    "options", [{}, {"table": None, "query": "SELECT * FROM changes"}], ids=["the table", "a query over it"]
)
def test_a_subscriber_without_a_distance_is_graded_none(
    publisher: Engine, subscriber: Engine, provider: EngineProvider, options: dict[str, Any]
) -> None:
    assert source_on(subscriber, provider, **options).late_commit_grade() == "none"
    assert source_on(publisher, provider, **options).late_commit_grade() == "exact"


def test_what_is_written_beside_a_subscription_is_exact(subscriber: Engine, provider: EngineProvider) -> None:
    with alone(subscriber.url) as connection:
        connection.execute(text("CREATE TABLE own (id bigserial PRIMARY KEY, stamp timestamptz NOT NULL)"))
    assert source_on(subscriber, provider, table="own").late_commit_grade() == "exact"
