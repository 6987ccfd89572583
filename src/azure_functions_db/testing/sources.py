"""The suite that every change source must pass; needs pytest.

A source's own test is three fixtures: one that makes sources over one and the same place, which is
empty when a test begins, and two that work on that place::

    class TestMySource(SourceContract):
        @pytest.fixture
        def new_source(self, place):
            return lambda: MySource(place)

        @pytest.fixture
        def change(self, place):
            return lambda key, value: place.put(key, value)

        @pytest.fixture
        def told(self):
            return lambda record: (record["id"], record["value"])
"""

# ruff: noqa: S101 - assertions are what a suite is made of

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from azure_functions_db.core.errors import PositionLostError, RowsFailed
from azure_functions_db.core.ports import ChangeSource, CountsBacklog, SourceAdapter
from azure_functions_db.core.types import AdapterCapability
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.memory import MemoryQuarantine
from azure_functions_db.trigger.poll import PollTrigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.core.ports import HeldLease
    from azure_functions_db.core.types import CheckpointJson, FetchResult, PollerState
    from azure_functions_db.trigger.events import RowChange


class NewSource(Protocol):
    """Makes another source over the same place."""

    def __call__(self) -> Any:
        """Return a source of its own, as another process would have it."""


class Change(Protocol):
    """Writes to the place."""

    def __call__(self, key: int, value: str) -> None:
        """Insert the row of this key, or update it; committed, and later than every change before."""


class Told(Protocol):
    """Reads a record."""

    def __call__(self, record: dict[str, Any]) -> tuple[int, str]:
        """Return the key and the value of the row that the record is about."""


class Transact(Protocol):
    """Writes several changes at once."""

    def __call__(self, *changes: tuple[int, str | None]) -> None:
        """Commit these rows, by key, in one transaction and in this order; None deletes a row."""


