"""Nothing is jumped over silently: a position that is gone is told, and gone past only as the policy says."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from azure_functions_db import FetchError, PositionLostError, SourceConfigurationError, SourceInUseError
from azure_functions_db.sources.postgres.pgoutput import lsn_of, lsn_text
from azure_functions_db.sources.postgres.replication import Replication
from tests.integration.postgres_log.scene import COLUMNS, Scene


@pytest.fixture(autouse=True)
def table(scene: Scene) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})")


def cursor(scene: Scene) -> dict[str, Any]:
    written: dict[str, Any] = scene.store.load_checkpoint("poller")["cursor"]
    return written


def confirmed(scene: Scene) -> Any:
    return scene.value("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = :s", s=scene.table)


def alter(scene: Scene, **parts: Any) -> None:
    """Write another position into the poller's checkpoint."""
    lease = scene.store.acquire_lease("poller", 60)
    changed = {**scene.store.load_checkpoint("poller"), "cursor": {**cursor(scene), **parts}}
    scene.store.commit_checkpoint("poller", changed, lease)
    scene.store.release_lease("poller", lease)


@pytest.fixture
def run_once(scene: Scene) -> Any:
    """A source that has delivered one row, the lot that its slot stands for."""
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.delivered(source)
    return source


def test_the_slot_stands_where_the_checkpoint_does_after_a_tick(scene: Scene, run_once: Any) -> None:
    assert confirmed(scene) == cursor(scene)["value"]


def test_the_slot_does_not_move_while_the_handler_fails(scene: Scene, run_once: Any) -> None:
    scene.run("INSERT INTO %t VALUES (2, 'b')")

    def fail(events: Any) -> None:
        raise ValueError("not yet")

    with pytest.raises(Exception, match="not yet"):
        scene.poller(run_once).run(timer=None, handler=fail)
    assert confirmed(scene) == cursor(scene)["value"]
    assert [event.pk["id"] for event in scene.delivered(run_once)] == [2]


def test_a_slot_ahead_of_the_checkpoint_is_a_lost_position(scene: Scene, run_once: Any) -> None:
    scene.run("INSERT INTO %t VALUES (2, 'skipped')")
    scene.run(f"SELECT pg_replication_slot_advance('{scene.table}', pg_current_wal_lsn())")
    with pytest.raises(PositionLostError, match="ahead of the checkpoint"):
        scene.delivered(run_once)
    with pytest.raises(PositionLostError, match="ahead of the checkpoint"):
        run_once.backlog(scene.store.load_checkpoint("poller"))


def test_a_start_older_than_confirmed_is_not_served_from_confirmed(scene: Scene, run_once: Any) -> None:
    alter(scene, value=lsn_text(lsn_of(cursor(scene)["value"]) - 1))
    with pytest.raises(PositionLostError, match="ahead of the checkpoint"):
        scene.delivered(run_once)


def test_a_slot_that_was_dropped_is_a_lost_position_and_says_from_when_to_when(scene: Scene, run_once: Any) -> None:
    run_once.drop_stream()
    with pytest.raises(PositionLostError, match=r"does not exist any more.* after .*Z\) and until .*Z"):
        scene.delivered(run_once)


def test_another_server_under_the_same_name_is_a_lost_position_and_its_slot_is_left_alone(
    scene: Scene, run_once: Any
) -> None:
    before = confirmed(scene)
    alter(scene, system="1", value="F/0")
    with pytest.raises(PositionLostError, match="another server"):
        scene.delivered(run_once)
    assert confirmed(scene) == before


def test_a_server_that_was_restored_to_an_older_state_is_a_lost_position(scene: Scene, run_once: Any) -> None:
    alter(scene, value="F/0")
    with pytest.raises(PositionLostError, match="restored to an older state"):
        scene.delivered(run_once)


