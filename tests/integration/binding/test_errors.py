"""Errors by cause: what a user can act on, and nothing that he must not see."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import DbConfig, DbConnectionError, DbReader, DbWriter, QueryError, WriteError
from tests.support.told import whole_story

if TYPE_CHECKING:
    from tests.integration.binding.conftest import Place

SECRET = "s3cr3t-row-value"


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_that_is_not_there_is_a_connection_error(kind: str, request: pytest.FixtureRequest) -> None:
    url = make_url(request.getfixturevalue(f"{kind}_url")).set(port=1)
    text = url.render_as_string(hide_password=False)
    for call in _calls(text):
        with pytest.raises(DbConnectionError) as caught:
            call()
        assert isinstance(caught.value, ConnectionError)
        assert str(url.password) not in str(caught.value)


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_refused_login_is_a_connection_error(kind: str, request: pytest.FixtureRequest) -> None:
    url = make_url(request.getfixturevalue(f"{kind}_url")).set(password="wrong-password")
    for call in _calls(url.render_as_string(hide_password=False)):
        with pytest.raises(DbConnectionError) as caught:
            call()
        assert "wrong-password" not in _whole_text(caught.value)


def test_a_database_that_cannot_be_opened_is_a_connection_error() -> None:
    for call in _calls("sqlite:////nowhere/at/all.db"):
        with pytest.raises(DbConnectionError):
            call()


def _calls(url: str) -> list[Any]:
    writer = DbWriter(url=url, table="items")
    return [
        lambda: DbReader(url=url).query("SELECT 1", params={}),
        lambda: DbReader(url=url, table="items").get(pk={"id": 1}),
        lambda: list(DbReader(url=url).stream("SELECT 1", params={})),
        lambda: writer.insert(data={"id": 1}),
        lambda: writer.insert_many(rows=[{"id": 1}]),
        lambda: writer.transaction().__enter__(),
    ]


@pytest.mark.parametrize("count", [0, 200])
def test_a_violated_constraint_is_named(place: Place, count: int) -> None:
    place.execute(
        "CREATE TABLE children (id INTEGER PRIMARY KEY, item INTEGER, age INTEGER, "
        "CONSTRAINT adult CHECK (age > 17), CONSTRAINT belongs FOREIGN KEY (item) REFERENCES items (id))"
    )
    writer = place.writer()
    writer.insert(data={"id": 1, "code": SECRET})
    fill = [{"id": key, "code": f"c{key}"} for key in range(1000, 1000 + count)]

    unique = _refused(lambda: writer.insert_many(rows=[*fill, {"id": 2, "code": SECRET}]))
    check = _refused(lambda: place.writer("children").insert(data={"id": 1, "age": 3}))

    assert unique.table == "items"
    if place.kind != "sqlite":  # which names the columns of a unique key, and only there
        assert unique.constraint == "items_code"
        assert _refused(lambda: place.writer("children").insert(data={"id": 1, "item": 9})).constraint == "belongs"
    assert check.constraint == "adult"
    assert SECRET not in whole_story(unique)


def _refused(call: Any) -> WriteError:
    with pytest.raises(WriteError) as caught:
        call()
    assert caught.value.__cause__ is not None
    return caught.value


def test_no_message_holds_a_value_of_a_row(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    writer, reader = place.writer(), place.reader()
    writer.insert(data={"id": 1, "name": SECRET, "code": SECRET})
    failures: list[Any] = [
        lambda: writer.insert(data={"id": 1, "name": SECRET}),
        lambda: writer.insert_many(rows=[{"id": 1, "name": SECRET}]),
        lambda: writer.insert(data={"id": SECRET, "size": SECRET}),
        lambda: writer.insert(data={"id": 2, "size": None, "name": SECRET}),
        lambda: reader.query("SELEC :value", params={"value": SECRET}),
        lambda: reader.query("SELECT nothing FROM items WHERE name = :value", params={"value": SECRET}),
        lambda: writer.insert(data={"id": 2, "name": [SECRET, object()]}),
    ]
    for call in failures:
        with pytest.raises((WriteError, QueryError)) as caught:
            call()
        assert SECRET not in whole_story(caught.value)
    assert SECRET not in caplog.text


def test_a_driver_that_stays_away_when_it_is_asked_to_wait_is_a_connection_error(postgres: Place) -> None:
    config = DbConfig(connection_url=postgres.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with DbReader(db_config=config, engine_provider=postgres.provider) as reader:
        rows = reader.stream("SELECT generate_series(1, 100000)", params={})
        next(rows)
        with pytest.raises(DbConnectionError):
            reader.query("SELECT 1", params={})


def _whole_text(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
