"""The outbox on real databases: who writes when, what is delivered in which order, what is removed."""

from __future__ import annotations

import datetime as dt
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine, event, inspect, make_url, text
from sqlalchemy.orm import Session

from azure_functions_db import (
    AsyncDbSession,
    AsyncDbWriter,
    ConfigurationError,
    DbConfig,
    DbSession,
    DbWriter,
    EngineProvider,
    MemoryStateStore,
    Outbox,
    OutboxSource,
    PollTrigger,
    PositionLostError,
    RowChange,
    SourceConfigurationError,
    processed_once,
)
from azure_functions_db.testing.memory import MemoryQuarantine
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

OUTBOX = Outbox()


@pytest.fixture
def engine(database_url: str, provider: EngineProvider) -> Engine:
    engine = provider.get_engine(DbConfig(connection_url=database_url))
    OUTBOX.create(engine)
    return engine


@pytest.fixture
def overlapping(engine: Engine) -> Engine:
    """A database with transactions that overlap."""
    if engine.dialect.name == "sqlite":
        pytest.skip("its writers take turns")
    return engine


@pytest.fixture
def postgres(postgres_database: str, provider: EngineProvider) -> Engine:
    engine = provider.get_engine(DbConfig(connection_url=postgres_database))
    OUTBOX.create(engine)
    return engine


def source_of(engine: Engine, provider: EngineProvider, **options: Any) -> OutboxSource:
    """A source that is patient: other tests write on the same server."""
    url = engine.url.render_as_string(hide_password=False)
    return OutboxSource(**{"url": url, "engine_provider": provider, "horizon_wait_seconds": 30, **options})


def hasty(engine: Engine, provider: EngineProvider) -> OutboxSource:
    """A source that waits for nobody."""
    return source_of(engine, provider, horizon_wait_seconds=0)


def add(connection: Connection, key: object, payload: Any = None) -> uuid.UUID:
    return OUTBOX.add(connection, topic="orders", key=key, payload=payload)


def commit(engine: Engine, *keys: object) -> None:
    with engine.begin() as connection:
        for key in keys:
            add(connection, key)


def tick(source: OutboxSource | Forgetful, store: MemoryStateStore, **options: Any) -> list[Any]:
    """The keys that one tick delivers."""
    seen: list[RowChange] = []
    settings = {"batch_size": 2, "max_batches_per_tick": 100, **options}
    PollTrigger(name="p", source=source, checkpoint_store=store, **settings).run(timer=None, handler=seen.extend)
    return [(each.after or {})["aggregateid"] for each in seen]


def left(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT aggregateid FROM outbox ORDER BY sequence")).scalars())


# Writing.


def test_an_event_lives_and_dies_with_the_transaction_of_every_writer(engine: Engine, provider: EngineProvider) -> None:
    url = engine.url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY)"))
    with DbWriter(url=url, table="orders", engine_provider=provider) as writer:
        with writer.transaction():
            writer.insert(data={"id": 1})
            OUTBOX.add(writer, topic="orders", key=1, payload={"n": 1})
        with pytest.raises(ZeroDivisionError), writer.transaction():
            OUTBOX.add(writer, topic="orders", key="never", payload={"n": 1})
            raise ZeroDivisionError
    with DbSession(url=url, engine_provider=provider) as session:
        session.writer("orders").insert(data={"id": 2})
        OUTBOX.add(session, topic="orders", key=2, payload={})
    with Session(engine) as orm:
        OUTBOX.add(orm, topic="orders", key=3, payload=[1])
        orm.commit()
        OUTBOX.add(orm, topic="orders", key="never", payload=[1])
        orm.rollback()
    assert left(engine) == ["1", "2", "3"]


async def test_an_event_is_written_by_every_face_that_is_awaited(database_url: str, provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url=database_url))
    OUTBOX.create(engine)
    async with AsyncDbWriter(url=database_url, table="outbox", engine_provider=provider) as writer:
        async with writer.transaction():
            await OUTBOX.add(writer, topic="orders", key="writer", payload={})
        with pytest.raises(ConfigurationError, match="into a transaction"):
            await OUTBOX.add(writer, topic="orders", key="never", payload={})
    async with AsyncDbSession(url=database_url, engine_provider=provider) as session:
        ids = await OUTBOX.add_many(session, [{"topic": "orders", "key": "session", "payload": n} for n in range(2)])
    assert len(set(ids)) == 2
    assert left(engine) == ["writer", "session", "session"]


def test_an_event_outside_of_any_transaction_is_refused(engine: Engine, provider: EngineProvider) -> None:
    url = engine.url.render_as_string(hide_password=False)
    with (
        DbWriter(url=url, table="outbox", engine_provider=provider) as writer,
        pytest.raises(ConfigurationError, match="into a transaction"),
    ):
        OUTBOX.add(writer, topic="orders", key=1, payload={})


def test_a_writer_that_knows_only_the_columns_of_debezium_can_write(engine: Engine, provider: EngineProvider) -> None:
    row = {"id": str(uuid.uuid4()), "payload": '{"n": 1}'}
    statement = (
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (:id, 'o', '7', 't', :payload)"
    )
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            statement = statement.replace(":id", "CAST(:id AS uuid)").replace(":payload", "CAST(:payload AS jsonb)")
        connection.execute(text(statement), row)
    [change] = source_of(engine, provider).fetch_changes({}, 10).records
    assert (change.op, uuid.UUID(change.position), change.key) == ("insert", uuid.UUID(row["id"]), {"aggregateid": "7"})
    assert change.after["payload"] == {"n": 1}


class Order(BaseModel):
    """A model of a user's own."""

    number: int


