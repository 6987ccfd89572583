"""The rows that are there come first, then the changes: none is missing, and the last word on a row is its newest."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from sqlalchemy import create_engine

from azure_functions_db import FetchError, RowChange, SourceConfigurationError
from tests.integration.postgres_log.scene import COLUMNS, Scene, mirrored


@pytest.fixture(autouse=True)
def table(scene: Scene) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})")


def test_rows_that_are_there_come_in_the_order_of_their_keys_and_say_so(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (2, 'b'), (1, 'a'), (3, 'c')")
    events = scene.delivered(scene.source(), batch_size=2)
    assert [(event.op, event.pk["id"], event.metadata["snapshot"]) for event in events] == [
        ("upsert", 1, True), ("upsert", 2, True), ("upsert", 3, True),
    ]  # fmt: skip
    assert len({event.event_id for event in events}) == 3


def test_changes_after_the_rows_are_not_marked_as_rows(scene: Scene) -> None:
    source = scene.source()
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    scene.delivered(source)
    scene.run("UPDATE %t SET v = 'b'")
    [event] = scene.delivered(source)
    assert (event.op, "snapshot" in event.metadata) == ("update", False)


def test_a_crash_repeats_one_page_of_rows_and_not_all(scene: Scene) -> None:
    scene.run("INSERT INTO %t SELECT n, 'x' FROM generate_series(1, 10) n")
    source, calls = scene.source(), list[list[Any]]()

    def crash(events: list[RowChange]) -> None:
        calls.append([event.pk["id"] for event in events])
        if len(calls) == 3:
            raise OSError("killed")

    with pytest.raises(Exception, match="killed"):
        scene.poller(source, batch_size=2).run(timer=None, handler=crash)
    rest = [event.pk["id"] for event in scene.delivered(source, batch_size=2)]
    assert calls == [[1, 2], [3, 4], [5, 6]]
    assert rest == [5, 6, 7, 8, 9, 10]


def test_a_repeated_row_has_the_same_id(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    source, ids = scene.source(), list[str]()

    def crash(events: list[RowChange]) -> None:
        ids.extend(event.event_id for event in events)
        raise OSError("killed")

    with pytest.raises(Exception, match="killed"):
        scene.poller(source).run(timer=None, handler=crash)
    assert [event.event_id for event in scene.delivered(source)] == ids


def test_keys_of_several_columns_and_odd_types_are_paged_exactly(scene: Scene) -> None:
    scene.each(
        "DROP TABLE %t",
        "CREATE TABLE %t (a text, b timestamptz, c numeric, PRIMARY KEY (b, a, c))",
        "INSERT INTO %t SELECT chr(97 + n % 3) || '%', timestamptz '2026-01-01' + (n / 5) * interval '1 microsecond', "
        "n / 10.0 FROM generate_series(1, 40) n",
    )
    events = scene.delivered(scene.source(), batch_size=3)
    wanted = [tuple(row.values()) for row in scene.rows("SELECT b, a, c FROM %t ORDER BY b, a, c")]
    assert [tuple(event.pk.values()) for event in events] == wanted


def test_rows_of_several_tables_come_one_table_after_the_other_and_a_crash_goes_on_in_the_right_one(
    scene: Scene,
) -> None:
    other, empty = f"{scene.table}_b", f"{scene.table}_c"
    scene.run(f"CREATE TABLE {other} ({COLUMNS})", f"CREATE TABLE {empty} ({COLUMNS})")
    scene.run("INSERT INTO %t VALUES (1, 'a'), (2, 'b')", f"INSERT INTO {other} VALUES (1, 'a'), (2, 'b')")
    source = scene.source(tables=[empty, scene.table, other])
    told: list[tuple[str, Any]] = []
    while events := scene.delivered(source, batch_size=1, max_batches_per_tick=1):
        told += [(event.metadata["table"], event.pk["id"]) for event in events]
    assert told == [
        (f"public.{scene.table}", 1),
        (f"public.{scene.table}", 2),
        (f"public.{other}", 1),
        (f"public.{other}", 2),
    ]


def test_without_a_snapshot_only_changes_come(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    assert scene.told(source) == [("insert", {"id": 2, "v": "b"})]


def test_a_snapshot_alone_needs_no_slot_and_ends(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    source = scene.source(snapshot="only")
    told = scene.told(source)
    scene.run("INSERT INTO %t VALUES (2, 'b')")
    told += scene.told(source)
    assert told == [("upsert", {"id": 1, "v": "a"})]
    assert scene.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = :slot", slot=scene.table) == 0


def test_a_table_without_a_key_cannot_be_read_in_pages_and_says_so(scene: Scene) -> None:
    scene.each("DROP TABLE %t", "CREATE TABLE %t (v text)", "ALTER TABLE %t REPLICA IDENTITY FULL")
    with pytest.raises(SourceConfigurationError, match="no primary key"):
        scene.delivered(scene.source())


def test_what_was_committed_before_the_rows_were_read_does_not_come_again(scene: Scene) -> None:
    source = scene.source()
    source.create_stream()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET v = 'b'")
    told = scene.told(source)
    scene.run("INSERT INTO %t VALUES (2, 'c')")
    told += scene.told(source)
    assert told == [("upsert", {"id": 1, "v": "b"}), ("insert", {"id": 2, "v": "c"})]


def test_what_commits_while_rows_are_read_comes_after_them(scene: Scene) -> None:
    scene.run("INSERT INTO %t SELECT n, 'old' FROM generate_series(1, 4) n")
    source, calls = scene.source(), list[list[tuple[str, Any, str]]]()

    def change(events: list[RowChange]) -> None:
        if not calls:
            scene.run("UPDATE %t SET v = 'new' WHERE id IN (1, 4)")
        calls.append([(event.op, event.pk["id"], (event.after or {})["v"]) for event in events])

    scene.poller(source, batch_size=2).run(timer=None, handler=change)
    rest = scene.told(source)
    assert calls == [[("upsert", 1, "old"), ("upsert", 2, "old")], [("upsert", 3, "old"), ("upsert", 4, "old")]]
    assert rest == [("update", {"id": 1, "v": "new"}), ("update", {"id": 4, "v": "new"})]


def test_a_transaction_that_is_open_while_the_slot_is_made_is_neither_lost_nor_told_twice(scene: Scene) -> None:
    source = scene.source()
    source.create_stream()
    writer = create_engine(scene.url)
    with writer.connect() as connection:
        connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES (1, 'late')")
        assert scene.told(source) == []  # it may have written its commit without being visible: wait for its end
        connection.commit()
    writer.dispose()
    assert scene.told(source) == [("upsert", {"id": 1, "v": "late"})]


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_changes_join_without_a_gap_and_without_a_repetition_while_writers_are_at_work(
    scene: Scene, seed: int
) -> None:
    """Ids are given once, so each row must come exactly once, as a row or as an insert."""
    stop, rng, written = threading.Event(), random.Random(seed), list[int]()
    writers = [threading.Thread(target=write, args=(scene, w, stop, rng.randint(0, 9), written)) for w in range(3)]
    for writer in writers:
        writer.start()
    source = scene.source()
    wait_until_written(written, 20)
    events: list[RowChange] = []
    while len(events) < 40:
        events += scene.delivered(source)
    stop.set()
    for writer in writers:
        writer.join()
    events += scene.delivered(source)
    ids = [event.pk["id"] for event in events]
    assert sorted(ids) == sorted(row["id"] for row in scene.rows())  # type: ignore[type-var]
    mirror: dict[Any, Any] = {}
    mirrored(events, mirror)
    assert len(mirror) == len(ids)


def write(scene: Scene, number: int, stop: threading.Event, seed: int, written: list[int]) -> None:
    rng, engine = random.Random(seed + number), create_engine(scene.url)
    count = 0
    while not stop.is_set():
        with engine.connect() as connection:
            for _ in range(rng.randint(1, 3)):
                count += 1
                nested = connection.begin_nested()
                connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES ({number * 1_000_000 + count}, 'x')")
                nested.rollback() if rng.random() < 0.2 else nested.commit()
            time.sleep(rng.random() / 100)
            connection.rollback() if rng.random() < 0.2 else connection.commit()
            written.append(count)
    engine.dispose()


def wait_until_written(written: list[int], count: int) -> None:
    from tests.support.waiting import wait_for

    wait_for(lambda: len(written) >= count, 60, "the writers do not write")


def test_a_failure_stays_noted_while_a_snapshot_goes_on_until_something_is_handled(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a')")
    source, noted = scene.source(), list[bool]()

    def fail(_: list[RowChange]) -> None:
        noted.append("failure" in (scene.store.load_checkpoint("poller").get("metadata") or {}))
        raise OSError("out of reach")

    for _ in range(2):
        with pytest.raises(Exception, match="out of reach"):
            scene.poller(source).run(timer=None, handler=fail)
        scene.run("UPDATE %t SET v = 'b'")
    scene.delivered(source)
    assert noted == [False, True]
    assert "failure" not in (scene.store.load_checkpoint("poller").get("metadata") or {})


def test_a_connection_that_is_cut_between_two_pages_of_rows_costs_one_more_try(scene: Scene) -> None:
    """As a tick does it: the same reader is asked for the same page."""
    scene.run("INSERT INTO %t SELECT i, 'a' FROM generate_series(1, 4) i")
    reader = scene.source().open()
    page = reader.fetch_changes({}, 2)
    scene.run(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    with pytest.raises(FetchError) as cut:
        reader.fetch_changes(page.next_checkpoint, 2)
    assert cut.value.transient
    again = reader.fetch_changes(page.next_checkpoint, 2)
    reader.close()
    assert [change.key["id"] for change in (*page.records, *again.records)] == [1, 2, 3, 4]


def test_rows_that_their_filter_fails_on_are_one_clear_error(scene: Scene) -> None:
    scene.run("INSERT INTO %t VALUES (1, 'a'), (2, 'b')")
    reader = scene.source(row_filter="1 / (id - 2) < 5").open()
    with pytest.raises(FetchError, match="division by zero"):
        reader.fetch_changes({}, 2)
    reader.close()
