"""In which order a tick takes its lease, reads, fixes its start, handles, commits and acknowledges."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import (
    FetchError,
    HandlerError,
    LeaseAcquireError,
    LostLeaseError,
    PositionLostError,
    SourceInUseError,
)
from azure_functions_db.core.signals import (
    BatchCommitted,
    LeaseSkipped,
    PollerPaused,
    SourceReported,
    Stage,
    StageEnded,
    StageStarted,
    TickCompleted,
    TickResult,
)
from azure_functions_db.core.types import AdapterCapability, FetchResult, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock
from azure_functions_db.trigger.batch import HOURS, Checkpoint, samples
from azure_functions_db.trigger.lease import Heartbeat, TickCancelled
from azure_functions_db.trigger.retry import RetryPolicy
from tests.unit.trigger.poller import Collected, FullSource, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from azure_functions_db.core.types import CheckpointJson


class Log:
    """Numbers from 0 on, as a log tells them; notes each call, and whether the lease was held."""

    cursor_column, pk_columns = "id", ("id",)
    source_descriptor = SourceDescriptor("log", "fake", "sha256:log")

    def __init__(self, store: Any, count: int = 3, **needs: bool) -> None:
        self.store = store
        self.count = count
        self.needs = needs
        self.start: CheckpointJson | None = None
        self.calls: list[tuple[str, Any]] = []
        self.held: list[bool] = []
        self.failures: dict[str, list[Exception]] = {}
        self.facts: list[Any] = []

    def validate(self) -> None: ...

    def open(self) -> None:
        self._note("open", None)

    def close(self) -> None:
        self._note("close", None)

    def capability(self) -> AdapterCapability:
        return AdapterCapability(**self.needs)

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        self._note("fetch", checkpoint.get("cursor"))
        first = checkpoint.get("cursor", 0)
        end = min(first + limit, self.count)
        records = [{"id": number} for number in range(first, end)]
        return FetchResult(records, {"cursor": end}, end < self.count, start=self.start, facts=self.facts)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        self._note("acknowledge", checkpoint.get("cursor"))

    def _note(self, call: str, cursor: Any) -> None:
        self.calls.append((call, cursor))
        self.held.append(MemoryStateStore(shared_with=self.store).look("orders").lease is not None)
        if self.failures.get(call):
            raise self.failures[call].pop(0)

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class QuietLog(Log):
    """Knows without being read that nothing has come."""

    is_quiet = True

    def quiet(self, checkpoint: CheckpointJson) -> FetchResult | None:
        self._note("quiet", checkpoint.get("cursor"))
        return FetchResult([], checkpoint, more=False) if self.is_quiet else None


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


def commit(store: MemoryStateStore, checkpoint: CheckpointJson) -> None:
    lease = store.acquire_lease("orders", 60)
    store.commit_checkpoint("orders", checkpoint, lease)
    store.release_lease("orders", lease)


class TestASourceWithOneReader:
    def test_is_read_under_the_lease_only(self, store: MemoryStateStore) -> None:
        source = Log(store, needs_lease=True)
        assert run(poller(source, store), Collected()) == 3
        assert source.held[source.names().index("fetch")]
        plain = Log(store)
        run(poller(plain, store), Collected())
        assert not plain.held[plain.names().index("fetch")], "others take it once there is something to do"

    def test_is_not_read_while_another_holds_the_lease(self, store: MemoryStateStore) -> None:
        MemoryStateStore(shared_with=store).acquire_lease("orders", 60)
        source, recorder = Log(store, needs_lease=True), Recorder()
        assert run(poller(source, store, observers=[recorder]), Collected()) == 0
        assert source.calls == []
        assert [signal.result for signal in recorder.of(TickCompleted)] == [TickResult.SKIPPED]
        begun, ended = ([signal.stage for signal in recorder.of(kind)] for kind in (StageStarted, StageEnded))
        assert begun == ended, "to find it held is no failure"

    def test_that_is_quiet_is_not_opened_and_takes_no_lease(self, store: MemoryStateStore) -> None:
        source, recorder = QuietLog(store, needs_lease=True), Recorder()
        commit(store, {"cursor": 1})
        assert run(poller(source, store, observers=[recorder]), Collected()) == 0
        assert source.calls == [("quiet", 1)]
        assert not any(source.held)
        assert [signal.stage for signal in recorder.of(StageEnded)].count(Stage.FETCH) == 1
        source.is_quiet = False
        assert run(poller(source, store), Collected()) == 2
        assert source.names()[:4] == ["quiet", "quiet", "open", "fetch"]

    def test_that_somebody_else_reads_is_a_skip_and_no_failure(self, store: MemoryStateStore) -> None:
        source, recorder = Log(store, needs_lease=True), Recorder()
        source.failures["fetch"] = [SourceInUseError("the slot is active")]
        assert run(poller(source, store, observers=[recorder]), Collected()) == 0
        assert [signal.result for signal in recorder.of(TickCompleted)] == [TickResult.SKIPPED]
        assert len(recorder.of(LeaseSkipped)) == 1
        assert store.look("orders").lease is None


class TestASourceThatLetsGo:
    def test_is_told_of_the_last_commit_again_by_the_next_tick(self, store: MemoryStateStore) -> None:
        """A crash may have come between the commit and its acknowledgement."""
        commit(store, {"cursor": 1})
        source = Log(store, acknowledges=True)
        run(poller(source, store), Collected())
        assert [call for call in source.calls if call[0] == "acknowledge"] == [("acknowledge", 1), ("acknowledge", 3)]

    def test_is_told_of_nothing_before_anything_was_committed(self, store: MemoryStateStore) -> None:
        source = Log(store, acknowledges=True)
        run(poller(source, store), Collected())
        assert [call for call in source.calls if call[0] == "acknowledge"] == [("acknowledge", 3)]

    def test_and_others_are_not_asked_twice(self, store: MemoryStateStore) -> None:
        commit(store, {"cursor": 1})
        source = Log(store)
        run(poller(source, store), Collected())
        assert [call for call in source.calls if call[0] == "acknowledge"] == [("acknowledge", 3)]

    def test_that_fails_to_do_so_fails_no_tick(self, store: MemoryStateStore) -> None:
        source = Log(store, acknowledges=True)
        source.failures["acknowledge"] = [OSError("gone")]
        assert run(poller(source, store), Collected()) == 3
        assert position(store) == {"cursor": 3}
        assert store.look("orders").lease is None


class TestWhereASourceHasBegun:
    def test_is_committed_before_anything_of_it_is_handled(self, store: MemoryStateStore) -> None:
        source, seen = Log(store), list[Any]()
        source.start = {"cursor": 0, "snapshot": "s1"}
        run(poller(source, store), lambda _events: seen.append(position(store)))
        assert seen == [{"cursor": 0, "snapshot": "s1"}]
        assert position(store) == {"cursor": 3}

    def test_makes_nothing_well_again_before_it_is_handled(self, store: MemoryStateStore) -> None:
        source = Log(store)
        source.start = {"cursor": 0}

        def fail(_events: list[Any]) -> None:
            raise ValueError("no stock")

        for attempt in (1, 2):
            with pytest.raises(HandlerError):
                run(poller(source, store), fail)
            failure = Checkpoint.of(store.load_checkpoint("orders")).failure
            assert failure is not None
            assert failure.attempts == attempt


class TestAPositionTakenOverFromOthers:
    def test_is_committed_before_anything_is_read(self, store: MemoryStateStore) -> None:
        source = Log(store)
        carried = poller(source, store, carried=lambda loaded: None if loaded.position else {"cursor": 2})
        seen: list[Any] = []
        assert run(carried, lambda _events: seen.append(position(store))) == 1
        assert seen == [{"cursor": 2}], "after a crash it is not looked for again"
        assert source.calls[1] == ("fetch", 2)
        assert source.held[1], "what was taken over is under the lease"
        assert run(carried, Collected()) == 0

    def test_is_not_taken_where_another_instance_is_faster(self, store: MemoryStateStore) -> None:
        def late(_loaded: Checkpoint) -> CheckpointJson:
            MemoryStateStore(shared_with=store).acquire_lease("orders", 60)
            return {"cursor": 2}

        source, recorder = Log(store), Recorder()
        assert run(poller(source, store, carried=late, observers=[recorder]), Collected()) == 0
        assert (source.names(), position(store)) == ([], {})
        assert [signal.result for signal in recorder.of(TickCompleted)] == [TickResult.SKIPPED]

    def test_is_looked_for_before_a_quiet_source_is_believed(self, store: MemoryStateStore) -> None:
        source = QuietLog(store, needs_lease=True)
        carried = poller(source, store, carried=lambda loaded: None if loaded.position else {"cursor": 1})
        assert run(carried, Collected()) == 2


class TestATickThatDoesNotGoWell:
    def test_closes_its_source_and_gives_back_its_lease_though_both_fail(self) -> None:
        store = FaultyStateStore()
        source = Log(store, needs_lease=True)
        source.failures = {"fetch": [FetchError("no such table")], "close": [OSError("gone")]}
        with pytest.raises(FetchError, match="no such table"):
            run(poller(source, store), Collected())
        assert source.names()[-1] == "close"
        assert store.look("orders").lease is None

    def test_closes_its_source_though_the_lease_cannot_be_given_back(self) -> None:
        store = FaultyStateStore()
        source = Log(store, needs_lease=True)

        def fail(_events: list[Any]) -> None:
            store.faults.plan("replace", *[Fault.UNREACHABLE] * 9)
            store.faults.plan("read", *[Fault.UNREACHABLE] * 9)
            raise ValueError("no stock")

        trigger = poller(source, store)
        with pytest.raises(HandlerError):
            run(trigger, fail)
        assert source.names()[-1] == "close"

    def test_is_told_by_how_many_have_failed_in_a_row(self, store: MemoryStateStore) -> None:
        source, recorder = ListSource(3), Recorder()
        trigger = poller(source, store, observers=[recorder])
        source.failures = [ValueError(), ValueError()]
        for _ in range(2):
            with pytest.raises(FetchError):
                run(trigger, Collected())
        run(trigger, Collected())
        told = [(signal.result, signal.consecutive_failures) for signal in recorder.of(TickCompleted)]
        assert told == [(TickResult.FAILED, 1), (TickResult.FAILED, 2), (TickResult.HANDLED, 0)]

    def test_tells_what_its_source_has_met(self, store: MemoryStateStore) -> None:
        source, met = Log(store), OSError("disk full")
        failure = FetchError("no page", source="a part of it")
        failure.__cause__ = met
        source.failures["fetch"] = [failure]
        with pytest.raises(FetchError) as caught:
            run(poller(source, store), Collected())
        assert caught.value.__cause__ is met
        assert (caught.value.source, caught.value.poller_name) == ("a part of it", "orders")

    def test_has_failed_once_where_the_state_cannot_even_be_read(self) -> None:
        store, recorder = FaultyStateStore(), Recorder()
        store.faults.plan("read", *[Fault.UNREACHABLE] * 9)
        with pytest.raises(LeaseAcquireError):
            run(poller(ListSource(3), store, observers=[recorder]), Collected())
        assert [signal.consecutive_failures for signal in recorder.of(TickCompleted)] == [1]

    def test_reads_no_more_once_its_lease_has_run_out_in_a_pause(self, store: MemoryStateStore) -> None:
        clock = [0.0]

        def oversleep(_seconds: float) -> None:
            clock[0] += 1000

        source = Log(store, needs_lease=True)
        source.failures["fetch"] = [ConnectionError("gone")]
        with pytest.raises(LostLeaseError):
            run(poller(source, store, monotonic=lambda: clock[0], sleep=oversleep), Collected())
        assert source.names().count("fetch") == 1

    def test_reads_no_more_once_its_lease_has_run_out_between_two_batches(self, store: MemoryStateStore) -> None:
        clock = [0.0]

        class Late(Log):
            def acknowledge(self, checkpoint: CheckpointJson) -> None:
                clock[0] += 1000

        source = Late(store)
        trigger = poller(source, store, batch_size=1, max_batches_per_tick=2, monotonic=lambda: clock[0])
        with pytest.raises(LostLeaseError):
            run(trigger, Collected())
        assert (source.names().count("fetch"), position(store)) == (1, {"cursor": 1})

    def test_was_not_tried_where_it_was_cancelled_or_paused(self, store: MemoryStateStore) -> None:
        recorder = Recorder()

        def cancelled(_events: list[Any]) -> None:
            raise TickCancelled

        trigger = poller(ListSource(3), store, observers=[recorder])
        with pytest.raises(TickCancelled):
            run(trigger, cancelled)
        store.pause("orders", "ann", "a migration")
        assert run(trigger, Collected()) == 0
        told = [(signal.result, signal.consecutive_failures) for signal in recorder.of(TickCompleted)]
        assert told == [(TickResult.CANCELLED, None), (TickResult.PAUSED, None)]
        assert [signal.pause.by for signal in recorder.of(PollerPaused)] == ["ann"]

    def test_leaves_it_to_the_next_holder_to_say_how_it_fares(self, store: MemoryStateStore) -> None:
        recorder = Recorder()

        def lose(_events: list[Any]) -> None:
            raise LostLeaseError("gone")

        with pytest.raises(LostLeaseError):
            run(poller(ListSource(3), store, observers=[recorder]), lose)
        assert Checkpoint.of(store.load_checkpoint("orders")).failure is None
        assert [signal.consecutive_failures for signal in recorder.of(TickCompleted)] == [1]

    def test_takes_nothing_for_lost_that_others_have_read_after_its_lease(self, store: MemoryStateStore) -> None:
        clock = [0.0]

        class Late(Log):
            def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
                clock[0] += 1000
                raise PositionLostError("1 is gone")

        with pytest.raises(LostLeaseError):
            run(poller(Late(store, needs_lease=True), store, monotonic=lambda: clock[0]), Collected())


class TestRowByRow:
    def test_every_row_is_a_batch_and_all_of_them_count_as_one(self, store: MemoryStateStore) -> None:
        handler = Collected()
        assert run(poller(Log(store, 5), store, batch_size=3, commit="row"), handler) == 3
        assert [len(batch) for batch in handler.batches] == [1, 1, 1]
        assert position(store) == {"cursor": 3}


class TestRowsThatAHandlerChanges:
    @pytest.mark.parametrize("options", [{"retry_policy": RetryPolicy(max_attempts=2, delay_seconds=0)}])
    def test_are_copies_where_they_may_be_needed_again(self, store: MemoryStateStore, options: dict[str, Any]) -> None:
        seen: list[Any] = []

        def spoil(events: list[Any]) -> None:
            seen.append([dict(event.after) for event in events])
            for event in events:
                event.after.clear()
            if len(seen) == 1:
                raise ValueError("once more")

        assert run(poller(ListSource(2), store, **options), spoil) == 2
        assert seen[0] == seen[1]


class TestATick:
    def test_of_a_share_hands_out_the_events_of_the_whole(self, store: MemoryStateStore) -> None:
        """Another number of partitions does not change their ids."""
        share, whole, handler = Log(store), Log(store), Collected()
        share.source_descriptor = replace(
            Log.source_descriptor, fingerprint="sha256:share", whole=Log.source_descriptor
        )
        run(poller(share), handler)
        run(poller(whole), handler)
        one, other = handler.batches
        assert [event.event_id for event in one] == [event.event_id for event in other]

    def test_has_an_id_of_its_own_unless_the_host_gives_one(self, store: MemoryStateStore) -> None:
        recorder = Recorder()
        trigger = poller(Log(store), store, observers=[recorder])
        run(trigger, Collected())
        run(trigger, Collected())
        trigger.run(timer=None, handler=Collected(), invocation_id="host-7")
        first, second, third = (signal.invocation_id for signal in recorder.of(TickCompleted))
        assert first
        assert second not in {None, "", first}
        assert third == "host-7"

    def test_notes_how_long_the_last_commit_took_that_of_an_earlier_tick_among_them(self) -> None:
        clock = FakeClock()

        class Slow(PlainStore):
            def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
                clock.advance(2)
                super().commit_checkpoint(poller_name, checkpoint, lease_id)

        store, source = Slow(), ListSource(2)
        trigger = poller(source, store, batch_size=1, now=clock, monotonic=clock.monotonic)
        run(trigger, Collected())
        run(trigger, Collected())
        [(_, sample)] = samples(Checkpoint.of(store.load_checkpoint("orders")).history, HOURS)
        assert (sample.batches, sample.commit_ms) == (2, 2000)

    @pytest.mark.parametrize(("age", "noted"), [(90, 90), (-5, 0)], ids=["late", "from a clock that is ahead"])
    def test_notes_how_old_its_last_row_is(self, store: MemoryStateStore, age: int, noted: int) -> None:
        clock, recorder = FakeClock(), Recorder()

        class Stamped(FullSource):
            cursor_column, pk_columns = "at", ("id",)
            source_descriptor = SourceDescriptor("stamped", "fake", "sha256:stamped")

            def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
                row = {"id": 1, "at": clock.now - dt.timedelta(seconds=age)}
                return FetchResult([] if checkpoint else [row], {"cursor": 1}, more=False)

            def count_changes(self, _checkpoint: CheckpointJson, most: int) -> int:
                return most

        run(poller(Stamped(), store, now=clock, observers=[recorder]), Collected())
        [(_, sample)] = samples(Checkpoint.of(store.load_checkpoint("orders")).history, HOURS)
        assert sample.lag_seconds == noted
        [batch] = recorder.of(BatchCommitted)
        assert (batch.lag_seconds, batch.lag_rows) == (noted, None), "rows are counted where no time tells"

    def test_commits_before_it_reads_on_where_its_source_says_that_more_follows(self, store: MemoryStateStore) -> None:
        class Noting(Log):
            def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
                committed.append(position(store))
                return super().fetch_changes(checkpoint, limit)

        committed: list[Any] = []
        run(poller(Noting(store, 2), store, batch_size=1, max_batches_per_tick=3), Collected())
        assert committed == [{}, {"cursor": 1}]

    def test_dates_its_checkpoint_by_the_commit(self, store: MemoryStateStore) -> None:
        clock = FakeClock()
        began = clock.now
        run(poller(Log(store), store, now=clock), lambda _events: clock.advance(30))
        committed_at = Checkpoint.of(store.load_checkpoint("orders")).committed_at
        assert committed_at == began + dt.timedelta(seconds=30)

    def test_renews_no_more_once_it_gives_its_lease_back(
        self, store: MemoryStateStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renews: list[bool] = []

        class Watched(PlainStore):
            def release_lease(self, poller_name: str, lease_id: str) -> None:
                [heartbeat] = heartbeats
                renews.append(not heartbeat._stopped.is_set())
                super().release_lease(poller_name, lease_id)

        heartbeats: list[Heartbeat] = []
        start = Heartbeat.start

        def noted(heartbeat: Heartbeat) -> None:
            heartbeats.append(heartbeat)
            start(heartbeat)

        monkeypatch.setattr(Heartbeat, "start", noted)
        run(poller(Log(store, acknowledges=True), Watched(store)), Collected())
        assert renews == [False]

    def test_that_took_no_lease_tells_of_none_that_it_gives_back(self, store: MemoryStateStore) -> None:
        recorder = Recorder()
        run(poller(ListSource(), store, observers=[recorder]), Collected())
        store_is_idle = [signal.stage for signal in recorder.of(StageEnded)]
        assert Stage.FETCH in store_is_idle
        assert Stage.RELEASE not in store_is_idle


def test_a_fact_is_told_once_for_each_page(store: MemoryStateStore) -> None:
    source, recorder = Log(store), Recorder()
    source.facts = ["a fact"]
    run(poller(source, store, observers=[recorder]), Collected())
    run(poller(source, store, observers=[recorder]), Collected())
    assert [signal.fact for signal in recorder.of(SourceReported)] == ["a fact", "a fact"]
