"""A dialect that this library has no special words for: what plain SQLAlchemy can do works."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from azure_functions_db import (
    ConfigurationError,
    DbConfig,
    DbReader,
    DbSession,
    DbWriter,
    EngineProvider,
    WriteError,
)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    provider, url = EngineProvider(), f"duckdb:///{tmp_path / 'duck.db'}"
    with provider.get_engine(DbConfig(connection_url=url)).begin() as connection:
        connection.execute(
            text("CREATE TABLE items (id INTEGER PRIMARY KEY, name VARCHAR, moment TIMESTAMP, price DECIMAL(10, 2))")
        )
    yield {"url": url, "engine_provider": provider}
    provider.dispose_all()


def test_rows_are_written_and_read(options: dict[str, Any]) -> None:
    writer, reader = DbWriter(table="items", **options), DbReader(table="items", **options)
    row = {"id": 1, "name": "ü", "moment": dt.datetime(2026, 1, 2, 3, 4, 5), "price": Decimal("1.50")}  # noqa: DTZ001

    writer.insert(data=row)
    writer.insert_many(rows=[{**row, "id": key} for key in range(2, 300)])
    writer.update(data={"name": "changed"}, pk={"id": 2})
    writer.delete(pk={"id": 3})

    assert reader.get(pk={"id": 1}) == row
    assert reader.get(pk={"id": 2}) == {**row, "id": 2, "name": "changed"}
    assert reader.scalar("SELECT count(*) FROM items WHERE id > :least", params={"least": 0}) == 298
    assert len(list(reader.stream("SELECT id FROM items", params={}, chunk_size=50))) == 298
    more = [{**row, "id": 1000}, {**row, "id": 1001}]
    assert writer.insert_many(rows=more, returning=list(row)) == more


def test_transactions_and_failures_keep_all_or_nothing(options: dict[str, Any]) -> None:
    writer, reader = DbWriter(table="items", **options), DbReader(table="items", **options)
    with pytest.raises(KeyError), writer.transaction():
        writer.insert(data={"id": 1})
        raise KeyError
    with pytest.raises(WriteError):
        writer.insert_many(rows=[{"id": 1}, {"id": 1}])
    with DbSession(**options) as session:
        session.writer("items").insert(data={"id": 2})

    assert reader.query("SELECT id FROM items", params={}) == [{"id": 2}]


def test_an_upsert_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="does not work with the dialect 'duckdb'"):
        DbWriter(table="items", **options).upsert(data={"id": 1}, conflict_columns=["id"])
