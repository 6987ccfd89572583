"""Deletes told by tombstones: rows and tombstones as one ordered union, and a doctor that sees them unread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from azure_functions_db import DbConfig, EngineProvider, MemoryStateStore, PollTrigger, RowChange, SqlAlchemySource

if TYPE_CHECKING:
    from sqlalchemy import Engine

UNION = (
    "SELECT id, item, version, 0 AS deleted FROM orders UNION ALL SELECT id, NULL, version, 1 FROM orders_tombstones"
)


@pytest.fixture
def engine(database_url: str, provider: EngineProvider) -> Engine:
    engine = provider.get_engine(DbConfig(connection_url=database_url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, item varchar(20), version bigint NOT NULL)"))
        connection.execute(text("CREATE TABLE orders_tombstones (id int PRIMARY KEY, version bigint NOT NULL)"))
        connection.execute(text("CREATE TABLE orders_deleted_notes (note varchar(20))"))
    return engine


def test_deletes_come_in_their_order_between_the_rows(
    engine: Engine, database_url: str, provider: EngineProvider
) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (1, 'lamp', 1), (3, 'chair', 3)"))
        connection.execute(text("INSERT INTO orders_tombstones VALUES (2, 2)"))
    source = SqlAlchemySource(
        url=database_url,
        query=UNION,
        cursor_column="version",
        pk_columns=["id"],
        deleted_column="deleted",
        engine_provider=provider,
        horizon_wait_seconds=20,
    )
    store, seen = MemoryStateStore(), list[RowChange]()
    PollTrigger(name="p", source=source, checkpoint_store=store).run(timer=None, handler=seen.extend)
    assert [(event.op, event.pk["id"]) for event in seen] == [("upsert", 1), ("delete", 2), ("upsert", 3)]
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM orders WHERE id = 1"))
        connection.execute(text("INSERT INTO orders_tombstones VALUES (1, 4)"))
    PollTrigger(name="p", source=source, checkpoint_store=store).run(timer=None, handler=seen.extend)
    assert [(event.op, event.pk["id"]) for event in seen[3:]] == [("delete", 1)]
    print(source.late_commit_grade())  # noqa: T201 - for the page


def test_the_doctor_points_out_tombstones_that_nobody_reads(
    engine: Engine, database_url: str, provider: EngineProvider
) -> None:
    plain = SqlAlchemySource(
        url=database_url, table="orders", cursor_column="version", pk_columns=["id"], engine_provider=provider
    )
    [finding] = [one for one in plain.examine() if one.check == "deletes"]
    assert finding.grade == "note"
    assert finding.text.startswith("orders_tombstones has the key of orders")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE orders_tombstones"))
    assert [one for one in plain.examine() if one.check == "deletes"] == []
