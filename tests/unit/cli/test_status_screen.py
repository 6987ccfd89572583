"""How many pollers become few lines, in the order in which they matter."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from azure_functions_db import MemoryStateStore
from azure_functions_db.cli.status import folded, sparkline
from azure_functions_db.operations.pollers import Poller
from azure_functions_db.operations.status import PollerStatus, status_of

NOW = dt.datetime(2026, 11, 16, 3, tzinfo=dt.UTC)


def partition(index: int, **facts: Any) -> PollerStatus:
    return PollerStatus(poller=f"ship-{index}-of-4", partition_of="ship", **facts)


def test_partitions_are_one_line_with_their_sums_and_the_worst_of_them() -> None:
    calm = [partition(index, waiting_rows=5, lag_seconds=float(index), rows_per_second=2.0) for index in (1, 2, 3)]
    [line] = folded([*calm, partition(4, waiting_rows=None)])
    assert line.poller == "ship (4 partitions, 0 at work)"
    assert (line.waiting_rows, line.lag_seconds, line.rows_per_second) == (15, 3.0, 6.0)


def test_a_partition_in_trouble_stands_by_itself_below() -> None:
    wrong = partition(2, problems=["failed 3 time(s)"], condition="failing")
    lines = folded([wrong, partition(1, condition="idle"), PollerStatus(poller="orders")])
    assert [line.poller for line in lines] == ["ship (2 partitions, 0 at work)", "ship-2-of-4", "orders"]
    assert lines[0].condition == "failing"


def test_a_partition_without_sisters_keeps_its_name() -> None:
    assert [line.poller for line in folded([partition(1)])] == ["ship-1-of-4"]


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([0, 0], "▁▁"), ([0, 7], "▁█"), ([1, 2, 4], "▃▅█"), ([5, 0], "█▁")]
)
def test_a_trend_is_drawn_up_to_its_highest_value(values: list[int], line: str) -> None:
    assert sparkline(values) == line


@pytest.mark.parametrize(
    ("order", "first"), [("trouble", "broken"), ("name", "a"), ("age", "old"), ("lag", "a"), ("waiting", "a")]
)
def test_pollers_come_in_the_order_that_is_asked_for(order: str, first: str) -> None:
    store = MemoryStateStore(clock=lambda: NOW)

    def write(name: str, minutes: int, **metadata: Any) -> None:
        at = (NOW - dt.timedelta(minutes=minutes)).isoformat()
        checkpoint = {"cursor": [1, 1], "updated_at": at, "metadata": metadata}
        lease = store.acquire_lease(name, 60)
        store.commit_checkpoint(name, checkpoint, lease)
        store.release_lease(name, lease)

    write("a", 1)
    write("old", 90)
    write("broken", 2, failed_attempts=3)
    status = status_of([Poller(name, store) for name in ("old", "a", "broken")], NOW, order=order)
    assert status.pollers[0].poller == first
    assert [problem.poller for problem in status.problems] == ["broken"]
