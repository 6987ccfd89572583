from __future__ import annotations

import contextvars
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.clocks import lease_margin
from azure_functions_db.core.errors import HandlerError, LostLeaseError, RowsFailed
from azure_functions_db.core.signals import LeaseRenewFailed
from azure_functions_db.core.types import AdapterCapability, FetchResult
from azure_functions_db.state.memory import MemoryStateStore
from azure_functions_db.state.store import DocumentLease
from azure_functions_db.testing.memory import MemoryQuarantine
from azure_functions_db.trigger.lease import Expiry, Heartbeat
from tests.support.waiting import wait_for
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, Recorder, poller, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from azure_functions_db.core.types import QuarantinedRow
    from azure_functions_db.trigger.events import RowChange

TTL = 1.0
LASTING_TTL = 4.0
"""For a lease that must be kept in real time: a busy machine may stand still for a second or two."""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Beating:
    """A heartbeat that is beaten by hand, with a clock that is set by hand."""

    def __init__(self, renew: Callable[[], None], ttl: float = 100) -> None:
        self.clock = Clock()
        self.told: list[tuple[Exception, bool]] = []
        self.expiry = Expiry(ttl, 0.0, self.clock)
        self.heartbeat = Heartbeat(
            renew=renew,
            expiry=self.expiry,
            ttl_seconds=ttl,
            clock=self.clock,
            tell=lambda error, lost: self.told.append((error, lost)),
        )


def fail(error: Exception) -> Callable[[], None]:
    def renew() -> None:
        raise error

    return renew


@pytest.mark.parametrize(("ttl", "margin"), [(120, 5), (20, 5), (4, 1), (1, 0.25)])
def test_the_margin_is_five_seconds_or_a_quarter(ttl: float, margin: float) -> None:
    assert lease_margin(ttl) == margin


def test_a_renewal_counts_from_the_moment_it_was_sent() -> None:
    beating = Beating(lambda: setattr(beating.clock, "now", beating.clock.now + 20))
    beating.clock.now = 50
    beating.heartbeat.beat()
    assert beating.expiry.remaining() == pytest.approx(50 + 95 - 70)


def test_a_passing_storage_error_is_told_and_the_lease_stays_ours() -> None:
    beating = Beating(fail(OSError("down")))
    beating.clock.now = 94
    beating.heartbeat.beat()
    assert [lost for _, lost in beating.told] == [False]
    assert not beating.expiry.is_set()


def test_a_lease_that_was_not_renewed_in_time_is_lost_by_our_own_clock() -> None:
    beating = Beating(fail(OSError("down")))
    beating.clock.now = 95
    assert beating.expiry.is_set()
    beating.clock.now = 0
    assert beating.expiry.is_set(), "what was lost once stays lost"


def test_a_renewal_that_hangs_past_the_end_does_not_win_the_lease_back() -> None:
    beating = Beating(lambda: setattr(beating.clock, "now", 200))
    beating.heartbeat.beat()
    assert beating.expiry.is_set()


def test_a_lease_that_ran_out_by_our_own_clock_is_not_renewed() -> None:
    renewals: list[int] = []
    beating = Beating(lambda: renewals.append(1))
    beating.clock.now = 95
    beating.heartbeat.beat()
    assert renewals == []
    assert beating.expiry.is_set(), "somebody else may have it by now"


def test_a_heartbeat_renews_by_itself_and_ends_with_its_lease() -> None:
    renewed, before = threading.Semaphore(0), set(threading.enumerate())
    beating = Beating(renewed.release, ttl=0.03)
    beating.heartbeat.start()
    [keeper] = set(threading.enumerate()) - before
    assert renewed.acquire(timeout=30)
    assert renewed.acquire(timeout=30)
    beating.expiry.lose()
    keeper.join(30)
    assert not keeper.is_alive()