def test_with_the_policy_snapshot_the_tables_are_read_anew(scene: Scene, run_once: Any, caplog: Any) -> None:
    run_once.drop_stream()
    scene.run("INSERT INTO %t VALUES (2, 'lost')")
    source = scene.source(snapshot="never", on_position_lost="snapshot")
    with caplog.at_level(logging.ERROR):
        events = scene.delivered(source)
    assert [(event.op, event.pk["id"]) for event in events] == [("upsert", 1), ("upsert", 2)]
    assert all(event.metadata["snapshot"] for event in events)
    assert "position_lost" in caplog.text
    assert "does not exist" in cursor(scene)["gap"]["reason"]
    scene.run("INSERT INTO %t VALUES (3, 'streamed')")
    assert scene.told(source) == [("insert", {"id": 3, "v": "streamed"})]


def test_with_the_policy_continue_the_gap_is_told_and_kept_in_the_state(
    scene: Scene, run_once: Any, caplog: Any
) -> None:
    lost = cursor(scene)["value"]
    run_once.drop_stream()
    scene.run("INSERT INTO %t VALUES (2, 'lost')")
    source = scene.source(on_position_lost="continue")
    with caplog.at_level(logging.ERROR):
        assert scene.told(source) == []
    assert "position_lost" in caplog.text
    assert cursor(scene)["gap"]["from"] == lost
    scene.run("INSERT INTO %t VALUES (3, 'streamed')")
    assert scene.told(source) == [("insert", {"id": 3, "v": "streamed"})]
    assert cursor(scene)["gap"]["from"] == lost


def test_snapshots_after_a_loss_have_ids_of_their_own(scene: Scene, run_once: Any) -> None:
    source = scene.source(on_position_lost="snapshot")
    ids: list[str] = []
    for _ in range(2):
        source.drop_stream()
        ids += [event.event_id for event in scene.delivered(source)]
    assert len(set(ids)) == 2


def test_a_slot_with_another_reader_skips_the_tick_quietly(scene: Scene, run_once: Any) -> None:
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    reader = run_once.open()
    assert scene.told(run_once) == []
    with pytest.raises(SourceInUseError):
        run_once.open()
    reader.close()
    assert scene.told(run_once) == [("insert", {"id": 2, "v": "b"})]


def test_two_readers_by_sql_keep_out_of_each_others_way(scene: Scene) -> None:
    source = scene.streaming(transport="sql")
    reader = source.open()
    with pytest.raises(SourceInUseError):
        source.open()
    reader.close()


def test_a_publication_made_after_the_slot_is_refused_beforehand(scene: Scene) -> None:
    scene.run(f"SELECT pg_create_logical_replication_slot('{scene.table}', 'pgoutput')")
    with pytest.raises(SourceConfigurationError, match="older than the publication"):
        scene.delivered(scene.source())
    with pytest.raises(SourceConfigurationError, match="older than any"):
        scene.source().validate()


@pytest.mark.parametrize("transport", ["stream", "sql"])
def test_a_publication_that_somebody_made_after_the_slot_is_told_and_not_read_as_silence(
    scene: Scene, transport: str
) -> None:
    scene.run(f"SELECT pg_create_logical_replication_slot('{scene.table}', 'pgoutput')")
    scene.each("INSERT INTO %t VALUES (1, 'before')", f"CREATE PUBLICATION {scene.table} FOR TABLE %t")
    scene.run("INSERT INTO %t VALUES (2, 'after')")
    with pytest.raises(SourceConfigurationError, match="made after the slot"):
        scene.delivered(scene.source(snapshot="never", transport=transport))


def test_a_publication_that_is_missing_is_told(scene: Scene, run_once: Any) -> None:
    scene.run(f"DROP PUBLICATION {scene.table}")
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    with pytest.raises(SourceConfigurationError, match=r"Publication .* is missing"):
        scene.delivered(run_once)


@pytest.mark.parametrize("transport", ["stream", "sql"])
def test_a_publication_that_was_missing_for_a_while_is_told(scene: Scene, transport: str) -> None:
    source = scene.streaming(transport=transport)
    scene.each(f"DROP PUBLICATION {scene.table}", "INSERT INTO %t VALUES (1, 'unpublished')")
    scene.each(f"CREATE PUBLICATION {scene.table} FOR TABLE %t", "INSERT INTO %t VALUES (2, 'b')")
    with pytest.raises(SourceConfigurationError, match="dropped for a while"):
        scene.delivered(source)


