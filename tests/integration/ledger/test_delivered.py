"""The delivered ledger."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from azure_functions_db import EngineProvider, MemoryStateStore, PollTrigger, RowChange
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.ledger import DeliveredLedger

SOURCE = SourceDescriptor("orders", "test", "sha256:0")


def change(cursor: Any, **pk: Any) -> RowChange:
    return RowChange(None, "upsert", SOURCE, cursor, pk)


def test_what_was_noted_is_not_missing(database_url: str, provider: EngineProvider) -> None:
    ledger = DeliveredLedger(url=database_url, engine_provider=provider)
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    events = [change(1, id=1), change(noon, id=2), change(Decimal("1.50"), a="x", b=b"\x00")]
    ledger.note("orders", events)
    ledger.note("orders", events)
    elsewhere = change(noon.astimezone(dt.timezone(dt.timedelta(hours=5))), id=2)
    newer = change(2, id=1)

    assert ledger.missing("orders", [*events, elsewhere]) == []
    assert ledger.missing("orders", [newer, *events]) == [newer]
    assert ledger.missing("another", events) == events
    assert ledger.prune(dt.timedelta(days=1)) == 0
    assert ledger.prune(dt.timedelta(seconds=-60)) == 3


def test_it_listens_to_a_trigger_and_leaves_out_what_was_quarantined(
    sqlite_database: str, provider: EngineProvider
) -> None:
    class Rows:
        source_descriptor = SOURCE
        cursor_column = "id"
        pk_columns = ("id",)

        def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, int]]:
            after = cursor[0] if cursor else 0
            return [{"id": number} for number in range(after + 1, 13)][:batch_size]

    class Sink:
        def put(self, rows: Any) -> None: ...
        def entries(self, poller_name: str | None = None) -> list[Any]:
            return []

        def remove(self, poller_name: str, event_id: str) -> None: ...

    def handler(events: list[RowChange]) -> None:
        if any(event.pk["id"] == 3 for event in events):
            raise ValueError("three")

    ledger = DeliveredLedger(url=sqlite_database, engine_provider=provider)
    trigger = PollTrigger(
        name="orders",
        source=Rows(),
        checkpoint_store=MemoryStateStore(),
        quarantine=Sink(),
        max_attempts=1,
        observers=[ledger],
    )
    assert trigger.run(timer=None, handler=handler) == 11
    missing = ledger.missing("orders", [change(number, id=number) for number in range(1, 13)])
    assert [event.pk["id"] for event in missing] == [3]


def test_a_ledger_that_fails_says_so_without_secrets(provider: EngineProvider) -> None:
    ledger = DeliveredLedger(url="postgresql+psycopg://me:hush@127.0.0.1:9/x", engine_provider=provider)
    with pytest.raises(ConnectionError, match="azfdb_delivered") as told:
        ledger.note("orders", [change(1, id=1)])
    assert "hush" not in str(told.value)


def test_its_ddl_makes_the_table(sqlite_database: str, provider: EngineProvider) -> None:
    ledger = DeliveredLedger(url=sqlite_database, engine_provider=provider, table="told")
    assert ledger.ddl().startswith("CREATE TABLE told (")
    assert "CREATE INDEX ix_told_noted_at ON told (noted_at);" in ledger.ddl()
