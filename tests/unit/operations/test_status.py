"""Where a poller stands, when its store or its source is not one of this library."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from azure_functions_db import ConfigurationError, MemoryStateStore, PollTrigger, StateStoreError
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.operations.doctor import examine
from azure_functions_db.operations.pollers import AppFunction, Definition, Poller
from azure_functions_db.operations.status import poller_status, status_of
from azure_functions_db.trigger.pace import end_lingering

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


class FiveMethods:
    """A store of a user's own."""

    def __init__(self, store: MemoryStateStore) -> None:
        self.acquire_lease = store.acquire_lease
        self.renew_lease = store.renew_lease
        self.release_lease = store.release_lease
        self.load_checkpoint = store.load_checkpoint
        self.commit_checkpoint = store.commit_checkpoint


class Readings:
    """A small source of a user's own; a reading comes every minute."""

    source_descriptor = SourceDescriptor("readings", "mine", "sha256:1")
    cursor_column = "at"
    pk_columns = ("number",)

    def fetch(self, cursor: Any, batch_size: int) -> list[dict[str, Any]]:
        done = cursor[1] if cursor else 0
        every = [{"number": n, "at": NOW - dt.timedelta(minutes=60 - n)} for n in range(done + 1, 11)]
        return every[:batch_size]


def poller(store: Any) -> Poller:
    trigger = PollTrigger(name="readings", source=Readings(), checkpoint_store=store, batch_size=4)
    host = type("Trigger", (), {"type": "queueTrigger"})()
    function = AppFunction("on_readings", lambda: None, host, (host,))
    return Poller("readings", store, definition=Definition(function, trigger))


def test_a_store_with_five_methods_and_a_small_source_show_what_they_can() -> None:
    mine = poller(FiveMethods(MemoryStateStore()))
    assert mine.definition is not None
    mine.definition.trigger.run(timer=None, handler=lambda events: None)

    shown = poller_status(mine, NOW)

    assert shown.key == {"number": 4}
    assert shown.waiting_rows == 6
    assert shown.lease is None
    assert shown.problems == []
    grades = {finding.check: finding.grade for finding in examine([mine]).pollers[0].findings}
    assert grades == {
        "grants": "ok",
        "source": "note",
        "state": "ok",
        "storage clock": "note",
        "quarantine": "note",
        "requests": "note",
    }
    with pytest.raises(ConfigurationError, match="only the stores of this library"):
        _ = mine.documents


def test_a_held_lease_and_failed_attempts_are_shown() -> None:
    store = MemoryStateStore(clock=lambda: NOW)
    lease = store.acquire_lease("readings", 60)
    checkpoint = {"cursor": [1, 2], "updated_at": "2026-01-01T11:55:00Z", "metadata": {"failed_attempts": 2}}
    store.commit_checkpoint("readings", checkpoint, lease)

    shown = poller_status(Poller("readings", store), NOW + dt.timedelta(seconds=10))

    assert shown.lease is not None
    assert (shown.lease.alive, shown.lease.age_seconds, shown.lease.expires_in_seconds) == (True, 10, 50)
    assert (shown.cursor, shown.last_success_age_seconds) == (1, 310)
    assert shown.problems == ["the next batch has failed 2 time(s)"]


def test_the_rate_fades_while_nothing_comes() -> None:
    store = MemoryStateStore(clock=lambda: NOW)
    checkpoint = {"cursor": [1], "updated_at": "2026-01-01T12:00:00Z", "metadata": {"rows_per_second": 8.0}}
    store.commit_checkpoint("readings", checkpoint, store.acquire_lease("readings", 60))
    assert poller_status(Poller("another", store), NOW).rows_per_second is None
    assert poller_status(Poller("readings", store), NOW).rows_per_second == 8
    assert poller_status(Poller("readings", store), NOW + dt.timedelta(minutes=5)).rows_per_second == pytest.approx(
        2.943
    )


def test_one_poller_that_cannot_be_read_does_not_hide_the_others() -> None:
    class Broken(FiveMethods):
        def __init__(self) -> None:
            super().__init__(MemoryStateStore())
            self.load_checkpoint = self._fail

        def _fail(self, poller_name: str) -> dict[str, Any]:
            raise StateStoreError("the storage is on fire")

    status = status_of([poller(Broken()), poller(FiveMethods(MemoryStateStore()))], NOW)

    assert [each.problems for each in status.pollers] == [["the storage is on fire [AZFDB-400]"], []]
    assert status.has_problems


