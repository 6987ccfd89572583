"""Who makes the events of a source, and what of."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from azure_functions_db.core.errors import SerializationError
from azure_functions_db.core.types import Change, SourceDescriptor
from azure_functions_db.trigger.events import RowChange
from azure_functions_db.trigger.normalizers import (
    ChangeNormalizer,
    RecordNormalizer,
    SmallSource,
    normalized,
    normalizer_for,
    reading,
)
from tests.unit.trigger.poller import FullSource, ListSource

SOURCE = SourceDescriptor("orders", "list", "sha256:orders")
BATCH = {"batch_id": "b1"}
NOON = dt.datetime(2026, 4, 7, 12, tzinfo=dt.UTC)


def plainly(record: dict[str, Any], source: SourceDescriptor, /) -> RowChange:
    return RowChange(None, "upsert", source, record["version"], {"id": record["id"]}, metadata=record.get("said"))


class TestOfRecords:
    def test_a_chosen_normalizer_counts_before_the_sources_own(self) -> None:
        source = ListSource()
        source.normalizer = lambda *_: None  # type: ignore[attr-defined]
        assert normalizer_for(source, plainly) is plainly
        assert normalizer_for(source, None) is source.normalizer  # type: ignore[attr-defined]

    def test_a_source_without_one_of_its_own_has_its_columns_read(self) -> None:
        source = ListSource()
        source.normalizer = None  # type: ignore[attr-defined]
        [event] = normalized(normalizer_for(source, None), [{"id": 1, "version": 2}], SOURCE, BATCH)
        assert (event.op, event.cursor, event.pk) == ("upsert", 2, {"id": 1})

    def test_a_source_that_names_the_columns_of_operations_has_them_told(self) -> None:
        source = ListSource()
        source.created_column, source.deleted_column = "created", "deleted"  # type: ignore[attr-defined]
        row = {"id": 1, "version": 2, "created": 2, "deleted": False}
        rows = [row, row | {"created": 1}, row | {"deleted": True}]
        events = normalized(normalizer_for(source, None), rows, SOURCE, BATCH)
        assert [event.op for event in events] == ["insert", "update", "delete"]

    def test_events_share_what_is_told_of_their_batch_and_may_say_more(self) -> None:
        rows = [{"id": 1, "version": 1}, {"id": 2, "version": 1}, {"id": 3, "version": 1, "said": {"more": 1}}]
        first, second, third = normalized(plainly, rows, SOURCE, BATCH)
        assert first.metadata is second.metadata
        assert (first.metadata, third.metadata) == (BATCH, BATCH | {"more": 1})

    def test_what_is_no_event_is_named(self) -> None:
        with pytest.raises(SerializationError, match="The normalizer returned a dict, not a RowChange"):
            normalized(lambda record, _source: record, [{"id": 1}], SOURCE, BATCH)


class TestOfChanges:
    def test_the_place_is_the_cursor_where_there_is_one_and_the_position_otherwise(self) -> None:
        changes = [
            Change("insert", "0/1", {"id": 1}, {"id": 1}, cursor=7),
            Change("insert", "0/2", {"id": 2}, {"id": 2}),
        ]
        events = normalized(ChangeNormalizer(), changes, SOURCE, BATCH)
        assert [event.cursor for event in events] == [7, "0/2"]

    def test_events_share_what_is_told_of_their_batch_and_may_say_more(self) -> None:
        changes = [Change("delete", f"0/{number}", {"id": number}, None) for number in range(2)]
        changes.append(Change("delete", "0/2", {"id": 2}, None, metadata={"xid": 5}))
        first, second, third = normalized(ChangeNormalizer(), changes, SOURCE, BATCH)
        assert first.metadata is second.metadata
        assert (first.metadata, third.metadata) == (BATCH, BATCH | {"xid": 5})

    def test_what_is_no_change_is_named_with_the_ways_out(self) -> None:
        with pytest.raises(SerializationError, match="handed out a dict: it needs a normalizer="):
            normalized(ChangeNormalizer(), [{"id": 1}], SOURCE, BATCH)


class Bare:
    """A source of the smallest kind: it says what it was asked for, and hands out what it was given."""

    source_descriptor = SOURCE

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.rows = rows
        self.asked: list[Any] = []

    def fetch(self, cursor: Any, _batch_size: int) -> tuple[dict[str, Any], ...]:
        self.asked.append(cursor)
        return self.rows


class Sorted(Bare):
    """One that names its columns."""

    cursor_column = "version"
    pk_columns = ("shop", "id")


class TestASmallSource:
    @pytest.mark.parametrize("cursor", [None, 5, 1.5, "2026-04-07"])
    def test_goes_on_from_a_scalar_as_it_was_written(self, cursor: Any) -> None:
        source = Bare()
        SmallSource(source, plainly).fetch_changes({"cursor": cursor}, 10)
        assert source.asked == [cursor]

    def test_goes_on_from_the_parts_that_a_normalizer_gave(self) -> None:
        def timed(record: dict[str, Any], descriptor: SourceDescriptor, /) -> RowChange:
            return RowChange(None, "upsert", descriptor, (record["at"], record["id"]), {"id": record["id"]})

        source = Bare({"id": 1, "at": NOON})
        small = SmallSource(source, timed)
        found = small.fetch_changes({}, 10)
        small.fetch_changes(json.loads(json.dumps(found.next_checkpoint)), 10)
        assert source.asked == [None, (NOON, 1)]

    @pytest.mark.parametrize(("kind", "cursor"), [(Sorted, (7, "b", 1)), (Bare, (7, 1, "b"))])
    def test_goes_on_from_a_key_in_the_order_of_its_columns(self, kind: type[Bare], cursor: tuple[Any, ...]) -> None:
        source = kind({"id": 1, "shop": "b", "version": 7})
        small = SmallSource(source, RecordNormalizer("version", ["id", "shop"]))
        small.fetch_changes(small.fetch_changes({}, 10).next_checkpoint, 10)
        assert source.asked == [None, cursor]

    def test_that_cannot_use_what_it_is_given_is_told_what_that_was(self) -> None:
        class Fussy(Bare):
            def fetch(self, cursor: Any, _batch_size: int) -> Any:
                raise TypeError("not this")

        with pytest.raises(TypeError, match="not this") as refused:
            SmallSource(Fussy(), plainly).fetch_changes({"cursor": 5}, 10)
        assert refused.value.__notes__ == ["fetch was given 5; release 0.8 gave times, Decimals and UUIDs as texts"]


def test_a_source_is_read_through_the_reader_that_it_opens_and_that_is_closed() -> None:
    class Reader(FullSource):
        is_closed = False

        def close(self) -> None:
            self.is_closed = True

    own: Any = Reader()
    opened: Any = Reader()
    used: list[Any] = []
    with reading(own) as reader:
        used.append(reader)
    own.open, own.is_closed = lambda: opened, False
    with pytest.raises(ZeroDivisionError), reading(own) as reader:
        used.append(reader)
        raise ZeroDivisionError
    assert used == [own, opened]
    assert (own.is_closed, opened.is_closed) == (False, True)
