"""What a dashboard shows of a poller besides its batches: how far behind it is, and what it can never reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from sqlalchemy import Engine, create_engine, text

from azure_functions_db import MemoryStateStore, PollTrigger, SqlAlchemySource


class Gauges:
    """A collector that keeps the gauges."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def increment(self, name: str, value: float = 1, labels: Mapping[str, str] | None = None) -> None: ...

    def observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None: ...

    def set_gauge(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.values[name] = value


@pytest.fixture
def engine(sqlite_database: str) -> Iterator[Engine]:
    engine = create_engine(sqlite_database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER)"))
        connection.execute(text("CREATE INDEX orders_by_version ON orders (version, id)"))
        connection.execute(text("INSERT INTO orders (version) VALUES (1), (2), (3), (4), (5), (NULL), (NULL)"))
    yield engine
    engine.dispose()


def new_trigger(url: str, gauges: Gauges, time: list[float], store: MemoryStateStore) -> PollTrigger:
    source = SqlAlchemySource(
        url=url, table="orders", cursor_column="version", pk_columns=["id"], clock=lambda: time[0]
    )
    return PollTrigger(name="orders", source=source, checkpoint_store=store, batch_size=2, metrics=gauges)


def test_the_lag_of_an_integer_cursor_is_told_in_rows(engine: Engine, sqlite_database: str) -> None:
    gauges = Gauges()
    trigger = new_trigger(sqlite_database, gauges, [0.0], MemoryStateStore())
    behind = []
    for _ in range(3):
        trigger.run(timer=None, handler=lambda _events: None)
        behind.append(gauges.values["azfdb_lag_rows"])
    assert behind == [3, 1, 0]


def test_rows_without_a_cursor_are_counted_every_hour(
    engine: Engine, sqlite_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    gauges, time = Gauges(), [0.0]
    trigger = new_trigger(sqlite_database, gauges, time, MemoryStateStore())
    trigger.run(timer=None, handler=lambda _events: None)
    assert gauges.values["azfdb_null_cursor_rows"] == 2
    assert [record.levelname for record in caplog.records if record.message == "null_cursor_rows"] == ["WARNING"]
    with engine.begin() as connection:
        connection.execute(text("UPDATE orders SET version = 9 WHERE version IS NULL"))
    trigger.run(timer=None, handler=lambda _events: None)
    assert gauges.values["azfdb_null_cursor_rows"] == 2
    time[0] = 3601
    trigger.run(timer=None, handler=lambda _events: None)
    assert gauges.values["azfdb_null_cursor_rows"] == 0