class SevenMethods(FiveMethods):
    """A store of a user's own that lets look at its state."""

    def __init__(self, store: MemoryStateStore) -> None:
        super().__init__(store)
        self.look = store.look
        self.take = store.take


def test_a_store_of_a_users_own_shows_its_lease_where_it_lets_look() -> None:
    store = MemoryStateStore(clock=lambda: NOW)
    store.commit_checkpoint("readings", {"cursor": [1, 2]}, store.acquire_lease("readings", 60))
    another = MemoryStateStore(shared_with=store, clock=lambda: NOW)

    shown = poller_status(Poller("readings", SevenMethods(another)), NOW)

    assert shown.lease is not None
    assert (shown.lease.alive, shown.lease.owner, shown.cursor) == (True, store.owner_id, 1)


def test_rows_in_a_sink_that_cannot_count_are_counted_by_reading() -> None:
    class Three:
        def entries(self, poller_name: str | None = None) -> list[str]:
            return [f"{poller_name} {number}" for number in range(3)]

    sink: Any = Three()
    assert poller_status(Poller("readings", MemoryStateStore(), sink), NOW).quarantined == 3


def lingering(schedule: str, **options: Any) -> list[Any]:
    """What doctor says of lingering under a schedule."""
    store = MemoryStateStore()
    trigger = PollTrigger(name="readings", source=Readings(), checkpoint_store=store, **options)
    host = type("Trigger", (), {"type": "timerTrigger", "schedule": schedule})()
    definition = Definition(AppFunction("on_readings", lambda: None, host, (host,)), trigger)
    [health] = examine([Poller("readings", store, definition=definition)]).pollers
    return [finding for finding in health.findings if finding.check in {"linger", "requests"}]


def test_doctor_tells_what_lingering_costs_beside_a_faster_schedule() -> None:
    requests, linger = lingering("0 * * * * *", linger_seconds=55)
    assert requests.text == (
        "43,200 ticks a month: about 194,400 storage requests when idle, 216,000 with a batch each"
    ), "looked at, taken, renewed once, given back; and a sign of life every two minutes"
    assert linger.grade == "ok"
    assert linger.text == (
        "660 hours of execution a month: 297,000 GB-s on Consumption at 128 MB, 4,752,000 GB-s on Flex at 2,048 MB. "
        "A tick every 1 s instead: 2,592,000 executions and storage requests, 32,400 and 5,184,000 GB-s"
    )


@pytest.mark.parametrize(
    ("schedule", "options", "told"),
    [
        ("*/30 * * * * *", {"linger_seconds": 55}, "the next is due after 30 s"),
        ("0 * * * * *", {"linger_seconds": 55, "time_budget_seconds": 20}, "ends a tick before linger_seconds=55"),
        ("0 */10 * * * *", {"linger_seconds": 590}, "functionTimeout"),
    ],
)
def test_doctor_warns_of_a_tick_that_cannot_linger_so_long(schedule: str, options: dict[str, Any], told: str) -> None:
    _, warning, cost = lingering(schedule, **options)
    assert (warning.grade, cost.grade) == ("warning", "ok")
    assert told in warning.text


def test_doctor_says_nothing_of_lingering_where_nobody_lingers() -> None:
    [requests] = lingering("0 * * * * *")
    assert requests.check == "requests"


def test_a_poller_that_lingers_is_at_work_and_has_no_problem() -> None:
    mine = poller(MemoryStateStore())
    shown: list[Any] = []

    def look(_seconds: float) -> None:
        shown.append(poller_status(mine, dt.datetime.now(dt.UTC)))
        end_lingering()

    lingers = PollTrigger(
        name="readings", source=Readings(), checkpoint_store=mine.store, linger_seconds=60, sleep=look
    )
    assert lingers.run(timer=None, handler=lambda events: None) == 10
    assert (shown[0].condition, shown[0].problems) == ("working", [])
    assert poller_status(mine, dt.datetime.now(dt.UTC)).condition == "idle"
