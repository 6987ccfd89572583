"""What is written to a table arrives as changes."""

from __future__ import annotations

import datetime as dt

import pytest
from sqlalchemy import event

from azure_functions_db import DbConfig, FetchError, PollTrigger, RowChange, SourceConfigurationError
from azure_functions_db.core.errors import DbConnectionError
from tests.integration.postgres_log.scene import COLUMNS, Scene, mirrored


@pytest.fixture(autouse=True)
def table(scene: Scene) -> None:
    scene.run(f"CREATE TABLE %t ({COLUMNS})")


def test_inserts_updates_and_deletes_come_in_the_order_of_their_commits(scene: Scene) -> None:
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET v = 'b'", "DELETE FROM %t")
    assert scene.told(source) == [
        ("insert", {"id": 1, "v": "a"}),
        ("update", {"id": 1, "v": "b"}),
        ("delete", {"id": 1}),
    ]


def test_a_change_tells_its_table_its_transaction_and_when_it_was_committed(scene: Scene) -> None:
    source = scene.streaming()
    scene.run("INSERT INTO %t VALUES (1, 'a')", "INSERT INTO %t VALUES (2, 'b')")
    first, second = scene.delivered(source)
    assert first.metadata["table"] == f"public.{scene.table}"
    assert first.metadata["transaction"] == second.metadata["transaction"]
    assert [first.metadata["order"], second.metadata["order"]] == [1, 2]
    assert isinstance(first.metadata["committed_at"], dt.datetime)


def test_what_was_rolled_back_never_comes(scene: Scene) -> None:
    source = scene.streaming()
    with scene.engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES (1, 'kept')")
        nested = connection.begin_nested()
        connection.exec_driver_sql(f"INSERT INTO {scene.table} VALUES (2, 'taken back')")
        nested.rollback()
    assert scene.told(source) == [("insert", {"id": 1, "v": "kept"})]


def test_a_changed_key_is_a_delete_and_an_insert_of_one_transaction(scene: Scene) -> None:
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET id = 2")
    _, gone, come = scene.delivered(source)
    assert [(gone.op, dict(gone.pk)), (come.op, dict(come.pk))] == [("delete", {"id": 1}), ("insert", {"id": 2})]
    assert gone.metadata["transaction"] == come.metadata["transaction"]
    assert gone.event_id != come.event_id


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_changed_key_is_split_over_batches_without_losing_a_half(scene: Scene, identity: str) -> None:
    scene.run(f"ALTER TABLE %t REPLICA IDENTITY {identity}")
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET id = 2", "UPDATE %t SET id = 3")
    told = scene.told(source, batch_size=1, max_batches_per_tick=1)
    while more := scene.told(source, batch_size=1, max_batches_per_tick=1):
        told += more
    assert [(op, row["id"]) for op, row in told] == [
        ("insert", 1), ("delete", 1), ("insert", 2), ("delete", 2), ("insert", 3),
    ]  # fmt: skip


def test_the_full_row_before_comes_where_the_table_says_so(scene: Scene) -> None:
    scene.run("ALTER TABLE %t REPLICA IDENTITY FULL")
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET v = 'b'", "DELETE FROM %t")
    _, updated, deleted = scene.delivered(source)
    assert [updated.before, deleted.before] == [{"id": 1, "v": "a"}, {"id": 1, "v": "b"}]
    assert [dict(updated.pk), dict(deleted.pk)] == [{"id": 1}, {"id": 1}]


def test_a_truncated_table_is_told_once_and_without_a_key(scene: Scene) -> None:
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "TRUNCATE %t")
    truncated = scene.delivered(source)[-1]
    assert (truncated.op, dict(truncated.pk), truncated.after) == ("truncate", {}, None)


def test_tables_truncated_together_are_told_apart_even_over_batches(scene: Scene) -> None:
    other = f"{scene.table}_b"
    scene.run(f"CREATE TABLE {other} ({COLUMNS})")
    source = scene.streaming(tables=[scene.table, other])
    scene.each(f"TRUNCATE %t, {other}", "INSERT INTO %t VALUES (1, 'a')")
    events = scene.delivered(source, batch_size=1)
    assert sorted(event.metadata["table"] for event in events[:2]) == [f"public.{scene.table}", f"public.{other}"]
    assert [event.op for event in events] == ["truncate", "truncate", "insert"]
    assert len({event.event_id for event in events}) == 3


