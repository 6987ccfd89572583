"""What a handler got through is committed as far as its source can stand behind it, and no further."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import (
    CommitError,
    HandlerError,
    LeaseConflictError,
    LostLeaseError,
    PositionLostError,
    RowsFailed,
    SourceInUseError,
)
from azure_functions_db.core.signals import BatchCommitted, TickCompleted, TickResult
from azure_functions_db.core.types import FetchResult, HandledFirst, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from tests.unit.trigger.poller import Collected, FullSource, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.types import CheckpointJson


class Told(FullSource):
    """Tells its pages as they are written down, by how many rows are asked for; it cannot be cut."""

    cursor_column, pk_columns = "id", ("id",)
    source_descriptor = SourceDescriptor("told", "fake", "sha256:told")

    def __init__(self, first: Sequence[int], again: dict[int, Sequence[int]]) -> None:
        self.first = first
        self.again = again
        self.asked: list[int] = []

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        rows = self.again[limit] if self.asked else self.first
        self.asked.append(limit)
        return FetchResult([{"id": number} for number in rows], {"cursor": f"after {list(rows)}"}, more=False)


def failing_at(bad: int) -> Callable[[list[Any]], None]:
    def handler(events: list[Any]) -> None:
        raise RowsFailed({event.event_id: "bad" for event in events if event.pk["id"] == bad})

    return handler


@pytest.mark.parametrize(
    ("again", "reached", "asked"),
    [
        ({2: [0, 1]}, {"cursor": "after [0, 1]"}, [10, 2]),
        ({2: [0, 7], 1: [0]}, {"cursor": "after [0]"}, [10, 2, 1]),
        ({2: [0, 1, 2], 1: [0]}, {"cursor": "after [0]"}, [10, 2, 1]),
        ({2: [0, 1, 2], 1: [0, 1, 2]}, {}, [10, 2, 1]),
        ({2: [7, 0]}, {}, [10, 2]),
        ({2: []}, {}, [10, 2]),
    ],
    ids=["as before", "a new row within", "a transaction kept whole", "always whole", "a new row first", "all gone"],
)
def test_the_source_is_read_again_and_nothing_is_passed_that_was_not_handled(
    again: dict[int, Sequence[int]], reached: CheckpointJson, asked: list[int]
) -> None:
    store, source, recorder = MemoryStateStore(), Told(range(5), again), Recorder()
    with pytest.raises(HandlerError):
        run(poller(source, store, batch_size=10, observers=[recorder]), failing_at(2))
    assert (position(store), source.asked) == (reached, asked)
    handled = [event.pk["id"] for batch in recorder.of(BatchCommitted) for event in batch.events]
    assert handled == (list(again[asked[-1]]) if reached else [])


def test_a_part_that_the_source_cannot_stand_behind_comes_again_and_that_is_told() -> None:
    store = MemoryStateStore()
    with pytest.raises(HandlerError, match="cannot stand behind them"):
        run(poller(Told(range(5), {2: []}), store, batch_size=10), lambda _events: HandledFirst(2))
    assert position(store) == {}


def test_a_batch_whose_first_row_failed_is_not_read_again() -> None:
    store, source = MemoryStateStore(), Told(range(5), {})
    with pytest.raises(HandlerError):
        run(poller(source, store, batch_size=10), failing_at(0))
    assert (position(store), source.asked) == ({}, [10])


class Commits(PlainStore):
    """Fails at the commit, and where that is wanted at the look afterwards."""

    def __init__(self, error: Exception, *, is_gone: bool = False) -> None:
        super().__init__()
        self.error = error
        self.is_gone = is_gone
        self.has_failed = False

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        self.has_failed = True
        raise self.error

    def load_checkpoint(self, poller_name: str) -> CheckpointJson:
        if self.has_failed and self.is_gone:
            raise OSError("storage is gone, too")
        return super().load_checkpoint(poller_name)


def test_a_commit_of_which_nothing_is_known_counts_as_none() -> None:
    with pytest.raises(CommitError, match="down"):
        run(poller(ListSource(3), Commits(OSError("down"), is_gone=True)), Collected())


def test_a_conflict_at_the_commit_is_a_lost_lease() -> None:
    with pytest.raises(LostLeaseError, match="had passed to somebody else"):
        run(poller(ListSource(3), Commits(LeaseConflictError("taken"))), Collected())


def test_a_position_that_is_lost_is_told_at_once() -> None:
    class Lost(Told):
        def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
            self.asked.append(limit)
            raise PositionLostError("5 is gone")

    source = Lost((), {})
    with pytest.raises(PositionLostError, match="5 is gone"):
        run(poller(source, batch_size=10), Collected())
    assert source.asked == [10]


def test_a_source_that_somebody_else_has_by_the_time_of_the_acknowledgement_ends_the_tick() -> None:
    class Taken(Told):
        def acknowledge(self, checkpoint: CheckpointJson) -> None:
            raise SourceInUseError("the slot is active")

    store, recorder = MemoryStateStore(), Recorder()
    run(poller(Taken(range(3), {}), store, observers=[recorder]), Collected())
    assert [signal.result for signal in recorder.of(TickCompleted)] == [TickResult.SKIPPED]
    assert position(store) == {"cursor": "after [0, 1, 2]"}


class Counted(ListSource):
    """A source that counts what waits."""

    def __init__(self, count: int, waiting: int | Exception) -> None:
        super().__init__(count)
        self.waiting = waiting

    def count_changes(self, _checkpoint: CheckpointJson, most: int) -> int:
        if isinstance(self.waiting, Exception):
            raise self.waiting
        return min(self.waiting, most)


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (Counted(25, 5), {"max_batches_per_tick": 2}, [None, 5]),
        (Counted(25, 20_000), {"max_batches_per_tick": 1}, [10_000]),
        (Counted(25, OSError("locked")), {"max_batches_per_tick": 1}, [None]),
        (ListSource(25), {"max_batches_per_tick": 1}, [None]),
    ],
    ids=["its last batch", "counting is bounded", "it cannot be counted now", "it cannot be counted at all"],
)
def test_how_many_rows_wait_is_told_with_the_last_batch(
    source: ListSource, options: dict[str, Any], told: list[int | None]
) -> None:
    recorder = Recorder()
    run(poller(_full(source), batch_size=10, observers=[recorder], **options), Collected())
    assert [signal.lag_rows for signal in recorder.of(BatchCommitted)] == told


def _full(source: ListSource) -> Any:
    """The full port over rows of a list."""

    class Full(Told):
        def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
            first = checkpoint.get("cursor", 0)
            rows = source.rows[first : first + limit]
            return FetchResult(rows, {"cursor": first + len(rows)}, more=first + limit < len(source.rows))

    full = Full((), {})
    if isinstance(source, Counted):
        full.count_changes = source.count_changes  # type: ignore[attr-defined]
    return full


def test_nothing_waits_where_the_source_says_so() -> None:
    recorder = Recorder()
    run(poller(_full(Counted(5, 99)), batch_size=10, observers=[recorder]), Collected())
    assert [signal.lag_rows for signal in recorder.of(BatchCommitted)] == [0]


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_what_waits_is_not_counted_for_a_log_that_is_off(caplog: pytest.LogCaptureFixture, level: int) -> None:
    asked: list[int] = []

    class Asked(Counted):
        def count_changes(self, checkpoint: CheckpointJson, most: int) -> int:
            asked.append(most)
            return super().count_changes(checkpoint, most)

    with caplog.at_level(level, "azure_functions_db"):
        run(poller(_full(Asked(25, 5)), batch_size=10), Collected())
    assert asked == ([10_000] if level == logging.INFO else [])


def test_a_handler_is_told_until_when_it_has_time() -> None:
    seen: list[Any] = []

    def handler(_events: list[Any], context: Any) -> None:
        seen.append(context.deadline and (context.deadline - context.tick_started_at).total_seconds())

    run(poller(ListSource(1), time_budget_seconds=90), handler)
    run(poller(ListSource(1)), handler)
    assert seen == [90, None]
