"""Keys of the wrong type are refused before anything is sent, and a key never touches more than one row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy.exc import SQLAlchemyError

from azure_functions_db import ConfigurationError, DbBindings, WriteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.binding.conftest import Place

TOKENS = ["7f3a", "abc", "0", "7"]


@pytest.fixture
def tokens(place: Place) -> Place:
    place.execute("CREATE TABLE tokens (token VARCHAR(50) PRIMARY KEY, used INTEGER)")
    for token in TOKENS:
        place.execute(f"INSERT INTO tokens VALUES ('{token}', 0)")
    return place


def calls(place: Place, pk: dict[str, Any]) -> list[Callable[[], Any]]:
    reader, writer = place.reader("tokens"), place.writer("tokens")

    @DbBindings().input("row", url=place.url, table="tokens", pk=pk, engine_provider=place.provider)
    def function(req: Any, row: Any) -> Any:
        return row

    return [
        lambda: reader.get(pk=pk),
        lambda: writer.update(data={"used": 1}, pk=pk),
        lambda: writer.delete(pk=pk),
        lambda: writer.upsert(data={**pk, "used": 1}, conflict_columns=["token"]),
        lambda: writer.upsert_many(rows=[{"token": "abc", "used": 1}, {**pk, "used": 1}], conflict_columns=["token"]),
        lambda: function(req=None),
    ]


@pytest.mark.parametrize("value", [0, 7, 7.0, True, Decimal(7), b"7"])
def test_a_text_key_takes_no_number(tokens: Place, value: Any) -> None:
    for call in calls(tokens, {"token": value}):
        with pytest.raises(ConfigurationError, match=rf"'token' of 'tokens'.* not {type(value).__name__}") as caught:
            call()
        assert "7" not in str(caught.value)
    assert tokens.rows("SELECT token, used FROM tokens ORDER BY token") == [
        {"token": token, "used": 0} for token in sorted(TOKENS)
    ]


@pytest.mark.parametrize("value", ["1", "1abc", True, 1.0, Decimal(1), b"1"])
def test_a_whole_number_as_key_takes_nothing_else(place: Place, value: Any) -> None:
    place.writer().insert(data={"id": 1, "name": "kept"})
    refused: list[Callable[[], Any]] = [
        lambda: place.reader().get(pk={"id": value}),
        lambda: place.writer().update(data={"name": "lost"}, pk={"id": value}),
        lambda: place.writer().delete(pk={"id": value}),
        lambda: place.writer().upsert(data={"id": value, "name": "lost"}, conflict_columns=["id"]),
    ]
    for call in refused:
        with pytest.raises(ConfigurationError, match=r"'id' of 'items' is INTEGER, which takes int, not"):
            call()
    assert [row["name"] for row in place.rows()] == ["kept"]


def test_a_key_has_a_value_in_each_column(place: Place) -> None:
    refused: list[Callable[[], Any]] = [
        lambda: place.reader().get(pk={"id": None}),
        lambda: place.writer().update(data={"name": "x"}, pk={"id": None}),
        lambda: place.writer().delete(pk={"id": None}),
    ]
    for call in refused:
        with pytest.raises(ConfigurationError, match="None for 'id'"):
            call()
    # NULL in a unique key finds no row: it is a new one.
    place.writer().upsert_many(rows=[{"id": key, "code": None} for key in (1, 2)], conflict_columns=["code"])
    assert place.count() == 2


NOON = dt.datetime(2026, 4, 7, 12)  # noqa: DTZ001 - the column has no zone
NATURAL = [
    ("DECIMAL(20, 2)", Decimal("12.50"), [Decimal("12.5")]),
    ("DECIMAL(20, 0)", 12, [12, Decimal(12)]),
    ("DATE", dt.date(2026, 4, 7), [dt.date(2026, 4, 7)]),
    ("TIMESTAMP", NOON, [NOON]),
    ("TIME", dt.time(12, 30), [dt.time(12, 30)]),
    ("VARCHAR(50)", "7f3a", ["7f3a"]),
    ("SMALLINT", 3, [3]),
    ("BIGINT", 2**62 + 1, [2**62 + 1]),
    ("BOOLEAN", True, [True]),
]


@pytest.mark.parametrize(("kind", "stored", "given"), NATURAL, ids=[kind for kind, *_ in NATURAL])
def test_values_of_the_columns_own_type_find_their_row(place: Place, kind: str, stored: Any, given: list[Any]) -> None:
    place.execute(f"CREATE TABLE keyed (k {kind} PRIMARY KEY, used INTEGER)")
    writer = place.writer("keyed")
    writer.insert(data={"k": stored, "used": 0})
    for key in given:
        writer.update(data={"used": 1}, pk={"k": key})
        found = place.reader("keyed").get(pk={"k": key})
        assert found is not None
        assert found["used"] == 1
        writer.update(data={"used": 2}, pk={"k": found["k"]})
        writer.upsert(data={"k": found["k"], "used": 3}, conflict_columns=["k"])
        assert place.rows("SELECT used FROM keyed") == [{"used": 3}]


@pytest.mark.parametrize("kind", ["UUID", "CHAR(36)"])
def test_a_uuid_may_be_given_as_text(place: Place, kind: str) -> None:
    place.execute(f"CREATE TABLE keyed (k {kind} PRIMARY KEY)")
    key = UUID("123e4567-e89b-12d3-a456-426614174000")
    place.writer("keyed").insert(data={"k": str(key)})
    for given in (key, str(key)) if (place.kind, kind) != ("postgres", "CHAR(36)") else (str(key),):
        assert place.reader("keyed").get(pk={"k": given}) is not None


def test_a_date_as_key_takes_no_text_that_only_begins_with_it(place: Place) -> None:
    place.execute("CREATE TABLE keyed (k DATE PRIMARY KEY)")
    place.execute("INSERT INTO keyed VALUES ('2026-04-07')")
    for given in ("2026-04-07xyz", 20260407):
        with pytest.raises(ConfigurationError, match=r"'k' of 'keyed' is DATE, which takes date, not"):
            place.reader("keyed").get(pk={"k": given})


def inherited(place: Place) -> None:
    """Make a table whose primary key holds for itself only: rows of its child have the same key."""
    place.execute("CREATE TABLE more () INHERITS (items)")
    place.execute("INSERT INTO items (id) VALUES (1)", "INSERT INTO more (id) VALUES (1)")


@pytest.mark.parametrize("returning", [[], ["id"]])
def test_a_keyed_write_that_touches_more_than_one_row_is_undone(postgres: Place, returning: list[str]) -> None:
    inherited(postgres)
    refused: list[Callable[[], Any]] = [
        lambda: postgres.writer().delete(pk={"id": 1}, returning=returning),
        lambda: postgres.writer().update(data={"name": "x"}, pk={"id": 1}, returning=returning),
    ]
    for call in refused:
        with pytest.raises(WriteError, match="more than one row"):
            call()
    assert [row["name"] for row in postgres.rows()] == [None, None]


def test_the_transaction_around_it_is_undone_even_if_the_error_is_caught(postgres: Place) -> None:
    inherited(postgres)
    writer = postgres.writer()
    with pytest.raises(WriteError), writer.transaction():
        writer.insert(data={"id": 2})
        with pytest.raises(WriteError, match="more than one row"):
            writer.delete(pk={"id": 1})
        writer.insert(data={"id": 3})
    with pytest.raises(WriteError), postgres.session() as session:
        with pytest.raises(WriteError, match="more than one row"), session.savepoint():
            session.writer("items").delete(pk={"id": 1})
        session.writer("items").insert(data={"id": 4})
    assert [row["id"] for row in postgres.rows()] == [1, 1]


def test_a_text_that_its_columns_characters_cannot_write_touches_one_row_at_most(mariadb: Place) -> None:
    # In the parameter's characters, not the column's, S and s are both like it: refused here or by the server.
    mariadb.execute(
        "CREATE TABLE keyed (k VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY)",
        "INSERT INTO keyed VALUES ('S'), ('s')",
    )
    with pytest.raises(WriteError):
        mariadb.writer("keyed").delete(pk={"k": "\u015e"})
    assert len(mariadb.rows("SELECT k FROM keyed")) == 2


def test_a_key_that_its_collation_takes_for_another_finds_one_row(mariadb: Place) -> None:
    mariadb.execute("CREATE TABLE keyed (k VARCHAR(20) PRIMARY KEY, used INTEGER)", "INSERT INTO keyed VALUES ('a', 0)")
    found = mariadb.reader("keyed").get(pk={"k": "A "})
    assert found == {"k": "a", "used": 0}
    mariadb.writer("keyed").update(data={"used": 1}, pk={"k": "A "})
    assert mariadb.rows("SELECT used FROM keyed") == [{"used": 1}]
    with pytest.raises(SQLAlchemyError):
        mariadb.execute("INSERT INTO keyed VALUES ('A ', 0)")
