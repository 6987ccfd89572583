"""What every log has in common, over a log that can be made to forget."""

from __future__ import annotations

from typing import Any

import pytest

from azure_functions_db import PositionLostError
from azure_functions_db.core.types import Change
from azure_functions_db.sources.stream import LogPage, LogPosition, RowsPage, StreamReader


class ShrinkingLog:
    """A log that is thrown away while it is read: so many times, what it begins with is gone when it is read."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.oldest = 10

    def begin(self, *, anew: bool) -> LogPosition:
        self.oldest += 1
        return {"value": str(self.oldest)}

    def rows(self, position: LogPosition, table: str, after: Any, limit: int) -> RowsPage | None:
        raise AssertionError("no table is read")

    def changes(self, position: LogPosition, limit: int) -> LogPage:
        if self.left:
            self.left -= 1
            raise PositionLostError(f"{position['value']} is gone")
        return LogPage([Change("upsert", position["value"], {"id": 1}, {"id": 1})], {"value": "99"}, more=False)

    def acknowledge(self, position: LogPosition) -> None: ...

    def close(self) -> None: ...


def reader(log: ShrinkingLog, policy: Any) -> StreamReader:
    return StreamReader(log, kind="shrinking", tables=["rows"], snapshot="never", on_position_lost=policy)


def test_a_log_that_is_shortened_while_it_is_read_is_gone_on_with_where_it_has_come_to() -> None:
    page = reader(ShrinkingLog(3), "continue").fetch_changes({"cursor": {"value": "1"}}, 10)
    assert [change.position for change in page.records] == ["13"]
    gap = page.next_checkpoint["cursor"]["gap"]
    assert (gap["from"], gap["to"], gap["reason"]) == ("1", "13", "1 is gone")


def test_a_log_that_loses_everything_it_is_asked_for_is_told_and_not_asked_for_ever() -> None:
    with pytest.raises(PositionLostError, match="15 is gone"):
        reader(ShrinkingLog(1000), "continue").fetch_changes({"cursor": {"value": "1"}}, 10)


def test_who_wants_to_be_stopped_is_stopped_by_the_first_loss() -> None:
    with pytest.raises(PositionLostError, match=r"^1 is gone"):
        reader(ShrinkingLog(1), "stop").fetch_changes({"cursor": {"value": "1"}}, 10)
