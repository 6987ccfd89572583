"""Where a poller begins, over restarts of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from azure_functions_db import MemoryStateStore, PollTrigger, RowChange, SqlAlchemySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def execute(sqlite_database: str) -> Iterator[Callable[[str], None]]:
    engine = create_engine(sqlite_database)

    def run(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    run("CREATE TABLE orders (id INTEGER PRIMARY KEY, version INTEGER)")
    run("CREATE INDEX orders_by_version ON orders (version, id)")
    yield run
    engine.dispose()


@pytest.mark.parametrize("existing", [0, 3])
def test_what_changes_after_the_first_tick_is_not_lost_to_a_restart(
    sqlite_database: str, execute: Callable[[str], None], existing: int
) -> None:
    for number in range(existing):
        execute(f"INSERT INTO orders VALUES ({number}, {number})")
    store, seen = MemoryStateStore(), list[object]()

    def tick_of_a_new_process() -> int:
        source = SqlAlchemySource(
            url=sqlite_database, table="orders", cursor_column="version", pk_columns=["id"], start_at="now"
        )
        trigger = PollTrigger(name="orders", source=source, checkpoint_store=store)
        return trigger.run(timer=None, handler=collect)

    def collect(events: list[RowChange]) -> None:
        seen.extend(event.pk["id"] for event in events)

    assert tick_of_a_new_process() == 0
    execute("INSERT INTO orders VALUES (100, 100)")
    assert tick_of_a_new_process() == 1
    assert tick_of_a_new_process() == 0
    assert seen == [100]
