"""Keys and cursors that only MariaDB has: lists, invisible columns, times that depend on a session."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from azure_functions_db import DbConfig, EngineProvider, PollTrigger, RowChange, SourceConfigurationError
from azure_functions_db.sources.keyset.source import SqlAlchemySource
from azure_functions_db.state.memory import MemoryStateStore

NewSource = Callable[..., SqlAlchemySource]


@pytest.fixture
def engine(mariadb_database: str) -> Iterator[Engine]:
    engine = create_engine(mariadb_database)
    yield engine
    engine.dispose()


@pytest.fixture
def new_source(mariadb_database: str, provider: EngineProvider) -> NewSource:
    def new_source(**arguments: Any) -> SqlAlchemySource:
        defaults: dict[str, Any] = {"cursor_column": "c", "pk_columns": ["id"]}
        if "query" not in arguments:
            defaults["table"] = "t"
        return SqlAlchemySource(url=mariadb_database, engine_provider=provider, **{**defaults, **arguments})

    return new_source


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def everything(source: SqlAlchemySource, limit: int = 10) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    checkpoint: dict[str, Any] = {}
    more: bool | None = True
    while more:
        result = source.fetch_changes(json.loads(json.dumps(checkpoint)), limit)
        records += result.records
        checkpoint, more = result.next_checkpoint, result.more
    return records


# Lists and invisible columns of MariaDB


@pytest.mark.parametrize("kind", ["enum('b', 'a')", "set('x', 'y')", "bit(3)"])
@pytest.mark.parametrize("role", ["cursor", "key"])
@pytest.mark.parametrize("arguments", [{}, {"query": "SELECT * FROM t"}, {"table": "v"}, {"query": "SELECT * FROM v"}])
def test_a_list_is_refused_in_every_form(
    kind: str, role: str, arguments: dict[str, Any], engine: Engine, new_source: NewSource
) -> None:
    run(engine, f"CREATE TABLE t (id integer PRIMARY KEY, l {kind}, c integer)", "CREATE VIEW v AS SELECT * FROM t")
    columns: dict[str, Any] = {"cursor_column": "l"} if role == "cursor" else {"pk_columns": ["l"]}
    with pytest.raises(SourceConfigurationError, match=r"'l' cannot be a cursor or key: its type is (ENUM|SET|BIT)"):
        new_source(**arguments, **columns).validate()


def test_a_list_that_is_no_cursor_is_handed_out_by_a_query_as_it_is(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, e enum('b', 'a'), s set('x', 'y'), c integer)")
    run(engine, "INSERT INTO t VALUES (1, 'a', 'x,y', 1)")
    assert everything(new_source(query="SELECT * FROM t")) == [{"id": 1, "e": "a", "s": "x,y", "c": 1}]


def test_invisible_columns_can_be_cursor_and_key(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer DEFAULT 0 INVISIBLE, word varchar(9), c integer INVISIBLE, x int INVISIBLE)",
        "INSERT INTO t (id, word, c) VALUES (1, 'one', 1), (2, 'two', 1), (3, 'three', 2)",
    )
    source = new_source()
    assert everything(source, 1) == [
        {"word": "one", "c": 1, "id": 1},
        {"word": "two", "c": 1, "id": 2},
        {"word": "three", "c": 2, "id": 3},
    ]
    run(engine, "ALTER TABLE t ADD COLUMN more integer")
    assert [record["more"] for record in everything(source)] == [None, None, None]


# TIMESTAMP columns of MariaDB


def zoned(url: str, zone: str, provider: EngineProvider, **arguments: Any) -> SqlAlchemySource:
    """Return a source whose sessions are in a time zone."""
    config = DbConfig(connection_url=url, connect_args={"init_command": f"SET time_zone = '{zone}'"})
    defaults: dict[str, Any] = {"table": "t", "cursor_column": "c", "pk_columns": ["id"], "horizon_wait_seconds": 20}
    return SqlAlchemySource(db_config=config, engine_provider=provider, **{**defaults, **arguments})


# One hour apart, and the same by the clock on a wall in Berlin.
SUMMER, WINTER = "2026-10-25 00:30:00", "2026-10-25 01:30:00"


def stamped(engine: Engine, key: int, utc: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("SET time_zone = '+00:00'")
        connection.exec_driver_sql(f"INSERT INTO t VALUES ({key}, '{utc}', 'x')")


@pytest.mark.parametrize("mode", [{}, {"query": "SELECT * FROM t", "table": None}])
def test_the_hour_that_comes_twice_loses_nothing(
    mode: dict[str, Any], mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp(6) NOT NULL, word varchar(9))")
    found: list[RowChange] = []
    store = MemoryStateStore()

    def poll(zone: str) -> None:
        source = zoned(mariadb_database, zone, provider, name="t", **mode)
        PollTrigger(name="p", source=source, checkpoint_store=store).run(timer=None, handler=found.extend)

    stamped(engine, 5, SUMMER)
    poll("+02:00")
    stamped(engine, 4, "2026-10-25 00:45:00")
    poll("+01:00")
    stamped(engine, 3, WINTER)
    poll("+01:00")
    poll("-08:00")
    assert [change.pk["id"] for change in found] == [5, 4, 3]
    assert found[0].cursor == dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)
    assert store.load_checkpoint("p")["cursor"]["value"] == "2026-10-25T01:30:00.000000Z"


def test_an_id_is_the_same_in_every_zone(mariadb_database: str, engine: Engine, provider: EngineProvider) -> None:
    run(engine, "CREATE TABLE t (id timestamp NOT NULL PRIMARY KEY, c timestamp(3) NOT NULL, word varchar(9))")
    with engine.begin() as connection:
        connection.exec_driver_sql("SET time_zone = '+00:00'")
        connection.exec_driver_sql(f"INSERT INTO t VALUES ('{SUMMER}', '{SUMMER}', 'x'), ('{WINTER}', '{WINTER}', 'y')")
    ids: set[tuple[str, ...]] = set()
    for zone in ("+02:00", "+01:00", "-08:00"):
        found: list[RowChange] = []
        source = zoned(mariadb_database, zone, provider, name="t")
        PollTrigger(name="p", source=source, checkpoint_store=MemoryStateStore()).run(timer=None, handler=found.extend)
        ids.add(tuple(change.event_id for change in found))
    assert [len(told) for told in ids] == [2]


def test_a_local_time_of_an_older_checkpoint_is_understood(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp NOT NULL, word varchar(9))")
    stamped(engine, 1, "2026-06-01 08:00:00")
    stamped(engine, 2, "2026-06-01 09:00:00")
    older = {"kind": "timestamp+pk", "value": "2026-06-01T10:00:00.000000", "tiebreaker": {"id": 1}}
    source = zoned(mariadb_database, "+02:00", provider)
    result = source.fetch_changes({"cursor": older}, 10)
    assert [record["id"] for record in result.records] == [2]
    assert result.next_checkpoint["cursor"]["value"] == "2026-06-01T09:00:00.000000Z"
    assert source.fetch_changes(result.next_checkpoint, 10).records == []


def test_the_ends_of_a_range_are_local_times_of_the_session(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp NOT NULL, word varchar(9))")
    for key in (1, 2, 3, 4):
        stamped(engine, key, f"2026-06-01 0{key}:00:00")
    first, last = (dt.datetime(2026, 6, 1, hour) for hour in (4, 5))  # noqa: DTZ001 - the session says the zone
    some = zoned(mariadb_database, "+02:00", provider).ranged(first, last)
    assert [record["id"] for record in some.fetch_changes({}, 10).records] == [2, 3]


def test_whoever_gets_the_connection_next_finds_its_own_zone(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp NOT NULL, d datetime, word varchar(9))")
    run(engine, "INSERT INTO t VALUES (1, now(), '2026-01-01 10:00:00', 'x')")
    source = zoned(mariadb_database, "-08:00", provider, where="word = 'x'")
    [record] = source.fetch_changes({}, 10).records
    assert record["d"] == dt.datetime(2026, 1, 1, 10)  # noqa: DTZ001 - a column without a zone
    own = provider.get_engine(source._config)
    with own.connect() as connection:
        assert connection.exec_driver_sql("SELECT @@session.time_zone").scalar_one() == "-08:00"


def test_a_connection_that_keeps_the_wrong_zone_is_not_lent_again(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp NOT NULL, word varchar(9))")
    stamped(engine, 1, SUMMER)
    source = zoned(mariadb_database, "-08:00", provider)
    with source._relation.connected() as (_, connection):
        lent = connection.exec_driver_sql("SELECT connection_id()").scalar_one()
        run(engine, f"KILL {lent}")
    assert [record["id"] for record in source.fetch_changes({}, 10).records] == [1]


@pytest.mark.parametrize("mode", [{}, {"query": "SELECT * FROM t", "table": None}, {"columns": ["id"]}])
def test_shares_by_a_moment_are_the_same_in_every_zone(
    mode: dict[str, Any], mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    """Instances in two zones, each with one share, lose no row and read none twice."""
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c integer NOT NULL, seen timestamp(6) NULL)")
    moments = [f"({n}, {n}, '2026-10-25 00:{n:02}:00.000001')" for n in range(1, 40)]
    run(engine, f"INSERT INTO t VALUES {', '.join(moments)}, (40, 40, NULL)")
    shares = [
        zoned(mariadb_database, zone, provider, partition=(index, 2), partition_by="seen", **mode)
        for index, zone in enumerate(("+02:00", "-08:00"))
    ]
    found = [[record["id"] for record in everything(share)] for share in shares]
    assert all(found)
    assert sorted(found[0] + found[1]) == list(range(1, 41))


def test_a_share_by_a_moment_leaves_the_session_its_zone(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    """A cursor without a zone is held against the clock of the zone that its writers mean."""
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c datetime(6) NOT NULL, seen timestamp NOT NULL)")
    with engine.begin() as connection:
        connection.exec_driver_sql("SET time_zone = '+09:00'")
        connection.exec_driver_sql("INSERT INTO t SELECT seq, now(6) - INTERVAL 1 HOUR, now() FROM seq_1_to_9")
    options: dict[str, Any] = {"partition_by": "seen", "settle_seconds": 60, "in_flight": "ignore"}
    shares = [zoned(mariadb_database, "+09:00", provider, partition=(index, 2), **options) for index in range(2)]
    found = [record for share in shares for record in everything(share)]
    assert sorted(record["id"] for record in found) == list(range(1, 10))
    assert {record["seen"].tzinfo for record in found} == {None}


# DATETIME columns, which keep no zone


def test_a_beginning_with_a_zone_is_that_moment_in_utc(
    mariadb_database: str, engine: Engine, provider: EngineProvider
) -> None:
    """Where a moment has to be told without its zone, it is told as `DbWriter` would have stored it."""
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c datetime NOT NULL)")
    run(engine, *(f"INSERT INTO t VALUES ({hour}, '2026-04-07 0{hour}:00:00')" for hour in range(1, 6)))
    three = dt.datetime(2026, 4, 7, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))

    def ids(source: SqlAlchemySource, checkpoint: dict[str, Any] | None = None) -> list[int]:
        return [record["id"] for record in source.fetch_changes(checkpoint or {}, 10).records]

    source = zoned(mariadb_database, "-08:00", provider)
    assert ids(zoned(mariadb_database, "-08:00", provider, start_at=three)) == [3, 4, 5]
    assert ids(zoned(mariadb_database, "-08:00", provider, start_at=(three, 3))) == [4, 5]
    assert ids(source.ranged(three, three + dt.timedelta(hours=1))) == [3, 4]
    assert [record["id"] for record in source.fetch(three, 10)] == [4, 5]
    assert ids(source, source.parse("c=2026-04-07T05:00:00+02:00 id=3")) == [4, 5], "as azfdb reset takes it"
    assert ids(zoned(mariadb_database, "-08:00", provider, start_at=three.replace(tzinfo=None))) == [5]