def test_payloads_and_headers_come_as_they_were_given(engine: Engine, provider: EngineProvider) -> None:
    moment = dt.datetime(2026, 4, 7, tzinfo=dt.UTC)
    payloads: list[Any] = [{"deep": [1, {"a": None}]}, "text", '"quoted"', 5, True, None, [], "ü\u2028"]
    payloads += [{"at": moment}, Order(number=1)]
    common = {"topic": "o", "type": "made", "headers": {"trace": "1"}}
    with engine.begin() as connection:
        OUTBOX.add_many(connection, [{**common, "key": key, "payload": each} for key, each in enumerate(payloads)])
    records = source_of(engine, provider).fetch_changes({}, 100).records
    expected = [*payloads[:-2], {"at": "2026-04-07T00:00:00.000000Z"}, {"number": 1}]
    assert [change.after["payload"] for change in records] == expected
    assert {change.after["type"] for change in records} == {"made"}
    headers = [change.after["headers"] for change in records]
    assert all(each == {"trace": "1"} for each in headers)


def test_a_connection_that_commits_each_statement_is_refused(engine: Engine) -> None:
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(ConfigurationError, match="into a transaction"),
    ):
        add(connection, 1)


def test_a_partition_by_an_unknown_column_is_one_clear_error(engine: Engine, provider: EngineProvider) -> None:
    source = source_of(engine, provider, partition_by="nothing", partition=(0, 2))
    with pytest.raises(SourceConfigurationError, match="partition_by= names 'nothing'"):
        source.validate()


def test_a_partition_by_what_each_session_tells_differently_is_one_clear_error(
    mariadb_database: str, provider: EngineProvider
) -> None:
    engine = provider.get_engine(DbConfig(connection_url=mariadb_database))
    OUTBOX.create(engine)
    source = source_of(engine, provider, partition_by="created_at", partition=(0, 2))
    with pytest.raises(SourceConfigurationError, match="each session tells in its own time zone"):
        source.validate()
    source_of(engine, provider, partition_by="type", partition=(0, 2)).validate()


# The order, and late commits.


def test_a_transaction_that_commits_late_is_waited_for(overlapping: Engine, provider: EngineProvider) -> None:
    source, store = source_of(overlapping, provider), MemoryStateStore()
    with overlapping.connect() as late:
        add(late, "late")
        commit(overlapping, "early")
        assert tick(hasty(overlapping, provider), store) == []
        late.commit()
    assert sorted(tick(source, store)) == ["early", "late"]
    assert left(overlapping) == []