def test_changes_of_several_tables_come_in_the_order_of_their_commits(scene: Scene) -> None:
    other = f"{scene.table}_b"
    scene.run(f"CREATE TABLE {other} ({COLUMNS})")
    source = scene.streaming(tables=[scene.table, other])
    scene.each(f"INSERT INTO {other} VALUES (1, 'a')", "INSERT INTO %t VALUES (2, 'a')", f"DELETE FROM {other}")
    told = [(event.metadata["table"], event.op) for event in scene.delivered(source)]
    assert told == [(f"public.{other}", "insert"), (f"public.{scene.table}", "insert"), (f"public.{other}", "delete")]


def test_a_table_that_the_publication_has_and_the_source_has_not_is_left_out(scene: Scene) -> None:
    other = f"{scene.table}_b"
    scene.run(f"CREATE TABLE {other} ({COLUMNS})", f"CREATE PUBLICATION {scene.table} FOR TABLE %t, {other}")
    source = scene.streaming()
    scene.run(f"INSERT INTO {other} VALUES (1, 'a')", "INSERT INTO %t VALUES (2, 'a')")
    assert [event.after for event in scene.delivered(source, batch_size=1)] == [{"id": 2, "v": "a"}]


BIG = "repeat(md5(random()::text), 500)"


def test_a_large_value_that_an_update_did_not_touch_is_named_and_left_out(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL", f"INSERT INTO %t VALUES (1, {BIG}, 1)")
    source = scene.streaming()
    scene.run("UPDATE %t SET n = 2")
    [event] = scene.delivered(source)
    assert event.after == {"id": 1, "n": 2}
    assert event.metadata["unchanged"] == ["v"]


def test_a_large_value_is_read_again_where_that_is_wanted(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL", f"INSERT INTO %t VALUES (1, {BIG}, 1)")
    source = scene.streaming(refetch_toast=True)
    scene.run("UPDATE %t SET n = 2")
    [event] = scene.delivered(source)
    assert event.after == scene.rows()[0]
    assert "unchanged" not in event.metadata


def test_a_page_that_failed_after_it_was_read_comes_when_the_same_reader_is_asked_again(scene: Scene) -> None:
    """As a tick does it: the database failed in passing while it was asked for something beside the log."""
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL",
               f"INSERT INTO %t VALUES (1, {BIG}, 1), (2, {BIG}, 1), (3, {BIG}, 1)")  # fmt: skip
    source = scene.streaming(refetch_toast=True)
    scene.run(
        "UPDATE %t SET n = 2 WHERE id = 1", "UPDATE %t SET n = 2 WHERE id = 2", "UPDATE %t SET n = 2 WHERE id = 3"
    )
    reader = source.open()
    first = reader.fetch_changes({}, 1)

    def fail(*_: object) -> None:
        raise DbConnectionError("reset by peer")

    engine = scene.provider.get_engine(DbConfig(connection_url=scene.url))
    event.listen(engine, "before_cursor_execute", fail)
    with pytest.raises(FetchError, match="reset by peer"):
        reader.fetch_changes(first.next_checkpoint, 1)
    event.remove(engine, "before_cursor_execute", fail)
    again = reader.fetch_changes(first.next_checkpoint, 10)
    reader.close()
    assert [change.key["id"] for change in (*first.records, *again.records)] == [1, 2, 3]


def test_a_column_that_is_gone_meanwhile_leaves_its_large_value_out(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL", f"INSERT INTO %t VALUES (1, {BIG}, 1)")
    source = scene.streaming(refetch_toast=True)
    scene.each("UPDATE %t SET n = 2", "ALTER TABLE %t DROP v")
    [updated] = scene.delivered(source)
    assert (updated.after, updated.metadata["unchanged"]) == ({"id": 1, "n": 2}, ["v"])


def test_a_row_that_is_gone_meanwhile_leaves_its_large_value_out(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL", f"INSERT INTO %t VALUES (1, {BIG}, 1)")
    source = scene.streaming(refetch_toast=True)
    scene.each("UPDATE %t SET n = 2", "DELETE FROM %t")
    updated, deleted = scene.delivered(source)
    assert (updated.metadata["unchanged"], deleted.op) == (["v"], "delete")


def test_with_the_full_row_before_a_large_value_is_never_missing(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int, ALTER v SET STORAGE EXTERNAL", "ALTER TABLE %t REPLICA IDENTITY FULL",
               f"INSERT INTO %t VALUES (1, {BIG}, 1)")  # fmt: skip
    source = scene.streaming()
    scene.run("UPDATE %t SET n = 2")
    [event] = scene.delivered(source)
    assert event.after == scene.rows()[0]


def test_columns_that_are_added_dropped_renamed_and_retyped_are_followed(scene: Scene) -> None:
    source = scene.streaming()
    scene.each(
        "INSERT INTO %t VALUES (1, '7')",
        "ALTER TABLE %t ADD n int DEFAULT 5",
        "INSERT INTO %t VALUES (2, '8')",
        "ALTER TABLE %t RENAME v TO w",
        "INSERT INTO %t VALUES (3, '9')",
        "ALTER TABLE %t ALTER w TYPE int USING w::int",
        "INSERT INTO %t VALUES (4, 10)",
        "ALTER TABLE %t DROP n",
        "INSERT INTO %t VALUES (5, 11)",
    )
    assert [event.after for event in scene.delivered(source) if event.op == "insert"] == [
        {"id": 1, "v": "7"}, {"id": 2, "v": "8", "n": 5}, {"id": 3, "w": "9", "n": 5}, {"id": 4, "w": 10, "n": 5},
        {"id": 5, "w": 11},
    ]  # fmt: skip


def test_a_change_has_the_key_that_its_table_had_then(scene: Scene) -> None:
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "ALTER TABLE %t DROP CONSTRAINT %t_pkey, ADD PRIMARY KEY (v)",
               "INSERT INTO %t VALUES (2, 'b')")  # fmt: skip
    assert [event.pk for event in scene.delivered(source)] == [{"id": 1}, {"v": "b"}]


def test_a_full_row_before_has_the_key_of_its_table_as_far_as_it_was_there_then(scene: Scene) -> None:
    scene.run("ALTER TABLE %t REPLICA IDENTITY FULL")
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "ALTER TABLE %t DROP CONSTRAINT %t_pkey, ADD k serial PRIMARY KEY",
               "INSERT INTO %t VALUES (2, 'b', 7)")  # fmt: skip
    assert [event.pk for event in scene.delivered(source)] == [{"id": 1, "v": "a"}, {"k": 7}]


def test_a_table_that_was_renamed_or_made_anew_keeps_telling_its_older_changes(scene: Scene) -> None:
    source = scene.streaming()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "ALTER TABLE %t RENAME TO old_%t", f"CREATE TABLE %t ({COLUMNS})")
    scene.each(f"ALTER PUBLICATION {scene.table} ADD TABLE %t", "INSERT INTO %t VALUES (2, 'b')")
    assert [event.after for event in scene.delivered(source)] == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


