"""A reader goes on from where its last page has ended, without reading that from the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url

from azure_functions_db import EngineProvider, SqlAlchemySource
from tests.conftest import execute


@pytest.fixture
def source(sqlite_database: str, provider: EngineProvider) -> SqlAlchemySource:
    execute(make_url(sqlite_database), "CREATE TABLE t (id integer PRIMARY KEY, c integer)")
    execute(make_url(sqlite_database), "INSERT INTO t VALUES (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)")
    place: dict[str, Any] = {"url": sqlite_database, "engine_provider": provider}
    return SqlAlchemySource(**place, table="t", cursor_column="c", pk_columns=["id"], in_flight="ignore")


@pytest.fixture
def parsed(source: SqlAlchemySource, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The checkpoints that are read."""
    checkpoints: list[Any] = []
    position = source._relation.position

    def noted(plan: Any, checkpoint: Any, connection: Any) -> Any:
        checkpoints.append(checkpoint)
        return position(plan, checkpoint, connection)

    monkeypatch.setattr(source._relation, "position", noted)
    return checkpoints


def ids(page: Any) -> list[int]:
    return [record["id"] for record in page.records]


def test_the_next_page_begins_where_the_last_has_ended(source: SqlAlchemySource, parsed: list[Any]) -> None:
    reader, checkpoint, found = source.open(), dict[str, Any](), list[int]()
    for _ in range(5):
        page = reader.fetch_changes(checkpoint, 1)
        checkpoint = {**page.next_checkpoint}
        found += ids(page)
    assert (found, parsed) == ([1, 2, 3, 4, 5], [{}])


def test_any_other_checkpoint_is_read(source: SqlAlchemySource, parsed: list[Any]) -> None:
    reader = source.open()
    first = reader.fetch_changes({}, 2).next_checkpoint
    reader.fetch_changes(first, 2)
    assert ids(reader.fetch_changes(first, 1)) == [3]
    assert ids(reader.fetch_changes({}, 1)) == [1]
    assert parsed == [{}, first, {}]


def test_a_table_that_has_changed_is_read_by_the_checkpoint(source: SqlAlchemySource, parsed: list[Any]) -> None:
    reader = source.open()
    first = reader.fetch_changes({}, 2).next_checkpoint
    source._relation.has_changed()
    assert ids(reader.fetch_changes(first, 1)) == [3]
    assert parsed == [{}, first]
