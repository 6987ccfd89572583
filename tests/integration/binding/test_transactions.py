"""What is kept and what is undone: transactions of writers, sessions, savepoints, shared transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db import ConfigurationError, DbConfig, DbReader, DbSession, DbWriter, WriteError
from azure_functions_db.sql.transactions import ambient_transaction

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place


def ids(place: Place) -> list[int]:
    return [row["id"] for row in place.rows("SELECT id FROM items ORDER BY id")]


def test_a_transaction_keeps_all_or_nothing(place: Place) -> None:
    writer = place.writer()
    with writer.transaction():
        writer.insert(data={"id": 1})
        writer.insert_many(rows=[{"id": key} for key in range(2, 300)])
        assert ids(place) == []
    assert len(ids(place)) == 299

    with pytest.raises(KeyError), writer.transaction():
        writer.insert_many(rows=[{"id": 1000}])
        writer.upsert_many(rows=[{"id": key} for key in range(1001, 1300)], conflict_columns=["id"])
        writer.update(data={"name": "x"}, pk={"id": 1})
        writer.delete(pk={"id": 2})
        raise KeyError
    assert len(ids(place)) == 299
    assert place.rows("SELECT name FROM items WHERE id = 1") == [{"name": None}]


def test_transactions_do_not_nest(place: Place) -> None:
    writer = place.writer()
    with pytest.raises(WriteError, match="do not nest"), writer.transaction():
        writer.insert(data={"id": 1})
        with writer.transaction():
            pass
    assert ids(place) == []
    with writer.transaction():
        writer.insert(data={"id": 1})
    assert ids(place) == [1]


def test_closing_inside_a_transaction_rolls_back_and_ends_the_block(place: Place) -> None:
    writer = place.writer()
    with writer.transaction():
        writer.insert(data={"id": 1})
        writer.close()
        with pytest.raises(WriteError, match="closed"):
            writer.insert(data={"id": 2})
        with pytest.raises(WriteError, match="closed"):
            writer.insert_many(rows=[{"id": 2}])
    assert ids(place) == []
    writer.insert(data={"id": 3})
    assert ids(place) == [3]


def test_a_failed_call_of_many_rows_leaves_nothing_even_if_its_error_is_swallowed(place: Place) -> None:
    writer = place.writer()
    with writer.transaction():
        writer.insert(data={"id": 1})
        with pytest.raises(WriteError):
            writer.insert_many(rows=[{"id": 2}, {"id": 1}])
        with pytest.raises(WriteError):
            writer.insert_many(rows=[{"id": key} for key in [*range(10, 300), 1]])
        writer.insert(data={"id": 3})
    assert ids(place) == [1, 3]


def test_a_swallowed_error_does_not_turn_a_commit_into_a_silent_rollback(postgres: Place) -> None:
    writer = postgres.writer()
    with pytest.raises(WriteError, match="rolled back"), writer.transaction():
        writer.insert(data={"id": 1})
        with pytest.raises(WriteError):
            writer.insert(data={"id": 1})
    assert ids(postgres) == []


def test_a_session_spans_tables_and_reads_its_own_writes(place: Place) -> None:
    place.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, item INTEGER)")
    with place.session() as session:
        session.writer("items").insert(data={"id": 1})
        session.writer("notes").insert_many(rows=[{"id": 1, "item": 1}])
        assert session.reader("notes").get(pk={"id": 1}) == {"id": 1, "item": 1}
        assert session.reader().scalar("SELECT count(*) FROM items", params={}) == 1
        assert list(session.reader().stream("SELECT id FROM items", params={})) == [{"id": 1}]
        assert ids(place) == []
    assert ids(place) == [1]

    with pytest.raises(KeyError), place.session() as session:
        session.writer("items").delete(pk={"id": 1})
        session.writer("notes").delete(pk={"id": 1})
        raise KeyError
    assert ids(place) == [1]


def test_a_savepoint_undoes_its_own_part_only(place: Place) -> None:
    with place.session() as session:
        writer = session.writer("items")
        with pytest.raises(WriteError), session.savepoint():
            writer.insert(data={"id": 1})
            writer.insert(data={"id": 1})
        writer.insert(data={"id": 2})
        with session.savepoint(), session.savepoint():
            writer.insert(data={"id": 3})
    assert ids(place) == [2, 3]


def test_a_session_works_inside_its_block_only(place: Place) -> None:
    session = place.session()
    with session:
        writer, reader = session.writer("items"), session.reader("items")
        writer.insert(data={"id": 1})
    for call in (
        lambda: writer.insert(data={"id": 2}),
        lambda: writer.insert_many(rows=[{"id": 2}]),
        lambda: reader.get(pk={"id": 1}),
        lambda: reader.query("SELECT 1", params={}),
        lambda: list(reader.stream("SELECT 1", params={})),
    ):
        with pytest.raises(ConfigurationError, match="with block"):
            call()
    assert ids(place) == [1]


def test_closing_a_session_rolls_back(place: Place) -> None:
    with place.session() as session:
        session.writer("items").insert(data={"id": 1})
        session.close()
    assert ids(place) == []


def test_a_session_may_choose_its_isolation(postgres: Place) -> None:
    with postgres.session(isolation_level="REPEATABLE READ") as session:
        count = "SELECT count(*) FROM items"
        assert session.reader().scalar(count, params={}) == 0
        postgres.writer().insert(data={"id": 1})
        assert session.reader().scalar(count, params={}) == 0
    assert postgres.reader().scalar("SHOW transaction_isolation", params={}) == "read committed"


def test_the_same_pooled_connection_serves_both_ways(place: Place) -> None:
    """Single statements and transactions alternate on one connection, and each means what it says."""
    config = DbConfig(connection_url=place.url, pool_size=1, max_overflow=0, pool_timeout=5)
    writer = DbWriter(db_config=config, table="items", engine_provider=place.provider)
    reader = DbReader(db_config=config, table="items", engine_provider=place.provider)
    for key in range(3):
        assert reader.get(pk={"id": key}) is None
        with pytest.raises(KeyError), writer.transaction():
            writer.insert(data={"id": key})
            raise KeyError
        assert reader.get(pk={"id": key}) is None
        with writer.transaction():
            writer.insert(data={"id": key})
        writer.insert(data={"id": key + 100})
    assert ids(place) == [0, 1, 2, 100, 101, 102]


def test_a_pool_of_one_connection_is_enough(place: Place) -> None:
    config = DbConfig(connection_url=place.url, pool_size=1, max_overflow=0, pool_timeout=5)
    with DbSession(db_config=config, engine_provider=place.provider) as session:
        session.writer("items").insert_many(rows=[{"id": 1}])
        assert session.reader("items").get(pk={"id": 1}) is not None
    writer = DbWriter(db_config=config, table="items", engine_provider=place.provider)
    with writer.transaction():
        writer.insert_many(rows=[{"id": 2}])
    assert ids(place) == [1, 2]


def test_an_ambient_transaction_is_joined_and_not_ended(place: Place) -> None:
    engine = place.writer()._database.engine

    def write() -> None:
        writer = place.writer()
        writer.insert(data={"id": 1})
        writer.insert_many(rows=[{"id": key} for key in range(2, 200)])
        with writer.transaction():
            writer.insert(data={"id": 500})
        with pytest.raises(KeyError), writer.transaction():
            writer.insert(data={"id": 501})
            raise KeyError
        with place.session() as session:
            session.writer("items").insert(data={"id": 502})
        assert place.reader().get(pk={"id": 502}) is not None
        assert ids(place) == []

    with pytest.raises(LookupError), ambient_transaction(engine):
        write()
        raise LookupError
    assert ids(place) == []
    with ambient_transaction(engine):
        write()
    assert [key for key in ids(place) if key >= 500] == [500, 502]


def test_a_writer_is_refused_to_a_second_thread(place: Place) -> None:
    writer = place.writer()
    calls: list[Any] = [
        lambda: writer.insert(data={"id": 2}),
        lambda: writer.insert_many(rows=[{"id": 2}]),
        lambda: writer.transaction().__enter__(),
    ]
    with writer.transaction(), ThreadPoolExecutor(1) as thread:
        writer.insert(data={"id": 1})
        for call in calls:
            with pytest.raises(ConfigurationError, match="belongs to the thread"):
                thread.submit(call).result()
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(ConfigurationError, match="belongs to the thread"):
            thread.submit(calls[0]).result()
        writer.close()
        thread.submit(calls[0]).result()
    assert ids(place) == [1, 2]


def test_a_session_is_refused_to_a_second_thread(place: Place) -> None:
    with place.session() as session, ThreadPoolExecutor(1) as thread:
        session.writer("items").insert(data={"id": 1})
        with pytest.raises(ConfigurationError, match="belongs to the thread"):
            thread.submit(session.reader("items").get, pk={"id": 1}).result()