def test_what_a_savepoint_takes_back_never_comes_and_holds_nothing_up(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    with engine.connect() as connection:
        add(connection, 1)
        inner = connection.begin_nested()
        add(connection, "never")
        inner.rollback()
        inner = connection.begin_nested()
        add(connection, 2)
        inner.commit()
        assert tick(hasty(engine, provider), store) == []
        connection.commit()
    assert tick(source, store) == ["1", "2"]


def test_the_order_of_a_key_is_kept_however_early_a_transaction_began(
    postgres: Engine, provider: EngineProvider
) -> None:
    """B takes its transaction id first, but writes about the key after A has committed; C holds the horizon between."""
    source, store = source_of(postgres, provider), MemoryStateStore()
    with postgres.connect() as b, postgres.connect() as c, postgres.connect() as a:
        for connection in (b, c):
            connection.execute(text("SELECT pg_current_xact_id()"))
        first = add(a, "key", "first")
        a.commit()
        second = add(b, "key", "second")
        b.commit()
        assert tick(hasty(postgres, provider), store) == []
        c.commit()
    records = source.fetch_changes({}, 10).records
    assert [uuid.UUID(change.position) for change in records] == [first, second]
    assert tick(source, store) == ["key", "key"]


def test_a_prepared_transaction_is_waited_for(postgres: Engine, provider: EngineProvider) -> None:
    source, store = source_of(postgres, provider), MemoryStateStore()
    if not _may_prepare(postgres):
        pytest.skip("max_prepared_transactions is 0 on this server")
    with postgres.connect() as connection:
        add(connection, "prepared")
        connection.execute(text("PREPARE TRANSACTION 'azfdb_outbox'"))
        connection.commit()
        connection.execution_options(isolation_level="AUTOCOMMIT")
        try:
            commit(postgres, "other")
            assert tick(hasty(postgres, provider), store) == []
        finally:  # left open, it would hold back every test on this server
            connection.execute(text("COMMIT PREPARED 'azfdb_outbox'"))
    assert tick(source, store) == ["prepared", "other"]


def _may_prepare(engine: Engine) -> bool:
    with engine.connect() as connection:
        return int(connection.execute(text("SHOW max_prepared_transactions")).scalar_one()) > 0


def test_a_reader_is_not_held_up_by_those_who_only_read(postgres: Engine, provider: EngineProvider) -> None:
    with postgres.connect() as reader:
        reader.execute(text("SELECT 1 FROM outbox"))
        commit(postgres, 1)
        assert tick(source_of(postgres, provider), MemoryStateStore()) == ["1"]


def test_whoever_holds_the_horizon_is_named(postgres: Engine, provider: EngineProvider) -> None:
    with postgres.connect() as holder, postgres.connect() as younger:
        sessions = []
        for connection in (holder, younger):
            connection.execute(text("SELECT pg_current_xact_id()"))
            sessions.append(str(connection.execute(text("SELECT pg_backend_pid()")).scalar_one()))
        commit(postgres, 1)
        horizon = hasty(postgres, provider).fetch_changes({}, 10).horizon
    assert horizon is not None
    ages = {each.session: each.age_seconds or 0.0 for each in horizon.holders}
    assert 0 < ages[sessions[1]] < ages[sessions[0]]
    assert horizon.age_seconds == max(ages.values())


def test_a_page_is_one_statement_on_postgresql(postgres: Engine, provider: EngineProvider) -> None:
    source = source_of(postgres, provider)
    commit(postgres, *range(10))
    reader = source.open()
    first = reader.fetch_changes({}, 2)
    with _statements(postgres) as statements:
        second = reader.fetch_changes(first.next_checkpoint, 2)
    assert [each.after["aggregateid"] for each in second.records] == ["2", "3"]
    assert len(statements) == 1


@contextmanager
def _statements(engine: Engine) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


# Removing.


def test_delivered_rows_have_gone_and_waiting_ones_have_not(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    commit(engine, *range(5))
    assert tick(source, store, max_batches_per_tick=2) == ["0", "1", "2", "3"]
    assert left(engine) == ["4"]
    assert tick(source, store) == ["4"]
    assert left(engine) == []


def test_a_crash_between_the_handler_and_the_commit_repeats_and_removes_nothing(
    engine: Engine, provider: EngineProvider
) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    commit(engine, 1, 2)

    def crash(_events: list[RowChange]) -> None:
        raise OSError("gone")

    with pytest.raises(Exception, match="gone"):
        PollTrigger(name="p", source=source, checkpoint_store=store).run(timer=None, handler=crash)
    assert left(engine) == ["1", "2"]
    assert tick(source, store) == ["1", "2"]


def test_rows_that_could_not_be_removed_are_removed_by_a_tick_that_has_nothing_to_deliver(
    engine: Engine, provider: EngineProvider
) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    commit(engine, 1, 2, 3)
    assert tick(Forgetful(source), store) == ["1", "2", "3"]
    assert left(engine) == ["1", "2", "3"]
    assert tick(source, store) == []
    assert left(engine) == []
    written = store.load_checkpoint("p")
    assert tick(source, store) == []
    assert store.load_checkpoint("p") == written


class Forgetful:
    """A source whose process ends before it can remove anything."""

    def __init__(self, source: OutboxSource) -> None:
        self.source_descriptor = source.source_descriptor
        self.capability, self.validate, self.close = source.capability, source.validate, source.close
        self.fetch_changes = source.fetch_changes

    def open(self) -> None:
        pass

    def acknowledge(self, _checkpoint: Any) -> None:
        raise OSError("gone")


def test_a_row_that_was_not_delivered_is_not_removed_by_those_behind_it(
    postgres: Engine, provider: EngineProvider
) -> None:
    """A row that commits late has a lower number than one that was delivered and removed."""
    source, store = source_of(postgres, provider), MemoryStateStore()
    with postgres.connect() as early, postgres.connect() as late:
        early.execute(text("SELECT pg_current_xact_id()"))
        add(late, "late")
        add(early, "early")
        early.commit()
        assert tick(source, store) == ["early"]
        late.commit()
    assert left(postgres) == ["late"]
    assert tick(source, store) == ["late"]
    assert left(postgres) == []


def test_rows_before_a_position_that_was_set_by_hand_are_not_removed(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    commit(engine, 1, 2, 3, 4)
    second = source.fetch_changes({}, 2).next_checkpoint
    lease = store.acquire_lease("p", 60)
    store.commit_checkpoint("p", {"cursor": second["cursor"]}, lease)
    store.release_lease("p", lease)
    assert tick(source, store) == ["3", "4"]
    assert left(engine) == ["1", "2"]


def test_a_share_removes_only_its_own_rows(engine: Engine, provider: EngineProvider) -> None:
    whole = source_of(engine, provider)
    whole.acknowledge(whole.fetch_changes({}, 1).next_checkpoint)  # what it made for itself must not serve a share
    commit(engine, *range(20))
    first, second = whole.partitioned(0, 2), whole.partitioned(1, 2)
    mine = tick(first, MemoryStateStore())
    assert 0 < len(mine) < 20
    assert left(engine) == [str(key) for key in range(20) if str(key) not in mine]
    assert sorted(mine + tick(second, MemoryStateStore()), key=int) == [str(key) for key in range(20)]
    assert left(engine) == []


def test_all_events_of_a_key_are_in_one_share(engine: Engine, provider: EngineProvider) -> None:
    for _ in range(3):
        commit(engine, *range(10))
    shares = [tick(source_of(engine, provider, partition=(index, 3)), MemoryStateStore()) for index in range(3)]
    assert sorted(key for share in shares for key in set(share)) == sorted(map(str, range(10)))
    assert all(share.count(key) == 3 for share in shares for key in share)


def test_rows_are_kept_as_long_as_their_retention_says(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider, retention=dt.timedelta(hours=1)), MemoryStateStore()
    commit(engine, 1, 2, 3)
    assert tick(source, store) == ["1", "2", "3"]
    assert left(engine) == ["1", "2", "3"]
    aged = {
        "postgresql": "created_at - interval '2 hours'",
        "mysql": "created_at - INTERVAL 2 HOUR",
        "sqlite": "datetime(created_at, '-2 hours')",
    }[engine.dialect.name]
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE outbox SET created_at = {aged} WHERE aggregateid <> '2'"))
    assert tick(source, store) == []
    assert left(engine) == ["2"]


def test_rows_that_are_kept_for_ever_stay_and_nothing_is_acknowledged(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider, retention=None), MemoryStateStore()
    commit(engine, 1)
    assert not source.capability().acknowledges
    assert tick(source, store) == ["1"]
    assert tick(source, store) == []
    assert left(engine) == ["1"]


def test_where_late_commits_cannot_be_seen_nothing_is_removed(
    mariadb_database: str, mariadb_url: str, provider: EngineProvider, caplog: pytest.LogCaptureFixture
) -> None:
    engine = create_engine(mariadb_database)
    OUTBOX.create(engine)
    commit(engine, 1, 2)
    with _login(mariadb_database, mariadb_url, "SELECT, DELETE") as url:
        source = OutboxSource(url=url, engine_provider=provider, horizon_wait_seconds=0)
        assert tick(source, MemoryStateStore()) == ["1", "2"]
        assert left(engine) == ["1", "2"]
        assert "leaves delivered rows" in caplog.text
        provider.dispose_all()
    engine.dispose()


def test_a_distance_from_the_clock_serves_where_late_commits_cannot_be_seen(
    mariadb_database: str, mariadb_url: str, provider: EngineProvider
) -> None:
    engine = create_engine(mariadb_database)
    OUTBOX.create(engine)
    commit(engine, 1, 2, 3)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_at = created_at - INTERVAL 1 HOUR WHERE sequence < 3"))
    with _login(mariadb_database, mariadb_url, "SELECT, DELETE") as url:
        source = OutboxSource(url=url, engine_provider=provider, settle_seconds=60)
        assert tick(source, MemoryStateStore()) == ["1", "2"]
        assert left(engine) == ["3"]
        provider.dispose_all()
    engine.dispose()


# Positions that are no longer there.


def test_a_position_of_another_server_is_told(engine: Engine, provider: EngineProvider) -> None:
    source = source_of(engine, provider)
    commit(engine, 1)
    ahead = source.fetch_changes({}, 10).next_checkpoint
    ahead["cursor"]["value"] += 10**9
    with pytest.raises(PositionLostError, match="reset the poller"):
        source.fetch_changes(ahead, 10)


def test_rows_of_another_server_are_told(postgres: Engine, provider: EngineProvider) -> None:
    commit(postgres, 1)
    with postgres.begin() as connection:
        connection.execute(text("UPDATE outbox SET position = position + 1000000000"))
    with pytest.raises(PositionLostError, match="another server"):
        source_of(postgres, provider).fetch_changes({}, 10)


# Tables of others.

DEBEZIUM = {
    "postgresql": "CREATE TABLE outboxevent (id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
    "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)",
    "mysql": "CREATE TABLE outboxevent (id char(36) NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
    "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload json)",
}


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_table_made_for_debezium_is_completed_and_consumed(
    database: str, request: pytest.FixtureRequest, provider: EngineProvider
) -> None:
    engine = provider.get_engine(DbConfig(connection_url=request.getfixturevalue(f"{database}_database")))
    insert = (
        "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES ('{}', 'o', '{}', 't', '{{}}')"
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(DEBEZIUM[engine.dialect.name])
        connection.exec_driver_sql(insert.format(uuid.uuid4(), "before"))
    outbox = Outbox("outboxevent", columns={"headers": None, "created_at": None})
    with pytest.raises(SourceConfigurationError, match="azfdb outbox create"):
        source_of(engine, provider, outbox=outbox).validate()
    statements = outbox.create(engine)
    assert all(statement.startswith(("ALTER TABLE", "CREATE INDEX")) for statement in statements)
    assert outbox.create(engine) == []
    with engine.begin() as connection:
        connection.exec_driver_sql(insert.format(uuid.uuid4(), "after"))
    source = source_of(engine, provider, outbox=outbox)
    source.validate()
    assert tick(source, MemoryStateStore()) == ["before", "after"]


def test_our_table_has_the_columns_and_types_that_debezium_documents(postgres: Engine) -> None:
    columns = {each["name"]: str(each["type"]) for each in inspect(postgres).get_columns("outbox")}
    documented = ("id", "aggregatetype", "aggregateid", "type", "payload")
    assert [columns[name] for name in documented] == ["UUID", "VARCHAR(255)", "VARCHAR(255)", "VARCHAR(255)", "JSONB"]


def test_a_layout_of_ones_own_is_read_by_its_mapping(engine: Engine, provider: EngineProvider) -> None:
    number = {"postgresql": "bigserial", "mysql": "bigint AUTO_INCREMENT", "sqlite": "integer"}[engine.dialect.name]
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE events (number {number} PRIMARY KEY, stream varchar(40), subject varchar(40), body text)"
        )
    own = Outbox(
        "events",
        columns={
            "id": "number",
            "sequence": "number",
            "topic": "stream",
            "key": "subject",
            "payload": "body",
            "type": None,
            "headers": None,
            "created_at": None,
            "position": None,
        },
    )
    with engine.begin() as connection:
        own.add(connection, topic="a", key="k", payload={"n": 1})
        own.add(connection, topic="a", key="k", payload=None)
        connection.exec_driver_sql("INSERT INTO events (stream, subject, body) VALUES ('a', 'k', 'no json')")
    source, sink, seen = source_of(engine, provider, outbox=own), MemoryQuarantine(), list[RowChange]()
    settings: dict[str, Any] = {"checkpoint_store": MemoryStateStore(), "quarantine": sink}
    PollTrigger(name="p", source=source, **settings).run(timer=None, handler=seen.extend)
    expected = {"number": 1, "stream": "a", "subject": "k", "body": {"n": 1}}
    assert [each.after for each in seen] == [expected, {**expected, "number": 2, "body": None}]
    assert [row.event["after"]["body"] for row in sink.entries()] == ["no json"]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM events")).scalar() == 0


# The other side.


def test_the_inbox_makes_a_repeated_delivery_harmless(engine: Engine, provider: EngineProvider) -> None:
    url = engine.url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id int)"))
    commit(engine, 1, 2)
    source = source_of(engine, provider)

    def handle(events: list[RowChange]) -> None:
        with (
            processed_once(events, url=url, engine_provider=provider) as new,
            DbWriter(url=url, table="effects", engine_provider=provider) as writer,
        ):
            writer.insert_many(rows=[{"id": int((each.after or {})["aggregateid"])} for each in new])

    for _ in range(2):  # another store: all is delivered twice
        trigger = PollTrigger(name="p", source=Forgetful(source), checkpoint_store=MemoryStateStore())
        trigger.run(timer=None, handler=handle)
    with engine.connect() as connection:
        assert sorted(connection.execute(text("SELECT id FROM effects")).scalars()) == [1, 2]


# Rights, and what a doctor says.


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_writer_needs_to_insert_and_a_poller_to_read_and_delete(
    database: str, request: pytest.FixtureRequest, provider: EngineProvider
) -> None:
    url, server = str(request.getfixturevalue(f"{database}_database")), str(request.getfixturevalue(f"{database}_url"))
    admin = create_engine(url)
    OUTBOX.create(admin)
    with (
        _login(url, server, "INSERT") as writing,
        _login(url, server, "SELECT, DELETE", process=database == "mariadb") as polling,
    ):
        engine = provider.get_engine(DbConfig(connection_url=writing))
        commit(engine, 1, 2)
        source = OutboxSource(url=polling, engine_provider=provider, horizon_wait_seconds=30)
        source.validate()
        assert tick(source, MemoryStateStore()) == ["1", "2"]
        assert left(admin) == []
        assert {one.grade for one in source.examine() if one.check == "late commits"} == {"ok"}
        provider.dispose_all()
    admin.dispose()


@contextmanager
def _login(database: str, server: str, rights: str, *, process: bool = False) -> Iterator[str]:
    """A login with these rights on the outbox alone."""
    url, name = make_url(database), f"u{uuid.uuid4().hex[:12]}"
    is_postgres = url.get_backend_name() == "postgresql"
    user = name if is_postgres else f"'{name}'@'%%'"
    admin = create_engine(url if is_postgres else server, isolation_level="AUTOCOMMIT")
    table = "outbox" if is_postgres else f"{url.database}.outbox"
    with admin.connect() as connection:
        made = (
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret'"
            if is_postgres
            else f"CREATE USER {user} IDENTIFIED BY 'secret'"
        )
        connection.exec_driver_sql(made)
        connection.exec_driver_sql(f"GRANT {rights} ON {table} TO {user}")
        if process:
            connection.exec_driver_sql(f"GRANT PROCESS ON *.* TO {user}")
        try:
            yield url.set(username=name, password="secret").render_as_string(hide_password=False)
        finally:
            if is_postgres:
                connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP {'ROLE' if is_postgres else 'USER'} {user}")
    admin.dispose()


def test_the_doctor_sees_a_position_that_is_no_position(postgres: Engine, provider: EngineProvider) -> None:
    with postgres.begin() as connection:
        connection.execute(text("ALTER TABLE outbox ALTER COLUMN position SET DEFAULT 1"))
    [finding] = [one for one in source_of(postgres, provider).examine() if one.check == "late commits"]
    assert finding.grade == "error"
    assert "transaction ids" in finding.text


def test_many_rows_are_removed_in_steps(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider), MemoryStateStore()
    with engine.begin() as connection:
        OUTBOX.add_many(connection, [{"topic": "o", "key": key, "payload": None} for key in range(2500)])
    assert len(tick(source, store, batch_size=2200, max_batches_per_tick=1)) == 2200
    assert len(left(engine)) == 300
    assert len(tick(Forgetful(source), store, batch_size=200)) == 300
    assert tick(source, store) == []
    assert left(engine) == []


def test_rows_read_at_a_distance_are_kept_as_long_as_their_retention_says(
    mariadb_database: str, provider: EngineProvider
) -> None:
    zoned = DbConfig(connection_url=mariadb_database, connect_args={"init_command": "SET time_zone = '+09:00'"})
    engine = provider.get_engine(zoned)
    OUTBOX.create(engine)
    commit(engine, 1, 2, 3)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_at = created_at - INTERVAL sequence * 60 MINUTE"))
    source = OutboxSource(
        db_config=zoned, engine_provider=provider, settle_seconds=60, retention=dt.timedelta(minutes=150)
    )
    assert tick(source, MemoryStateStore()) == ["3", "2", "1"]
    assert left(engine) == ["1", "2"]


# Places that people type, and what they ask about.


def shown(source: OutboxSource, checkpoint: Any, limit: int = 10) -> list[str]:
    return [change.after["aggregateid"] for change in source.fetch_changes(checkpoint, limit).records]


def rows_of(engine: Engine) -> dict[str, Any]:
    """Return the rows by their keys."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM outbox")).mappings()
        return {row["aggregateid"]: row for row in rows}


def an_hour_apart(engine: Engine, *keys: object) -> list[str]:
    """Write events, and let an hour lie between each and the next; return the times, in UTC."""
    for key in keys:
        commit(engine, key)
    times = [dt.datetime(2026, 4, 7, hour, 30) for hour in range(len(keys))]  # noqa: DTZ001 - the session is in UTC
    with engine.begin() as connection:
        if engine.dialect.name == "mysql":
            connection.execute(text("SET time_zone = '+00:00'"))
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL TimeZone = 'UTC'"))
        for key, moment in zip(keys, times, strict=True):
            written = moment.isoformat(sep=" ", timespec="milliseconds") if engine.dialect.name == "sqlite" else moment
            row = {"at": written, "key": str(key)}
            connection.execute(text("UPDATE outbox SET created_at = :at WHERE aggregateid = :key"), row)
    engine.dispose()  # with the zone of that session
    return [moment.isoformat() for moment in times]


def test_a_place_is_an_id_a_number_or_a_time(engine: Engine, provider: EngineProvider) -> None:
    times, source = an_hour_apart(engine, 1, 2, 3, 4), source_of(engine, provider)
    row = rows_of(engine)["2"]
    assert shown(source, {}) == ["1", "2", "3", "4"]
    assert shown(source, source.parse(str(row["id"]))) == ["3", "4"]
    assert shown(source, source.parse(f" {row['sequence']} ")) == ["3", "4"]
    assert shown(source, source.parse(times[1])) == ["2", "3", "4"], "a time without a zone is in UTC"
    assert shown(source, source.parse("2026-04-07T01:31:00Z")) == ["3", "4"]
    assert shown(source, source.parse("2026-04-07T04:30:00+03:00")) == ["2", "3", "4"]
    assert shown(source, source.parse("beginning")) == ["1", "2", "3", "4"]
    written = source.fetch_changes({}, 3).next_checkpoint
    assert shown(source, source.parse(source.describe(written))) == ["4"]


def test_a_range_is_delivered_again_and_nothing_of_it_removed(engine: Engine, provider: EngineProvider) -> None:
    source = source_of(engine, provider)
    commit(engine, 1)
    shown(source, {})  # what it made for itself must not serve a range
    source.count_rows({})
    for key in (2, 3, 4):
        commit(engine, key)
    rows = rows_of(engine)
    some = source.ranged(source.cursor_from(str(rows["2"]["id"])), source.cursor_from(str(rows["3"]["sequence"])))
    assert not some.capability().acknowledges
    assert tick(some, MemoryStateStore()) == ["2", "3"]
    assert (some.count_changes({}), source.count_changes({})) == (2, 4)
    assert left(engine) == ["1", "2", "3", "4"]


def test_a_range_is_counted_with_the_rows_that_are_held_back(postgres: Engine, provider: EngineProvider) -> None:
    with postgres.connect() as holder:
        holder.execute(text("SELECT pg_current_xact_id()"))
        commit(postgres, 1)
        source, place = hasty(postgres, provider), rows_of(postgres)["1"]["position"]
        assert (source.count_changes({}), source.ranged(place, place).count_changes({})) == (0, 1)


def test_the_cursor_of_a_time_without_rows_is_that_of_the_last(engine: Engine, provider: EngineProvider) -> None:
    source = source_of(engine, provider)
    assert source.cursor_from("2999-01-01") is None
    times = an_hour_apart(engine, 1, 2, 3)
    checkpoint = source.fetch_changes({}, 10).next_checkpoint
    assert source.cursor_from("2999-01-01") == source.cursor_at(checkpoint)
    assert source.cursor_from(times[2]) == source.cursor_at(checkpoint)
    assert source.cursor_from(times[1]) < source.cursor_at(checkpoint)  # type: ignore[operator]


def test_a_place_is_found_whatever_the_zone_of_a_session(mariadb_database: str, provider: EngineProvider) -> None:
    zoned = DbConfig(connection_url=mariadb_database, connect_args={"init_command": "SET time_zone = '+09:00'"})
    engine = create_engine(mariadb_database)
    OUTBOX.create(engine)
    times = an_hour_apart(engine, 1, 2, 3, 4)
    plain = OutboxSource(db_config=zoned, engine_provider=provider)
    by_clock = OutboxSource(db_config=zoned, engine_provider=provider, settle_seconds=60)
    for source in (plain, by_clock):
        assert shown(source, source.parse(times[2])) == ["3", "4"]
        assert shown(source, source.parse("2")) == ["3", "4"]
    assert by_clock.cursor_from("2") == dt.datetime(2026, 4, 7, 1, 30, tzinfo=dt.UTC)
    engine.dispose()


def test_a_place_is_found_by_a_clock_without_a_zone(mariadb_database: str, provider: EngineProvider) -> None:
    engine = provider.get_engine(DbConfig(connection_url=mariadb_database))
    OUTBOX.create(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE outbox MODIFY created_at datetime(6) DEFAULT now(6)"))
    an_hour_apart(engine, 1, 2, 3)
    source = source_of(engine, provider, settle_seconds=1)
    assert source.cursor_from("2") == dt.datetime(2026, 4, 7, 1, 30)  # noqa: DTZ001 - as the column has it
    assert shown(source, source.parse("1")) == ["2", "3"]


def test_the_first_of_rows_that_were_written_at_one_moment_is_not_passed(
    mariadb_database: str, provider: EngineProvider
) -> None:
    engine = provider.get_engine(DbConfig(connection_url=mariadb_database))
    OUTBOX.create(engine)
    commit(engine, 1, 2, 3)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_at = '2026-04-07'"))
    source = source_of(engine, provider, settle_seconds=60)
    assert shown(source, source.parse("2026-04-07T00:00:00")) == ["1", "2", "3"]


def test_the_backlog_is_how_many_wait_and_for_how_long(engine: Engine, provider: EngineProvider) -> None:
    source, store = source_of(engine, provider, retention=None), MemoryStateStore()
    nothing = source.backlog({})
    assert (nothing.amount, nothing.lag_seconds, nothing.horizon, nothing.is_more) == (0, 0.0, None, False)
    commit(engine, 1, 2, 3)
    waiting = source.backlog({})
    assert (waiting.amount, waiting.is_more) == (3, False)
    assert waiting.lag_seconds is not None
    assert 0 <= waiting.lag_seconds < 3600
    assert source.backlog(source.fetch_changes({}, 2).next_checkpoint).amount == 1
    assert len(tick(source, store)) == 3
    done = source.backlog(store.load_checkpoint("p"))
    assert (done.amount, done.lag_seconds) == (0, 0.0)


def test_a_page_says_who_holds_rows_back(overlapping: Engine, provider: EngineProvider) -> None:
    with overlapping.connect() as late:
        add(late, "late")
        commit(overlapping, "early")
        horizon = hasty(overlapping, provider).fetch_changes({}, 10).horizon
        assert horizon is not None
        ages = [holder.age_seconds for holder in horizon.holders if holder.age_seconds is not None]
        assert len(ages) == len(horizon.holders) > 0
        if overlapping.dialect.name == "postgresql":
            assert horizon.age_seconds == max(ages)
        else:  # How long the source has waited; a holder may be older, and MariaDB tells its age in whole seconds.
            assert horizon.age_seconds >= 0


def test_the_backlog_says_who_holds_rows_back(overlapping: Engine, provider: EngineProvider) -> None:
    with overlapping.connect() as late:
        add(late, "late")
        commit(overlapping, "early")
        source = source_of(overlapping, provider)
        # InnoDB makes its list of transactions ten times a second at most.
        wait_for(lambda: source.backlog({}).horizon is not None, 10, "nobody is said to hold rows back")


def test_only_what_was_delivered_and_is_old_enough_is_pruned(engine: Engine, provider: EngineProvider) -> None:
    source = source_of(engine, provider, retention=None)
    commit(engine, 1, 2, 3)
    checkpoint = source.fetch_changes({}, 2).next_checkpoint
    assert source.prune({}, dt.timedelta(0)) == 0
    assert source.prune(checkpoint, dt.timedelta(hours=1)) == 0
    assert source.prune(checkpoint, dt.timedelta(0), dry_run=True) == 2
    assert left(engine) == ["1", "2", "3"]
    assert source.prune(checkpoint, dt.timedelta(0)) == 2
    assert left(engine) == ["3"]


def test_who_looks_gets_what_is_there_and_waits_for_nobody(engine: Engine, provider: EngineProvider) -> None:
    naps: list[float] = []
    source = source_of(engine, provider, sleep=naps.append)
    reader = source.open()
    nothing = reader.look({"removed": {"a": 1}}, 10)
    assert (nothing.records, nothing.next_checkpoint["removed"]) == ([], {"a": 1})
    commit(engine, 1, 2)
    page = reader.fetch_changes({}, 1)
    naps.clear()
    page = reader.look({"cursor": page.next_checkpoint["cursor"]}, 10)
    assert [change.after["aggregateid"] for change in page.records] == ["2"]
    reader.acknowledge(page.next_checkpoint)
    assert left(engine) == ["1"], "whoever gives a place has not read what lies before it"
    if engine.dialect.name != "sqlite":
        with engine.connect() as late:
            add(late, "late")
            commit(engine, "early")
            assert reader.look(page.next_checkpoint, 10).records == []
    assert naps == []


def test_a_tick_waits_for_a_transaction_that_ends_soon(overlapping: Engine, provider: EngineProvider) -> None:
    with overlapping.connect() as late:
        add(late, "late")
        commit(overlapping, "early")
        source = source_of(overlapping, provider, sleep=lambda _seconds: late.commit())
        assert sorted(shown(source, {})) == ["early", "late"]


def test_a_share_whose_rows_are_held_back_returns(overlapping: Engine, provider: EngineProvider) -> None:
    with overlapping.connect() as late:
        add(late, "late")
        commit(overlapping, "early")
        share = source_of(overlapping, provider, partition=(0, 2), horizon_wait_seconds=0)
        assert share.open().look({}, 10).records == []
        assert shown(share, {}) == []


def test_rows_of_a_share_are_found_behind_many_of_others(engine: Engine, provider: EngineProvider) -> None:
    share = source_of(engine, provider, partition=(0, 2))
    mine = [key for key in map(str, range(40)) if share._rows.partition.takes([key])]  # type: ignore[union-attr]
    others = [key for key in map(str, range(40)) if key not in mine]
    commit(engine, *others[:7], mine[0], mine[1], others[7])
    first = share.fetch_changes({}, 1)
    assert [change.after["aggregateid"] for change in first.records] == mine[:1]
    assert first.more
    assert shown(share, first.next_checkpoint) == mine[1:2]
    assert tick(share, MemoryStateStore()) == mine[:2]
    assert left(engine) == others[:8]


def test_a_share_stops_searching_and_says_how_far_it_has_come(
    engine: Engine, provider: EngineProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("azure_functions_db.sources.outbox.rows._SEARCHED_ROWS", 4)
    naps: list[float] = []
    share = source_of(engine, provider, partition=(0, 2), sleep=naps.append)
    partition: Any = share._rows.partition
    others = [key for key in range(40) if not partition.takes([str(key)])]
    [mine, *_] = [key for key in range(40) if partition.takes([str(key)])]
    commit(engine, *others[:10], mine)
    shown(source_of(engine, provider), {})  # nobody is in the way any more
    checkpoint: Any = {}
    for expected in ([], [], [str(mine)]):
        page = share.fetch_changes(checkpoint, 1)
        assert ([change.after["aggregateid"] for change in page.records], page.more) == (expected, not expected)
        checkpoint = page.next_checkpoint
    assert engine.dialect.name != "postgresql" or naps == []


def test_rows_that_can_be_read_do_not_wait_for_those_behind_them(postgres: Engine, provider: EngineProvider) -> None:
    naps: list[float] = []
    commit(postgres, 1)
    source = source_of(postgres, provider, sleep=naps.append)
    assert shown(source, {}) == ["1"]
    with postgres.connect() as late:
        add(late, "late")
        commit(postgres, 2)
        naps.clear()
        assert (shown(source, {}), naps) == (["1"], [])


def test_a_tick_waits_for_others_once(postgres: Engine, provider: EngineProvider) -> None:
    naps: list[float] = []
    with postgres.connect() as late:
        add(late, "late")
        reader = source_of(postgres, provider, clock=lambda: sum(naps), sleep=naps.append).open()
        commit(postgres, "early")
        for waits in (True, False):
            before = len(naps)
            page = reader.fetch_changes({}, 10)
            assert (page.records, page.horizon is not None, len(naps) > before) == ([], waits, waits)


def test_a_share_does_not_wait_for_the_rows_of_others(engine: Engine, provider: EngineProvider) -> None:
    naps: list[float] = []
    share = source_of(engine, provider, partition=(0, 2), sleep=naps.append)
    commit(engine, *(key for key in range(20) if not share._rows.partition.takes([str(key)])))  # type: ignore[union-attr]
    page = share.fetch_changes({}, 10)
    assert (page.records, page.horizon, naps) == ([], None, [])


def test_the_findings_are_about_the_order_of_this_table(engine: Engine, provider: EngineProvider) -> None:
    findings = source_of(engine, provider).examine()
    assert [one.grade for one in findings if one.check == "late commits"] == ["ok"]
    assert len(findings) > 1
    if engine.dialect.name == "postgresql":
        assert "cursor values" not in {one.check for one in findings}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER COLUMN position SET DEFAULT CAST(CAST(pg_current_xact_id() AS text) AS bigint)",
        "ALTER COLUMN position SET DEFAULT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)",
        "ALTER COLUMN position DROP NOT NULL",
    ],
)
def test_the_doctor_sees_a_position_that_can_be_too_low(
    postgres: Engine, provider: EngineProvider, change: str
) -> None:
    with postgres.begin() as connection:
        connection.execute(text(f"ALTER TABLE outbox {change}"))
    [finding] = [one for one in source_of(postgres, provider).examine() if one.check == "late commits"]
    assert finding.grade == "error"


def test_ages_are_told_by_the_clock_whatever_the_zone_of_a_session(
    postgres_database: str, provider: EngineProvider
) -> None:
    zoned = DbConfig(connection_url=postgres_database, connect_args={"options": "-c timezone=Asia/Tokyo"})
    engine = provider.get_engine(zoned)
    OUTBOX.create(engine)
    commit(engine, 1, 2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_at = created_at - interval '2 hours' WHERE sequence = 1"))
    source = OutboxSource(db_config=zoned, engine_provider=provider, retention=dt.timedelta(hours=1))
    assert tick(source, MemoryStateStore()) == ["1", "2"]
    assert left(engine) == ["2"]


def test_ages_are_told_by_a_clock_without_a_zone(mariadb_database: str, provider: EngineProvider) -> None:
    zoned = DbConfig(connection_url=mariadb_database, connect_args={"init_command": "SET time_zone = '+09:00'"})
    engine = provider.get_engine(zoned)
    OUTBOX.create(engine)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE outbox MODIFY created_at datetime(6) DEFAULT now(6)"))
    commit(engine, 1, 2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_at = created_at - INTERVAL 2 HOUR WHERE sequence = 1"))
    source = OutboxSource(db_config=zoned, engine_provider=provider, retention=dt.timedelta(hours=1))
    assert tick(source, MemoryStateStore()) == ["1", "2"]
    assert left(engine) == ["2"]


# Tables that are completed.

BARE = "id char(36) NOT NULL PRIMARY KEY, aggregatetype varchar(9) NOT NULL, aggregateid varchar(9) NOT NULL"


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest, provider: EngineProvider) -> Engine:
    url = request.getfixturevalue(f"{request.param}_database")
    return provider.get_engine(DbConfig(connection_url=url))


def test_whatever_a_table_can_get_is_added(server: Engine, provider: EngineProvider) -> None:
    with server.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE outbox ({BARE}, type varchar(9) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO outbox VALUES ('1', 'a', 'old', 't')")
    statements = OUTBOX.create(server)
    assert sum("UNIQUE" in statement for statement in statements) == (server.dialect.name == "mysql")
    assert sum(one.startswith("CREATE INDEX") for one in statements) == (server.dialect.name == "postgresql")
    commit(server, "new")
    assert tick(source_of(server, provider), MemoryStateStore()) == ["old", "new"]


def test_a_column_that_orders_nothing_is_added_alone(server: Engine) -> None:
    OUTBOX.create(server)
    with server.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE outbox DROP COLUMN headers")
    [statement] = OUTBOX.create(server)
    assert statement.startswith("ALTER TABLE outbox ADD COLUMN headers")


def test_a_table_without_what_every_row_needs_is_no_outbox(server: Engine) -> None:
    with server.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE outbox ({BARE})")
    with pytest.raises(ConfigurationError, match="is no outbox: it has no type\n"):
        OUTBOX.create(server)


def test_an_event_is_written_to_a_table_that_nobody_else_sees_yet(postgres: Engine) -> None:
    own = Outbox("own")
    with postgres.begin() as connection:
        connection.exec_driver_sql(own.ddl("postgresql"))
        own.add(connection, topic="a", key=1, payload=None)
        assert connection.execute(text("SELECT count(*) FROM own WHERE payload IS NULL")).scalar_one() == 1