def test_only_the_columns_and_rows_that_were_asked_for_come(scene: Scene) -> None:
    scene.each("ALTER TABLE %t ADD n int", "INSERT INTO %t VALUES (1, '100%', 1), (2, 'b', 20)")
    source = scene.source(columns=["id", "n"], row_filter="id > 1 AND id % 100 <> 7")
    told = scene.told(source, batch_size=1)
    scene.each("INSERT INTO %t VALUES (3, 'c', 30), (7, 'd', 4)", "UPDATE %t SET id = 107 WHERE id = 3")
    told += scene.told(source)
    assert told == [("upsert", {"id": 2, "n": 20}), ("insert", {"id": 3, "n": 30}), ("delete", {"id": 3})]


def test_a_row_that_leaves_the_filter_is_a_delete_and_one_that_enters_an_insert(scene: Scene) -> None:
    scene.run("ALTER TABLE %t REPLICA IDENTITY FULL")
    source = scene.streaming(row_filter="v <> 'hidden'")
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET v = 'hidden'", "UPDATE %t SET v = 'b'")
    told = scene.told(source)
    assert told == [("insert", {"id": 1, "v": "a"}), ("delete", {"id": 1}), ("insert", {"id": 1, "v": "b"})]


@pytest.mark.parametrize("options", [{"row_filter": "v <> 'x'"}, {"columns": ["v"]}])
def test_a_publication_that_would_stop_the_writers_is_refused(scene: Scene, options: dict[str, object]) -> None:
    with pytest.raises(SourceConfigurationError, match="would fail"):
        scene.source(**options).create_stream()
    scene.each("INSERT INTO %t VALUES (1, 'a')", "UPDATE %t SET v = 'b'", "DELETE FROM %t")