def test_a_slot_of_another_kind_is_refused(scene: Scene) -> None:
    scene.run(f"CREATE PUBLICATION {scene.table} FOR TABLE %t")
    scene.run(f"SELECT pg_create_physical_replication_slot('{scene.table}')")
    with pytest.raises(SourceConfigurationError, match="choose another"):
        scene.delivered(scene.source())


def test_without_the_right_to_create_a_missing_slot_is_an_error_that_says_what_to_do(scene: Scene) -> None:
    with pytest.raises(SourceConfigurationError, match="azfdb stream create"):
        scene.delivered(scene.source(create=False))


def test_a_checkpoint_of_another_kind_of_source_is_refused(scene: Scene) -> None:
    with pytest.raises(SourceConfigurationError, match="another kind of source"):
        scene.streaming().fetch_changes({"cursor": [1, 2]}, 1)


@pytest.fixture
def trips(run_once: Any, monkeypatch: Any) -> list[str]:
    """What is asked of the server, by statements and by messages of the replication protocol."""
    from sqlalchemy import event

    trips: list[str] = []
    for name in ("__init__", "_start", "_said_farewell", "ask", "acknowledge"):
        monkeypatch.setattr(Replication, name, counted(trips, name, getattr(Replication, name)))
    event.listen(run_once._server().engine, "before_cursor_execute", lambda *call: trips.append(call[2]))
    return trips


