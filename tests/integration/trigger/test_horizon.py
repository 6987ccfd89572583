"""Whom a poller waits for, over restarts of its process: written once, and never waited for anew."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, create_engine, text

from azure_functions_db import (
    EngineProvider,
    FileStateStore,
    MemoryStateStore,
    PollTrigger,
    RowChange,
    SqlAlchemySource,
)
from tests.integration.traffic import create_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine


class FiveMethods:
    """A store of somebody else's, with nothing but what the port asks for."""

    def __init__(self) -> None:
        self._store = MemoryStateStore()
        self.commits: list[dict[str, Any]] = []

    def acquire_lease(self, poller_name: str, ttl_seconds: int) -> str:
        return self._store.acquire_lease(poller_name, ttl_seconds)

    def renew_lease(self, poller_name: str, lease_id: str, ttl_seconds: int) -> None:
        self._store.renew_lease(poller_name, lease_id, ttl_seconds)

    def release_lease(self, poller_name: str, lease_id: str) -> None:
        self._store.release_lease(poller_name, lease_id)

    def load_checkpoint(self, poller_name: str) -> dict[str, Any]:
        return dict(self._store.load_checkpoint(poller_name))

    def commit_checkpoint(self, poller_name: str, checkpoint: dict[str, Any], lease_id: str) -> None:
        self.commits.append(json.loads(json.dumps(checkpoint)))
        self._store.commit_checkpoint(poller_name, checkpoint, lease_id)


@pytest.fixture
def engine(postgres_database: str) -> Iterator[Engine]:
    create_table(postgres_database)
    engine = create_engine(postgres_database)
    yield engine
    engine.dispose()


@pytest.fixture
def tick(postgres_database: str, provider: EngineProvider) -> Callable[..., list[Any]]:
    """One tick of a process that knows nothing but what the store tells it."""

    def tick_of_a_new_process(store: Any, **options: Any) -> list[Any]:
        source = SqlAlchemySource(
            url=postgres_database,
            table="changes",
            cursor_column="stamp",
            pk_columns=["id"],
            engine_provider=provider,
            **{"horizon_wait_seconds": 0.2, **options},
        )
        seen: list[Any] = []

        def collect(events: list[RowChange]) -> None:
            seen.extend(event.pk["id"] for event in events)

        PollTrigger(name="changes", source=source, checkpoint_store=store).run(timer=None, handler=collect)
        return seen

    return tick_of_a_new_process


def insert(connection: Connection) -> None:
    connection.execute(text("INSERT INTO changes (version, stamp) VALUES (1, clock_timestamp())"))


def test_a_held_poller_writes_once_and_goes_on_where_its_last_process_was(
    engine: Engine, tick: Callable[..., list[Any]], tmp_path: Path
) -> None:
    store = FileStateStore(tmp_path)
    with engine.connect() as first, engine.connect() as second:
        first.execute(text("SELECT 1"))
        with engine.begin() as writer:
            insert(writer)
        assert tick(store) == []
        [document] = tmp_path.rglob("*.json")
        recorded = document.read_bytes()
        second.execute(text("SELECT 1"))
        assert tick(store) == []
        assert document.read_bytes() == recorded
        first.rollback()
        assert tick(store) == [1]
        idle = document.read_bytes()
        assert tick(store) == []
        assert document.read_bytes() == idle


def test_an_idle_session_delays_a_process_per_tick_up_to_the_cap_and_is_told_of_once(
    engine: Engine, tick: Callable[..., list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    store, seen = FiveMethods(), list[Any]()
    with engine.connect() as idle:
        idle.execute(text("SELECT 1"))
        for number in (1, 2):
            with engine.begin() as writer:
                insert(writer)
            for _ in range(50):
                seen += [] if number in seen else tick(store, horizon_cap_seconds=1.5)
    assert seen == [1, 2]
    told = [record for record in caplog.records if "no longer waits" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert len(store.commits) == 3  # whom it waits for, and two batches