def test_a_publication_with_other_columns_than_asked_for_is_refused(scene: Scene) -> None:
    scene.run(f"CREATE PUBLICATION {scene.table} FOR TABLE %t (id)")
    with pytest.raises(SourceConfigurationError, match=r"publishes .* with the columns id"):
        scene.source(columns=["id", "v"]).validate()


def test_a_partitioned_table_is_one_table(scene: Scene) -> None:
    whole = f"{scene.table}_p"
    scene.each(
        f"CREATE TABLE {whole} (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        f"CREATE TABLE {whole}_1 PARTITION OF {whole} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {whole}_2 PARTITION OF {whole} FOR VALUES FROM (10) TO (20)",
        f"INSERT INTO {whole} VALUES (1, 'a'), (11, 'b')",
    )
    source = scene.source(tables=whole)
    told = scene.told(source)
    scene.run(f"UPDATE {whole} SET id = 12 WHERE id = 1")
    told += scene.told(source)
    assert [(op, row["id"]) for op, row in told] == [("upsert", 1), ("upsert", 11), ("delete", 1), ("insert", 12)]


@pytest.mark.parametrize("transport", ["stream", "sql"])
@pytest.mark.parametrize("crash_after", [1, 3])
def test_a_large_transaction_is_handed_out_in_batches_and_a_crash_repeats_one(
    scene: Scene, transport: str, crash_after: int
) -> None:
    source = scene.streaming(transport=transport)
    scene.run("INSERT INTO %t SELECT n, 'x' FROM generate_series(1, 1000) n", "INSERT INTO %t VALUES (1001, 'x')")
    sizes: list[int] = []
    seen: list[int] = []

    def crash(events: list[RowChange]) -> None:
        sizes.append(len(events))
        if len(sizes) == crash_after:
            raise OSError("killed")
        seen.extend(event.pk["id"] for event in events)  # type: ignore[misc]

    with pytest.raises(Exception, match="killed"):
        scene.poller(source, batch_size=100).run(timer=None, handler=crash)
    assert max(sizes) == 100
    seen += [event.pk["id"] for event in scene.delivered(source, batch_size=100)]  # type: ignore[misc]
    assert seen == list(range(1, 1002))


def test_a_mirror_follows_its_table(scene: Scene) -> None:
    scene.run("INSERT INTO %t SELECT n, 'first' FROM generate_series(1, 20) n")
    source, mirror = scene.source(), dict[object, object]()
    mirrored(scene.delivered(source, batch_size=7), mirror)
    scene.each(
        "UPDATE %t SET v = 'second' WHERE id % 3 = 0", "DELETE FROM %t WHERE id % 4 = 0", "UPDATE %t SET id = id + 100"
    )
    mirrored(scene.delivered(source, batch_size=7), mirror)
    assert mirror == {(row["id"],): row for row in scene.rows()}


def test_values_that_python_cannot_hold_go_to_the_quarantine_and_the_others_come(scene: Scene) -> None:
    from azure_functions_db.testing.memory import MemoryQuarantine

    scene.run("ALTER TABLE %t ADD at timestamp", "INSERT INTO %t VALUES (0, 'old', 'infinity')")
    source, sink = scene.source(), MemoryQuarantine()
    told = scene.told(source, quarantine=sink, max_attempts=1)
    scene.run("INSERT INTO %t VALUES (1, 'bad', '0044-03-15 BC'), (2, 'good', '2026-01-01')")
    told += scene.told(source, quarantine=sink, max_attempts=1)
    assert [row["id"] for _, row in told] == [2]
    assert [row.event["after"]["at"] for row in sink.entries()] == ["infinity", "0044-03-15 00:00:00 BC"]


def test_values_that_python_cannot_hold_come_as_texts_where_that_is_wanted(scene: Scene) -> None:
    scene.run("ALTER TABLE %t ADD at timestamp")
    source = scene.streaming(undecodable="text")
    scene.run("INSERT INTO %t VALUES (1, 'a', 'infinity')")
    assert scene.told(source) == [("insert", {"id": 1, "v": "a", "at": "infinity"})]


def test_a_page_is_as_long_as_it_was_asked_to_be_whatever_the_transactions(scene: Scene) -> None:
    source = scene.streaming()
    for first in range(0, 30, 3):
        scene.run(f"INSERT INTO %t SELECT n, 'x' FROM generate_series({first}, {first} + 2) n")
    sizes: list[int] = []
    trigger: PollTrigger = scene.poller(source, batch_size=4)
    trigger.run(timer=None, handler=lambda events: sizes.append(len(events)))
    assert sizes == [4] * 7 + [2]
