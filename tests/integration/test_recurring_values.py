"""Cursor values that are handed out once more after they were read, on every database that the tests have."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, Engine, Integer, MetaData, String, Table, create_engine, event, text

from azure_functions_db import DbConfig, EngineProvider, HandlerError, PollTrigger, RowChange, SqlAlchemySource
from azure_functions_db.sources.keyset.position import MOST_ROWS
from azure_functions_db.state.memory import MemoryStateStore
from tests.conftest import temporary_database

NewSource = Callable[..., SqlAlchemySource]

KINDS = {
    "date": ("date", "'2026-01-01'", "'2026-01-02'"),
    "epoch": ("bigint", "1767225600", "1767225601"),
    "decimal": ("decimal(12, 2)", "1.10", "1.20"),
    "float": ("double precision", "0.1", "0.2"),
    "text": ("varchar(20)", "'batch 1'", "'batch 2'"),
}


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def new_source(database_url: str, provider: EngineProvider) -> NewSource:
    def new_source(**arguments: Any) -> SqlAlchemySource:
        # Whatever runs on MariaDB's server is waited for: patience for what other tests leave behind there.
        defaults: dict[str, Any] = {"cursor_column": "c", "pk_columns": ["id"], "horizon_wait_seconds": 20}
        if "query" not in arguments:
            defaults["table"] = "t"
        return SqlAlchemySource(url=database_url, engine_provider=provider, **{**defaults, **arguments})

    return new_source


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


class Reader:
    """Fetches on from where it stands, with a new source each time."""

    def __init__(self, new_source: Callable[[], SqlAlchemySource]) -> None:
        self.new_source = new_source
        self.checkpoint: dict[str, Any] = {}

    def read(self, limit: int = 10) -> list[tuple[int, str]]:
        result = self.new_source().fetch_changes(json.loads(json.dumps(self.checkpoint)), limit)
        self.checkpoint = result.next_checkpoint
        return [(record["id"], record["word"]) for record in result.records]

    def everything(self, limit: int = 10) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while page := self.read(limit):
            found += page
        return found


TOKYO = dt.timezone(dt.timedelta(hours=9))
THREE = dt.datetime(2026, 4, 7, 3, tzinfo=TOKYO)


@pytest.mark.parametrize("key", [(), (3,)])
@pytest.mark.parametrize(
    ("kind", "start", "arguments"),
    [
        ("timestamp", THREE, {"query": "SELECT * FROM t"}),
        ("timestamptz", THREE.replace(tzinfo=None), {"query": "SELECT * FROM t"}),
        (
            "timestamptz",
            THREE,
            {"table": Table("t", MetaData(), Column("c", DateTime), Column("id", Integer), Column("word", String))},
        ),
    ],
    ids=["a zone too much", "a zone too few", "a zone that the user does not tell"],
)
def test_a_beginning_with_another_zone_than_its_column_misses_nothing(
    kind: str,
    start: dt.datetime,
    arguments: dict[str, Any],
    key: tuple[int, ...],
    postgres_database: str,
    provider: EngineProvider,
) -> None:
    """PostgreSQL converts it by the session's zone; rows that get the newest value later are found all the same."""
    config = DbConfig(connection_url=postgres_database, connect_args={"options": "-c timezone=Asia/Tokyo"})
    engine = provider.get_engine(config)
    run(engine, f"CREATE TABLE t (id integer PRIMARY KEY, c {kind} NOT NULL, word text)")
    run(engine, *(f"INSERT INTO t VALUES ({hour}, '2026-04-07 0{hour}:00', 'x')" for hour in range(1, 6)))
    position: dict[str, Any] = {"cursor_column": "c", "pk_columns": ["id"], "start_at": (start, *key)}
    reader = Reader(lambda: SqlAlchemySource(db_config=config, engine_provider=provider, **position, **arguments))
    assert reader.read() == [(number, "x") for number in (3, 4, 5) if number not in key]
    run(engine, "INSERT INTO t VALUES (0, '2026-04-07 05:00', 'late')")
    assert reader.read() == [(0, "late")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["table", "query"])
