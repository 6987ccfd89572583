from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import (
    CommitError,
    ConfigurationError,
    FetchError,
    FingerprintMismatchError,
    HandlerError,
    LeaseAcquireError,
    LeaseConflictError,
    LostLeaseError,
    SerializationError,
    StateStoreError,
)
from azure_functions_db.core.signals import (
    BatchCommitted,
    LeaseSkipped,
    Stage,
    StageEnded,
    StageFailed,
    TickCompleted,
    TickResult,
)
from azure_functions_db.core.types import AdapterCapability, FetchResult, SourceDescriptor
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.testing.faults import Fault, FaultyStateStore
from azure_functions_db.testing.memory import FakeClock
from azure_functions_db.trigger.retry import RetryPolicy
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from azure_functions_db.core.types import CheckpointJson
    from azure_functions_db.trigger.events import RowChange


@pytest.fixture(params=["looking", "plain"])
def store(request: pytest.FixtureRequest) -> Any:
    return MemoryStateStore() if request.param == "looking" else PlainStore()


def test_rows_reach_the_handler_once_and_in_order(store: Any) -> None:
    handler = Collected()
    trigger = poller(ListSource(25), store, batch_size=10)
    assert [run(trigger, handler) for _ in range(4)] == [10, 10, 5, 0]
    assert handler.ids == list(range(25))


def test_one_tick_drains_a_backlog_in_several_batches(store: Any) -> None:
    handler = Collected()
    trigger = poller(ListSource(25), store, batch_size=10, max_batches_per_tick=5)
    assert run(trigger, handler) == 25
    assert [len(batch) for batch in handler.batches] == [10, 10, 5]


def test_two_ticks_back_to_back_both_work(store: Any) -> None:
    source, handler = ListSource(1), Collected()
    run(poller(source, store), handler)
    source.rows.append({"id": 1, "version": 1})
    assert run(poller(source, store), handler) == 1


def test_a_plain_store_is_asked_in_the_plain_order() -> None:
    store = PlainStore()
    run(poller(ListSource(3), store), Collected())
    assert store.calls == ["acquire", "load", "commit", "release"]


def test_a_held_lease_skips_the_tick_quietly() -> None:
    store, recorder, handler = MemoryStateStore(), Recorder(), Collected()
    other = MemoryStateStore(shared_with=store)
    other.acquire_lease("orders", 60)
    assert run(poller(ListSource(3), store, observers=[recorder]), handler) == 0
    assert handler.batches == []
    [skipped] = recorder.of(LeaseSkipped)
    assert skipped.lease.owner_id == other.owner_id
    assert recorder.of(TickCompleted)[0].result is TickResult.SKIPPED