class SourceContract:
    """What holds for every change source; the flags name what goes beyond that."""

    reads_by_cursor = True
    """Also has the small port's `fetch`, and its ``cursor_column`` and ``pk_columns``."""
    keeps_history = False
    """Delivers every change of a row, instead of its newest state only."""

    @pytest.fixture
    def new_source(self) -> NewSource:
        """Return what makes sources over one and the same place; each test has a place of its own."""
        raise NotImplementedError

    @pytest.fixture
    def change(self) -> Change:
        """Return what changes a row there."""
        raise NotImplementedError

    @pytest.fixture
    def told(self) -> Told:
        """Return what tells key and value of a record."""
        raise NotImplementedError

    @pytest.fixture
    def transact(self, change: Change) -> Transact:
        """Return what writes several changes in one transaction; by default each is one of its own."""

        def one_by_one(*changes: tuple[int, str | None]) -> None:
            for key, value in changes:
                if value is None:
                    pytest.skip("this suite was not told how to delete a row")
                change(key, value)

        return one_by_one

    @pytest.fixture
    def lose(self) -> Callable[[], None]:
        """Return what makes the place forget all that was not read yet, if it can."""
        return lambda: pytest.skip("this place forgets nothing")

    def test_it_is_a_change_source(self, new_source: NewSource) -> None:
        source = new_source()
        assert isinstance(source, ChangeSource)
        assert isinstance(source.capability(), AdapterCapability)

    def test_another_instance_has_the_same_descriptor(self, new_source: NewSource) -> None:
        descriptor = new_source().source_descriptor
        assert descriptor == new_source().source_descriptor
        assert descriptor.name
        assert descriptor.fingerprint.startswith("sha256:")

    def test_a_sound_definition_is_valid(self, new_source: NewSource) -> None:
        new_source().validate()

    def test_an_empty_place_has_nothing_and_waits_for_nothing(self, new_source: NewSource) -> None:
        result = new_source().fetch_changes({}, 10)
        assert list(result.records) == []
        assert not result.more

    def test_changes_come_in_their_order(self, new_source: NewSource, change: Change, told: Told) -> None:
        for key in (2, 1, 3):
            change(key, "new")
        result = new_source().fetch_changes({}, 10)
        assert [told(record)[0] for record in result.records] == [2, 1, 3]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_pages_of_any_size_add_up(self, new_source: NewSource, change: Change, told: Told, limit: int) -> None:
        for key in range(7):
            change(key, "new")
        pages = list(pages_of(new_source(), limit))
        assert [told(record)[0] for page in pages for record in page.records] == list(range(7))
        assert all(len(page.records) <= limit for page in pages)
        assert all(page.more in {True, None} for page in pages[:-2])

    def test_a_page_comes_again_until_its_checkpoint_is_used(self, new_source: NewSource, change: Change) -> None:
        change(1, "new")
        reader = opened(new_source())
        assert list(reader.fetch_changes({}, 10).records) == list(reader.fetch_changes({}, 10).records)
        reader.close()

    def test_a_checkpoint_is_json_and_good_for_another_instance(
        self, new_source: NewSource, change: Change, told: Told
    ) -> None:
        for key in range(4):
            change(key, "new")
        first = opened(new_source())
        stored = json.dumps(first.fetch_changes({}, 2).next_checkpoint)
        first.close()
        rest = new_source().fetch_changes(json.loads(stored), 10)
        assert [told(record)[0] for record in rest.records] == [2, 3]

    def test_nothing_comes_twice_without_a_change(self, new_source: NewSource, change: Change) -> None:
        change(1, "new")
        checkpoint = [page.next_checkpoint for page in pages_of(new_source(), 10)][-1]
        reader = opened(new_source())
        again = reader.fetch_changes(checkpoint, 10)
        assert list(again.records) == []
        assert list(reader.fetch_changes(again.next_checkpoint, 10).records) == []
        reader.close()

    def test_an_updated_row_comes_again(self, new_source: NewSource, change: Change, told: Told) -> None:
        change(1, "old")
        change(2, "old")
        source = new_source()
        checkpoint = [page.next_checkpoint for page in pages_of(source, 10)][-1]
        source.acknowledge(checkpoint)
        change(1, "new")
        result = source.fetch_changes(checkpoint, 10)
        assert [told(record) for record in result.records] == [(1, "new")]

    def test_a_row_changed_twice_tells_its_newest_state_last(
        self, new_source: NewSource, change: Change, told: Told
    ) -> None:
        change(1, "old")
        change(1, "new")
        told_values = [told(record) for record in new_source().fetch_changes({}, 10).records]
        assert told_values == ([(1, "old"), (1, "new")] if self.keeps_history else [(1, "new")])

    def test_opening_and_closing_may_be_repeated(self, new_source: NewSource) -> None:
        source = new_source()
        for _ in range(2):
            reader = opened(source)
            reader.fetch_changes({}, 1)
            reader.close()
            reader.close()

    def test_the_small_port_reads_on_after_a_cursor(self, new_source: NewSource, change: Change, told: Told) -> None:
        if not self.reads_by_cursor:
            pytest.skip("this source has no fetch()")
        for key in range(3):
            change(key, "new")
        source = new_source()
        is_small_port = isinstance(source, SourceAdapter)
        assert is_small_port
        first = source.fetch(None, 1)[0]
        cursor = (first[source.cursor_column], *(first[name] for name in source.pk_columns))
        assert [told(record)[0] for record in source.fetch(cursor, 10)] == [1, 2]

    def test_every_change_is_an_event_with_an_id_of_its_own(self, new_source: NewSource, transact: Transact) -> None:
        transact((1, "old"), (2, "old"), (1, "new"))
        transact((1, "newer"))
        events = delivered(new_source(), MemoryStateStore())
        assert len({event.event_id for event in events}) == len(events)
        if new_source().capability().every_change:
            assert [event.pk for event in events] == [events[0].pk, events[1].pk, events[0].pk, events[0].pk]

    def test_a_deleted_row_is_a_delete(self, new_source: NewSource, transact: Transact) -> None:
        self._needs(new_source, "detects_deletes")
        transact((1, "old"))
        transact((1, None))
        assert delivered(new_source(), MemoryStateStore())[-1].op == "delete"

    def test_an_update_has_its_before_image(self, new_source: NewSource, transact: Transact, told: Told) -> None:
        self._needs(new_source, "before_images")
        transact((1, "old"))
        transact((1, "new"))
        updated = delivered(new_source(), MemoryStateStore())[-1]
        assert updated.op == "update"
        assert [told(dict(updated.before or {})), told(dict(updated.after or {}))] == [(1, "old"), (1, "new")]

    @pytest.mark.parametrize("batch_size", [1, 2, 3])
    def test_a_transaction_larger_than_the_batch_is_delivered_and_nothing_taken_for_poison(
        self, new_source: NewSource, transact: Transact, batch_size: int
    ) -> None:
        transact((1, "new"), (2, "new"), (3, "new"))
        sink, sizes = MemoryQuarantine(), list[int]()
        trigger = poller(new_source(), MemoryStateStore(), batch_size=batch_size, quarantine=sink, max_attempts=3)
        trigger.run(timer=None, handler=lambda events: sizes.append(len(events)))
        assert sum(sizes) == 3
        assert sink.entries() == []
        if not new_source().capability().whole_transactions:
            assert max(sizes) <= batch_size

    def test_a_row_that_fails_once_in_a_transaction_larger_than_the_batch_is_not_put_aside(
        self, new_source: NewSource, transact: Transact, told: Told
    ) -> None:
        transact((1, "new"), (2, "new"), (3, "new"))
        sink, store = MemoryQuarantine(), MemoryStateStore()

        def fail(events: list[RowChange]) -> None:
            if any(told(dict(event.after or {}))[0] == 2 for event in events):
                raise ValueError("not yet")

        trigger = poller(new_source(), store, batch_size=2, quarantine=sink, max_attempts=3)
        with pytest.raises(Exception, match="not yet"):
            trigger.run(timer=None, handler=fail)
        assert sink.entries() == []
        assert {told(dict(event.after or {}))[0] for event in delivered(new_source(), store)} >= {2, 3}

    def test_a_transaction_that_keeps_failing_is_left_for_later_ticks_or_searched(
        self, new_source: NewSource, transact: Transact, told: Told
    ) -> None:
        transact(*((key, "new") for key in range(7)))
        sink, store, calls = MemoryQuarantine(), MemoryStateStore(), list[int]()

        def fail(events: list[RowChange]) -> None:
            calls.append(len(events))
            assert len(calls) < 100, "the handler is called without end"
            if any(told(dict(event.after or {}))[0] == 2 for event in events):
                raise ValueError("poison")

        def run() -> None:
            trigger = poller(new_source(), store, batch_size=2, quarantine=sink, max_attempts=1)
            trigger.run(timer=None, handler=fail)

        if new_source().capability().whole_transactions:
            for _ in range(2):
                with pytest.raises(Exception, match="poison"):
                    run()
            assert (calls, sink.entries()) == ([7, 7], [])
        else:
            run()
            assert len(sink.entries()) == 1

    def test_rows_that_a_handler_names_in_a_transaction_are_put_aside(
        self, new_source: NewSource, transact: Transact, told: Told
    ) -> None:
        transact(*((key, "new") for key in range(7)))
        sink, handled = MemoryQuarantine(), list[int]()

        def name(events: list[RowChange]) -> None:
            keys = {event.event_id: told(dict(event.after or {}))[0] for event in events}
            if 2 in keys.values():
                raise RowsFailed({event_id: "no good" for event_id, key in keys.items() if key == 2})
            handled.extend(keys.values())

        trigger = poller(new_source(), MemoryStateStore(), batch_size=2, quarantine=sink, max_attempts=1)
        trigger.run(timer=None, handler=name)
        assert len(sink.entries()) == 1
        assert 2 not in handled

    def test_what_was_not_committed_comes_again(self, new_source: NewSource, change: Change) -> None:
        change(1, "new")
        store, seen = MemoryStateStore(), list[str]()

        def fail(events: list[RowChange]) -> None:
            seen.extend(event.event_id for event in events)
            raise ValueError("not yet")

        with pytest.raises(Exception, match="not yet"):
            poller(new_source(), store).run(timer=None, handler=fail)
        assert [event.event_id for event in delivered(new_source(), store)] == seen

    def test_the_lease_is_held_from_before_the_reading_to_after_the_acknowledgement(
        self, new_source: NewSource, change: Change
    ) -> None:
        self._needs(new_source, "needs_lease")
        change(1, "new")
        calls: list[str] = []
        delivered(Recorded(new_source(), calls), RecordedStore(calls))
        if new_source().capability().acknowledges:
            assert calls == ["take", "open", "fetch", "commit", "acknowledge", "release", "close"]
        else:
            told = [call for call in calls if call != "acknowledge"]
            assert told == ["take", "open", "fetch", "commit", "release", "close"]

    def test_an_acknowledgement_that_failed_is_made_good_before_anything_else_is_done_under_the_lease(
        self, new_source: NewSource, change: Change
    ) -> None:
        self._needs(new_source, "acknowledges")
        change(1, "new")
        calls: list[str] = []
        store = RecordedStore(calls)
        delivered(Recorded(new_source(), calls, fails_to_acknowledge=True), store)
        change(2, "new")
        del calls[:]
        delivered(Recorded(new_source(), calls), store)
        if new_source().capability().needs_lease:
            assert calls[:4] == ["take", "open", "acknowledge", "fetch"]
        else:
            assert calls[:5] == ["open", "fetch", "take", "acknowledge", "commit"]

    def test_a_second_reader_is_sent_away_and_harms_nothing(self, new_source: NewSource, change: Change) -> None:
        self._needs(new_source, "needs_lease")
        change(1, "new")
        reader = opened(new_source())
        assert delivered(new_source(), MemoryStateStore()) == []
        reader.close()
        assert len(delivered(new_source(), MemoryStateStore())) == 1

    def test_a_position_that_was_forgotten_is_told_and_not_jumped_over(
        self, new_source: NewSource, change: Change, lose: Callable[[], None]
    ) -> None:
        change(1, "new")
        checkpoint = [page.next_checkpoint for page in pages_of(new_source(), 1)][-1]
        change(2, "new")
        lose()
        change(3, "new")
        with pytest.raises(PositionLostError):
            new_source().fetch_changes(checkpoint, 10)

    def test_asking_for_the_backlog_consumes_nothing_and_disturbs_nobody(
        self, new_source: NewSource, change: Change
    ) -> None:
        for key in range(3):
            change(key, "new")
        reader = opened(new_source())
        first = reader.fetch_changes({}, 1)
        asker = new_source()
        assert isinstance(asker, CountsBacklog)
        rest = asker.backlog(first.next_checkpoint)
        all_of_it = asker.backlog({})  # asked last: a log that others write to grows meanwhile
        if rest.unit == "bytes":
            assert all_of_it.amount > rest.amount > 0
        else:
            assert [all_of_it.amount, rest.amount] == [3, 2]
        assert len(reader.fetch_changes(first.next_checkpoint, 10).records) == 2
        reader.close()

    @staticmethod
    def _needs(new_source: NewSource, ability: str) -> None:
        if not getattr(new_source().capability(), ability):
            pytest.skip(f"this source does not claim {ability}")