@pytest.mark.parametrize("limit", [1, 10])
def test_a_change_that_gets_a_delivered_value_once_more_is_delivered(
    kind: str, mode: str, limit: int, engine: Engine, new_source: NewSource
) -> None:
    declared, value, later = KINDS[kind]
    run(
        engine,
        f"CREATE TABLE t (id integer PRIMARY KEY, c {declared} NOT NULL, word varchar(20))",
        f"INSERT INTO t VALUES (5, {value}, 'five'), (7, {value}, 'seven')",
    )
    arguments = {"query": "SELECT * FROM t"} if mode == "query" else {}
    reader = Reader(lambda: new_source(**arguments))
    assert reader.everything(limit) == [(5, "five"), (7, "seven")]
    run(engine, f"INSERT INTO t VALUES (2, {value}, 'two')")
    assert reader.everything(limit) == [(2, "two")]
    run(engine, f"UPDATE t SET word = 'FIVE', c = {value} WHERE id = 5")
    assert reader.everything(limit) == [(5, "FIVE")]
    run(
        engine,
        f"INSERT INTO t VALUES (1, {value}, 'one'), (9, {value}, 'nine')",
        f"INSERT INTO t VALUES (0, {later}, 'zero')",
    )
    *tied, last = reader.everything(limit)
    assert (sorted(tied), last) == ([(1, "one"), (9, "nine")], (0, "zero"))
    assert reader.read() == []


@pytest.mark.parametrize("seconds", ["sqlite", "postgres", "mariadb"], indirect=False)
def test_a_whole_second_of_a_query_is_read_again(seconds: str, request: pytest.FixtureRequest) -> None:
    """The precision of a query's column is not that of what was stored in it."""
    url = str(request.getfixturevalue(f"{seconds}_database"))
    engine = create_engine(url)
    kind = "datetime(6)" if seconds == "mariadb" else "timestamp"
    run(
        engine,
        f"CREATE TABLE t (id integer PRIMARY KEY, c {kind} NOT NULL, word varchar(20))",
        "INSERT INTO t VALUES (5, '2026-01-01 10:00:00', 'five')",
    )
    provider = EngineProvider()
    reader = Reader(
        lambda: SqlAlchemySource(
            url=url, engine_provider=provider, query="SELECT * FROM t", cursor_column="c", pk_columns=["id"]
        )
    )
    assert reader.everything() == [(5, "five")]
    run(engine, "INSERT INTO t VALUES (2, '2026-01-01 10:00:00', 'two')")
    assert reader.everything() == [(2, "two")]
    provider.dispose_all()
    engine.dispose()


def test_a_row_that_comes_back_with_another_content_has_another_id_and_the_same_one_when_it_fails(
    engine: Engine, new_source: NewSource
) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c date NOT NULL, word varchar(20))",
        "INSERT INTO t VALUES (1, '2026-01-01', 'a')",
    )
    poller = PollTrigger(name="p", source=new_source(), checkpoint_store=MemoryStateStore())
    seen: list[RowChange] = []

    def failing(events: list[RowChange]) -> None:
        seen.extend(events)
        raise ValueError("not today")

    for word in ("b", "a", "b", "a"):
        poller.run(timer=None, handler=seen.extend)
        run(engine, f"UPDATE t SET word = '{word}'")
    with pytest.raises(HandlerError):
        poller.run(timer=None, handler=failing)
    poller.run(timer=None, handler=seen.extend)
    assert [(change.after or {})["word"] for change in seen] == ["a", "b", "a", "b", "a", "a"]
    ids = [change.event_id for change in seen]
    assert len(set(ids)) == 5
    assert ids[-1] == ids[-2]
    assert RowChange(None, seen[0].op, seen[0].source, seen[0].cursor, seen[0].pk).event_id == ids[0]


@pytest.mark.parametrize(
    ("declared", "watched"),
    [
        ("c integer NOT NULL UNIQUE", False),
        ("c integer NOT NULL, UNIQUE (c, word)", True),
        ("c integer NOT NULL", True),
    ],
)
def test_only_a_value_that_is_unique_by_itself_is_not_read_again(
    declared: str, watched: bool, engine: Engine, new_source: NewSource
) -> None:
    run(
        engine,
        f"CREATE TABLE t (id integer PRIMARY KEY, word varchar(20), {declared})",
        "INSERT INTO t (id, word, c) VALUES (1, 'one', 1)",
    )
    assert ("boundary" in new_source().fetch_changes({}, 10).next_checkpoint) is watched
    assert "boundary" not in new_source(in_flight="ignore").fetch_changes({}, 10).next_checkpoint