def test_a_lease_taken_between_the_look_and_the_lock_skips_the_tick() -> None:
    store, handler = MemoryStateStore(), Collected()
    other = MemoryStateStore(shared_with=store)

    class Slow(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            other.acquire_lease("orders", 60)
            return super().fetch(cursor, batch_size)

    assert run(poller(Slow(3), store), handler) == 0
    assert handler.batches == []


def test_a_failed_handler_leaves_the_checkpoint_and_frees_the_lease(store: Any) -> None:
    def fail(_events: list[RowChange]) -> None:
        raise ValueError("no stock")

    trigger = poller(ListSource(3), store)
    with pytest.raises(HandlerError, match="no stock") as caught:
        run(trigger, fail)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.poller_name == "orders"
    assert caught.value.batch_id is not None
    assert position(store) == {}
    assert run(trigger, Collected()) == 3


def test_the_retry_policy_calls_the_handler_again_within_the_tick(store: Any) -> None:
    pauses: list[float] = []
    attempts: list[int] = []

    def fail_twice(events: list[RowChange], context: Any) -> None:
        attempts.append(context.attempt)
        assert events[0].metadata["attempt"] == context.attempt
        if len(attempts) < 3:
            raise ValueError

    policy = RetryPolicy(max_attempts=3, delay_seconds=1, multiplier=3, jitter=0)
    assert run(poller(ListSource(3), store, retry_policy=policy, sleep=pauses.append), fail_twice) == 3
    assert attempts == [1, 2, 3]
    assert pauses == [1, 3]


def test_a_handler_that_meets_somebody_elses_lease_has_failed() -> None:
    def handler(_events: list[RowChange]) -> None:
        raise LeaseConflictError("the lease of another poller is held")

    with pytest.raises(HandlerError, match="of another poller"):
        run(poller(ListSource(3)), handler)


def test_storage_that_fails_is_no_skip(store: Any) -> None:
    class Down(PlainStore):
        def acquire_lease(self, poller_name: str, ttl_seconds: float) -> str:
            raise OSError("down")

    with pytest.raises(LeaseAcquireError, match="down"):
        run(poller(ListSource(3), Down()), Collected())


@pytest.mark.parametrize("operation", ["read", "create"])
def test_unreachable_storage_is_told_as_such_by_the_librarys_own_stores(operation: Any) -> None:
    store = FaultyStateStore()
    store.faults.plan("read", *([Fault.UNREACHABLE] if operation == "read" else []))
    store.faults.plan("create", Fault.UNREACHABLE)
    trigger = poller(ListSource(3), store)
    with pytest.raises(LeaseAcquireError, match="cannot be reached"):
        run(trigger, Collected())


def test_storage_that_goes_out_of_reach_under_the_lease_is_told_as_the_store_does() -> None:
    error = StateStoreError("the storage cannot be reached", unreachable=True)

    class Gone(PlainStore):
        def load_checkpoint(self, poller_name: str) -> CheckpointJson:
            raise error

    with pytest.raises(StateStoreError) as caught:
        run(poller(ListSource(3), Gone()), Collected())
    assert caught.value is error


def test_state_that_makes_no_sense_stops_the_tick() -> None:
    class Corrupt(MemoryStateStore):
        def look(self, *_: Any) -> Any:
            raise StateStoreError("is not JSON")

    with pytest.raises(StateStoreError, match="is not JSON"):
        run(poller(ListSource(3), Corrupt()), Collected())


def test_another_definition_of_the_source_is_refused() -> None:
    store, source = MemoryStateStore(), ListSource(3)
    run(poller(source, store), Collected())
    source.source_descriptor = SourceDescriptor("orders", "list", "sha256:other")
    with pytest.raises(FingerprintMismatchError):
        run(poller(source, store), Collected())


def test_a_passing_fetch_error_is_retried_and_a_lasting_one_is_not() -> None:
    source = ListSource(3)
    source.failures = [ConnectionResetError(), FetchError("deadlock", transient=True)]
    assert run(poller(source), Collected()) == 3
    source.failures = [FetchError("no such column")]
    with pytest.raises(FetchError, match="no such column"):
        run(poller(source), Collected())
    source.failures = [ConnectionResetError() for _ in range(3)]
    source.fetches = 0
    with pytest.raises(FetchError):
        run(poller(source), Collected())
    assert source.fetches == 3


def test_records_that_cannot_become_events_are_a_serialization_error() -> None:
    class Unordered(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            return [{"version": 1}]

    with pytest.raises(SerializationError, match="'id'"):
        run(poller(Unordered(), normalizer=None), Collected())


class LostAnswer(PlainStore):
    """Commits, but the answer never arrives."""

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        super().commit_checkpoint(poller_name, checkpoint, lease_id)
        raise TimeoutError


class Refusing(PlainStore):
    """Never commits."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
        raise self.error


def test_a_commit_whose_answer_was_lost_counts_once_it_is_found() -> None:
    store, handler = LostAnswer(), Collected()
    trigger = poller(ListSource(3), store)
    assert run(trigger, handler) == 3
    assert run(trigger, handler) == 0
    assert len(handler.batches) == 1


def test_a_commit_that_failed_brings_the_batch_again() -> None:
    source, handler = ListSource(3), Collected()
    with pytest.raises(CommitError, match="down"):
        run(poller(source, Refusing(OSError("down"))), handler)
    assert len(handler.batches) == 1


def test_a_lease_that_was_lost_at_the_commit_is_told() -> None:
    with pytest.raises(LostLeaseError):
        run(poller(ListSource(3), Refusing(LostLeaseError("gone"))), Collected())


def test_a_time_budget_starts_no_batch_that_would_not_end_in_time() -> None:
    clock = [0.0]

    def slow(_events: list[RowChange]) -> None:
        clock[0] += 10

    trigger = poller(
        ListSource(100),
        batch_size=10,
        max_batches_per_tick=10,
        time_budget_seconds=35,
        monotonic=lambda: clock[0],
    )
    assert run(trigger, slow) == 30


class Full:
    """The full port; its calls are noted."""

    source_descriptor = SourceDescriptor("full", "fake", "sha256:f")
    cursor_column, pk_columns = "id", ("id",)

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def validate(self) -> None: ...

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def capability(self) -> AdapterCapability:
        return AdapterCapability()

    def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
        self.calls.append(("fetch", checkpoint.get("cursor")))
        return FetchResult([{"id": 1}], {"cursor": "token"}, more=False)

    def acknowledge(self, checkpoint: CheckpointJson) -> None:
        self.calls.append(("acknowledge", checkpoint["cursor"]))


def test_the_full_port_is_opened_acknowledged_and_closed() -> None:
    source = Full()
    run(poller(source), Collected())
    assert source.calls == ["open", ("fetch", None), ("acknowledge", "token"), "close"]


def test_a_commit_that_outlived_the_lease_is_not_acknowledged() -> None:
    clock = [0.0]

    class Slow(PlainStore):
        def commit_checkpoint(self, poller_name: str, checkpoint: CheckpointJson, lease_id: str) -> None:
            super().commit_checkpoint(poller_name, checkpoint, lease_id)
            clock[0] += 1000

    source = Full()
    run(poller(source, Slow(), monotonic=lambda: clock[0]), Collected())
    assert source.calls == ["open", ("fetch", None), "close"], "an operator may have rewound what nobody held"


def test_nor_is_one_that_outlived_the_lease_that_it_gave_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, store, source = [0.0], MemoryStateStore(), Full()
    write = store._backend.replace

    def slow(name: Any, content: bytes, version: Any) -> Any:
        clock[0] += 1000 * (b"token" in content)
        return write(name, content, version)

    monkeypatch.setattr(store._backend, "replace", slow)
    run(poller(source, store, monotonic=lambda: clock[0]), Collected())
    assert store.load_checkpoint("orders")["cursor"] == "token"
    assert source.calls == ["open", ("fetch", None), "close"]


@pytest.mark.parametrize("records", [[], [{"id": 1}]])
def test_what_a_source_lets_go_of_is_told_while_the_lease_is_held(records: list[Any]) -> None:
    """With nothing to hand out, too: a source may have to remember how far it has looked."""
    store, held = MemoryStateStore(), list[bool]()

    class LettingGo(Full):
        def capability(self) -> AdapterCapability:
            return AdapterCapability(acknowledges=True)

        def fetch_changes(self, checkpoint: CheckpointJson, limit: int) -> FetchResult:
            return FetchResult(records, {"cursor": "token"}, more=False)

        def acknowledge(self, checkpoint: CheckpointJson) -> None:
            held.append(MemoryStateStore(shared_with=store).look("orders").lease is not None)

    run(poller(LettingGo(), store), Collected())
    assert held == [True]
    assert store.look("orders").lease is None


def test_the_context_tells_the_circumstances() -> None:
    seen: list[Any] = []

    def handler(_events: list[RowChange], context: Any) -> None:
        seen.append(context)

    store = MemoryStateStore()
    poller(ListSource(3), store).run(timer=None, handler=handler, invocation_id="inv-1")
    [context] = seen
    assert (context.poller_name, context.invocation_id, context.source_name) == ("orders", "inv-1", "orders")
    assert context.lease_owner == store.owner_id
    assert context.checkpoint_before == {}
    after = store.load_checkpoint("orders")
    assert context.checkpoint_after_candidate["cursor"] == after["cursor"]
    assert after["last_successful_batch_id"] == context.batch_id
    assert (after["metadata"]["row_count"], after["metadata"]["rows_per_second"]) == (3, 0.01)
    assert context.tick_started_at <= dt.datetime.now(dt.UTC)
    assert not context.lease_lost.is_set()


class Slow:
    """A source, a handler and a store that take one, three and two seconds."""

    def __init__(self) -> None:
        self.clock = clock = FakeClock()
        self.recorder = Recorder()

        class Source(ListSource):
            def fetch(self, cursor: Any, batch_size: int) -> Any:
                clock.advance(1)
                return super().fetch(cursor, batch_size)

        class Store(PlainStore):
            def commit_checkpoint(self, poller_name: str, checkpoint: Any, lease_id: str) -> None:
                clock.advance(2)
                super().commit_checkpoint(poller_name, checkpoint, lease_id)

        self.source, self.store = Source(4), Store()

    def run(self, **options: Any) -> int:
        clocks: Any = {"now": self.clock, "monotonic": self.clock.monotonic, "observers": [self.recorder]}
        return run(poller(self.source, self.store, **clocks, **options), lambda _events: self.clock.advance(3))


def test_committed_batches_are_told_with_their_times() -> None:
    slow = Slow()
    assert slow.run(batch_size=2, max_batches_per_tick=2) == 4
    for batch in slow.recorder.of(BatchCommitted):
        assert (batch.fetched_count, batch.handled_count, batch.lag_seconds) == (2, 2, None)
        assert round(batch.fetch_duration_ms) == 1000
        assert round(batch.handler_duration_ms) == 3000
        assert round(batch.commit_duration_ms) == 2000
    [tick] = slow.recorder.of(TickCompleted)
    assert (tick.fetched_count, tick.handled_count, tick.batches, round(tick.duration_ms)) == (4, 4, 2, 12_000)
    durations = {signal.stage: round(signal.duration_ms) for signal in slow.recorder.of(StageEnded)}
    assert (durations[Stage.FETCH], durations[Stage.HANDLER], durations[Stage.COMMIT]) == (1000, 3000, 2000)


def test_a_batch_that_came_again_is_told_with_the_time_of_all_its_calls() -> None:
    slow = Slow()
    slow.source.failures = [ConnectionError("gone")]
    slow.run()
    [batch] = slow.recorder.of(BatchCommitted)
    assert round(batch.fetch_duration_ms) == 2000
    [failed] = slow.recorder.of(StageFailed)
    assert (failed.stage, round(failed.duration_ms)) == (Stage.FETCH, 1000)


def test_the_last_batch_gives_the_lease_back_in_its_commit_though_the_source_cannot_tell() -> None:
    store = FaultyStateStore()
    assert run(poller(ListSource(5), store, batch_size=10, max_batches_per_tick=2), Collected()) == 5
    assert store.faults.calls["create"] + store.faults.calls["replace"] == 2, "one write takes it"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"max_batches_per_tick": 0}, "max_batches_per_tick"),
        ({"lease_ttl_seconds": 0}, "lease_ttl_seconds"),
        ({"time_budget_seconds": -1}, "time_budget_seconds"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"model": int}, "model"),
        ({"transactional": True}, "transactional"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        poller(ListSource(), **options)


def test_what_is_no_source_or_store_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="fetch"):
        poller(object(), normalizer=lambda record, source: record)
    with pytest.raises(ConfigurationError, match="acquire_lease"):
        poller(ListSource(), object())
    with pytest.raises(ConfigurationError, match="name"):
        poller(ListSource()).__class__(name=" ", source=ListSource(), checkpoint_store=MemoryStateStore())