def poller(source: Any, store: Any, **options: Any) -> PollTrigger:
    """Return a trigger that drains the source in one tick."""
    return PollTrigger(name="contract", source=source, checkpoint_store=store, max_batches_per_tick=100, **options)


def delivered(source: Any, store: Any) -> list[RowChange]:
    """Return what one tick hands to its handler."""
    events: list[RowChange] = []
    poller(source, store).run(timer=None, handler=events.extend)
    return events


class RecordedStore(MemoryStateStore):
    """Writes down when the lease is taken, written under and given back."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._calls = calls

    def take(self, state: PollerState, ttl_seconds: float) -> Any:
        """Take the lease."""
        self._calls.append("take")
        return RecordedLease(super().take(state, ttl_seconds), self._calls)


class RecordedLease:
    """Writes down when it is committed under and given back."""

    def __init__(self, lease: HeldLease, calls: list[str]) -> None:
        self.lease_id = lease.lease_id
        self.renew, self.transaction = lease.renew, lease.transaction
        self._lease = lease
        self._calls = calls

    def commit(self, checkpoint: CheckpointJson, *, release: bool = False) -> bool:
        """Write the checkpoint."""
        self._calls += ["commit", "release"] if release else ["commit"]
        return self._lease.commit(checkpoint, release=release)

    def release(self) -> None:
        """Give the lease back."""
        self._calls.append("release")
        self._lease.release()


class Recorded:
    """A source that writes down when it is opened, read, acknowledged to and closed."""

    def __init__(self, source: Any, calls: list[str], *, fails_to_acknowledge: bool = False) -> None:
        self._source = self._reader = source
        self._calls = calls
        self._fails = fails_to_acknowledge
        self.source_descriptor = source.source_descriptor
        self.capability = source.capability
        self.validate = source.validate

    def open(self) -> None:
        """Open the source."""
        self._calls.append("open")
        self._reader = opened(self._source)

    def close(self) -> None:
        """Close the source."""
        self._calls.append("close")
        self._reader.close()

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        """Read."""
        self._calls.append("fetch")
        result: FetchResult = self._reader.fetch_changes(checkpoint, limit)
        return result

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        """Acknowledge, or fail to."""
        self._calls.append("acknowledge")
        if self._fails:
            raise OSError("no answer")
        self._reader.acknowledge(checkpoint)


def opened(source: Any) -> Any:
    """Return a reader of the source."""
    return source.open() or source


def pages_of(source: Any, limit: int, checkpoint: CheckpointJson | None = None) -> list[FetchResult]:
    """Return all pages up to the end, fetched as a trigger would."""
    reader = opened(source)
    pages: list[FetchResult] = []
    position: CheckpointJson = checkpoint or {}
    while not pages or pages[-1].records:
        pages.append(reader.fetch_changes(position, limit))
        position = pages[-1].next_checkpoint
    reader.close()
    return pages
