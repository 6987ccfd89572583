"""Rows that are stamped early and committed late: each way, one by one."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from azure_functions_db import DbConfig, EngineProvider, SqlAlchemySource
from azure_functions_db.sources.keyset.horizon import SavedHorizon, written
from tests.integration.traffic import create_table
from tests.support.visitors import visitor

Session = Callable[[], Connection]
NewSource = Callable[..., SqlAlchemySource]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A database whose tables belong to the superuser; the poller logs in as somebody who may only read."""
    found = str(request.getfixturevalue(getattr(request, "param", "postgres_database")))
    create_table(found)
    return found


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with ExitStack() as sessions:
        yield lambda: sessions.enter_context(engine.connect())


@pytest.fixture
def poller_url(url: str, engine: Engine) -> Iterator[str]:
    """The URL of an ordinary role that may read the table and nothing else."""
    if engine.dialect.name != "postgresql":
        yield url
        return
    role = make_url(url).database
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'reads'"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"))
    yield make_url(url).set(username=role, password="reads").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP OWNED BY {role}"))
        connection.execute(text(f"DROP ROLE {role}"))


@pytest.fixture
def new_source(poller_url: str, provider: EngineProvider) -> NewSource:
    def new_source(cursor: str = "stamp", **options: Any) -> SqlAlchemySource:
        return SqlAlchemySource(
            url=poller_url,
            cursor_column=cursor,
            pk_columns=["id"],
            engine_provider=provider,
            **{"table": "changes", "horizon_wait_seconds": 0.3, **options},
        )

    return new_source


def insert(connection: Connection, stamp: Any = None, number: int | None = None) -> int:
    columns, values = ["version", "stamp"], ["1", ":stamp" if isinstance(stamp, dt.datetime) else stamp or "now()"]
    if number is not None:
        columns, values = ["id", *columns], [str(number), *values]
    statement = f"INSERT INTO changes ({', '.join(columns)}) VALUES ({', '.join(values)})"
    parameters = {"stamp": stamp} if isinstance(stamp, dt.datetime) else {}
    if connection.dialect.name == "postgresql":
        return int(connection.execute(text(f"{statement} RETURNING id"), parameters).scalar_one())
    return int(connection.execute(text(statement.replace("now()", "now(6)")), parameters).lastrowid)


class Poll:
    """Fetches on from where it stands."""

    def __init__(self, source: SqlAlchemySource, limit: int = 100) -> None:
        self.source = source
        self.limit = limit
        self.checkpoint: dict[str, Any] = {}

    def __call__(self) -> list[int]:
        result = self.source.fetch_changes(self.checkpoint, self.limit)
        self.checkpoint = result.next_checkpoint
        self.horizon = result.horizon
        return sorted(record["id"] for record in result.records)