def test_an_index_on_a_part_of_the_rows_makes_no_value_unique(new_source: NewSource, engine: Engine) -> None:
    if engine.dialect.name == "mysql":
        return  # which has no such index
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, word varchar(20), c integer NOT NULL)",
        "CREATE UNIQUE INDEX by_word ON t (c) WHERE word = 'x'",
        "INSERT INTO t (id, word, c) VALUES (1, 'one', 1)",
    )
    assert "boundary" in new_source().fetch_changes({}, 10).next_checkpoint


def test_a_checkpoint_of_an_older_version_repeats_nothing_and_is_watched_from_the_next_value_on(
    engine: Engine, new_source: NewSource
) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c date NOT NULL, word varchar(20))",
        "INSERT INTO t VALUES (4, '2026-01-01', 'four'), (5, '2026-01-01', 'five')",
    )
    reader = Reader(new_source)
    reader.everything()
    del reader.checkpoint["boundary"]
    assert reader.read() == []
    run(engine, "INSERT INTO t VALUES (9, '2026-01-02', 'nine')")
    assert reader.everything() == [(9, "nine")]
    run(engine, "INSERT INTO t VALUES (1, '2026-01-02', 'one')")
    assert reader.everything() == [(1, "one")]


def test_who_begins_now_gets_what_comes_later_today(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c date NOT NULL, word varchar(20))",
        "INSERT INTO t VALUES (4, '2026-01-01', 'four'), (5, '2026-01-01', 'five')",
    )
    reader = Reader(lambda: new_source(start_at="now"))
    assert reader.read() == []
    run(engine, "INSERT INTO t VALUES (1, '2026-01-01', 'one')", "UPDATE t SET word = 'FIVE' WHERE id = 5")
    assert reader.everything() == [(1, "one"), (5, "FIVE")]


def test_too_many_rows_of_one_value_are_told_once_and_read_as_before(
    engine: Engine, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    count = MOST_ROWS + 500
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c date NOT NULL, word varchar(20))")
    with engine.begin() as connection:
        rows = [{"id": number, "c": "2026-01-01", "word": "w"} for number in range(count)]
        connection.execute(text("INSERT INTO t VALUES (:id, :c, :word)"), rows)
    source = new_source()
    reader = Reader(lambda: source)
    with caplog.at_level(logging.WARNING):
        assert len(reader.everything(400)) == count
    told = [record for record in caplog.records if "rows of one c" in record.getMessage()]
    assert len(told) == 1
    run(engine, "INSERT INTO t VALUES (-1, '2026-01-02', 'next')")
    assert reader.everything(400) == [(-1, "next")]
    run(engine, "INSERT INTO t VALUES (-2, '2026-01-02', 'again')")
    assert reader.everything(400) == [(-2, "again")]


def test_an_added_column_repeats_what_is_at_the_boundary_once_at_most(engine: Engine, new_source: NewSource) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c date NOT NULL, word varchar(20))",
        "INSERT INTO t VALUES (5, '2026-01-01', 'five')",
    )
    source = new_source()
    reader = Reader(lambda: source)
    reader.everything()
    run(engine, "ALTER TABLE t ADD COLUMN more integer DEFAULT 3")
    assert reader.read() == [(5, "five")]
    assert reader.read() == []


@pytest.mark.parametrize("count", [1, 50])
def test_a_page_costs_one_statement_and_an_idle_look_two_at_most(
    count: int, database_url: str, engine: Engine, provider: EngineProvider
) -> None:
    run(
        engine,
        "CREATE TABLE t (id integer PRIMARY KEY, c bigint NOT NULL, word varchar(20))",
        "CREATE INDEX by_c ON t (c, id)",
        f"INSERT INTO t VALUES {', '.join(f'({n}, {n // count}, 0)' for n in range(400))}",
    )
    source = SqlAlchemySource(
        url=database_url,
        engine_provider=provider,
        table="t",
        cursor_column="c",
        pk_columns=["id"],
        horizon_wait_seconds=20,
    )
    asked: list[str] = []
    own = provider.get_engine(source._config)
    event.listen(own, "before_cursor_execute", lambda _c, _cursor, statement, *_rest: asked.append(statement))
    reader = Reader(lambda: source)
    reader.read(100)
    asked.clear()
    reader.read(60)
    assert len(asked) == 1
    reader.everything(60)
    asked.clear()
    assert reader.read(60) == []
    assert 1 <= len(asked) <= 2


