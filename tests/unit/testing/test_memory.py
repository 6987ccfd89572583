"""The source that delivers rows from a list."""

from __future__ import annotations

from typing import Any

from azure_functions_db import MemoryStateStore, PollTrigger, RowChange
from azure_functions_db.core.ports import SourceAdapter
from azure_functions_db.testing.memory import MemorySource


def row(key: int, version: int) -> dict[str, Any]:
    return {"id": key, "version": version}


def test_it_is_a_source_that_reads_on_after_a_cursor_or_a_position() -> None:
    source = MemorySource([row(2, 1), row(1, 1), row(3, 2)], cursor_column="version", pk_columns=["id"])
    assert isinstance(source, SourceAdapter)
    assert [read["id"] for read in source.fetch(None, 2)] == [1, 2]
    assert [read["id"] for read in source.fetch((1, 1), 9)] == [2, 3]
    assert [read["id"] for read in source.fetch(1, 9)] == [3]


def test_of_a_row_that_changed_twice_only_its_newest_state_is_there() -> None:
    source = MemorySource([row(1, 1), row(1, 3), row(2, 2)], cursor_column="version", pk_columns=["id"])
    assert source.fetch(None, 9) == [row(2, 2), row(1, 3)]


def test_rows_that_are_added_are_delivered_by_the_next_tick() -> None:
    source = MemorySource([row(1, 1)], cursor_column="version", pk_columns=["id"])
    poller = PollTrigger(name="test", source=source, checkpoint_store=MemoryStateStore())
    seen: list[Any] = []

    def handler(events: list[RowChange]) -> None:
        seen.extend(event.cursor for event in events)

    assert poller.run(timer=None, handler=handler) == 1
    assert poller.run(timer=None, handler=handler) == 0
    source.rows.append(row(1, 2))
    assert poller.run(timer=None, handler=handler) == 1
    assert seen == [1, 2]