class Hands:
    """A clock that moves when somebody sleeps, and by a hair with every look."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        self.at += 0.001
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def stamped_by_now(connection: Connection) -> dict[str, Any]:
    connection.execute(text("SELECT 1"))
    return {"stamp": "now()"}


def stamped_by_clock(connection: Connection) -> dict[str, Any]:
    return {"stamp": connection.execute(text("SELECT clock_timestamp()")).scalar_one()}


def stamped_by_client(connection: Connection) -> dict[str, Any]:
    connection.execute(text("SELECT 1"))
    return {"stamp": dt.datetime.now(dt.UTC)}


def numbered_by_sequence(connection: Connection) -> dict[str, Any]:
    return {"number": connection.execute(text("SELECT nextval('changes_id_seq')")).scalar_one()}


STAMPS = [
    (stamped_by_now, "stamp"),
    (stamped_by_clock, "stamp"),
    (stamped_by_client, "stamp"),
    (numbered_by_sequence, "id"),
]


@pytest.mark.parametrize(("take", "cursor"), STAMPS)
def test_a_transaction_that_took_its_stamp_long_before_its_first_write_is_waited_for(
    session: Session, new_source: NewSource, take: Callable[[Connection], dict[str, Any]], cursor: str
) -> None:
    early, late = session(), session()
    taken = take(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source(cursor))

    assert poll() == []  # the row is there, but an earlier one may follow
    first = insert(early, **taken)
    assert poll() == []
    early.commit()
    assert poll() == sorted([first, second])


@pytest.mark.parametrize(("take", "cursor"), STAMPS)
def test_plain_polling_loses_that_row(
    session: Session, new_source: NewSource, take: Callable[[Connection], dict[str, Any]], cursor: str
) -> None:
    early, late = session(), session()
    taken = take(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source(cursor, in_flight="ignore"))

    assert poll() == [second]
    insert(early, **taken)
    early.commit()
    assert poll() == []


def test_a_fresh_process_is_as_careful(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    assert Poll(new_source())() == []
    early.commit()
    assert Poll(new_source())() == [first, second]


def test_what_was_settled_before_is_delivered_while_others_are_waited_for(
    session: Session, new_source: NewSource
) -> None:
    settled, early = session(), session()
    first = insert(settled)
    settled.commit()
    poll = Poll(new_source())
    assert poll() == [first]
    insert(early)
    second = insert(settled)
    settled.commit()
    assert poll() == []
    early.rollback()
    assert poll() == [second]


def test_a_transaction_that_began_later_is_not_waited_for(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source())
    assert poll() == []
    insert(late)  # begins after the second row was seen, and stays open
    early.rollback()
    assert poll() == [second]


def test_savepoints_belong_to_their_transaction(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    early.execute(text("SAVEPOINT a"))
    insert(early)
    early.execute(text("ROLLBACK TO SAVEPOINT a"))
    early.execute(text("SAVEPOINT b"))
    kept = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source("id"))
    assert poll() == []
    early.commit()
    assert poll() == [kept, second]


@pytest.mark.parametrize("prepared_when", ["before the look", "between two looks"])
def test_a_prepared_transaction_is_waited_for(session: Session, new_source: NewSource, prepared_when: str) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source())
    if prepared_when == "between two looks":
        assert poll() == []
    early.execute(text(f"PREPARE TRANSACTION '{prepared_when}'"))
    early.commit()
    assert poll() == []
    assert poll() == []
    assert poll.horizon is not None
    assert poll.horizon.holders[0].session.startswith("prepared")
    early.connection.driver_connection.autocommit = True  # type: ignore[union-attr]
    early.exec_driver_sql(f"COMMIT PREPARED '{prepared_when}'")
    assert poll() == [first, second]


def test_sessions_of_other_databases_do_not_count(session: Session, new_source: NewSource, postgres_url: str) -> None:
    elsewhere = create_engine(postgres_url)
    with elsewhere.connect() as other:
        other.execute(text("SELECT pg_current_xact_id()"))
        here = session()
        row = insert(here)
        here.commit()
        assert Poll(new_source())() == [row]
    elsewhere.dispose()


def test_whoever_holds_the_horizon_is_named(session: Session, new_source: NewSource, url: str) -> None:
    idle, writer = session(), session()
    idle.execute(text("SELECT 1"))
    pid = idle.execute(text("SELECT pg_backend_pid()")).scalar_one()
    insert(writer)
    writer.commit()
    poll = Poll(new_source())
    assert poll() == []
    assert poll.horizon is not None
    (holder,) = poll.horizon.holders
    assert holder.session == str(pid)
    assert holder.user == make_url(url).username
    assert holder.age_seconds is not None
    assert poll.horizon.age_seconds > 0


def test_an_idle_session_delays_only_up_to_the_cap(
    session: Session, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    idle, writer = session(), session()
    idle.execute(text("SELECT 1"))
    row = insert(writer)
    writer.commit()
    poll = Poll(new_source(horizon_cap_seconds=0.6))
    assert poll() == []
    with caplog.at_level(logging.WARNING):
        delivered = poll() or poll()
    assert delivered == [row]
    assert "no longer waits for session" in caplog.text


def test_a_session_that_has_written_is_waited_for_beyond_the_cap(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source(horizon_cap_seconds=0.1))
    assert poll() == []
    assert poll() == []
    early.commit()
    assert poll() == [first, second]


def test_a_session_that_was_passed_by_is_told_of_once_and_delays_no_further_row(
    session: Session, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    idle, writer = session(), session()
    idle.execute(text("SELECT 1"))
    now = Hands()
    poll = Poll(new_source(horizon_cap_seconds=60, clock=now, sleep=now.sleep))
    delivered: list[int] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            row = insert(writer, "clock_timestamp()")
            writer.commit()
            delivered += poll()
            now.sleep(61)
            delivered += poll()
            assert row in delivered
    following = insert(writer, "clock_timestamp()")
    writer.commit()
    assert poll() == [following]
    assert caplog.text.count("no longer waits for session") == 1


def test_a_session_that_has_written_is_abandoned_only_where_that_is_wanted(
    session: Session, new_source: NewSource, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    holder, writer = session(), session()
    pid = holder.execute(text("SELECT pg_backend_pid() FROM pg_current_xact_id()")).scalar_one()
    row = insert(writer)
    writer.commit()
    now = Hands()
    patient = Poll(new_source(clock=now, sleep=now.sleep))
    hasty = Poll(new_source(clock=now, sleep=now.sleep, horizon_abandon_seconds=3600))
    assert (patient(), hasty()) == ([], [])
    now.sleep(3601)
    assert (patient(), hasty()) == ([], [row])
    told = f"no longer waits for session {pid} of {make_url(url).username}, which has written something"
    assert caplog.text.count(told) == 1


# With a process for each tick


class Processes(Poll):
    """Fetches each time with a source of its own; only the checkpoint is handed on, as JSON."""

    def __init__(self, new_source: NewSource, **options: Any) -> None:
        super().__init__(new_source(**options))
        self.new_source, self.options = new_source, options

    def __call__(self) -> list[int]:
        self.source = self.new_source(**self.options)
        self.checkpoint = json.loads(json.dumps(self.checkpoint))
        return super().__call__()


def test_the_cap_counts_from_the_first_process_on(
    session: Session, new_source: NewSource, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    idle, writer = session(), session()
    idle.execute(text("SELECT 1"))
    row = insert(writer)
    writer.commit()
    poll = Processes(new_source, horizon_cap_seconds=1.5)
    assert poll() == []
    recorded = poll.checkpoint["horizon"]
    assert until(poll, [row]) == [row]
    # The database's clock is told by each process's own, within the time that a statement takes.
    assert poll.checkpoint["horizon"]["passed"] == pytest.approx(recorded["waits"], abs=1)
    following = insert(writer, "clock_timestamp()")
    writer.commit()
    assert poll() == [following]
    assert caplog.text.count("no longer waits for session") == 1


def test_transactions_that_overlap_without_end_do_not_starve_a_process_per_tick(
    session: Session, new_source: NewSource
) -> None:
    first, second, writer = session(), session(), session()
    first.execute(text("SELECT 1"))
    row = insert(writer)
    writer.commit()
    poll = Processes(new_source)
    assert poll() == []
    second.execute(text("SELECT 1"))
    assert poll() == []
    first.rollback()
    assert poll() == [row]


def test_what_is_remembered_is_written_once(session: Session, new_source: NewSource) -> None:
    holder, other, writer = session(), session(), session()
    insert(holder)
    insert(writer)
    writer.commit()
    poll = Processes(new_source)
    assert poll() == []
    recorded = poll.checkpoint
    insert(other)
    insert(writer)
    writer.commit()
    assert poll() == []
    assert poll.checkpoint == recorded
    holder.commit()
    assert len(poll()) == 2
    assert poll.checkpoint["horizon"]["waits"].keys() != recorded["horizon"]["waits"].keys()


def test_a_late_row_is_not_lost_over_a_change_of_process(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Processes(new_source, horizon_cap_seconds=0.1)
    assert poll() == []
    early.execute(text("PREPARE TRANSACTION 'between two processes'"))
    early.commit()
    assert poll() == []
    early.connection.driver_connection.autocommit = True  # type: ignore[union-attr]
    early.exec_driver_sql("COMMIT PREPARED 'between two processes'")
    assert poll() == [first, second]


@pytest.mark.parametrize(
    "part",
    [
        None, 7, "x", [], {}, {"server": "1"}, {"server": "1", "bound": None, "waits": {"3/1": "x"}, "passed": {}},
        {"server": "1", "bound": {"type": "timestamp", "value": "?"}, "waits": {}, "passed": {}},
        {"server": "another", "bound": 1, "ties": 1, "waits": {"3/1": 0}, "passed": {"3/1": 0}},
    ],
)  # fmt: skip
def test_a_memory_that_cannot_be_understood_is_none(session: Session, new_source: NewSource, part: Any) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Processes(new_source, horizon_cap_seconds=0.1)
    poll.checkpoint = {"horizon": part}
    assert poll() == []
    early.commit()
    assert poll() == [first, second]


def test_a_crowd_is_not_written_down(engine: Engine, new_source: NewSource) -> None:
    crowd = SavedHorizon(server="1", bound=1, waits={f"{i}/123456": 0.0 for i in range(400)})
    assert written(crowd) is None


@pytest.mark.parametrize("settle_seconds", [None, 0.1])
def test_a_row_from_the_future_does_not_hide_those_before_it(
    session: Session, new_source: NewSource, settle_seconds: float | None
) -> None:
    writer = session()
    ahead = insert(writer, dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2))
    writer.commit()
    poll = Poll(new_source(settle_seconds=settle_seconds))
    assert poll() == []
    behind = insert(writer, "clock_timestamp()")
    writer.commit()
    delivered: list[int] = []
    while ahead not in delivered:
        delivered += poll()
    assert sorted(delivered) == sorted([ahead, behind])


def test_a_time_of_day_with_a_zone_is_no_moment_to_wait_for(engine: Engine, new_source: NewSource) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE changes ADD at timetz DEFAULT '23\\:59\\:59+00'"))
        row = insert(connection)
    assert Poll(new_source("at"))() == [row]


def test_now_is_not_a_row_from_the_future(session: Session, new_source: NewSource) -> None:
    writer = session()
    insert(writer)
    insert(writer, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    writer.commit()
    poll = Poll(new_source(start_at="now"))
    assert poll() == []
    following = insert(writer, "clock_timestamp()")
    writer.commit()
    assert poll() == [following]


def test_now_comes_after_the_transactions_that_are_running(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    insert(early)
    insert(late)
    late.commit()
    waits = list[float]()

    def end_the_early_one(seconds: float) -> None:
        waits.append(seconds)
        early.commit()

    poll = Poll(new_source(start_at="now", sleep=end_the_early_one))
    assert poll() == []
    assert waits
    following = insert(late, "clock_timestamp()")
    late.commit()
    assert poll() == [following]


def test_a_now_that_cannot_wait_says_for_whom(
    session: Session, new_source: NewSource, caplog: pytest.LogCaptureFixture
) -> None:
    early, late = session(), session()
    pid = early.execute(text("SELECT pg_backend_pid()")).scalar_one()
    insert(late)
    late.commit()
    assert Poll(new_source(start_at="now"))() == []
    assert f'begins "now" while transactions are running (sessions {pid})' in caplog.text


# Several rows of one cursor value

SERVERS = pytest.mark.parametrize("url", ["postgres_database", "mariadb_database"], indirect=True)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def write(connection: Connection, number: int, minutes: int = 0) -> int:
    insert(connection, NOON + dt.timedelta(minutes=minutes), number)
    return number


def until(poll: Poll, wanted: list[int]) -> list[int]:
    """Poll on until these rows have come: nobody is in the way for ever."""
    found: list[int] = []
    for _ in range(50):
        if set(wanted) <= set(found):
            break
        found += poll()
    return found


@SERVERS
def test_a_row_that_joins_a_value_already_delivered_waits_for_a_smaller_one(
    session: Session, new_source: NewSource
) -> None:
    early, late = session(), session()
    write(late, 1)
    late.commit()
    poll = Poll(new_source())
    assert until(poll, [1]) == [1]
    write(early, 3)
    write(late, 5)
    late.commit()
    assert poll() == []
    early.commit()
    assert until(poll, [5]) == [3, 5]


@SERVERS
def test_rows_that_join_a_value_which_waits_wait_for_those_who_run_by_then(
    session: Session, new_source: NewSource
) -> None:
    reader, early, late = session(), session(), session()
    reader.execute(text("SELECT * FROM changes")).all()
    write(late, 9)
    late.commit()
    poll = Poll(new_source(horizon_wait_seconds=1))
    assert poll() == []
    write(early, 5)
    write(late, 7)
    late.commit()
    assert poll() == []
    reader.rollback()
    assert poll() == []
    early.commit()
    assert until(poll, [9]) == [5, 7, 9]


def test_a_writer_that_takes_a_value_once_more_while_it_waits_is_waited_for(
    session: Session, new_source: NewSource
) -> None:
    reader, early, late = session(), session(), session()
    reader.execute(text("SELECT 1"))
    write(late, 8)
    write(late, 9)
    late.commit()
    poll = Poll(new_source())
    assert poll() == []
    write(early, 5)
    assert poll() == []
    reader.rollback()
    assert poll() == []
    early.commit()
    assert until(poll, [9]) == [5, 8, 9]


@SERVERS
def test_a_backlog_is_read_up_to_the_last_value_but_not_at_it(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    for number in (1, 2, 3, 10):
        write(late, number, minutes=number)
    late.commit()
    source = new_source(horizon_wait_seconds=1)
    poll = Poll(source, limit=2)
    assert until(poll, [1, 2]) == [1, 2]
    write(early, 5, minutes=10)
    write(late, 7, minutes=10)
    late.commit()
    assert poll() == [3]
    assert poll() == []
    early.commit()
    assert sorted(until(poll, [10])) == [5, 7, 10]


# MariaDB


@pytest.mark.parametrize("url", ["mariadb_database"], indirect=True)
@pytest.mark.parametrize("cursor", ["stamp", "id"])
def test_on_mariadb_a_late_commit_is_waited_for(session: Session, new_source: NewSource, cursor: str) -> None:
    early, late = session(), session()
    first = insert(early)
    second = insert(late)
    late.commit()
    poll = Poll(new_source(cursor, horizon_wait_seconds=1))
    assert poll() == []
    assert poll.horizon is not None
    assert poll.horizon.holders
    early.commit()
    poll.source = new_source(cursor, horizon_wait_seconds=20)
    assert poll() == [first, second]


@pytest.mark.parametrize("url", ["mariadb_database"], indirect=True)
def test_on_mariadb_a_stamp_taken_before_the_first_write_counts(session: Session, new_source: NewSource) -> None:
    early, late = session(), session()
    early.execute(text("SELECT id FROM changes LIMIT 1"))
    stamp = early.execute(text("SELECT now(6)")).scalar_one()
    second = insert(late)
    late.commit()
    poll = Poll(new_source(horizon_wait_seconds=1))
    assert poll() == []
    first = insert(early, stamp)
    assert poll() == []
    early.commit()
    poll.source = new_source(horizon_wait_seconds=20)
    assert sorted(poll()) == sorted([first, second])


@pytest.mark.parametrize("url", ["mariadb_database"], indirect=True)
def test_without_the_privilege_the_source_says_so_and_reads_on(
    url: str, provider: EngineProvider, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    row = insert(writer := session())
    writer.commit()
    with visitor(url, f"SELECT ON {make_url(url).database}.*") as reader, caplog.at_level(logging.WARNING):
        source = SqlAlchemySource(
            url=reader, table="changes", cursor_column="stamp", pk_columns=["id"], engine_provider=provider
        )
        poll = Poll(source)
        assert poll() == [row]
        following = insert(writer)
        writer.commit()
        assert poll() == [following]
        assert caplog.text.count("PROCESS") == 1
        assert source.late_commit_grade() == "none"


@pytest.mark.parametrize("asked", ["table", "query"])
@pytest.mark.parametrize("url", ["mariadb_database"], indirect=True)
@pytest.mark.parametrize(
    ("grade", "statement"),
    [
        ("exact", "CREATE VIEW seen AS SELECT * FROM changes WHERE version > 0"),
        ("exact", "CREATE TABLE seen LIKE changes"),
        ("none", "CREATE TABLE seen ENGINE=Aria SELECT * FROM changes"),
        ("none", "CREATE TABLE seen ENGINE=MyISAM SELECT * FROM changes"),
        ("none", "CREATE VIEW seen AS SELECT * FROM changes UNION ALL SELECT * FROM changes"),
        ("none", "CREATE VIEW seen AS SELECT id + 0 AS id, version, stamp FROM changes"),
    ],
)
def test_on_mariadb_only_tables_with_transactions_are_exact(
    engine: Engine, new_source: NewSource, grade: str, statement: str, asked: str
) -> None:
    with engine.begin() as connection:
        insert(connection)
        insert(connection)
        connection.execute(text(statement))
    assert new_source("id", **ASKED[asked]).late_commit_grade() == grade


# Values that are handed out again until their unit is over

COARSE = [
    ("postgres_database", "ALTER stamp TYPE timestamptz(0)", "SET TIME ZONE 'UTC'"),
    ("postgres_database", "ALTER stamp TYPE timestamp(0)", "SET TIME ZONE 'America/Los_Angeles'"),
    ("mariadb_database", "MODIFY stamp datetime NOT NULL", "SET time_zone = '+00:00'"),
    ("mariadb_database", "MODIFY stamp datetime(1) NOT NULL", "SET time_zone = '+00:00'"),
    ("mariadb_database", "MODIFY stamp datetime NOT NULL", "SET time_zone = '-08:00'"),
]


@pytest.mark.parametrize("asked", [{}, {"table": None, "query": "SELECT * FROM changes"}], ids=["table", "query"])
@pytest.mark.parametrize(("url", "column", "zone"), COARSE, indirect=["url"])
def test_a_coarse_stamp_is_passed_once_its_unit_is_over(
    engine: Engine, session: Session, new_source: NewSource, asked: dict[str, Any], column: str, zone: str
) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE changes {column}"))
    writer = session()
    writer.exec_driver_sql(zone)
    # Rounded up, as PostgreSQL would do it, a stamp is not due yet for half a second.
    stamp = "date_trunc('second', clock_timestamp())" if engine.dialect.name == "postgresql" else None
    insert(writer, stamp, number=5)
    writer.commit()
    poll = Poll(new_source(horizon_wait_seconds=20, **asked))
    delivered = poll()
    insert(writer, stamp, number=3)
    writer.commit()
    assert sorted(delivered + poll()) == [3, 5]


# Elsewhere


def test_a_distance_from_the_clock_where_nothing_else_helps(sqlite_database: str, provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url=sqlite_database))
    now = dt.datetime.now(dt.UTC)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE changes (id integer PRIMARY KEY, stamp datetime)"))
        for number, seconds in ((1, 60), (2, 0)):
            stamp = (now - dt.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")
            connection.execute(text("INSERT INTO changes VALUES (:i, :s)"), {"i": number, "s": stamp})
    options: dict[str, Any] = {"table": "changes", "pk_columns": ["id"], "engine_provider": provider}
    source = SqlAlchemySource(url=sqlite_database, cursor_column="stamp", settle_seconds=30, **options)
    assert [record["id"] for record in source.fetch_changes({}, 5).records] == [1]
    assert source.late_commit_grade() == "settled"
    assert SqlAlchemySource(url=sqlite_database, cursor_column="id", **options).late_commit_grade() == "exact"


def test_where_the_database_cannot_tell_it_is_said_once(
    sqlite_database: str, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    engine = provider.get_engine(DbConfig(connection_url=sqlite_database))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE changes (id integer PRIMARY KEY, stamp datetime)"))
    options: dict[str, Any] = {"table": "changes", "pk_columns": ["id"], "engine_provider": provider}
    source = SqlAlchemySource(url=sqlite_database, cursor_column="stamp", **options)
    with caplog.at_level(logging.WARNING):
        source.fetch_changes({}, 1)
        source.fetch_changes({}, 1)
    assert caplog.text.count("may miss rows that commit late") == 1
    assert source.late_commit_grade() == "none"


@pytest.mark.parametrize("cache", [1, 20])
@pytest.mark.parametrize("kind", ["bigserial", "bigint GENERATED ALWAYS AS IDENTITY", "bigint DEFAULT nextval('own')"])
def test_a_sequence_that_sessions_take_numbers_ahead_from_is_warned_of(
    engine: Engine, poller_url: str, provider: EngineProvider, caplog: pytest.LogCaptureFixture, kind: str, cache: int
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE own"))
        connection.execute(text(f'CREATE TABLE "Odd ""name" (number {kind}, id int)'))
        sequence = "own" if "own" in kind else '"Odd ""name_number_seq"'
        connection.execute(text(f"ALTER SEQUENCE {sequence} CACHE {cache}"))
        connection.execute(text('INSERT INTO "Odd ""name" (id) VALUES (1)'))
        connection.execute(text('GRANT SELECT ON "Odd ""name" TO PUBLIC'))
    source = SqlAlchemySource(
        url=poller_url, table='Odd "name', cursor_column="number", pk_columns=["id"], engine_provider=provider
    )
    assert source.late_commit_grade() == ("exact" if cache == 1 else "none")
    assert ("20 numbers at a time" in caplog.text) is (cache == 20)
    assert len(source.fetch_changes({}, 10).records) == 1
    with engine.begin() as connection:
        connection.execute(text(f"ALTER SEQUENCE {sequence} CACHE 50"))
    assert source.late_commit_grade() == "none"
    assert caplog.text.count("50 numbers at a time") == 1


PROVED = {
    "a view": "CREATE VIEW seen AS SELECT * FROM changes WHERE version > 0",
    "a view of a view": "CREATE VIEW inner_one AS TABLE changes; CREATE VIEW seen AS TABLE inner_one",
    "a join": "CREATE VIEW seen AS SELECT c.*, o.id AS other FROM changes c JOIN changes o USING (version)",
    "a union": "CREATE VIEW seen AS TABLE changes UNION ALL TABLE changes",
    "an inheritance parent": "CREATE TABLE seen (LIKE changes); ALTER TABLE changes INHERIT seen",
    "a partitioned table": (
        "CREATE TABLE seen (LIKE changes) PARTITION BY LIST (version);"
        "CREATE TABLE part PARTITION OF seen FOR VALUES IN (1); CREATE TABLE rest PARTITION OF seen DEFAULT"
    ),
}
FOREIGN = "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;"
NOT_PROVED = {
    "a materialized view": "CREATE MATERIALIZED VIEW seen AS TABLE changes",
    "a view of one": "CREATE MATERIALIZED VIEW kept AS TABLE changes; CREATE VIEW seen AS TABLE kept",
    "a foreign table": (
        f"{FOREIGN} CREATE FOREIGN TABLE seen (id bigint, version int, stamp timestamptz)"
        " SERVER files OPTIONS (filename '/dev/null')"
    ),
    "a foreign partition": (
        f"{FOREIGN} CREATE TABLE seen (LIKE changes) PARTITION BY LIST (version);"
        "CREATE FOREIGN TABLE far PARTITION OF seen DEFAULT SERVER files OPTIONS (filename '/dev/null')"
    ),
    "a computed cursor": (
        "CREATE VIEW seen AS SELECT id + 0 AS id, version, stamp - interval '0' AS stamp FROM changes"
    ),
    "an aggregate": (
        "CREATE VIEW seen AS SELECT max(id) AS id, version, max(stamp) AS stamp FROM changes GROUP BY version"
    ),
    "a function": (
        "CREATE FUNCTION rows() RETURNS SETOF changes LANGUAGE plpgsql AS 'BEGIN RETURN QUERY TABLE changes; END';"
        "CREATE VIEW seen AS SELECT * FROM rows()"
    ),
}
ASKED: dict[str, dict[str, Any]] = {"table": {"table": "seen"}, "query": {"table": None, "query": "SELECT * FROM seen"}}


@pytest.fixture
def behind(request: pytest.FixtureRequest, engine: Engine, poller_url: str) -> str:
    """Something to poll that is not a plain table."""
    with engine.begin() as connection:
        connection.exec_driver_sql((PROVED | NOT_PROVED)[request.param])
        connection.exec_driver_sql("GRANT SELECT ON seen TO PUBLIC")
    return str(request.param)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("cursor", ["id", "stamp"])
@pytest.mark.parametrize("behind", [*PROVED, *NOT_PROVED], indirect=True)
def test_only_what_can_be_proved_is_called_exact(
    new_source: NewSource, caplog: pytest.LogCaptureFixture, behind: str, cursor: str, asked: str
) -> None:
    grade = "exact" if behind in PROVED else "none"
    source = new_source(cursor, **ASKED[asked])
    for _ in range(2):
        source.fetch_changes({}, 1)
    assert caplog.text.count("may miss rows that commit late") == (grade == "none")
    assert source.late_commit_grade() == grade


@pytest.mark.parametrize("behind", NOT_PROVED, indirect=True)
def test_what_cannot_be_proved_is_settled_by_a_distance(new_source: NewSource, behind: str) -> None:
    settled, plain = new_source(settle_seconds=1, **ASKED["table"]), new_source(**ASKED["table"])
    assert settled.late_commit_grade() == "settled"
    for source, grade in ((settled, "ok"), (plain, "warning")):
        [found] = [finding for finding in source.checkup() if finding.check == "late commits"]
        assert found.grade == grade
        assert "(it" in found.text  # why


def test_a_partitioned_table_without_partitions_is_exact(
    engine: Engine, poller_url: str, new_source: NewSource
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (LIKE changes) PARTITION BY LIST (version)")
        connection.exec_driver_sql("GRANT SELECT ON seen TO PUBLIC")
    assert new_source(table="seen").late_commit_grade() == "exact"


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("behind", ["a view", "a join", "a union", "an inheritance parent"], indirect=True)
def test_a_cached_sequence_is_found_behind_whatever_is_read(
    engine: Engine, new_source: NewSource, behind: str, asked: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER SEQUENCE changes_id_seq CACHE 20")
    assert new_source("id", **ASKED[asked]).late_commit_grade() == "none"
    assert new_source("stamp", **ASKED[asked]).late_commit_grade() == "exact"


@pytest.mark.parametrize("way", ["CYCLE", "INCREMENT BY -1 MINVALUE -9 MAXVALUE 100"])
def test_a_sequence_that_does_not_only_grow_is_not_called_exact(
    engine: Engine, new_source: NewSource, way: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER SEQUENCE changes_id_seq {way}")
    assert new_source("id").late_commit_grade() == "none"
    assert new_source("stamp").late_commit_grade() == "exact"
