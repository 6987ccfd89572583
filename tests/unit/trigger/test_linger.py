from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import ConfigurationError, HandlerError, LostLeaseError
from azure_functions_db.core.signals import (
    BatchCommitted,
    FetchedNothing,
    LeaseSkipped,
    SourceReported,
    TickCompleted,
    TickResult,
)
from azure_functions_db.core.types import AdapterCapability, FetchResult, Horizon, SourceDescriptor
from azure_functions_db.sources.hashdiff.source import HashDiffSource
from azure_functions_db.state.memory import MemoryBackend, MemoryStateStore
from azure_functions_db.state.sql import SqlStateStore
from azure_functions_db.state.store import DocumentStateStore
from azure_functions_db.testing.memory import FakeClock, MemoryQuarantine
from azure_functions_db.testing.stream import MemoryLog, MemoryStreamSource
from azure_functions_db.trigger.batch import Checkpoint
from azure_functions_db.trigger.lease import Lease, TickCancelled
from azure_functions_db.trigger.pace import Linger, end_lingering
from azure_functions_db.trigger.tick import SIGN_OF_LIFE
from tests.unit.trigger.poller import Collected, ListSource, PlainStore, Recorder, poller, position, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure_functions_db.trigger.poll import PollTrigger


class Watched(MemoryBackend):
    """A place for documents that tells what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def read(self, name: Any) -> Any:
        self.asked.append("read")
        return super().read(name)

    def create(self, name: Any, content: bytes) -> Any:
        self.asked.append("write")
        return super().create(name, content)

    def replace(self, name: Any, content: bytes, version: Any) -> Any:
        self.asked.append("write")
        return super().replace(name, content, version)


class Minute:
    """A clock that moves while the tick waits; what is planned happens at its moment."""

    def __init__(self, source: Any = None) -> None:
        self.clock = FakeClock()
        self.source = ListSource() if source is None else source
        self.backend = Watched()
        self.store = DocumentStateStore(self.backend, clock=self.clock)
        self.handler = Collected()
        self.recorder = Recorder()
        self.pauses: list[float] = []
        self.delivered_at: list[float] = []
        self._began = self.clock.monotonic()
        self._plans: list[tuple[float, Callable[[], object]]] = []

    @property
    def second(self) -> float:
        return round(self.clock.monotonic() - self._began, 6)

    def at(self, second: float, act: Callable[[], object]) -> None:
        self._plans.append((second, act))

    def insert_at(self, *seconds: float) -> None:
        for second in seconds:
            self.at(second, self.insert)

    def insert(self, count: int = 1) -> None:
        first = len(self.source.rows)
        self.source.rows += [{"id": number, "version": number} for number in range(first, first + count)]

    def handle(self, events: Any) -> None:
        self.handler(events)
        self.delivered_at.append(self.second)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses.append(round(seconds, 6))
        until = self.second + seconds
        for second, act in sorted(self._plans, key=lambda plan: plan[0]):
            if second <= until:
                self._plans.remove((second, act))
                self.clock.advance(max(0.0, second - self.second))
                act()
        self.clock.advance(max(0.0, until - self.second))

    def trigger(self, **options: Any) -> PollTrigger:
        defaults = {
            "linger_seconds": 50,
            "sleep": self.sleep,
            "now": self.clock,
            "monotonic": self.clock.monotonic,
            "observers": [self.recorder],
        }
        return poller(self.source, options.pop("store", self.store), **(defaults | options))

    def run(self, **options: Any) -> int:
        return run(self.trigger(**options), self.handle)

    @property
    def is_free(self) -> bool:
        state = self.store.look("orders")
        return state.lease is None and state.abandoned is None

    @property
    def result(self) -> TickResult:
        result: TickResult = self.recorder.of(TickCompleted)[-1].result
        return result


@pytest.fixture
def minute() -> Minute:
    return Minute()


class TestATickThatLingers:
    def test_delivers_what_comes_within_half_a_second(self, minute: Minute) -> None:
        minute.insert_at(0.1, 1.3, 2.7, 4.0)
        assert minute.run() == 4
        assert minute.delivered_at == [0.5, 1.5, 3.0, 4.0]
        assert minute.second == 50
        assert minute.is_free

    def test_looks_less_often_while_nothing_comes_and_at_once_again_when_something_has(self, minute: Minute) -> None:
        minute.insert_at(40.0)
        minute.run()
        assert minute.pauses[:10] == [0.5] * 10
        assert max(minute.pauses) == 2.0
        longest = minute.pauses.index(2.0)
        assert minute.pauses[:longest] == sorted(minute.pauses[:longest])
        assert minute.delivered_at[0] - 40.0 <= 2.0
        assert 0.5 in minute.pauses[longest:]

    def test_takes_the_interval_it_is_given(self, minute: Minute) -> None:
        minute.run(poll_interval_seconds=5)
        assert minute.pauses == [5.0] * 10

    def test_works_off_what_came_at_once(self, minute: Minute) -> None:
        minute.at(1.0, lambda: minute.insert(35))
        assert minute.run(batch_size=10) == 35
        assert minute.delivered_at == [1.0] * 4, "the number of batches is no limit while it lingers"

    def test_leaves_a_backlog_to_the_limit_of_batches_once_its_time_is_up(self, minute: Minute) -> None:
        minute.source.rows = ListSource(90).rows

        def slowly(events: Any) -> None:
            minute.clock.advance(20)
            minute.handle(events)

        run(minute.trigger(batch_size=10, max_batches_per_tick=5), slowly)
        assert len(minute.handler.batches) == 5
        minute.handler.batches.clear()
        run(minute.trigger(batch_size=10, max_batches_per_tick=1), slowly)
        assert len(minute.handler.batches) == 3, "by time: a batch that began within it, and the one that was due"

    def test_keeps_others_out_until_it_ends(self, minute: Minute) -> None:
        other = DocumentStateStore(minute.backend, clock=minute.clock)
        seen = Recorder()
        rival = poller(minute.source, other, observers=[seen])
        minute.at(20.0, lambda: run(rival, Collected()))
        minute.run()
        assert len(seen.of(LeaseSkipped)) == 1
        minute.insert()
        assert run(rival, Collected()) == 1

    def test_is_taken_over_within_a_ttl_once_it_has_died(self, minute: Minute) -> None:
        minute.at(20.0, interrupt)
        with pytest.MonkeyPatch.context() as patch:
            # Killed: nobody gives the lease back.
            patch.setattr("azure_functions_db.trigger.lease.Lease.release", lambda _lease: None)
            with pytest.raises(KeyboardInterrupt):
                minute.run(lease_ttl_seconds=30)
        minute.insert()
        other = DocumentStateStore(minute.backend, clock=minute.clock)
        assert run(poller(minute.source, other, now=minute.clock), Collected()) == 0
        minute.clock.advance(30)
        assert run(poller(minute.source, other, now=minute.clock), Collected()) == 1

    def test_counts_as_at_work(self, minute: Minute) -> None:
        minute.at(20.0, lambda: alive.append(minute.store.look("orders").lease))
        alive: list[Any] = []
        minute.run()
        assert alive[0].owner_id == minute.store.owner_id

    @pytest.mark.parametrize(
        "options",
        [
            {"commit": "row"},
            {"quarantine": MemoryQuarantine()},
            {"transactional": True},
            {"store": "plain"},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_goes_with_every_way_of_delivery(
        self, minute: Minute, options: dict[str, Any], sqlite_database: str
    ) -> None:
        if "store" in options or "transactional" in options:
            store: Any = PlainStore() if "store" in options else SqlStateStore(url=sqlite_database, clock=minute.clock)
            options = {**options, "store": store}
        minute.insert_at(1.2, 1.2, 3.9)
        assert minute.run(**options) == 3
        assert minute.handler.ids == [0, 1, 2]
        assert minute.delivered_at[-1] == 4.0

    def test_goes_with_an_async_handler(self, minute: Minute) -> None:
        async def handler(events: Any) -> None:
            minute.handle(events)

        minute.insert_at(1.2, 3.9)
        assert asyncio.run(minute.trigger().run_async(timer=None, handler=handler)) == 2
        assert minute.delivered_at == [1.5, 4.0]

    def test_puts_poison_aside_and_goes_on(self, minute: Minute) -> None:
        def fails_on_one(events: Any) -> None:
            if any(event.pk["id"] == 1 for event in events):
                raise ValueError("poison")
            minute.handle(events)

        aside = MemoryQuarantine()
        minute.at(1.0, lambda: minute.insert(4))
        minute.insert_at(3.2)
        run(minute.trigger(quarantine=aside, max_attempts=1), fails_on_one)
        assert set(minute.handler.ids) == {0, 2, 3, 4}
        assert [row.event["pk"] for row in aside.entries()] == [{"id": 1}]


class TestTheStateWhileATickLingers:
    def test_is_left_alone_but_for_heartbeats(self, minute: Minute) -> None:
        minute.run()  # the first one leaves a sign of life
        minute.backend.asked.clear()
        minute.run()
        assert minute.backend.asked == ["read", "write", "write"], "looked at, taken, given back"
        assert len(minute.recorder.of(FetchedNothing)) > 60

    def test_is_written_once_for_each_batch(self, minute: Minute) -> None:
        minute.run()
        minute.backend.asked.clear()
        minute.insert_at(55.0, 60.0, 65.0)
        minute.run()
        assert minute.backend.asked == ["read", *["write"] * 5]

    def test_is_given_back_with_the_last_batch_when_no_time_is_left(self, minute: Minute) -> None:
        def slowly(events: Any) -> None:
            minute.clock.advance(60)
            minute.handle(events)

        minute.insert()
        run(minute.trigger(), slowly)
        assert minute.backend.asked == ["read", "write", "write"]

    def test_tells_at_once_that_all_is_well_again(self, minute: Minute) -> None:
        def fail(_events: Any) -> None:
            raise ValueError("no stock")

        minute.insert()
        with pytest.raises(HandlerError):
            run(minute.trigger(), fail)
        minute.source.rows.clear()
        failures: list[Any] = []
        minute.at(1.0, lambda: failures.append(Checkpoint.of(minute.store.look("orders").checkpoint).failure))
        minute.run()
        assert failures == [None]

    def test_gets_its_sign_of_life_as_that_of_any_idle_poller(self, minute: Minute) -> None:
        sign = SIGN_OF_LIFE.total_seconds()
        minute.run(linger_seconds=2 * sign + 10, poll_interval_seconds=sign / 4, lease_ttl_seconds=9 * sign)
        assert minute.backend.asked == ["read", *["write"] * 5], "taken, three signs, given back"
        assert minute.clock() - seen(minute) <= SIGN_OF_LIFE

    def test_remembers_at_once_where_a_source_begins(self) -> None:
        source = Remembering()
        source.place = None
        minute = Minute(source)
        stored: list[Any] = []
        minute.at(1.0, source.move)
        minute.at(2.0, lambda: stored.append(position(minute.store)))
        minute.run()
        assert stored == [{"cursor": 1}], "a crash must not begin elsewhere"

    def test_lets_a_source_let_go_while_nothing_comes_for_it(self) -> None:
        source = Remembering(acknowledges=True)
        minute = Minute(source)
        minute.run()
        minute.at(60.0, source.move)
        acknowledged: list[Any] = []
        minute.at(70.0, lambda: acknowledged.extend((source.acknowledged[-1], position(minute.store))))
        minute.run()
        assert acknowledged == [{"cursor": 2}, {"cursor": 2}]

    def test_remembers_in_the_end_what_can_wait(self) -> None:
        source = Remembering()
        minute = Minute(source)
        minute.run()
        minute.backend.asked.clear()
        minute.at(60.0, source.move)
        minute.at(70.0, source.move)
        minute.run()
        assert minute.backend.asked == ["read", "write", "write"], "with the lease that is given back"
        assert position(minute.store) == {"cursor": 3}
        assert source.asked_at[-1] == 3, "it is asked from where it has come to"

    def test_remembers_at_once_what_a_source_wants_to_let_go(self) -> None:
        log = MemoryLog()
        minute = Minute(MemoryStreamSource(log))
        minute.at(1.0, lambda: log.commit((1, {"id": 1})))
        acknowledged: list[Any] = []
        minute.at(3.0, lambda: acknowledged.append(log.acknowledged))
        assert minute.run() == 1
        assert acknowledged == [(1, 1)]
        assert log.reader is None


class TestLingeringEnds:
    def test_with_the_time_budget(self, minute: Minute) -> None:
        assert minute.run(time_budget_seconds=10) == 0
        assert 8 <= minute.second <= 10
        assert minute.is_free
        assert minute.result is TickResult.EMPTY

    def test_while_the_budget_has_time_for_one_more_batch(self, minute: Minute) -> None:
        def slowly(events: Any) -> None:
            minute.clock.advance(6)
            minute.handle(events)

        minute.insert()
        run(minute.trigger(time_budget_seconds=20), slowly)
        assert minute.second <= 14
        assert minute.is_free

    def test_with_a_handler_that_fails(self, minute: Minute) -> None:
        def fail(_events: Any) -> None:
            raise ValueError("no stock")

        minute.insert_at(1.2)
        with pytest.raises(HandlerError, match="no stock"):
            run(minute.trigger(), fail)
        assert minute.second == 1.5
        assert minute.is_free
        assert Checkpoint.of(minute.store.look("orders").checkpoint).failure is not None

    def test_with_ctrl_c(self, minute: Minute) -> None:
        minute.insert_at(1.0)
        minute.at(2.0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            minute.run()
        assert minute.is_free
        assert minute.handler.ids == [0]
        assert position(minute.store)["cursor"]["tiebreaker"] == {"id": 0}

    def test_when_the_process_is_about_to_end(self, minute: Minute) -> None:
        minute.insert_at(1.0)
        minute.at(2.0, end_lingering)
        assert minute.run() == 1
        assert minute.second <= 2.5
        assert minute.is_free
        assert minute.result is TickResult.HANDLED

    def test_when_an_operator_pauses_the_poller_and_a_write_shows_it(self, minute: Minute) -> None:
        minute.at(2.0, lambda: minute.store.pause("orders", "ann"))
        minute.insert_at(3.0, 4.0)
        assert minute.run() == 1, "the batch whose commit has shown it is the last one"
        assert minute.second == 3.0
        assert minute.is_free
        assert minute.run() == 0
        assert minute.result is TickResult.PAUSED

    def test_with_the_lease_by_its_own_clock(self, minute: Minute) -> None:
        with pytest.raises(LostLeaseError):
            minute.run(lease_ttl_seconds=20)  # nothing renews it in a time that is only simulated
        assert minute.second < 20


class TestLingeringReallyWaits:
    """The same without a simulated clock: who waits is woken."""

    def test_and_a_cancelled_one_is_woken(self) -> None:
        source, store = ListSource(1), MemoryStateStore()

        async def main() -> None:
            handled = asyncio.Event()

            async def handler(_events: Any) -> None:
                handled.set()

            trigger = poller(source, store, linger_seconds=600, poll_interval_seconds=600, sleep=None)
            tick = asyncio.ensure_future(trigger.run_async(timer=None, handler=handler))
            await handled.wait()
            tick.cancel()
            with pytest.raises(asyncio.CancelledError):
                await tick

        asyncio.run(main())
        assert store.look("orders").lease is None

    def test_not_once_it_is_cancelled(self) -> None:
        lease = new_lease()
        lease.cancel()
        for _ in range(3):
            lease.pause(3600)
        with pytest.raises(TickCancelled):
            lease.check()

    def test_once_less_when_it_is_to_end(self) -> None:
        lease = new_lease()
        linger = Linger(60, 0.5, 0.0, clock=lambda: 1.0, wake=lease.wake)
        linger.end()
        lease.pause(3600)
        assert not linger.lasts(60)
        lease.check()

    @pytest.mark.parametrize("how", ["end", "pause", "break"])
    def test_and_is_woken_by_those_who_end_it(self, how: str) -> None:
        store, handled = MemoryStateStore(), threading.Event()
        trigger = poller(
            ListSource(1), store, linger_seconds=600, poll_interval_seconds=0.05, lease_ttl_seconds=1.5, sleep=None
        )
        outcome: list[Any] = []

        def tick() -> None:
            try:
                outcome.append(run(trigger, lambda _events: handled.set()))
            except LostLeaseError as lost:
                outcome.append(type(lost))

        thread = threading.Thread(target=tick)
        thread.start()
        assert handled.wait(60)
        operator = MemoryStateStore(shared_with=store)
        match how:
            case "end":
                end_lingering()
            case "pause":
                operator.pause("orders", "ann")  # seen by the next heartbeat
            case _:
                operator.break_lease("orders")
        thread.join(60)
        assert outcome == [LostLeaseError if how == "break" else 1]
        assert store.look("orders").lease is None


class TestLooking:
    def test_is_soon_again_where_something_is_held_back(self) -> None:
        source = HoldingBack()
        minute = Minute(source)
        minute.at(1.0, source.hold)
        minute.at(1.15, source.release)
        assert minute.run() == 1
        assert minute.delivered_at[0] < 1.4
        assert minute.pauses[2:5] == [0.02, 0.04, 0.08]
        assert [signal.lag_rows for signal in minute.recorder.of(BatchCommitted)] == [0], "nothing waits behind it"
        assert source.waits == 1, "whoever looks again waits for nobody but in the first fetch"

    def test_tells_no_fact_twice(self) -> None:
        source = HoldingBack()
        minute = Minute(source)
        minute.at(0.3, source.hold)
        minute.at(30.0, source.release)
        minute.run()
        assert len(minute.recorder.of(SourceReported)) == 2, "at first, and with the row"

    def test_asks_a_log_whether_it_is_quiet_and_lets_go_of_it_meanwhile(self) -> None:
        log = QuietLog()
        minute = Minute(log)
        minute.at(10.0, lambda: log.log.commit((1, {"id": 1})))
        readers: list[Any] = []
        minute.at(20.0, lambda: readers.append(log.log.reader))
        assert minute.run() == 1
        assert readers == [None], "others may look at it"
        assert log.opened <= 4
        assert log.asked > 30

    def test_goes_on_with_the_reader_of_a_source_that_keeps_nobody_waiting(self) -> None:
        source = Remembering()
        minute = Minute(source)
        minute.run()
        assert (source.opened, len(source.asked_at) > 30) == (1, True)


class TestOptions:
    @pytest.mark.parametrize("setting", ["linger_seconds", "poll_interval_seconds"])
    def test_must_make_sense(self, setting: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{setting} must be greater than 0"):
            poller(ListSource(), **{setting: 0})

    def test_a_source_that_scans_its_table_is_refused(self) -> None:
        source = HashDiffSource(url="sqlite://", table="orders", pk_columns=["id"])
        with pytest.raises(ConfigurationError, match="compare its whole table at every look"):
            poller(source, linger_seconds=50)


class Remembering:
    """A source that hands out nothing, and moves on."""

    source_descriptor = SourceDescriptor("orders", "log", "sha256:log")

    def __init__(self, *, acknowledges: bool = False) -> None:
        self.place: int | None = 1
        self.asked_at: list[Any] = []
        self.acknowledged: list[Any] = []
        self.opened = 0
        self._acknowledges = acknowledges

    def move(self) -> None:
        self.place = (self.place or 0) + 1

    def validate(self) -> None: ...

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None: ...

    def acknowledge(self, checkpoint: Any) -> None:
        self.acknowledged.append(checkpoint)

    def capability(self) -> Any:
        return AdapterCapability(acknowledges=self._acknowledges)

    def fetch_changes(self, checkpoint: Any, limit: int) -> FetchResult:
        self.asked_at.append(checkpoint.get("cursor"))
        return FetchResult([], {} if self.place is None else {"cursor": self.place}, more=False)


class HoldingBack(Remembering):
    """A source whose row waits for somebody else's end."""

    cursor_column = "version"
    pk_columns = ("id",)

    def __init__(self) -> None:
        super().__init__()
        self.is_there = self.is_free = False
        self.waits = 0

    def hold(self) -> None:
        self.is_there = True

    def release(self) -> None:
        self.is_free = True

    def fetch_changes(self, checkpoint: Any, limit: int) -> FetchResult:
        self.waits += 1
        return self.look(checkpoint, limit)

    def look(self, checkpoint: Any, limit: int) -> FetchResult:
        facts = [Horizon(1, 0.0)]
        if self.is_free and not checkpoint:
            return FetchResult([{"id": 1, "version": 1}], {"cursor": 1}, more=False, facts=facts)
        return FetchResult([], {}, more=self.is_there and not self.is_free, facts=facts)


class QuietLog(MemoryStreamSource):
    """A log that tells from outside whether there is anything to read."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.asked = self.opened = 0
        super().__init__(self.log)

    def open(self) -> Any:
        self.opened += 1
        return super().open()

    def quiet(self, checkpoint: Any) -> FetchResult | None:
        self.asked += 1
        return None if self.backlog(checkpoint).amount else FetchResult([], checkpoint, more=False)


def new_lease() -> Lease:
    return Lease(
        MemoryStateStore(),
        "orders",
        ttl_seconds=60,
        transactional=False,
        may_steal=lambda: True,
        clock=lambda: 0.0,
        tell=lambda _error, _lost: None,
    )


def interrupt() -> None:
    raise KeyboardInterrupt


def seen(minute: Minute) -> Any:
    return Checkpoint.of(minute.store.look("orders").checkpoint).ticked_at
