"""Garbage collection is put off while events are made, and goes on afterwards whatever happens."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from azure_functions_db.core.errors import SerializationError
from azure_functions_db.core.types import SourceDescriptor
from azure_functions_db.trigger.normalizers import RecordNormalizer, normalized, uncollected

SOURCE = SourceDescriptor("numbers", "list", "sha256:numbers")


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
    assert len(normalized(normalizer, [{"id": 1}], SOURCE, {})) == 1
    assert (normalizer.was_collecting, gc.isenabled()) == (False, True)


def test_a_record_that_makes_no_event_leaves_the_collector_as_it_was() -> None:
    with pytest.raises(SerializationError):
        normalized(RecordNormalizer("id", ["id"]), [{}], SOURCE, {})
    assert gc.isenabled()


def test_an_app_that_wants_no_collection_gets_none() -> None:
    gc.disable()
    normalized(RecordNormalizer("id", ["id"]), [{"id": 1}], SOURCE, {})
    assert not gc.isenabled()


def test_a_process_that_was_forked_meanwhile_collects() -> None:
    with uncollected:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
