"""Failure drills on real databases, where a frozen owner keeps its locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from azure_functions_db import DbBindings, DbConfig, DbReader, DbWriter, RowChange, SqlAlchemySource, SqlStateStore
from azure_functions_db.sql.engine import default_provider
from azure_functions_db.testing.drills import Drill, Report, run_drills

ROWS = [{"id": number, "version": number, "amount": number * 10} for number in range(1, 5)]
LATER = [{"id": 1, "version": 9, "amount": 999}]
db = DbBindings()


@pytest.fixture(params=["postgres", "mariadb"])
def shop(request: pytest.FixtureRequest) -> Iterator[str]:
    url = str(request.getfixturevalue(f"{request.param}_database"))
    with engine_of(url).begin() as connection:
        connection.execute(text("CREATE TABLE ledger (id INTEGER, amount INTEGER)"))
        connection.execute(text("CREATE TABLE target (id INTEGER PRIMARY KEY, amount INTEGER)"))
    yield url
    default_provider().dispose_all()


def engine_of(url: str) -> Engine:
    return default_provider().get_engine(DbConfig(connection_url=url))


def drilled(url: str, function: Any, table: str, **options: Any) -> Report:
    def empty() -> None:
        with engine_of(url).begin() as connection:
            connection.execute(text(f"DELETE FROM {table}"))

    def effects() -> list[dict[str, Any]]:
        with DbReader(url=url) as reader:
            return reader.query(f"SELECT id, amount FROM {table} ORDER BY id, amount", params={})

    return run_drills(function, rows=ROWS, effects=effects, reset=empty, **options)


def source_at(url: str) -> SqlAlchemySource:
    return SqlAlchemySource(url=url, table="orders", cursor_column="version", pk_columns=["id"])


def test_the_transactional_mode_survives_everything_with_plain_inserts(shop: str) -> None:
    @db.trigger(arg_name="events", source=source_at(shop), checkpoint_store=SqlStateStore(url=shop), transactional=True)
    @db.inject_writer("ledger", url=shop, table="ledger")
    def book(timer: Any, events: list[RowChange], ledger: DbWriter) -> None:
        for event in events:
            ledger.insert(data={"id": event.pk["id"], "amount": (event.after or {})["amount"]})

    def new_store(**options: Any) -> SqlStateStore:
        return SqlStateStore(url=shop, **options)

    assert not drilled(shop, book, "ledger", new_store=new_store, later=LATER).failures


def test_an_owner_that_froze_in_its_own_transaction_does_not_block_the_drill(shop: str) -> None:
    @db.trigger(arg_name="events", source=source_at(shop), checkpoint_store=SqlStateStore(url=shop))
    @db.inject_writer("target", url=shop, table="target")
    def mirror(timer: Any, events: list[RowChange], target: DbWriter) -> None:
        with target.transaction():
            for event in events:
                row = {"id": event.pk["id"], "amount": (event.after or {})["amount"]}
                target.upsert(data=row, conflict_columns=["id"])

    assert not drilled(shop, mirror, "target", freeze_seconds=0.5).failures
    stale = drilled(shop, mirror, "target", later=LATER, drills=[Drill.LOST_LEASES])
    assert [finding.drill for finding in stale.failures] == [Drill.LOST_LEASES]
