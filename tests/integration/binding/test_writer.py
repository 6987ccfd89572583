"""What a user of a writer sees."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from sqlite3 import SQLITE_LIMIT_VARIABLE_NUMBER
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field
from sqlalchemy import event

from azure_functions_db import ConfigurationError, DbConfig, DbReader, DbWriter, EngineProvider, WriteError

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place


class Item(BaseModel):
    id: int
    label: str | None = Field(default=None, alias="name")
    size: int | None = None


def test_a_row_is_inserted_and_its_defaults_are_the_databases(place: Place) -> None:
    place.writer().insert(data={"id": 1, "name": "a"})

    assert place.rows() == [{"id": 1, "code": None, "name": "a", "size": 7}]


def test_a_row_of_defaults_only(place: Place) -> None:
    serial = {
        "sqlite": "INTEGER PRIMARY KEY",
        "postgres": "SERIAL PRIMARY KEY",
        "mariadb": "INTEGER AUTO_INCREMENT PRIMARY KEY",
    }
    place.execute(f"CREATE TABLE numbered (id {serial[place.kind]}, size INTEGER DEFAULT 3)")

    place.writer("numbered").insert(data={})
    place.writer("numbered").insert_many(rows=[{}, {}])

    assert place.rows("SELECT * FROM numbered ORDER BY id") == [{"id": key, "size": 3} for key in (1, 2, 3)]


def test_models_are_rows_and_their_unset_nones_are_left_to_the_database(place: Place) -> None:
    place.writer().insert(data=Item(id=1, name="a"))
    place.writer().insert_many(rows=[Item(id=2, name="b", size=9), Item(id=3)])

    assert [(row["id"], row["name"], row["size"]) for row in place.rows()] == [(1, "a", 7), (2, "b", 9), (3, None, 7)]


@pytest.mark.parametrize("count", [3, 250])
def test_rows_with_different_keys_are_inserted_together(place: Place, count: int) -> None:
    rows: list[dict[str, Any]] = [
        {"id": key, "name": "n"} if key % 2 else {"size": key, "id": key} for key in range(1, count + 1)
    ]

    place.writer().insert_many(rows=rows)

    found = place.rows()
    assert [row["size"] for row in found] == [7 if key % 2 else key for key in range(1, count + 1)]
    assert [row["name"] for row in found] == ["n" if key % 2 else None for key in range(1, count + 1)]


def test_nothing_to_write_is_nothing_written(place: Place) -> None:
    place.writer().insert_many(rows=[])
    place.writer().upsert_many(rows=iter(()), conflict_columns=["id"])
    assert place.writer().insert_many(rows=[], returning=["id"]) == []

    assert place.count() == 0


def test_an_upsert_inserts_and_then_changes_only_what_it_gives(place: Place) -> None:
    writer = place.writer()
    writer.upsert(data={"id": 1, "code": "c", "name": "a"}, conflict_columns=["id"])
    writer.upsert(data={"id": 1, "name": "b"}, conflict_columns=["id"])
    writer.upsert(data={"id": 1}, conflict_columns=["id"])

    assert place.rows() == [{"id": 1, "code": "c", "name": "b", "size": 7}]


@pytest.mark.parametrize("count", [1, 19, 20, 41])
def test_any_number_of_rows_is_written(place: Place, count: int) -> None:
    rows = [{"id": key, "code": f"c{key}", "name": f"n{key}", "size": key} for key in range(1, count + 1)]
    changed = [{**row, "name": "new"} for row in rows[: count // 2]]

    place.writer().insert_many(rows=rows)
    place.writer().upsert_many(rows=changed, conflict_columns=["id"])

    assert place.rows() == [*changed, *rows[len(changed) :]]


@pytest.mark.parametrize("most", [4, 30])
def test_rows_have_more_values_than_sqlite_takes_at_once(sqlite_database: str, most: int) -> None:
    provider = EngineProvider()
    engine = provider.get_engine(DbConfig(connection_url=sqlite_database))
    event.listen(engine, "connect", lambda raw, _record: raw.setlimit(SQLITE_LIMIT_VARIABLE_NUMBER, most))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE wide (id INTEGER PRIMARY KEY, a INTEGER, b INTEGER, c INTEGER)")
    rows = [{"id": key, "a": key, "b": -key, "c": 0} for key in range(1, 42)]

    DbWriter(url=sqlite_database, table="wide", engine_provider=provider).insert_many(rows=rows)

    reader = DbReader(url=sqlite_database, engine_provider=provider)
    assert reader.query("SELECT * FROM wide ORDER BY id", params={}) == rows
    provider.dispose_all()


@pytest.mark.parametrize("fill", [0, 200])
def test_many_upserts_leave_what_one_after_the_other_would(place: Place, fill: int) -> None:
    """Also in bulk, also with different columns: of a key that comes twice, the last word on each column counts."""
    writer = place.writer()
    writer.insert(data={"id": 1, "name": "old", "size": 1})
    others = [{"id": key, "name": "x", "size": 2} for key in range(100, 100 + fill)]

    writer.upsert_many(
        rows=[
            {"id": 1, "name": "first", "size": 5},
            *others,
            {"id": 1, "name": "second"},
            {"id": 2, "name": "new"},
            {"id": 2, "name": "newer", "size": 6},
        ],
        conflict_columns=["id"],
    )

    found = place.rows()
    assert found[0] == {"id": 1, "code": None, "name": "second", "size": 5}
    assert found[1] == {"id": 2, "code": None, "name": "newer", "size": 6}
    assert len(found) == 2 + fill


def test_an_upsert_by_a_unique_key(place: Place) -> None:
    writer = place.writer()
    writer.insert(data={"id": 1, "code": "a", "name": "old"})

    writer.upsert_many(rows=[{"id": 1, "code": "a", "name": "new"}], conflict_columns=["code"])

    assert place.rows() == [{"id": 1, "code": "a", "name": "new", "size": 7}]


@pytest.mark.parametrize("count", [1, 150])
def test_a_conflict_with_another_key_is_an_error_and_not_a_change_of_another_row(place: Place, count: int) -> None:
    writer = place.writer()
    writer.insert(data={"id": 1, "code": "taken", "name": "mine"})
    rows = [{"id": key, "code": "taken" if key == 2 else f"c{key}", "name": "yours"} for key in range(2, 2 + count)]

    with pytest.raises(WriteError):
        writer.upsert_many(rows=rows, conflict_columns=["id"])
    with pytest.raises(WriteError):
        writer.upsert(data=rows[0], conflict_columns=["id"])

    assert place.rows() == [{"id": 1, "code": "taken", "name": "mine", "size": 7}]


@pytest.mark.parametrize("conflict", [[], ["name"], ["nothing"], "id", ["id", "code"]])
def test_conflict_columns_must_be_a_key(place: Place, conflict: Any) -> None:
    row = {"id": 1, "code": "c", "name": "n"}
    with pytest.raises(ConfigurationError):
        place.writer().upsert(data=row, conflict_columns=conflict)
    with pytest.raises(ConfigurationError):
        place.writer().upsert_many(rows=[row], conflict_columns=conflict)
    with pytest.raises(ConfigurationError, match="'id'"):
        place.writer().upsert(data={"name": "n"}, conflict_columns=["id"])
    with pytest.raises(ConfigurationError, match="'id'"):
        place.writer().upsert_many(rows=[row, {"name": "n"}], conflict_columns=["id"])

    assert place.count() == 0


def test_a_null_in_the_key_conflicts_with_nothing(place: Place) -> None:
    rows = [{"id": key, "code": None} for key in (1, 2, 3)]

    place.writer().upsert_many(rows=rows, conflict_columns=["code"])

    assert place.count() == 3


def test_update_and_delete_touch_one_row_or_none(place: Place) -> None:
    writer = place.writer()
    writer.insert_many(rows=[{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])

    writer.update(data={"name": "c", "size": None if place.kind == "x" else 8}, pk={"id": 1})
    writer.update(data={"name": "c"}, pk={"id": 99})
    writer.update(data={"id": 3}, pk={"id": 2})
    writer.delete(pk={"id": 99})

    assert [(row["id"], row["name"], row["size"]) for row in place.rows()] == [(1, "c", 8), (3, "b", 7)]
    writer.delete(pk={"id": 1})
    assert [row["id"] for row in place.rows()] == [3]


def test_misuse_is_refused_before_anything_is_written(place: Place) -> None:
    writer = place.writer()
    calls: list[Any] = [
        lambda: writer.insert(data={"id": 1, "nothing": 1}),
        lambda: writer.insert_many(rows=[{"id": 1}, {"id": 2, "nothing": 1}]),
        lambda: writer.insert(data=[("id", 1)]),  # type: ignore[call-overload]
        lambda: writer.insert_many(rows={"id": 1}),  # type: ignore[dict-item]
        lambda: writer.insert_many(rows=[{"id": 1}, 5]),  # type: ignore[list-item]
        lambda: writer.update(data={}, pk={"id": 1}),
        lambda: writer.update(data={"name": "x"}, pk={"name": "y"}),
        lambda: writer.delete(pk={}),
        lambda: writer.insert(data={"id": 1}, returning=["nothing"]),
        lambda: place.writer("nowhere").insert(data={"id": 1}),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError):
            call()

    assert place.count() == 0


def test_the_offending_row_is_named(place: Place) -> None:
    with pytest.raises(ConfigurationError, match=r"not int \(row 1\)"):
        place.writer().insert_many(rows=[{"id": 1}, 5])  # type: ignore[list-item]


def test_returning_gives_columns_of_the_written_rows(place: Place) -> None:
    writer = place.writer()

    assert writer.insert(data={"id": 1}, returning=["id", "size"]) == {"id": 1, "size": 7}
    assert writer.insert_many(rows=[{"id": 2}, {"id": 3, "size": 1}], returning=["size"]) == [{"size": 7}, {"size": 1}]
    assert writer.upsert(data={"id": 1}, conflict_columns=["id"], returning=["id"]) == {"id": 1}
    many = writer.upsert_many(
        rows=[{"id": 1, "name": "x"}, {"id": 9, "name": "y"}], conflict_columns=["id"], returning=["name"]
    )
    assert many == [{"name": "x"}, {"name": "y"}]
    assert writer.delete(pk={"id": 9}, returning=["name"]) == {"name": "y"}
    assert writer.delete(pk={"id": 9}, returning=["name"]) is None
    if place.kind == "mariadb":
        with pytest.raises(ConfigurationError, match="update"):
            writer.update(data={"name": "z"}, pk={"id": 1}, returning=["name"])
    else:
        assert writer.update(data={"name": "z"}, pk={"id": 1}, returning=["name"]) == {"name": "z"}


def test_returning_works_for_more_rows_than_one_statement_holds(place: Place) -> None:
    rows = [{"id": key, "name": str(key)} for key in range(1, 12_001)]

    assert place.writer().insert_many(rows=rows, returning=["id", "name"]) == rows


def test_generated_columns_are_left_to_the_database(place: Place) -> None:
    identity = {
        "sqlite": "INTEGER PRIMARY KEY",
        "postgres": "INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "mariadb": "INTEGER AUTO_INCREMENT PRIMARY KEY",
    }
    place.execute(
        f"CREATE TABLE made (id {identity[place.kind]}, a INTEGER, twice INTEGER GENERATED ALWAYS AS (a * 2) STORED)"
    )
    writer = place.writer("made")

    writer.insert(data={"a": 1})
    writer.insert_many(rows=[{"a": key} for key in range(2, 203)])

    assert place.rows("SELECT a, twice FROM made ORDER BY id")[200] == {"a": 201, "twice": 402}
    assert writer.insert(data={"a": 5}, returning=["id", "twice"]) == {"id": 203, "twice": 10}
    with pytest.raises(ConfigurationError, match="generates 'twice'"):
        writer.insert_many(rows=[{"a": 1, "twice": 2}])
    if place.kind == "postgres":
        with pytest.raises(ConfigurationError, match="generates 'id'"):
            writer.insert_many(rows=[{"id": key, "a": 1} for key in range(500, 700)])


def test_rows_may_refer_to_earlier_rows_of_the_same_call(place: Place) -> None:
    place.execute(
        "CREATE TABLE tree (id INTEGER PRIMARY KEY, parent INTEGER, label VARCHAR(9), "
        "FOREIGN KEY (parent) REFERENCES tree (id))"
    )
    writer = place.writer("tree")
    writer.insert(data={"id": 1})

    writer.insert_many(rows=[{"id": 2, "parent": 1}, {"id": 3, "label": "x"}, {"id": 4, "parent": 3}])

    assert place.rows("SELECT count(*) AS n FROM tree") == [{"n": 4}]


@pytest.mark.parametrize("conflict", [None, ["id"]])
@pytest.mark.parametrize("count", [5, 12_000])
def test_a_failure_in_the_middle_leaves_nothing_behind(place: Place, count: int, conflict: list[str] | None) -> None:
    writer = place.writer()

    def rows() -> Iterator[dict[str, Any]]:
        for key in range(1, count + 1):
            yield {"id": key, "name": "n", "size": None if key == count else 1}

    write = partial(writer.upsert_many, conflict_columns=conflict) if conflict else writer.insert_many
    with pytest.raises(WriteError):
        write(rows=rows())

    assert place.count() == 0
    writer.insert(data={"id": 1})
    if place.kind == "postgres":
        assert place.rows("SELECT relname FROM pg_class WHERE relname LIKE 'azfdb%'") == []


def test_an_exception_of_the_users_generator_is_his_own_and_leaves_nothing_behind(place: Place) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"id": key} for key in range(1, 15_000))
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        place.writer().insert_many(rows=rows())

    assert place.count() == 0


def test_rows_can_be_copied_from_a_stream_of_the_same_database(place: Place) -> None:
    place.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY, name VARCHAR(200))")
    place.writer().insert_many(rows=[{"id": key, "name": "n"} for key in range(1, 2001)])
    with place.reader() as reader:
        if place.kind == "sqlite":  # which has one writer and no reader at a time, unless in WAL mode
            place.execute("PRAGMA journal_mode=WAL")
        rows = reader.stream("SELECT id, name FROM items", params={}, chunk_size=100)
        place.writer("copies").insert_many(rows=rows)

    assert place.rows("SELECT count(*) AS n FROM copies") == [{"n": 2000}]


def test_values_that_no_driver_takes_are_write_errors(place: Place) -> None:
    with pytest.raises(WriteError):
        place.writer().insert(data={"id": 1, "name": {"a": object()}})
    with pytest.raises(WriteError):
        place.writer().insert_many(rows=[{"id": key, "name": {"a": object()}} for key in range(1, 200)])
    with pytest.raises(WriteError):
        place.writer().insert(data={"id": 2**70})

    assert place.count() == 0