def counted(trips: list[str], name: str, method: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        trips.append(name)
        return method(*args, **kwargs)

    return call


def test_an_idle_tick_takes_one_round_trip_and_writes_nothing(scene: Scene, run_once: Any, trips: list[str]) -> None:
    scene.delivered(run_once)  # what the server itself has written since is passed, and remembered as nothing
    before, facts = scene.store.inspect("poller"), Facts()
    del trips[:]
    assert scene.delivered(run_once, observers=[facts]) == []
    assert len(trips) == 1, trips
    assert scene.store.inspect("poller") == before, "not even a lease was taken"
    assert facts.of("stream_health").gauges()["azfdb_stream_lag_bytes"] == 0


def test_an_idle_read_takes_three_round_trips_and_moves_nothing(scene: Scene, run_once: Any, trips: list[str]) -> None:
    reader = run_once.open()
    checkpoint = scene.store.load_checkpoint("poller")
    result = reader.fetch_changes(checkpoint, 10)
    reader.close()
    assert len(trips) - trips.count("__init__") == 3, trips
    assert result.next_checkpoint == {"cursor": checkpoint["cursor"]}


def test_a_tick_that_looks_idle_and_is_not_is_none(scene: Scene, run_once: Any) -> None:
    scene.delivered(run_once)
    scene.delivered(run_once)
    scene.run("INSERT INTO %t VALUES (100, 'z')")
    assert [event.pk for event in scene.delivered(run_once)] == [{"id": 100}]


def test_an_idle_tick_does_what_a_crash_has_left_undone(scene: Scene, run_once: Any, monkeypatch: Any) -> None:
    scene.run("INSERT INTO %t VALUES (100, 'z')")
    with monkeypatch.context() as crash:
        crash.setattr(Replication, "acknowledge", lambda *_: None)
        assert len(scene.delivered(run_once)) == 1
    assert lsn_of(confirmed(scene)) < lsn_of(cursor(scene)["value"])
    assert scene.delivered(run_once) == []
    assert confirmed(scene) == cursor(scene)["value"]


class Facts:
    """Keeps what sources report."""

    def __init__(self) -> None:
        self.facts: list[Any] = []

    def notice(self, signal: Any) -> None:
        if hasattr(signal, "fact"):
            self.facts.append(signal.fact)

    def of(self, name: str) -> Any:
        return next(fact for fact in self.facts if fact.log_event == name)


NOISE = "SELECT pg_logical_emit_message(true, 'noise', repeat('x', 100000)) FROM generate_series(1, 15)"


def test_a_position_that_moved_though_nothing_changed_is_committed_once_it_has_moved_far(scene: Scene) -> None:
    source = scene.streaming(idle_commit_mb=1)
    scene.delivered(source)
    before = scene.store.load_checkpoint("poller")
    assert scene.told(source) == []
    assert scene.store.load_checkpoint("poller") == before
    scene.run(NOISE)
    assert scene.told(source) == []
    assert lsn_of(cursor(scene)["value"]) > lsn_of(before["cursor"]["value"]) + 1_000_000


def test_an_idle_database_beside_a_busy_one_does_not_pin_the_log(scene: Scene) -> None:
    source = scene.streaming(heartbeat_seconds=0, idle_commit_mb=1000)
    scene.delivered(source)
    before = cursor(scene)["value"]
    scene.run(NOISE)
    scene.delivered(source)
    assert lsn_of(cursor(scene)["value"]) > lsn_of(before) + 1_000_000
    assert confirmed(scene) == cursor(scene)["value"]


def test_a_heartbeat_is_committed(scene: Scene) -> None:
    source = scene.streaming()
    source._server().beat()
    options = "'proto_version', '1', 'publication_names', CAST(:slot AS text), 'messages', 'true'"
    peek = f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes(CAST(:slot AS name), NULL, NULL, {options})"
    told = scene.value(peek, slot=scene.table)
    assert told == 3, "a transaction begins, the message, and its commit"


def test_a_heartbeat_is_a_message_in_the_log_and_no_change(scene: Scene) -> None:
    source = scene.streaming(heartbeat_seconds=0)
    assert scene.told(source) == []
    scene.run("SELECT pg_logical_emit_message(true, 'noise', 'x')")
    end = scene.value("SELECT pg_current_wal_insert_lsn()::text")
    assert scene.told(source) == []
    assert lsn_of(scene.value("SELECT pg_current_wal_insert_lsn()::text")) > lsn_of(end)


def test_what_is_asked_beside_the_reader_disturbs_nothing(scene: Scene, run_once: Any) -> None:
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    reader, checkpoint = run_once.open(), scene.store.load_checkpoint("poller")
    assert run_once.backlog(checkpoint).unit == "bytes"
    assert run_once.backlog(checkpoint).amount > 0
    run_once.examine()
    run_once.show_stream()
    run_once.report(checkpoint)
    assert len(reader.fetch_changes(checkpoint, 10).records) == 1
    reader.close()


def test_a_position_can_be_shown_and_typed(scene: Scene, run_once: Any) -> None:
    text = run_once.describe(scene.store.load_checkpoint("poller"))
    assert run_once.parse(text)["cursor"]["value"] == text
    assert run_once.parse("beginning") == {}
    with pytest.raises(SourceConfigurationError, match="no place in the log"):
        run_once.parse("yesterday")


def test_reading_goes_on_from_a_typed_place_though_nothing_comes(scene: Scene, run_once: Any) -> None:
    typed = run_once.parse(run_once.describe(scene.store.load_checkpoint("poller")))
    scene.run("SELECT pg_logical_emit_message(true, 'noise', 'x')")
    result = run_once.fetch_changes(typed, 10)
    assert result.records == []
    assert "at" in result.next_checkpoint["cursor"], "from now on its age is known"


def test_a_slot_that_waits_for_an_open_transaction_says_so(scene: Scene) -> None:
    with scene.engine.connect() as connection:
        connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES (1, 'open')")
        source = scene.source(create_timeout_seconds=0.3, publication=f"{scene.table}_p")
        scene_publication = f"CREATE PUBLICATION {scene.table}_p FOR TABLE {scene.table}"
        connection.rollback()
        scene.run(scene_publication)
        connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES (1, 'open')")
        with pytest.raises(FetchError, match="waits for all transactions"):
            source.create_stream()
        connection.rollback()
    source.create_stream()


@pytest.mark.parametrize(
    "options",
    [
        {"slot": "With-Capitals"}, {"tables": []}, {"tables": ["a", "public.a"]}, {"snapshot": "sometimes"},
        {"on_position_lost": "shrug"}, {"columns": {"other": ["id"]}}, {"max_retained_mb": 0}, {"transport": "pigeon"},
        {"tables": ["a", "b"], "columns": ["id"]},
    ],
)  # fmt: skip
def test_a_definition_that_cannot_work_is_refused_without_a_database(scene: Scene, options: dict[str, Any]) -> None:
    with pytest.raises(SourceConfigurationError):
        scene.source(**options)
    scene.slots = [slot for slot in scene.slots if slot == scene.table]


def test_another_driver_is_refused(scene: Scene) -> None:
    from azure_functions_db import PostgresLogicalSource

    with pytest.raises(SourceConfigurationError, match="psycopg 3"):
        PostgresLogicalSource(url="postgresql+psycopg2://u@h/d", tables="t", slot="s").validate()


LEAVES = {
    "the table": ("ALTER PUBLICATION %t DROP TABLE %t", "ALTER PUBLICATION %t ADD TABLE %t"),
    "an operation": (
        "ALTER PUBLICATION %t SET (publish = 'delete')",
        "ALTER PUBLICATION %t SET (publish = 'insert, update, delete')",
    ),
}


@pytest.mark.parametrize("what", LEAVES)
def test_a_publication_that_left_changes_out_for_a_while_is_a_lost_position(scene: Scene, what: str) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    assert len(scene.delivered(source)) == 1
    leaves, comes_back = LEAVES[what]
    scene.each(leaves, "INSERT INTO %t VALUES (2, 'unpublished')", comes_back, "INSERT INTO %t VALUES (3, 'c')")
    with pytest.raises(PositionLostError, match=r"publication .* was altered"):
        scene.delivered(source)
    assert [event.pk["id"] for event in scene.delivered(scene.source(on_position_lost="snapshot"))] == [1, 2, 3]


REMAKE = "CREATE TABLE %t (id int PRIMARY KEY, v text)"
ELSEWHERE = {
    "dropped from the publication": ["ALTER PUBLICATION %t DROP TABLE %t"],
    "made anew": ["DROP TABLE %t", REMAKE],
    "replaced": ["ALTER TABLE %t RENAME TO %t_old", REMAKE],
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_table_that_is_not_published_any_more_is_told_and_not_read_as_silence(scene: Scene, how: str) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    assert len(scene.delivered(source)) == 1
    scene.each(*ELSEWHERE[how])
    for _ in range(2):
        with pytest.raises(SourceConfigurationError, match="does not publish"):
            scene.delivered(source)


def test_partitions_that_are_published_under_their_own_names_are_told(scene: Scene) -> None:
    scene.each(
        "DROP TABLE %t",
        "CREATE TABLE %t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE %t_1 PARTITION OF %t FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION %t FOR TABLE %t",
    )
    source = scene.source()
    with pytest.raises(SourceConfigurationError, match="does not publish"):
        scene.delivered(source)
    [cure] = [finding.remedy for finding in source.examine() if finding.grade == "error"]
    scene.run(str(cure))
    assert scene.delivered(source) == []
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    assert [event.pk["id"] for event in scene.delivered(source)] == [2]


def test_a_renamed_label_of_an_enum_comes_as_it_was_then(scene: Scene) -> None:
    kind = f"mood_{scene.table}"
    scene.each(f"CREATE TYPE {kind} AS ENUM ('glad', 'sad')", f"ALTER TABLE %t ADD mood {kind}")
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'x', 'glad')", f"ALTER TYPE {kind} RENAME VALUE 'glad' TO 'happy'")
    scene.run("INSERT INTO %t VALUES (2, 'y', 'happy')")
    assert [row["mood"] for _, row in scene.told(source)] == ["glad", "happy"]
