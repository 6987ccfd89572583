"""Garbage collection is put off while the events of a page are made, and goes on afterwards whatever happens."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from azure_functions_db.core.errors import SerializationError
from azure_functions_db.core.garbage import uncollected
from azure_functions_db.core.types import FetchResult, SourceDescriptor
from azure_functions_db.trigger.normalizers import EarlyEvents, RecordNormalizer

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