def test_who_stops_a_heartbeat_waits_for_the_renewal_that_is_under_way() -> None:
    began, may_end, order = threading.Event(), threading.Event(), list[str]()

    def renew() -> None:
        began.set()
        assert may_end.wait(30)
        order.append("renewed")

    beating = Beating(renew)
    renewal = threading.Thread(target=beating.heartbeat.beat)
    renewal.start()
    assert began.wait(30)

    def stop() -> None:
        beating.heartbeat.stop()
        order.append("stopped")

    stopping = threading.Thread(target=stop)
    stopping.start()
    assert beating.heartbeat._stopped.wait(30)
    stopping.join(0.02)  # who does not wait is over by now
    may_end.set()
    for thread in (renewal, stopping):
        thread.join(30)
    assert order == ["renewed", "stopped"]


def test_a_lease_taken_by_somebody_else_is_lost_at_once() -> None:
    beating = Beating(fail(LostLeaseError("taken")))
    beating.heartbeat.beat()
    assert beating.expiry.is_set()
    assert [lost for _, lost in beating.told] == [True]


def test_whoever_listens_is_told_of_the_loss_once_and_late_comers_at_once() -> None:
    beating, told = Beating(lambda: None), list[str]()
    beating.expiry.on_loss(lambda: told.append("early"))
    beating.expiry.lose()
    beating.expiry.lose()
    assert told == ["early"]
    beating.expiry.on_loss(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_nothing_is_left_of_a_lease_that_is_over() -> None:
    beating = Beating(lambda: None)
    beating.clock.now = 94
    assert beating.expiry.remaining() == pytest.approx(1)
    beating.clock.now = 300
    assert beating.expiry.remaining() == 0


def test_a_lease_is_renewed_after_a_third_of_its_ttl_and_a_failed_renewal_soon_tried_again() -> None:
    beating = Beating(fail(OSError("down")))
    assert beating.heartbeat._pause() == pytest.approx(100 / 3)
    beating.clock.now = 20
    assert beating.heartbeat._pause() == pytest.approx(100 / 3 - 20)
    beating.heartbeat.beat()
    assert beating.heartbeat._pause() == pytest.approx(100 / 20)
    beating.clock.now = 94
    assert beating.heartbeat._pause() == pytest.approx(1)
    beating.heartbeat._renew = lambda: None
    beating.heartbeat.beat()
    assert beating.heartbeat._pause() == pytest.approx(100 / 3)
    beating.clock.now = 180
    assert beating.heartbeat._pause() == 0


def test_nothing_is_renewed_beside_a_commit_nor_after_the_end() -> None:
    renewals: list[int] = []
    beating = Beating(lambda: renewals.append(1))
    with beating.heartbeat.quiet():
        thread = threading.Thread(target=beating.heartbeat.beat)
        thread.start()
        assert renewals == []
    thread.join()
    assert renewals == [1]
    beating.heartbeat.stop()
    beating.heartbeat.beat()
    assert renewals == [1]


def test_a_renewal_that_had_to_wait_for_the_last_commit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals: list[int] = []
    beating = Beating(lambda: renewals.append(1))

    @contextmanager
    def turn_after_the_last_commit() -> Iterator[None]:
        beating.heartbeat.end()
        yield

    monkeypatch.setattr(beating.heartbeat, "_turn", turn_after_the_last_commit())
    beating.heartbeat.beat()
    assert renewals == []


def test_waiting_for_the_loss_ends_with_it() -> None:
    expiry = Expiry(100, time.monotonic(), time.monotonic)
    assert not expiry.wait(0.01)
    threading.Timer(0.05, expiry.lose).start()
    assert expiry.wait(10)
    forever = Expiry(100, time.monotonic(), time.monotonic)
    threading.Timer(0.05, forever.lose).start()
    assert forever.wait()


def test_who_waits_for_the_loss_does_not_compute_meanwhile() -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return time.monotonic()

    assert not Expiry(60, clock(), clock).wait(0.05)
    assert looks < 50


def test_a_renewal_that_hangs_does_not_keep_the_process_alive() -> None:
    beating = Beating(lambda: None)
    beating.heartbeat.start()
    threads = [thread for thread in threading.enumerate() if thread.name == "azfdb-heartbeat"]
    assert threads
    assert all(thread.daemon for thread in threads)
    beating.heartbeat.stop()
    for thread in threads:
        thread.join(30)


class WatchedLease(DocumentLease):
    _store: Watched

    def renew(self, ttl_seconds: float) -> None:
        self._store.note_renewal()
        super().renew(ttl_seconds)


class Watched(MemoryStateStore):
    """Tells of each renewal."""

    _lease_type = WatchedLease

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.renewals: list[str | None] = []
        self.fault: Exception | None = None
        self.renewed = threading.Condition()

    def note_renewal(self) -> None:
        with self.renewed:
            self.renewals.append(invocation.get())
            self.renewed.notify_all()
        if self.fault is not None:
            raise self.fault

    def wait_for_renewals(self, count: int) -> None:
        with self.renewed:
            assert self.renewed.wait_for(lambda: len(self.renewals) >= count, timeout=30)


invocation: contextvars.ContextVar[str | None] = contextvars.ContextVar("invocation", default=None)


def test_a_handler_of_three_ttls_keeps_its_lease_beside_a_competitor() -> None:
    store = Watched()
    other = MemoryStateStore(shared_with=store)
    source, mine, theirs = ListSource(3), Collected(), Collected()

    def slow(events: list[RowChange], context: Any) -> None:
        began = time.monotonic()
        while time.monotonic() - began < 3 * LASTING_TTL:
            assert run(poller(source, other, lease_ttl_seconds=LASTING_TTL), theirs) == 0
            context.lease_lost.wait(LASTING_TTL / 10)
        assert not context.lease_lost.is_set()
        mine(events)

    assert run(poller(source, store, lease_ttl_seconds=LASTING_TTL), slow) == 3
    assert theirs.batches == []
    assert len(mine.batches) == 1
    assert run(poller(source, other, lease_ttl_seconds=LASTING_TTL), theirs) == 0


def test_a_plain_store_keeps_its_lease_through_a_fetch_of_two_ttls() -> None:
    source, store, handler = ListSource(3), PlainStore(), Collected()
    fetch = source.fetch

    def slow(cursor: Any, batch_size: int) -> Any:
        time.sleep(2 * LASTING_TTL)
        return fetch(cursor, batch_size)

    source.fetch = slow  # type: ignore[method-assign]
    assert run(poller(source, store, lease_ttl_seconds=LASTING_TTL), handler) == 3
    assert "renew" in store.calls


def test_renewals_carry_the_context_of_the_invocation() -> None:
    store = Watched()
    invocation.set("inv-7")
    run(poller(ListSource(3), store, lease_ttl_seconds=TTL), lambda _events: store.wait_for_renewals(1))
    assert store.renewals[0] == "inv-7"


def test_a_quick_handler_renews_nothing() -> None:
    store = Watched()
    run(poller(ListSource(3), store), Collected())
    assert store.renewals == []


def test_a_handler_is_told_of_a_lost_lease_and_nothing_is_committed() -> None:
    store, told = Watched(), []

    def handler(_events: list[RowChange], context: Any) -> None:
        MemoryStateStore(shared_with=store).break_lease("orders")
        told.append(context.lease_lost.wait(30))

    with pytest.raises(LostLeaseError):
        run(poller(ListSource(3), store, lease_ttl_seconds=TTL), handler)
    assert told == [True]
    assert store.load_checkpoint("orders") == {}


def test_a_handler_that_fails_because_of_the_lost_lease_is_a_lost_lease() -> None:
    store = Watched()

    def handler(_events: list[RowChange], context: Any) -> None:
        MemoryStateStore(shared_with=store).break_lease("orders")
        context.lease_lost.wait(30)
        raise RuntimeError("stopped")

    with pytest.raises(LostLeaseError):
        run(poller(ListSource(3), store, lease_ttl_seconds=TTL), handler)


def test_storage_that_is_down_for_longer_than_the_lease_loses_it() -> None:
    store, recorder = Watched(), Recorder()
    store.fault = OSError("down")

    def handler(_events: list[RowChange], context: Any) -> None:
        assert context.lease_lost.wait(30)

    with pytest.raises(LostLeaseError):
        run(poller(ListSource(3), store, lease_ttl_seconds=TTL, observers=[recorder]), handler)
    failed = recorder.of(LeaseRenewFailed)
    assert len(failed) > 1, "a failed renewal is tried again"
    assert not failed[0].lost


def test_storage_that_comes_back_in_time_keeps_the_lease() -> None:
    store = Watched()
    store.fault = OSError("down")

    def handler(_events: list[RowChange]) -> None:
        store.wait_for_renewals(2)
        store.fault = None
        store.wait_for_renewals(4)

    assert run(poller(ListSource(3), store, lease_ttl_seconds=2 * TTL), handler) == 3


def test_no_heartbeat_outlives_its_tick() -> None:
    def fail_after_renewal(_events: list[RowChange]) -> None:
        store.wait_for_renewals(1)
        raise ValueError

    store = Watched()
    with pytest.raises(HandlerError):
        run(poller(ListSource(3), store, lease_ttl_seconds=TTL), fail_after_renewal)
    beating = [thread for thread in threading.enumerate() if thread.name == "azfdb-heartbeat"]
    for thread in beating:
        thread.join(10)
        assert not thread.is_alive()


def test_a_lease_that_was_given_back_is_not_renewed() -> None:
    recorder = Recorder()

    class Acknowledging(ListSource):
        """Takes its time after the last commit."""

        def fetch_changes(self, checkpoint: Any, limit: int) -> FetchResult:
            records = self.fetch(None, limit)
            return FetchResult(records, {"cursor": "end"}, more=False)

        def acknowledge(self, checkpoint: Any) -> None:
            time.sleep(2 * TTL / 3)

        def validate(self) -> None: ...

        def open(self) -> None: ...

        def close(self) -> None: ...

        def capability(self) -> AdapterCapability:
            return AdapterCapability()

    store = Watched()
    assert run(poller(Acknowledging(3), store, lease_ttl_seconds=TTL, observers=[recorder]), Collected()) == 3
    assert store.renewals == []
    assert recorder.of(LeaseRenewFailed) == []


def test_a_lease_that_a_long_fetch_has_aged_is_renewed_in_time() -> None:
    class Slow(ListSource):
        def fetch(self, cursor: Any, batch_size: int) -> Any:
            time.sleep(TTL * 0.6)
            return super().fetch(cursor, batch_size)

    store = PlainStore(Watched())

    def handler(_events: list[RowChange], context: Any) -> None:
        assert not context.lease_lost.wait(TTL)

    assert run(poller(Slow(3), store, lease_ttl_seconds=TTL), handler) == 3


def test_a_quarantine_slower_than_the_lease_keeps_it() -> None:
    store, rows = PlainStore(), MemoryQuarantine()

    class Slow(MemoryQuarantine):
        def put(self, rows_aside: Sequence[QuarantinedRow]) -> None:
            wait_for(lambda: store.calls.count("renew") > 6, 60, "the lease is renewed meanwhile")
            rows.put(rows_aside)

    def handler(events: list[RowChange]) -> None:
        raise RowsFailed({event.event_id: "no" for event in events})

    trigger = poller(ListSource(3), store, quarantine=Slow(), max_attempts=1, lease_ttl_seconds=2 * TTL)
    run(trigger, handler)
    assert len(rows.entries()) == 3
    assert store.load_checkpoint("orders")["cursor"]["tiebreaker"] == {"id": 2}
