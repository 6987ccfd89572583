"""A replica of MariaDB gets the late commits of its primary, and knows nothing of who is running there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text

from azure_functions_db import EngineProvider, SqlAlchemySource
from tests.integration.test_late_commits import Poll, insert
from tests.integration.traffic import create_table
from tests.support.followers import Replica, alone, second_mariadb

NewSource = Callable[..., SqlAlchemySource]


@pytest.fixture(scope="module")
def second_server() -> Iterator[URL]:
    with second_mariadb() as url:
        yield url


@pytest.fixture
def follower(second_server: URL, mariadb_url: str) -> Iterator[Replica]:
    """The second server as a replica of the first, from now on."""
    replica = Replica(make_url(mariadb_url), second_server)
    replica.follow()
    yield replica
    replica.promote()


@pytest.fixture
def following(follower: Replica) -> Iterator[Connection]:
    """A connection to the replica."""
    with alone(follower.here) as connection:
        yield connection


@pytest.fixture
def primary(follower: Replica, request: pytest.FixtureRequest) -> Iterator[Engine]:
    url = str(request.getfixturevalue("mariadb_database"))
    create_table(url)
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def replica(primary: Engine, second_server: URL) -> Iterator[Engine]:
    engine = create_engine(second_server.set(database=primary.url.database))
    yield engine
    engine.dispose()


@pytest.fixture
def new_source(replica: Engine, provider: EngineProvider) -> NewSource:
    def new_source(**options: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=replica.url.render_as_string(hide_password=False),
            table="changes",
            cursor_column="stamp",
            pk_columns=["id"],
            engine_provider=provider,
            **{"horizon_wait_seconds": 20, **options},
        )

    return new_source


def until(holds: Callable[[], object]) -> None:
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("It does not come to that")


def until_replicated(replica: Engine, *numbers: int) -> None:
    """Wait for the table, and then for rows in it."""
    tables = f"SELECT count(*) FROM information_schema.tables WHERE table_schema = '{replica.url.database}'"
    with alone(replica.url.set(database="mysql")) as connection:
        until(lambda: connection.execute(text(tables)).scalar_one())
        rows = text(f"SELECT id FROM {replica.url.database}.changes")
        until(lambda: {*numbers} <= {*connection.execute(rows).scalars()})


def until_graded(source: SqlAlchemySource, grade: str) -> None:
    until(lambda: source.late_commit_grade() == grade)


def test_a_replica_keeps_the_distance(
    primary: Engine, replica: Engine, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    until_replicated(replica)
    with primary.connect() as early, primary.connect() as late:
        first, second = insert(early), insert(late)
        late.commit()
        until_replicated(replica, second)
        distant = new_source(settle_seconds=3600)
        assert Poll(distant)() == []
        assert distant.late_commit_grade() == "settled"
        assert "a replica does not know the transactions that run on its primary" in caplog.text
        early.commit()
        until_replicated(replica, first, second)
    poll = Poll(new_source(settle_seconds=0.001))
    assert poll() == [first, second]


def test_a_replica_without_a_distance_is_graded_none(
    primary: Engine, replica: Engine, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    until_replicated(replica)
    with primary.connect() as early, primary.connect() as late:
        first, second = insert(early), insert(late)
        late.commit()
        until_replicated(replica, second)
        poll = Poll(new_source())
        assert poll() == [second]
        assert poll.source.late_commit_grade() == "none"
        assert caplog.text.count("may miss rows that commit late: a replica") == 1
        early.commit()
        until_replicated(replica, first, second)
        assert poll() == []  # as it was warned


STOPS = {
    "applier": ["STOP SLAVE SQL_THREAD"],
    "all": ["SET GLOBAL read_only = ON", "STOP SLAVE"],
}


@pytest.mark.parametrize("what", STOPS)
def test_a_replica_that_stands_still_is_a_replica(
    primary: Engine, replica: Engine, following: Connection, new_source: NewSource, what: str
) -> None:
    until_replicated(replica)
    with primary.begin() as connection:
        row = insert(connection)
    until_replicated(replica, row)
    for statement in STOPS[what]:
        following.exec_driver_sql(statement)
    assert new_source().late_commit_grade() == "none"


def test_it_is_noticed_when_a_replica_is_promoted(
    primary: Engine, replica: Engine, follower: Replica, new_source: NewSource
) -> None:
    until_replicated(replica)
    with primary.begin() as connection:
        row = insert(connection)
    until_replicated(replica, row)
    poll = Poll(new_source(horizon_wait_seconds=0.5))
    assert poll() == [row]
    assert poll.source.late_commit_grade() == "none"
    follower.promote()
    until_graded(poll.source, "exact")
    with replica.connect() as early, replica.connect() as late:
        first, second = insert(early), insert(late)
        late.commit()
        assert poll() == []
        early.commit()
    poll.source = new_source()
    assert poll() == [first, second]


def test_a_primary_that_becomes_a_replica_is_no_longer_exact(
    primary: Engine, replica: Engine, following: Connection, new_source: NewSource
) -> None:
    until_replicated(replica)
    following.exec_driver_sql("STOP SLAVE")
    source = new_source()
    assert source.late_commit_grade() == "exact"
    following.exec_driver_sql("START SLAVE")
    with primary.begin() as connection:
        row = insert(connection)
    until_replicated(replica, row)
    assert Poll(source)() == [row]
    assert source.late_commit_grade() == "none"


def test_a_server_that_is_read_only_is_not_called_exact(
    follower: Replica,
    following: Connection,
    primary: Engine,
    replica: Engine,
    new_source: NewSource,
    caplog: pytest.LogCaptureFixture,
) -> None:
    until_replicated(replica)
    follower.promote()
    source = new_source()
    assert source.late_commit_grade() == "exact"
    following.exec_driver_sql("SET GLOBAL read_only = ON")
    with replica.begin() as connection:
        row = insert(connection)
    assert Poll(source)() == [row]
    assert source.late_commit_grade() == "none"
    assert caplog.text.count("is read_only") == 1
    following.exec_driver_sql("SET GLOBAL read_only = OFF")
    until_graded(source, "exact")
