"""Where a poller stands, when its store or its source is not one of this library."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from azure_functions_db import ConfigurationError, MemoryStateStore, PollTrigger, StateStoreError
from azure_functions_db.cli.apps import AppFunction
from azure_functions_db.cli.examination import examined
from azure_functions_db.cli.standing import standing_of, status_of
from azure_functions_db.cli.targets import AppPoller, Target
from azure_functions_db.core.types import SourceDescriptor

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


def target(store: Any) -> Target:
    trigger = PollTrigger(name="readings", source=Readings(), checkpoint_store=store, batch_size=4)
    host = type("Trigger", (), {"type": "queueTrigger"})()
    function = AppFunction("on_readings", lambda: None, host, (host,))
    return Target("readings", store, poller=AppPoller(function, trigger))


def test_a_store_with_five_methods_and_a_small_source_show_what_they_can() -> None:
    mine = target(FiveMethods(MemoryStateStore()))
    assert mine.poller is not None
    mine.poller.trigger.run(timer=None, handler=lambda events: None)

    standing = standing_of(mine, NOW)

    assert standing.key == {"number": 4}
    assert standing.waiting_rows == 6
    assert standing.lease is None
    assert standing.problems == []
    grades = {finding.check: finding.grade for finding in examined([mine]).pollers[0].findings}
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

    standing = standing_of(Target("readings", store), NOW + dt.timedelta(seconds=10))

    assert standing.lease is not None
    assert (standing.lease.alive, standing.lease.age_seconds, standing.lease.expires_in_seconds) == (True, 10, 50)
    assert (standing.cursor, standing.last_success_age_seconds) == (1, 310)
    assert standing.problems == ["the next batch has failed 2 time(s)"]


def test_the_rate_fades_while_nothing_comes() -> None:
    store = MemoryStateStore(clock=lambda: NOW)
    checkpoint = {"cursor": [1], "updated_at": "2026-01-01T12:00:00Z", "metadata": {"rows_per_second": 8.0}}
    store.commit_checkpoint("readings", checkpoint, store.acquire_lease("readings", 60))
    assert standing_of(Target("another", store), NOW).rows_per_second is None
    assert standing_of(Target("readings", store), NOW).rows_per_second == 8
    assert standing_of(Target("readings", store), NOW + dt.timedelta(minutes=5)).rows_per_second == pytest.approx(2.943)


def test_one_poller_that_cannot_be_read_does_not_hide_the_others() -> None:
    class Broken(FiveMethods):
        def __init__(self) -> None:
            super().__init__(MemoryStateStore())
            self.load_checkpoint = self._fail

        def _fail(self, poller_name: str) -> dict[str, Any]:
            raise StateStoreError("the storage is on fire")

    status = status_of([target(Broken()), target(FiveMethods(MemoryStateStore()))], NOW)

    assert [standing.problems for standing in status.pollers] == [["the storage is on fire"], []]
    assert status.has_problems
