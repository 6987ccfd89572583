"""What a failed, a paused and an idle tick leave in the state for an operator to see."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import DbError, FetchError, RowsFailed, SourceConfigurationError
from azure_functions_db.core.signals import PollerPaused, TickCompleted, TickResult
from azure_functions_db.state.backend import DocumentName, Stored, Version
from azure_functions_db.state.document import Document, encoded
from azure_functions_db.state.memory import MemoryBackend, MemoryStateStore
from azure_functions_db.state.sql import SqlStateStore
from azure_functions_db.state.store import DocumentStateStore
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine
from azure_functions_db.trigger.batch import Checkpoint
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from azure_functions_db.core.types import Failure

SECRET = "password=hunter2"


@pytest.fixture(params=["looking", "plain"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryStateStore() if request.param == "looking" else PlainStore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def failure(store: Any) -> Failure | None:
    return Checkpoint.of(store.load_checkpoint("orders")).failure


def fail(_events: list[Any]) -> None:
    raise ValueError(f"no stock, {SECRET}\nand more")


def fails(trigger: Any, handler: Any = fail) -> None:
    with pytest.raises(DbError):
        run(trigger, handler)


class TestAFailingHandler:
    def test_is_noted_with_its_error_and_the_batch_that_is_stuck(self, store: Any, clock: FakeClock) -> None:
        trigger = poller(ListSource(5), store, now=clock, batch_size=3)
        fails(trigger)
        began = clock.now
        clock.advance(60)
        fails(trigger)
        noted = failure(store)
        assert noted is not None
        assert (noted.attempts, noted.error_type, noted.error) == (
            2,
            "ValueError",
            "The handler failed: ValueError: no stock, password=***",
        )
        assert (noted.since, noted.last_at) == (began, clock.now)
        assert noted.batch is not None
        assert (noted.batch.rows, noted.batch.first) == (3, "0 (id=0)")

    def test_is_forgotten_once_its_batch_is_done(self, store: Any) -> None:
        trigger = poller(ListSource(5), store)
        fails(trigger)
        assert run(trigger, Collected()) == 5
        assert failure(store) is None

    def test_begins_to_count_anew_where_it_got_through_the_first_events(self, store: Any) -> None:
        trigger = poller(ListSource(6), store, batch_size=6, max_batches_per_tick=1)
        fails(trigger)
        fails(trigger)

        def fail_at_four(events: list[Any]) -> None:
            raise RowsFailed({events[3].event_id: "bad"})

        fails(trigger, fail_at_four)
        noted = failure(store)
        assert position(store)["cursor"]["tiebreaker"] == {"id": 2}
        assert noted is not None
        assert noted.attempts == 1

    def test_that_says_a_lot_leaves_no_more_than_two_kilobytes(self, store: Any) -> None:
        def shout(_events: list[Any]) -> None:
            raise ValueError("ö" * 100_000)

        fails(poller(ListSource(1), store), shout)
        noted = failure(store)
        assert noted is not None
        assert len(noted.error.encode()) <= 2048

    def test_with_a_quarantine_keeps_its_count_of_attempts_too(self, store: Any) -> None:
        trigger = poller(ListSource(5), store, quarantine=MemoryQuarantine(), max_attempts=5)
        fails(trigger)
        fails(trigger)
        checkpoint = Checkpoint.of(store.load_checkpoint("orders"))
        assert checkpoint.failed_attempts == 2
        assert checkpoint.failure is not None
        assert checkpoint.failure.attempts == 2


class TestASourceThatFails:
    def test_is_noted_though_there_was_no_batch(self, store: Any) -> None:
        source = ListSource(5)
        source.failures = [ValueError("no such table")]
        fails(poller(source, store), Collected())
        noted = failure(store)
        assert noted is not None
        assert (noted.error_type, noted.batch) == ("ValueError", None)

    def test_that_names_a_secret_leaves_none_in_the_state(self, store: Any) -> None:
        source = ListSource(5)
        source.failures = [FetchError(f"cannot log in with {SECRET}")]
        fails(poller(source, store), Collected())
        noted = failure(store)
        assert noted is not None
        assert noted.error == "cannot log in with password=***"

    def test_that_cannot_even_say_what_it_is_is_noted(self, store: Any) -> None:
        class Nameless(ListSource):
            @property
            def source_descriptor(self) -> Any:  # type: ignore[override]
                raise ValueError("the setting SHOP_URL is missing")

        with pytest.raises(SourceConfigurationError) as caught:
            run(poller(Nameless(5), store), Collected())
        assert (caught.value.poller_name, caught.value.source) == ("orders", None)
        noted = failure(store)
        assert noted is not None
        assert "SHOP_URL" in noted.error
        assert run(poller(ListSource(5), store), Collected()) == 5, "the lease is free"

    def test_after_a_batch_that_was_committed_is_not_that_batchs_failure(self, store: Any) -> None:
        source = ListSource(6)

        def spoil(_events: list[Any]) -> None:
            source.failures = [FetchError("no such table")] * 9

        fails(poller(source, store, batch_size=3, max_batches_per_tick=2), spoil)
        noted = failure(store)
        assert noted is not None
        assert (noted.error, noted.batch) == ("no such table", None)

    def test_is_well_again_after_an_idle_tick(self, store: Any) -> None:
        source = ListSource(5)
        trigger = poller(source, store)
        run(trigger, Collected())
        before = position(store)
        source.failures = [ValueError("down")]
        fails(trigger)
        assert failure(store) is not None
        assert run(trigger, Collected()) == 0
        assert (failure(store), position(store)) == (None, before)


class TestStorageRequests:
    """Calls of a store with five methods, where each is a request."""

    def test_of_good_ticks_are_what_they_were(self) -> None:
        store, source = PlainStore(), ListSource(5)
        trigger = poller(source, store)
        run(trigger, Collected())
        assert store.calls == ["acquire", "load", "commit", "release"]
        store.calls.clear()
        run(trigger, Collected())
        assert store.calls == ["acquire", "load", "release"]

    def test_a_failed_tick_has_one_more_write(self) -> None:
        store = PlainStore()
        fails(poller(ListSource(5), store))
        assert store.calls == ["acquire", "load", "load", "commit", "release"]


class TestTheMetric:
    def test_counts_failed_ticks_in_a_row_and_ends_with_a_good_one(self, store: Any) -> None:
        recorder = Recorder()
        trigger = poller(ListSource(5), store, observers=[recorder])
        fails(trigger)
        fails(trigger)
        run(trigger, Collected())
        run(trigger, Collected())
        assert [tick.consecutive_failures for tick in recorder.of(TickCompleted)] == [1, 2, 0, 0]

    def test_counts_on_where_the_store_cannot_be_written(self) -> None:
        class Full(PlainStore):
            def commit_checkpoint(self, *_: Any) -> None:
                raise OSError("no space left")

        recorder = Recorder()
        fails(poller(ListSource(5), Full(), observers=[recorder]))
        assert [tick.consecutive_failures for tick in recorder.of(TickCompleted)] == [1]


class TestAPausedPoller:
    def test_reads_nothing_until_it_is_resumed(self) -> None:
        store, source, recorder = MemoryStateStore(), ListSource(5), Recorder()
        trigger = poller(source, store, observers=[recorder])
        store.pause("orders", "ann@desk", "rebuild")
        assert run(trigger, Collected()) == 0
        assert source.fetches == 0
        assert [(told.pause.by, told.pause.why) for told in recorder.of(PollerPaused)] == [("ann@desk", "rebuild")]
        assert [tick.result for tick in recorder.of(TickCompleted)] == [TickResult.PAUSED]
        store.resume("orders")
        assert run(trigger, Collected()) == 5

    def test_ends_the_batch_that_it_has_begun(self) -> None:
        store = MemoryStateStore()
        trigger = poller(ListSource(5), store)
        assert run(trigger, lambda _events: store.pause("orders", "ann@desk")) == 5
        assert run(trigger, Collected()) == 0
        assert store.look("orders").paused is not None


class TestAnIdlePoller:
    def test_gives_a_sign_of_life_every_two_minutes(self, store: Any, clock: FakeClock) -> None:
        trigger = poller(ListSource(5), store, now=clock)
        run(trigger, Collected())
        handled = clock.now
        clock.advance(119)
        run(trigger, Collected())
        assert Checkpoint.of(store.load_checkpoint("orders")).ticked_at == handled
        clock.advance(1)
        before = position(store)
        run(trigger, Collected())
        checkpoint = Checkpoint.of(store.load_checkpoint("orders"))
        assert (checkpoint.ticked_at, checkpoint.committed_at) == (clock.now, handled)
        assert checkpoint.position == before

    def test_that_never_saw_a_row_gives_one_too(self, store: Any, clock: FakeClock) -> None:
        run(poller(ListSource(), store, now=clock), Collected())
        assert Checkpoint.of(store.load_checkpoint("orders")).ticked_at == clock.now

    def test_does_not_get_into_the_way_of_one_that_works(self) -> None:
        store = MemoryStateStore()

        class Racing(ListSource):
            def fetch(self, *_: Any) -> Any:
                run(poller(ListSource(5), store), Collected())  # another instance is faster
                return []

        assert run(poller(Racing(), store), Collected()) == 0
        assert position(store)["cursor"]["tiebreaker"] == {"id": 4}


@pytest.mark.parametrize("written", [7, [], {"attempts": "many"}, {"attempts": 1, "error_type": None}])
def test_a_note_that_makes_no_sense_is_no_failure(written: Any) -> None:
    assert Checkpoint.of({"metadata": {"failure": written, "ticked_at": 5}}).failure is None
    assert Checkpoint.of({"metadata": {"failure": written, "ticked_at": 5}}).ticked_at is None


def test_times_are_read_with_their_zone() -> None:
    assert Checkpoint.of({"updated_at": "2026-11-16T05:00:00Z"}).ticked_at == dt.datetime(
        2026, 11, 16, 5, tzinfo=dt.UTC
    )


class OldBackend(MemoryBackend):
    """Finds a document of an older layout, which one app may carry over."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0

    def read(self, name: DocumentName) -> Stored | None:
        old = encoded(Document("orders", {"cursor": [1, 4]}))
        return super().read(name) or Stored(old, None, origin="theirs")

    def claim(self, name: DocumentName, origin: Version) -> bool:
        self.claims += 1
        return True


def test_the_state_of_an_earlier_release_is_not_carried_over_by_a_tick_that_failed() -> None:
    backend, source = OldBackend(), ListSource(9)
    source.failures = [ValueError("down")]
    trigger = poller(source, DocumentStateStore(backend))
    fails(trigger)
    assert backend.claims == 0
    assert run(trigger, Collected()) > 0
    assert backend.claims == 1


class TestATransactionalPoller:
    def test_notes_a_failure_beside_what_was_really_committed(self, sqlite_database: str) -> None:
        store, seen = SqlStateStore(url=sqlite_database), list[int]()

        def fail_at_second(events: list[Any]) -> None:
            seen.append(len(events))
            if len(seen) == 2:
                raise ValueError("no stock")

        trigger = poller(ListSource(9), store, transactional=True, batch_size=3, max_batches_per_tick=3)
        fails(trigger, fail_at_second)
        noted = failure(store)
        assert position(store)["cursor"]["tiebreaker"] == {"id": 2}
        assert noted is not None
        assert noted.attempts == 1
        assert run(trigger, Collected()) == 6
