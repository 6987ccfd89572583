"""Garbage collection is put off while the events of a page are made, and goes on afterwards whatever happens.

It is spared the events themselves, but not what a handler makes of them.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from azure_functions_db.core.errors import HandlerError, SerializationError
from azure_functions_db.core.garbage import uncollected
from azure_functions_db.core.signals import BatchCommitted, Signal
from azure_functions_db.core.types import FetchResult, SourceDescriptor
from azure_functions_db.trigger.normalizers import EarlyEvents, RecordNormalizer, normalized
from azure_functions_db.trigger.retry import RetryPolicy
from tests.support.waiting import wait_for
from tests.unit.trigger.poller import ListSource, poller, run

if TYPE_CHECKING:
    from azure_functions_db.trigger.events import RowChange
    from azure_functions_db.trigger.handler import PollContext

SOURCE = SourceDescriptor("numbers", "list", "sha256:numbers")
PAGE = FetchResult([{"id": 1}], {"cursor": 1})


class Watching(RecordNormalizer):
    """Tells whether objects are looked through while it makes events."""

    def batch(self, *given: object, **named: object) -> list[object]:  # type: ignore[override]
        self.was_collecting = gc.isenabled()
        return super().batch(*given, **named)  # type: ignore[arg-type, return-value]


@pytest.fixture(autouse=True)
def _collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_nothing_is_collected_while_events_are_made() -> None:
    normalizer = Watching("id", ["id"])
    made = EarlyEvents.made(normalizer, PAGE, SOURCE)
    assert made is not None
    assert [event.pk for event in made.of({})] == [{"id": 1}]
    assert (normalizer.was_collecting, gc.isenabled()) == (False, True)


def test_a_record_that_makes_no_event_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(SerializationError):
        EarlyEvents.made(RecordNormalizer("id", ["id"]), FetchResult([{}], {}), SOURCE)
    assert gc.isenabled()


def test_an_app_that_wants_no_collection_gets_none() -> None:
    gc.disable()
    EarlyEvents.made(RecordNormalizer("id", ["id"]), PAGE, SOURCE)
    assert not gc.isenabled()


def test_a_process_that_was_forked_meanwhile_collects() -> None:
    with uncollected:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class Rows(ListSource):
    """Hands out rows that nobody else has, as a database does."""

    def fetch(self, cursor: Any, batch_size: int) -> Sequence[Any]:
        return [dict(row) for row in super().fetch(cursor, batch_size)]


class Extra:
    """What a handler hangs on a row: it knows the event that it belongs to, which makes a cycle."""

    def __init__(self, about: object) -> None:
        self.about = about


class Enriching:
    """A handler, or an observer, that hangs things on rows and keeps nothing."""

    def __init__(self, *, fails: int = 0) -> None:
        self.fails = fails
        self.made: list[weakref.ref[Extra]] = []
        self.were_tracked: set[bool] = set()

    def enrich(self, event: RowChange, about: object) -> None:
        extra = Extra(about)
        self.made.append(weakref.ref(extra))
        event.after["extra"] = extra  # type: ignore[index]  # a row is a dict, and one's own

    def given(self, events: list[RowChange]) -> None:
        self.were_tracked |= set(map(gc.is_tracked, events))
        for event in events:
            self.enrich(event, event)
        self._end()

    def taken(self, events: list[RowChange]) -> None:
        while events:
            event = events.pop()
            self.enrich(event, event)
        self._end()

    def in_context(self, _events: list[RowChange], context: PollContext) -> None:
        self.enrich(context.events[0], context.events)
        self._end()

    def at_first(self, events: list[RowChange], context: PollContext) -> None:
        if context.attempt == 1:
            self.in_context(events, context)

    def notice(self, signal: Signal) -> None:
        if isinstance(signal, BatchCommitted):
            for event in signal.events:
                self.enrich(event, signal)  # type: ignore[arg-type]  # they are what was handled

    def _end(self) -> None:
        self.fails -= 1
        if self.fails >= 0:
            raise ValueError("not now")

    def leaves_nothing(self) -> None:
        assert self.made
        # A thread that renewed the lease ends in its own time.
        wait_for(lambda: gc.collect() is not None and not any(extra() for extra in self.made), 30, "a row stays")


def test_the_collector_is_not_shown_events_that_nobody_keeps() -> None:
    enriching = Enriching()
    assert run(poller(Rows(10), batch_size=5, max_batches_per_tick=2), enriching.given) == 10
    assert enriching.were_tracked == {False}


def test_nor_those_of_a_page_that_was_read_ahead() -> None:
    early = EarlyEvents.made(RecordNormalizer("id", ["id"]), PAGE, SOURCE)
    assert early is not None
    assert [*map(gc.is_tracked, early.of({}))] == [False]


def test_events_outside_of_a_tick_are_as_any_other_objects() -> None:
    events = normalized(RecordNormalizer("id", ["id"]), [{"id": 1}], SOURCE, {})
    assert [*map(gc.is_tracked, events)] == [True]


def test_events_that_are_kept_are_shown_to_it() -> None:
    kept: list[RowChange] = []
    run(poller(Rows(10), batch_size=5), kept.extend)
    assert set(map(gc.is_tracked, kept)) == {True}


@pytest.mark.parametrize("handle", [Enriching.given, Enriching.taken, Enriching.in_context])
def test_what_a_handler_hangs_on_its_rows_is_collected(handle: Callable[..., None]) -> None:
    enriching = Enriching()
    run(poller(Rows(10), batch_size=3, max_batches_per_tick=10), handle.__get__(enriching))
    enriching.leaves_nothing()


@pytest.mark.parametrize("handle", [Enriching.given, Enriching.taken, Enriching.in_context])
def test_it_is_where_the_handler_fails(handle: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # what is logged is kept, with all that had a part in it
    enriching = Enriching(fails=1)
    with pytest.raises(HandlerError):
        run(poller(Rows(10), batch_size=3), handle.__get__(enriching))
    enriching.leaves_nothing()


def test_it_is_where_the_handler_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # what is logged is kept, with all that had a part in it
    enriching = Enriching(fails=1)
    trigger = poller(Rows(3), retry_policy=RetryPolicy(max_attempts=2))
    assert run(trigger, enriching.at_first) == 3
    enriching.leaves_nothing()


def test_what_an_observer_hangs_on_rows_is_collected() -> None:
    enriching = Enriching()
    run(poller(Rows(10), observers=[enriching], batch_size=3), lambda _events: None)
    enriching.leaves_nothing()


class Keeping(RecordNormalizer):
    """A normaliser of the user's own, which knows the last events that it made."""

    last: Sequence[RowChange] = ()

    def batch(self, *given: Any, **named: Any) -> list[RowChange]:
        self.last = super().batch(*given, **named)
        return self.last


def test_the_events_of_ones_own_normalizer_stay_in_its_sight() -> None:
    normalizer = Keeping("version", ["id"])
    run(poller(Rows(3), normalizer=normalizer), lambda _events: None)
    assert set(map(gc.is_tracked, normalizer.last)) == {True}


class Packing(RecordNormalizer):
    """A normaliser whose events come in a tuple."""

    def batch(self, *given: Any, **named: Any) -> Any:
        return tuple(super().batch(*given, **named))


def test_a_normalizer_may_return_any_sequence() -> None:
    assert run(poller(Rows(3), normalizer=Packing("version", ["id"])), lambda _events: None) == 3
