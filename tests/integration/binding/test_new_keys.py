"""A unique key that a migration adds is known without a restart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import ConfigurationError, DbConfig, DbReader, DbWriter
from azure_functions_db.sql.engine import default_provider


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = default_provider().get_engine(DbConfig(connection_url=database_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parcels (order_id INTEGER NOT NULL, item VARCHAR(20))"))
    yield engine
    default_provider().dispose_all()


def test_an_upsert_finds_the_new_key(database_url: str, engine: Engine) -> None:
    with DbWriter(url=database_url, table="parcels") as writer:
        writer.insert(data={"order_id": 1, "item": "lamp"})
        with pytest.raises(ConfigurationError, match="no such primary or unique key"):
            writer.upsert(data={"order_id": 1, "item": "chair"}, conflict_columns=["order_id"])
        with engine.begin() as connection:
            connection.execute(text("CREATE UNIQUE INDEX ux_parcels ON parcels (order_id)"))
        writer.upsert(data={"order_id": 1, "item": "chair"}, conflict_columns=["order_id"])
        assert read(database_url) == ["chair"]


def test_an_upsert_of_many_finds_the_new_key(database_url: str, engine: Engine) -> None:
    with DbWriter(url=database_url, table="parcels") as writer:
        writer.insert(data={"order_id": 1, "item": "lamp"})
        with engine.begin() as connection:
            connection.execute(text("CREATE UNIQUE INDEX ux_parcels ON parcels (order_id)"))
        writer.upsert_many(rows=[{"order_id": 1, "item": "table"}], conflict_columns=["order_id"])
        assert read(database_url) == ["table"]


def read(url: str) -> list[str]:
    with DbReader(url=url) as reader:
        return [row["item"] for row in reader.query("SELECT item FROM parcels", params={})]