def test_texts_that_the_collation_takes_for_the_same_are_neither_lost_nor_repeated(mariadb_url: str) -> None:
    provider = EngineProvider()
    with temporary_database(mariadb_url, "DROP DATABASE {name}") as url:
        engine = create_engine(url)
        run(
            engine,
            "CREATE TABLE t (id integer PRIMARY KEY, c varchar(20) COLLATE utf8mb4_general_ci, word varchar(20))",
            "INSERT INTO t VALUES (1, 'ß', 'a'), (2, 's', 'b'), (3, 'S', 'c'), (4, 'ß', 'd')",
        )
        reader = Reader(
            lambda: SqlAlchemySource(url=url, engine_provider=provider, table="t", cursor_column="c", pk_columns=["id"])
        )
        assert {key for key, _ in reader.everything(1)} == {1, 2, 3, 4}
        run(engine, "INSERT INTO t VALUES (0, 'ß', 'e')")
        assert reader.everything(2) == [(0, "e")]
        engine.dispose()
        provider.dispose_all()


@pytest.mark.parametrize(
    ("declared", "arguments", "grade", "word"),
    [
        ("integer UNIQUE", {}, "ok", "unique"),
        ("integer", {}, "ok", "read again"),
        ("date", {}, "ok", "read again"),
        ("integer", {"in_flight": "ignore"}, "note", "plain polling"),
    ],
)
def test_a_check_up_says_what_is_done_about_values_that_come_again(
    declared: str, arguments: dict[str, Any], grade: str, word: str, engine: Engine, new_source: NewSource
) -> None:
    run(engine, f"CREATE TABLE t (id integer PRIMARY KEY, c {declared})")
    assert found_by(new_source(**arguments)) == (grade, word)


def found_by(source: SqlAlchemySource) -> tuple[str, str]:
    [found] = [finding for finding in source.checkup() if finding.check == "cursor values"]
    words = ("more than 1,000", "max() + 1", "unique", "ripens", "read again", "plain polling")
    return found.grade, next(word for word in words if word in found.text)


def test_a_check_up_tells_of_a_stamp_and_of_a_crowd(engine: Engine, new_source: NewSource) -> None:
    run(engine, "CREATE TABLE t (id integer PRIMARY KEY, c timestamp NOT NULL, n integer)")
    assert found_by(new_source())[1] == ("read again" if engine.dialect.name == "sqlite" else "ripens")
    with engine.begin() as connection:
        rows = [{"id": number} for number in range(MOST_ROWS + 1)]
        connection.execute(text("INSERT INTO t VALUES (:id, '2026-01-01 00:00:00', 1)"), rows)
    assert found_by(new_source(cursor_column="n")) == ("warning", "more than 1,000")


COUNTED = "UPDATE versions SET newest = newest + 1; UPDATE t SET c = (SELECT newest FROM versions) WHERE id = NEW.id"
HIGHEST = 'UPDATE t SET c = (SELECT Max( "c" ) + 1 FROM t) WHERE id = NEW.id'


@pytest.mark.parametrize(("taken", "grade"), [(COUNTED, "ok"), (HIGHEST, "warning")])
def test_a_trigger_that_counts_hands_out_no_version_twice_and_the_other_one_is_found(
    taken: str, grade: str, sqlite_database: str, provider: EngineProvider
) -> None:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE versions (newest INTEGER NOT NULL)",
            "INSERT INTO versions VALUES (0)",
            "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, c INTEGER NOT NULL DEFAULT 0 UNIQUE)",
            f"CREATE TRIGGER created AFTER INSERT ON t BEGIN {taken}; END",
            f"CREATE TRIGGER changed AFTER UPDATE OF word ON t BEGIN {taken}; END",
            "INSERT INTO t (id, word) VALUES (1, 'one')",
            "INSERT INTO t (id, word) VALUES (2, 'two')",
        ):
            connection.exec_driver_sql(statement)
    source = SqlAlchemySource(
        url=sqlite_database,
        engine_provider=provider,
        table="t",
        cursor_column="c",
        pk_columns=["id"],
        horizon_wait_seconds=20,
    )
    assert found_by(source)[0] == grade
    reader = Reader(lambda: source)
    assert reader.everything() == [(1, "one"), (2, "two")]
    run(engine, "DELETE FROM t WHERE id = 2", "UPDATE t SET word = 'changed' WHERE id = 1")
    assert reader.everything() == ([(1, "changed")] if taken is COUNTED else [])
    engine.dispose()
