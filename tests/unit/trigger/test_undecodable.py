"""Rows with values that Python cannot hold: never handed out, never passed before they are put aside."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import CommitError, HandlerError, SerializationError
from azure_functions_db.core.types import FetchResult, HandledFirst, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.memory import MemoryQuarantine
from azure_functions_db.trigger.batch import Batch, Checkpoint
from azure_functions_db.trigger.events import RowChange
from tests.unit.trigger.poller import Collected, FullSource, poller, position, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from azure_functions_db.core.types import CheckpointJson, QuarantinedRow

NOON = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
DEEP = 600  # more than functions can call each other for, less than the encoder of JSON can take


class Numbers(FullSource):
    """Numbers from 0 on, of which some cannot be decoded."""

    cursor_column = "id"
    pk_columns = ("id",)
    source_descriptor = SourceDescriptor("numbers", "list", "sha256:numbers")

    def __init__(self, count: int, *odd: int, values: dict[int, Any] | None = None) -> None:
        self.count = count
        self.odd = odd
        self.values = values or {}

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        first = checkpoint.get("cursor", 0)
        end = min(first + limit, self.count)
        return FetchResult(
            [{"id": number, "value": self.values.get(number, number)} for number in range(first, end)],
            {"cursor": end},
            end < self.count,
            undecodable={
                number - first: SerializationError("A value cannot be decoded")
                for number in self.odd
                if first <= number < end
            },
            cut=lambda count: {"cursor": first + count},
        )


class Sink(MemoryQuarantine):
    """Notes where the checkpoint was when rows came."""

    def __init__(self, store: MemoryStateStore) -> None:
        super().__init__()
        self.store = store
        self.positions: list[Any] = []
        self.is_broken = False

    def put(self, rows: Sequence[QuarantinedRow]) -> None:
        if self.is_broken:
            raise OSError("disk full")
        self.positions.append(position(self.store))
        super().put(rows)

    @property
    def ids(self) -> list[int]:
        return sorted(row.event["pk"]["id"] for row in self.entries("orders"))


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


@pytest.fixture
def sink(store: MemoryStateStore) -> Sink:
    return Sink(store)


def test_without_a_quarantine_nothing_is_passed_and_the_row_is_named(store: MemoryStateStore) -> None:
    handler = Collected()
    with pytest.raises(SerializationError, match="cannot be decoded, in the row with id=2 and cursor 2"):
        run(poller(Numbers(5, 2), store), handler)
    assert (handler.batches, position(store)) == ([], {})


def test_they_are_put_aside_before_the_checkpoint_passes_them_and_never_handed_out(
    store: MemoryStateStore, sink: Sink
) -> None:
    handler = Collected()
    trigger = poller(Numbers(7, 0, 4), store, batch_size=5, max_batches_per_tick=5, quarantine=sink)
    assert run(trigger, handler) == 5
    assert handler.ids == [1, 2, 3, 5, 6]
    assert (sink.ids, sink.positions, position(store)) == ([0, 4], [{}], {"cursor": 7})
    row = next(iter(sink.entries("orders")))
    assert (row.error_type, row.error) == ("SerializationError", "A value cannot be decoded")
    assert row.types is None, "of such a row there are only texts"


def test_a_page_of_nothing_else_is_passed_without_a_call(store: MemoryStateStore, sink: Sink) -> None:
    handler = Collected()
    assert run(poller(Numbers(3, 0, 1, 2), store, quarantine=sink), handler) == 0
    assert (handler.batches, sink.ids, position(store)) == ([], [0, 1, 2], {"cursor": 3})


def test_a_quarantine_that_fails_lets_none_of_them_be_passed(store: MemoryStateStore, sink: Sink) -> None:
    sink.is_broken = True
    with pytest.raises(CommitError, match="disk full"):
        run(poller(Numbers(3, 1), store, quarantine=sink), Collected())
    assert position(store) == {}


def test_the_part_that_was_handled_takes_those_among_it_along(store: MemoryStateStore, sink: Sink) -> None:
    handled: list[int] = []

    def first_two(events: list[Any]) -> HandledFirst | None:
        handled.extend(event.pk["id"] for event in events[:2])
        return HandledFirst(2) if len(events) > 2 else None

    trigger = poller(Numbers(6, 1, 4), store, quarantine=sink)
    assert run(trigger, first_two) == 2
    assert (handled, sink.ids, position(store)) == ([0, 2], [1], {"cursor": 3})
    assert run(trigger, first_two) == 2
    assert (handled, sink.ids, position(store)) == ([0, 2, 3, 5], [1, 4], {"cursor": 6})


def test_those_behind_the_part_that_was_handled_are_not_put_aside_yet(store: MemoryStateStore, sink: Sink) -> None:
    assert run(poller(Numbers(6, 4), store, quarantine=sink), lambda _events: HandledFirst(2)) == 2
    assert (sink.positions, position(store)) == ([], {"cursor": 2}), "the quarantine was not asked for anything"


def chained(count: int) -> Exception | None:
    error: Exception | None = None
    for _ in range(count):
        cause, error = error, KeyError("x" * 400)
        error.__cause__ = cause
    return error


def failing_on(bad: int, seen: list[int]) -> Callable[[list[Any]], None]:
    def handler(events: list[Any]) -> None:
        if any(event.pk["id"] == bad for event in events):
            raise ValueError("no stock")
        seen.extend(event.pk["id"] for event in events)

    return handler


def test_a_search_for_poison_finds_its_row_among_them(store: MemoryStateStore, sink: Sink) -> None:
    seen: list[int] = []
    trigger = poller(Numbers(8, 2, 4), store, quarantine=sink, max_attempts=1)
    run(trigger, failing_on(3, seen))
    assert sink.ids == [2, 3, 4]
    assert sorted(set(seen)) == [0, 1, 5, 6, 7]
    assert position(store) == {"cursor": 8}
    [poison] = [row for row in sink.entries("orders") if row.error_type == "ValueError"]
    assert poison.types is not None


def batch_of(*rows: dict[str, Any], **facts: Any) -> Batch:
    events = [
        RowChange(f"e{row['id']}", "upsert", Numbers.source_descriptor, row["id"], {"id": row["id"]}, None, row)
        for row in rows
    ]
    before = Checkpoint()
    return Batch(
        id="batch_1", before=before, after=before, more=False, began=0.0, attempts=3, spent={}, events=events, **facts
    )


def test_a_document_nested_too_deeply_is_put_aside_as_a_text() -> None:
    nested: list[Any] = []
    for _ in range(DEEP):
        nested = [nested]
    batch = batch_of({"id": 1, "value": nested})
    [row] = batch.rows_aside("orders", {"e1": ValueError("no stock")}, NOON)
    assert row.event["pk"] == {"id": 1}
    assert row.event["after"]["id"] == 1
    assert row.event["after"]["value"].startswith("[[[")
    assert row.types is None


def test_a_deleted_row_is_put_aside_without_one() -> None:
    batch = batch_of({"id": 1})
    nested: list[Any] = []
    for _ in range(DEEP):
        nested = [nested]
    gone = RowChange("e1", "delete", Numbers.source_descriptor, 1, {"id": 1}, {"id": 1, "value": nested}, None)
    batch.events = [gone]
    [row] = batch.rows_aside("orders", {"e1": "bad"}, NOON)
    assert (row.event["op"], row.error_type, row.error) == ("delete", "RowsFailed", "bad")


def test_where_a_handler_failed_is_told_as_far_as_it_is_known() -> None:
    with pytest.raises(ValueError) as raised:
        int("no number")
    batch = batch_of({"id": 1}, {"id": 2}, {"id": 3})
    culprits: dict[str, Any] = {"e1": raised.value, "e2": ValueError("made up"), "e3": "named"}
    first, second, third = batch.rows_aside("orders", culprits, NOON)
    assert first.traceback is not None
    assert first.traceback.startswith("Traceback")
    assert first.types is not None, "so that it comes back as it was"
    raised.value.__cause__ = chained(30)
    [long] = batch.rows_aside("orders", {"e1": raised.value}, NOON)
    assert long.traceback is not None
    assert (long.traceback[0], len(long.traceback)) == ("…", 8_001), "of a long one the end is kept"
    assert (second.traceback, third.traceback) == (None, None)
    assert [row.attempts for row in (first, second, third)] == [3, 3, 3]


def test_what_was_put_aside_is_not_handed_out_once_more() -> None:
    batch = batch_of({"id": 1}, {"id": 2}, {"id": 3}, quarantined={"e1"})
    assert [event.event_id for event in batch.readable_events] == ["e2", "e3"]
    batch.undecodable = {"e3": ValueError()}
    assert [event.event_id for event in batch.readable_events] == ["e2"]
    assert [event.event_id for event in batch.handled_events] == ["e2", "e3"]


def test_a_batch_whose_events_could_not_be_made_is_told_all_the_same() -> None:
    assert batch_of().described() == {"id": "batch_1", "rows": 0, "first": None}
    assert batch_of({"id": 7}).described() == {"id": "batch_1", "rows": 1, "first": "7 (id=7)"}


def test_a_row_that_nobody_can_read_is_no_witness_against_another(store: MemoryStateStore, sink: Sink) -> None:
    """Behind the failing row are only rows that were never tried: that may as well be an outage."""
    with pytest.raises(HandlerError, match="looks like an outage"):
        run(poller(Numbers(3, 1, 2), store, quarantine=sink, max_attempts=1), failing_on(0, []))
    assert 0 not in sink.ids
    assert position(store) == {}
