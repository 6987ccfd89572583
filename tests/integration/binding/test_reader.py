"""What a user of a reader sees."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from azure_functions_db import ConfigurationError, DbReader, QueryError

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place


class Item(BaseModel):
    id: int
    name: str | None


class Strict(BaseModel):
    id: int
    name: int


@pytest.fixture
def filled(place: Place) -> Place:
    place.execute(*(f"INSERT INTO items (id, code, name) VALUES ({key}, 'c{key}', 'n{key}')" for key in range(1, 6)))
    return place


def test_a_row_is_got_by_its_key(filled: Place) -> None:
    assert filled.reader().get(pk={"id": 2}) == {"id": 2, "code": "c2", "name": "n2", "size": 7}
    assert filled.reader().get(pk={"id": 2}, model=Item) == Item(id=2, name="n2")


def test_a_missing_row_is_none(filled: Place) -> None:
    assert filled.reader().get(pk={"id": 99}) is None


@pytest.mark.parametrize("pk", [{}, {"code": "c1"}, {"id": 1, "code": "c1"}, {"nothing": 1}])
def test_a_key_that_is_not_the_primary_key_is_refused(filled: Place, pk: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="'id'"):
        filled.reader().get(pk=pk)


def test_a_composite_key_must_be_whole(place: Place) -> None:
    place.execute(
        "CREATE TABLE pairs (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (a, b))", "INSERT INTO pairs VALUES (1, 2, 3)"
    )

    assert place.reader("pairs").get(pk={"b": 2, "a": 1}) == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(ConfigurationError, match="misses 'b'"):
        place.reader("pairs").get(pk={"a": 1})


def test_tables_without_a_key_and_unknown_tables_are_refused(place: Place) -> None:
    place.execute("CREATE TABLE keyless (a INTEGER)")

    with pytest.raises(ConfigurationError, match="no primary key"):
        place.reader("keyless").get(pk={"a": 1})
    with pytest.raises(ConfigurationError, match="no table 'nowhere'"):
        place.reader("nowhere").get(pk={"a": 1})
    with pytest.raises(ConfigurationError, match="table="):
        place.reader(None).get(pk={"id": 1})


def test_a_query_gives_all_rows(filled: Place) -> None:
    sql = "SELECT id, name FROM items WHERE id > :least ORDER BY id"

    assert filled.reader().query(sql, params={"least": 3}) == [{"id": 4, "name": "n4"}, {"id": 5, "name": "n5"}]
    assert filled.reader().query(sql, params={"least": 4}, model=Item) == [Item(id=5, name="n5")]
    assert filled.reader().query(sql, params={"least": 5}) == []


def test_a_parameter_may_be_used_twice_and_percent_signs_stand_for_themselves(filled: Place) -> None:
    sql = "SELECT id FROM items WHERE (id = :key OR id = :key) AND name LIKE 'n%' AND name <> '%(x)s'"

    assert filled.reader().query(sql, params={"key": 1}) == [{"id": 1}]


def test_one_and_its_kin_count_rows(filled: Place) -> None:
    reader, none, two = filled.reader(), {"least": 99}, {"least": 3}
    sql = "SELECT id, name FROM items WHERE id > :least ORDER BY id"

    assert reader.one(sql, params={"least": 4}) == {"id": 5, "name": "n5"}
    assert reader.one(sql, params={"least": 4}, model=Item) == Item(id=5, name="n5")
    assert reader.one_or_none(sql, params=none) is None
    assert reader.scalar(sql, params={"least": 4}) == 5
    assert reader.scalar(sql, params=none) is None
    with pytest.raises(QueryError, match="no row"):
        reader.one(sql, params=none)
    for read in (reader.one, reader.one_or_none, reader.scalar):
        with pytest.raises(QueryError, match="more than one row"):
            read(sql, params=two)


def test_a_stream_comes_in_chunks_and_gives_its_connection_back(filled: Place) -> None:
    with filled.reader() as reader:
        rows = reader.stream("SELECT id FROM items ORDER BY id", params={}, chunk_size=2)
        assert next(rows) == {"id": 1}
        assert _connections_in_use(filled) == 1
        assert [row["id"] for row in rows] == [2, 3, 4, 5]
        assert _connections_in_use(filled) == 0
        models = reader.stream("SELECT id, name FROM items WHERE id = 1", params={}, model=Item)
        assert list(models) == [Item(id=1, name="n1")]


def test_closing_a_reader_ends_its_streams(filled: Place) -> None:
    reader = filled.reader()
    rows = reader.stream("SELECT id FROM items", params={}, chunk_size=1)
    next(rows)

    reader.close()

    assert _connections_in_use(filled) == 0
    assert list(rows) == []


def _connections_in_use(place: Place) -> int:
    engine = place.reader()._database.engine
    return int(engine.pool.checkedout())  # type: ignore[attr-defined]


def test_a_statement_without_params_is_warned_about_where_it_stands(filled: Place) -> None:
    with pytest.warns(UserWarning, match="never build SQL from input") as seen:
        filled.reader().query("SELECT id FROM items WHERE id = 1")
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled.reader().query("SELECT id FROM items WHERE id = 1", params={})


def test_wrong_statements_are_query_errors(filled: Place) -> None:
    reader = filled.reader()
    for sql in ("SELEC 1", "SELECT nothing FROM items", "SELECT * FROM nowhere"):
        with pytest.raises(QueryError) as caught:
            reader.query(sql, params={})
        assert caught.value.__cause__ is not None
        with pytest.raises(QueryError):
            list(reader.stream(sql, params={}))


def test_misuse_is_a_configuration_error(filled: Place) -> None:
    with pytest.raises(ConfigurationError, match="'key'"):
        filled.reader().query("SELECT id FROM items WHERE id = :key", params={})
    with pytest.raises(ConfigurationError, match="model="):
        filled.reader().query("SELECT id FROM items", params={}, model=dict)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="exactly one"):
        DbReader()
    with pytest.raises(ConfigurationError, match="chunk_size"):
        filled.reader().stream("SELECT 1", params={}, chunk_size=0)


def test_columns_that_share_a_name_are_refused_rather_than_lost(filled: Place) -> None:
    with pytest.raises(QueryError, match=r"share a name: id\."):
        filled.reader().query("SELECT a.id, b.id FROM items a JOIN items b ON a.id = b.id", params={})


def test_a_row_that_does_not_fit_its_model_is_told_without_its_values(filled: Place) -> None:
    with pytest.raises(QueryError, match="does not fit Strict: name") as caught:
        filled.reader().get(pk={"id": 1}, model=Strict)
    assert "n1" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_transaction_that_a_query_leaves_open_does_not_stay_on_its_connection(filled: Place) -> None:
    """The next user of the pooled connection must find no transaction that is not its own."""
    reader, begin = filled.reader(), "START TRANSACTION" if filled.kind == "mariadb" else "BEGIN"
    with pytest.raises(QueryError, match="no rows"):
        reader.query(begin, params={})
    filled.writer().insert(data={"id": 6})

    assert filled.count() == 6


def test_a_reader_may_be_used_by_several_threads(filled: Place) -> None:
    from concurrent.futures import ThreadPoolExecutor

    reader = filled.reader()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda key: reader.get(pk={"id": key % 5 + 1}), range(80)))
    assert [row["id"] for row in found if row] == [key % 5 + 1 for key in range(80)]


def test_a_schema_is_part_of_the_name(postgres: Place) -> None:
    postgres.execute("CREATE SCHEMA other", "CREATE TABLE other.items (id INTEGER PRIMARY KEY, here BOOLEAN)")
    postgres.writer(schema="other").insert_many(rows=[{"id": 1, "here": True}])

    assert postgres.reader(schema="other").get(pk={"id": 1}) == {"id": 1, "here": True}
    assert postgres.count() == 0
